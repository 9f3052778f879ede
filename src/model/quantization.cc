#include "model/quantization.h"

#include <fmt/ranges.h>

#include "core/enum_table.h"
#include "core/error.h"
#include "core/text.h"

namespace lazy {
namespace {

using ops::RoundingUnit;

constexpr auto kUnits = enum_table<RoundingUnit>(
    {{RoundingUnit::tensor, "tensor"}, {RoundingUnit::token, "token"}, {RoundingUnit::channel, "channel"}});

struct Format {
  const char* name;
  int64_t products;  // bits of the weights and inputs of matrix products; 0: not rounded
  int64_t cache;     // bits of the cached keys and values; 0: not rounded
};
constexpr Format kFormats[] = {{"w8a8", 8, 0}, {"w4a4", 4, 0}, {"kv8", 0, 8}, {"kv4", 0, 4}};

}  // namespace

Quantization Quantization::parse(const std::string& text, const std::string& option) {
  const auto wrong = [&] {
    std::vector<std::string> names;
    for (const Format& format : kFormats) names.emplace_back(format.name);
    fail("model",
         "{}: expected at most one format for weights (w...) and one for the KV cache (kv...) out of {}, each "
         "optionally "
         "followed by :{}, found '{}'",
         option, fmt::join(names, ", "), fmt::join(kUnits.names(), ", :"), to_valid_utf8(text));
  };
  Quantization out;
  for (const std::string& part : split(text, ',')) {
    const size_t colon = part.find(':');
    const auto unit = colon == std::string::npos ? RoundingUnit::token : kUnits.find(part.substr(colon + 1));
    const Format* found = nullptr;
    for (const Format& format : kFormats) {
      if (part.substr(0, colon) == format.name) found = &format;
    }
    if (!found || !unit || (found->products > 0 ? out.weights.used() : out.cache.used())) wrong();
    if (found->products > 0) out.weights = out.inputs = {found->products, *unit};
    if (found->cache > 0) out.cache = {found->cache, *unit};
  }
  return out;
}

}  // namespace lazy
