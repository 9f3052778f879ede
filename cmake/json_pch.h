// Precompiled for files that handle JSON values.
#pragma once
#include <nlohmann/json.hpp>

#include "std_pch.h"
