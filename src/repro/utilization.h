// The share of an H200's peak at which models train, measured.
#pragma once
#include "model/config.h"

namespace lazy::repro {

// Of 989 TFLOP/s in bf16, 0 to 1. large: a model of 340M or more at context 4096, else one of 55M at 512.
double gpu_utilization(const ModelConfig& model, bool large);

}  // namespace lazy::repro
