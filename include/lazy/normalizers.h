// The normalizers: functions that convert one row of attention scores to weights. One table lists the parameters and
// properties of each. The kernels, the argument checks of the operators and the tests use this table.
#pragma once
#include <array>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace lazy::kernels {

enum class Normalizer { softmax, elastic, sparsemax, entmax15, sigmoid, softmax_sink, softpick, elastic_sink };

// Normalizers of one family share a kernel.
enum class NormalizerFamily {
  exponential,  // weights are exp(s - lse), plus an offset if the normalizer takes tau; lse includes the sink if any
  threshold,    // weights are a power of max(s - threshold, 0) and sum to one
  sigmoid,      // each weight depends only on its own score
  rectified,    // weights are max(exp(s) - 1, 0) over a sum of |exp(s) - 1|
};
inline constexpr NormalizerFamily kAllFamilies[] = {NormalizerFamily::exponential, NormalizerFamily::threshold,
                                                    NormalizerFamily::sigmoid, NormalizerFamily::rectified};

struct NormalizerTraits {
  Normalizer normalizer;
  const char* name;  // name in the operators' arguments and in configuration files
  NormalizerFamily family;
  bool takes_tau = false;           // has the parameter tau and the option `offset`
  bool takes_sink = false;          // has the parameter sink
  bool takes_sigmoid_bias = false;  // has the option sigmoid_bias
  bool has_lse = true;              // the forward pass writes a statistic per row to Forward::lse
};

// The table of all normalizers, in the order of the enumeration Normalizer.
inline constexpr NormalizerTraits kNormalizers[] = {
    {Normalizer::softmax, "softmax", NormalizerFamily::exponential},
    {Normalizer::elastic, "elastic", NormalizerFamily::exponential, /*takes_tau=*/true},
    {Normalizer::sparsemax, "sparsemax", NormalizerFamily::threshold},
    {Normalizer::entmax15, "entmax15", NormalizerFamily::threshold},
    {Normalizer::sigmoid, "sigmoid", NormalizerFamily::sigmoid, /*takes_tau=*/false, /*takes_sink=*/false,
     /*takes_sigmoid_bias=*/true, /*has_lse=*/false},
    {Normalizer::softmax_sink, "softmax_sink", NormalizerFamily::exponential, /*takes_tau=*/false, /*takes_sink=*/true},
    {Normalizer::softpick, "softpick", NormalizerFamily::rectified},
    {Normalizer::elastic_sink, "elastic_sink", NormalizerFamily::exponential, /*takes_tau=*/true, /*takes_sink=*/true},
};

static_assert(
    [] {
      for (size_t n = 0; n < std::size(kNormalizers); ++n) {
        if (static_cast<size_t>(kNormalizers[n].normalizer) != n) return false;
      }
      return true;
    }(),
    "kNormalizers follows the order of Normalizer");

// Softpick adds this constant to its denominator, after multiplying it by exp(max(largest score, 0)).
inline constexpr double kSoftpickEpsilon = 1e-8;

// Returns null for a value that the table does not list.
constexpr const NormalizerTraits* find_traits(Normalizer normalizer) {
  const auto n = static_cast<size_t>(normalizer);
  return n < std::size(kNormalizers) ? &kNormalizers[n] : nullptr;
}

// Returns an error message such as "unknown normalizer (number 9)".
inline std::string unknown_normalizer(Normalizer normalizer) {
  return "unknown normalizer (number " + std::to_string(static_cast<int>(normalizer)) + ")";
}

// Throws std::invalid_argument for a value that the table does not list.
inline const NormalizerTraits& traits(Normalizer normalizer) {
  if (const NormalizerTraits* found = find_traits(normalizer)) return *found;
  throw std::invalid_argument(unknown_normalizer(normalizer));
}

inline const char* name(Normalizer normalizer) { return traits(normalizer).name; }

inline std::optional<Normalizer> normalizer_from_name(std::string_view name) {
  for (const NormalizerTraits& t : kNormalizers) {
    if (name == t.name) return t.normalizer;
  }
  return std::nullopt;
}

// All normalizers of the table, for use in loops over them.
inline constexpr auto kAllNormalizers = [] {
  std::array<Normalizer, std::size(kNormalizers)> all{};
  for (size_t n = 0; n < all.size(); ++n) all[n] = kNormalizers[n].normalizer;
  return all;
}();

}  // namespace lazy::kernels
