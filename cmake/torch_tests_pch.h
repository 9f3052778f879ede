// Precompiled for the tests that use tensors.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "torch_pch.h"
