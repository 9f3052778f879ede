// gpt-oss (OpenAI 2025): Llama's layout with a learned sink in every head's softmax, alternating windows, YaRN, biases
// and a mixture of experts; GptOssForCausalLM. Weights in MXFP4 are opened as what they stand for (model/mxfp4.h).
#pragma once
#include "model/families/family.h"

namespace lazy {

extern const Family kGptOss;

}  // namespace lazy
