// The one question about the machine that a configuration asks; apart, so that reading one needs no LibTorch.
#include <ATen/cpu/Utils.h>

#include "train/config.h"

namespace lazy::train {

std::string resolve_dtype(const std::string& dtype) {
  if (dtype != "auto") return dtype;
  const auto capabilities = at::cpu::get_cpu_capabilities();
  const auto amx = capabilities.find("amx_bf16");
  return amx != capabilities.end() && amx->second.isBool() && amx->second.toBool() ? "bf16" : "fp32";
}

}  // namespace lazy::train
