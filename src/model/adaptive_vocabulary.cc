#include "model/adaptive_vocabulary.h"

#include "core/error.h"
#include "model/config.h"

namespace lazy {

int64_t AdaptiveVocabulary::width_of(int64_t cluster) const {
  int64_t out = width;
  for (int64_t n = 0; n < cluster; ++n) out /= divisor;
  return out;
}

void AdaptiveVocabulary::validate(int64_t vocabulary) const {
  check_range(width, "d_embed", 1, int64_t{1} << 20);
  check_range(divisor, "div_val", 1, int64_t{1} << 20);
  check_range(clusters(), "cutoffs: clusters", 1, 64);
  int64_t before = 0;
  for (const int64_t cutoff : cutoffs) {
    if (cutoff <= before || cutoff >= vocabulary) {
      fail("model", "cutoffs: expected ascending ids between 0 and vocab_size ({}), found {} after {}", vocabulary,
           cutoff, before);
    }
    before = cutoff;
  }
  if (width_of(clusters() - 1) < 1)
    fail("model",
         "div_val: expected every cluster to have an embedding width of at least 1, found d_embed {}, div_val {}",
         width, divisor);
}

std::string adaptive_name(const char* name, int64_t number) {
  std::string out = name;
  const size_t place = out.find("{}");
  return place == std::string::npos ? out : out.replace(place, 2, std::to_string(number));
}

}  // namespace lazy
