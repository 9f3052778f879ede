// Precompiled for the tests of rooms without Torch.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "std_pch.h"
