#include "eval/length/rolling.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/error.h"

namespace lazy::eval::length {
namespace {

constexpr size_t kNotScored = ~size_t{0};

// What the windows run over: tokens, and the unit that each is counted in.
struct Stream {
  std::vector<int32_t> ids;
  std::vector<size_t> units;
};

}  // namespace

int position_bin(int64_t visible) { return std::bit_width(static_cast<uint64_t>(visible - 1)); }
int64_t bin_first(int bin) { return bin == 0 ? 1 : (int64_t{1} << (bin - 1)) + 1; }
int64_t bin_last(int bin) { return int64_t{1} << bin; }

RollingSums score_rolling(const Scorer& scorer, const TextSet& text, int64_t length, int64_t block,
                          const RollingOptions& options, const std::string& title) {
  if (options.stride < 0 || options.stride > length)
    fail("eval", "stride: expected 1 to {} (the length), found {}", length, options.stride);
  std::vector<Stream> streams;
  size_t units = 0, position = 0;
  for (size_t d = 0; d < text.documents.size(); ++d) {
    if (streams.empty() || options.per_document) {
      streams.emplace_back();
    } else if (options.bos) {
      streams.back().ids.push_back(options.first_context);
      streams.back().units.push_back(kNotScored);
    }
    for (const int32_t id : text.documents[d]) {
      const size_t unit = block > 0 ? position++ / static_cast<size_t>(block) : d;
      streams.back().ids.push_back(id);
      streams.back().units.push_back(unit);
      units = std::max(units, unit + 1);
    }
  }
  if (block == 0) units = text.documents.size();

  const int64_t context = options.stride > 0 ? length - options.stride + 1 : 1;
  std::vector<Window> windows;
  std::vector<size_t> target_units;
  for (const Stream& stream : streams) {
    for (Window& window : rolling_windows(stream.ids, options.first_context, length, context)) {
      if (options.bos) window.input[0] = options.first_context;
      windows.push_back(std::move(window));
    }
    target_units.insert(target_units.end(), stream.units.begin(), stream.units.end());
  }

  const size_t bins = static_cast<size_t>(position_bin(length)) + 1;
  RollingSums sums{.loss = std::vector<double>(units), .tokens = std::vector<double>(units)};
  sums.bin_loss.assign(bins, std::vector<double>(units));
  sums.bin_tokens = sums.bin_loss;
  const std::vector<Score> scores = scorer(windows, title);
  size_t at = 0;  // rolling windows predict the stream's tokens in order, each once
  for (size_t w = 0; w < windows.size(); ++w) {
    const size_t before = windows[w].input.size() - windows[w].targets.size();
    for (size_t t = 0; t < windows[w].targets.size(); ++t) {
      const size_t unit = target_units[at++];
      if (unit == kNotScored) continue;
      const double loss = -static_cast<double>(scores[w].targets[t].log_likelihood);
      const auto bin = static_cast<size_t>(position_bin(static_cast<int64_t>(before + t) + 1));
      if (!std::isfinite(loss)) ++sums.not_finite;
      sums.loss[unit] += loss;
      sums.tokens[unit] += 1;
      sums.bin_loss[bin][unit] += loss;
      sums.bin_tokens[bin][unit] += 1;
    }
  }
  return sums;
}

}  // namespace lazy::eval::length
