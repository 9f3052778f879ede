// Fields of config.json in the convention of flash-linear-attention, where sizes are given as factors (expand_k,
// expand_v, expand).
#pragma once
#include <cmath>

#include "model/config_json.h"

namespace lazy {

// Returns the value of the field `name` (`otherwise` if it is absent) times `base`. Throws Error if the product is not
// an integer.
inline int64_t expanded(const config_json::Fields& fields, const char* name, double otherwise, int64_t base) {
  double factor = otherwise;
  fields.number({name}, factor);
  const double size = factor * static_cast<double>(base);
  if (!(size >= 0.5 && size < 1e9) || std::abs(size - std::round(size)) > 1e-6 * size) {
    fields.wrong(name, fmt::format("a factor whose product with {} is an integer", base).c_str(), factor);
  }
  return std::llround(size);
}

// Returns the size of one head: expanded(fields, name, otherwise, base) / heads. Throws Error if the division leaves a
// remainder.
inline int64_t expanded_head(const config_json::Fields& fields, const char* name, double otherwise, int64_t base,
                             int64_t heads) {
  const int64_t size = expanded(fields, name, otherwise, base);
  if (heads < 1 || size % heads != 0) {
    fields.wrong("num_heads", fmt::format("a divisor of {} ({} times {})", size, name, base).c_str(), heads);
  }
  return size / heads;
}

// Reads the fields of Mamba2 that describe the heads. `size` is the field name of the head size (default 64), and
// `width` is the field name of the hidden size. Returns the inner width, which is the field `expand` times the hidden
// size.
inline int64_t read_inner_heads(const config_json::Fields& fields, const char* size, const char* width,
                                ModelConfig& m) {
  MixerConfig& x = m.mixer;
  x.value_dim = 64;
  fields.integer({size}, x.value_dim);
  const int64_t inner = expanded(fields, "expand", 2, m.hidden_size);
  if (x.value_dim < 1 || inner % x.value_dim != 0) {
    fields.wrong(size, fmt::format("a divisor of {} (expand times {})", inner, width).c_str(), x.value_dim);
  }
  x.heads = inner / x.value_dim;
  return inner;
}

// Checks the field `name`, which selects a method. Throws Error if it has a value other than `only`, the supported
// method.
inline void require_value(const config_json::Fields& fields, const char* name, const char* only) {
  std::string found = only;
  fields.string({name}, found);
  if (found != only)
    fields.wrong(name, fmt::format("{} (other values are not supported by this decoder)", only).c_str(), found);
}

// Checks the optional boolean field `name`. Throws Error if it is false.
inline void require_true(const config_json::Fields& fields, const char* name) {
  bool on = true;
  fields.boolean({name}, on);
  if (!on) fields.wrong(name, "true (false is not supported by this decoder)", on);
}

inline double ratio(int64_t size, int64_t base) { return static_cast<double>(size) / static_cast<double>(base); }

}  // namespace lazy
