#include "model/kv_cache.h"

#include <charconv>

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

std::string StreamingCache::name() const { return fmt::format("streaming:{}+{}", sinks, recent); }

StreamingCache StreamingCache::parse(const std::string& text, const std::string& option) {
  constexpr std::string_view kPrefix = "streaming:";
  StreamingCache cache;
  const size_t plus = text.find('+');
  const std::string_view all = text;
  if (!all.starts_with(kPrefix) || plus == std::string::npos ||
      !read(all.substr(kPrefix.size(), plus - kPrefix.size()), 0, cache.sinks) ||
      !read(all.substr(plus + 1), 1, cache.recent)) {
    fail("model",
         "{}: expected streaming:FIRST+LAST, tokens to keep (at least 0 and 1), such as streaming:4+508, found '{}'",
         option, to_valid_utf8(text));
  }
  return cache;
}

}  // namespace lazy
