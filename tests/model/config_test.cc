#include "model/config.h"

#include <gtest/gtest.h>

namespace {
TEST(ModelConfig, Placeholder) {}
}
