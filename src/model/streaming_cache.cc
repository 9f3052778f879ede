#include "model/streaming_cache.h"

#include <charconv>
#include <string_view>

#include "core/error.h"
#include "core/text.h"

namespace lazy {
namespace {

constexpr int64_t kMost = int64_t{1} << 30;

bool read(std::string_view text, int64_t smallest, int64_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size() && out >= smallest && out <= kMost;
}

}  // namespace

std::string StreamingCache::name() const {
  return heavy > 0 ? fmt::format("heaviest:{}+{}", heavy, recent) : fmt::format("streaming:{}+{}", sinks, recent);
}

StreamingCache StreamingCache::parse(const std::string& text, const std::string& option) {
  const size_t colon = text.find(':'), plus = text.find('+');
  const std::string_view all = text, kind = all.substr(0, colon);
  const bool heaviest = kind == "heaviest";
  StreamingCache cache{.sinks = 0};
  int64_t& first = heaviest ? cache.heavy : cache.sinks;
  if ((!heaviest && kind != "streaming") || colon == std::string::npos || plus == std::string::npos || plus < colon ||
      !read(all.substr(colon + 1, plus - colon - 1), heaviest ? 1 : 0, first) ||
      !read(all.substr(plus + 1), 1, cache.recent)) {
    fail("model",
         "{}: expected streaming:FIRST+LAST with FIRST >= 0 and LAST >= 1 tokens to retain, such as streaming:4+508, "
         "or heaviest:HEAVY+LAST with HEAVY >= 1 and LAST >= 1, found '{}'",
         option, to_valid_utf8(text));
  }
  return cache;
}

}  // namespace lazy
