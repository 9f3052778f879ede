#include "generate/output_text.h"

#include <gtest/gtest.h>

namespace lazy {
namespace {

// A tokenizer in which the ids below 256 are bytes, 256 is "</s>" and 257 is "<note>".
class SpecialBytes final : public Tokenizer {
 public:
  SpecialBytes() {
    table_.added = {{.id = 256, .content = "</s>", .special = true}, {.id = 257, .content = "<note>", .special = true}};
    table_.index();
  }
  std::vector<int32_t> encode(std::string_view text) const override { return {text.begin(), text.end()}; }
  std::string decode(std::span<const int32_t>) const override { return ""; }
  std::string piece(int32_t id) const override {
    return id < 256 ? std::string(1, static_cast<char>(id)) : table_.added[static_cast<size_t>(id - 256)].content;
  }
  int64_t vocab_size() const override { return 258; }
  uint64_t fingerprint() const override { return 1; }
  std::string kind() const override { return "bytes"; }
  void save(const std::filesystem::path&) const override {}
};

struct Visible {
  std::string text;
  bool stopped;
  bool operator==(const Visible&) const = default;
};

Visible output_of(const std::vector<int64_t>& ids, std::vector<std::string> stop, bool skip = true) {
  const SpecialBytes tokenizer;
  OutputText output(tokenizer, std::move(stop), skip);
  Visible out;
  for (const int64_t id : ids) {
    if (!output.stopped()) out.text += output.push(id);
  }
  out.stopped = output.stopped();
  out.text += output.finish();
  return out;
}

TEST(OutputText, SpecialTokens_AreOmitted) {
  EXPECT_EQ(output_of({'a', 257, 'b', 256, 256, 'c'}, {}), (Visible{"abc", false}));
  EXPECT_EQ(output_of({'a', 257, 'b'}, {}, false), (Visible{"a<note>b", false}));
}

TEST(OutputText, StopStrings_MatchSpecialTokens) {
  EXPECT_EQ(output_of({'a', 'b', 256, 'c'}, {"</s>"}), (Visible{"ab", true}));
  EXPECT_EQ(output_of({'a', 'b', 256, 'c'}, {"b</s"}), (Visible{"a", true}));
  EXPECT_EQ(output_of({'a', 257, 'b', 'c'}, {"note>b"}), (Visible{"a", true}));
  EXPECT_EQ(output_of({'a', 256, 'b', 'c'}, {"a</s>b"}, false), (Visible{"", true}));
}

// Text is held back while it may become a stop string. If the stop string does not occur, the text is released, but the
// special tokens in it stay hidden.
TEST(OutputText, HeldBackText_IsReleasedWithoutSpecialTokens) {
  EXPECT_EQ(output_of({'a', 256, 'b', 'x', 'y'}, {"a</s>bc"}), (Visible{"abxy", false}));
  EXPECT_EQ(output_of({'a', 256, 'b'}, {"a</s>bc"}), (Visible{"ab", false}));
  EXPECT_EQ(output_of({'x', 256, 257, 'a', 256}, {"a</s>b"}), (Visible{"xa", false}));
}

TEST(OutputText, CharacterInterruptedByASpecialToken_IsReplaced) {
  EXPECT_EQ(output_of({0xC3, 256, 'a'}, {}), (Visible{"\uFFFDa", false}));
  EXPECT_EQ(output_of({0xC3, 0xA9, 'a'}, {}), (Visible{"\u00E9a", false}));
}

}  // namespace
}  // namespace lazy
