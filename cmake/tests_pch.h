// Precompiled for the tests of rooms without Torch.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "json_pch.h"
