// Tests tokenizer.json files that are processed by Hugging Face's package `tokenizers` in a Python process.
#include <sys/types.h>

#include <nlohmann/json.hpp>

#include <csignal>
#include <fstream>
#include <thread>

#include "support.h"

namespace lazy {
using namespace testing_support;

namespace {

class LibraryTokenizer : public testing::Test {
 protected:
  void SetUp() override {
    if (!python_has("tokenizers")) GTEST_SKIP() << LAZY_TEST_PYTHON << " does not have the package `tokenizers`";
  }
  std::unique_ptr<Tokenizer> load(const nlohmann::ordered_json& tokenizer) const {
    return load_tokenizer(folder_.write("tokenizer.json", tokenizer.dump()).string());
  }
  const Folder folder_;
  const EnvironmentVariable interpreter_{"LAZY_PYTHON", LAZY_TEST_PYTHON};
};

nlohmann::ordered_json word_piece() {
  return {{"version", "1.0"},
          {"added_tokens", {{{"id", 6}, {"content", "[SEP]"}, {"special", true}, {"normalized", false}}}},
          {"normalizer", {{"type", "Lowercase"}}},
          {"pre_tokenizer", {{"type", "Whitespace"}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", false}}},
          {"model",
           {{"type", "WordPiece"},
            {"unk_token", "[UNK]"},
            {"continuing_subword_prefix", "##"},
            {"max_input_chars_per_word", 100},
            {"vocab", {{"[UNK]", 0}, {"hello", 1}, {"world", 2}, {"##s", 3}, {"!", 4}, {"a", 5}}}}}};
}

// A tokenizer whose decoder first converts byte tokens to characters and then replaces the space symbol U+2581.
nlohmann::ordered_json bytes_first() {
  nlohmann::ordered_json vocab = {{"<unk>", 0}};
  for (int b = 0; b < 256; ++b) vocab[fmt::format("<0x{:02X}>", b)] = b + 1;
  vocab["\u2581"] = 257;
  vocab["a"] = 258;
  return {{"version", "1.0"},
          {"added_tokens", nlohmann::ordered_json::array()},
          {"normalizer", {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"byte_fallback", true},
            {"vocab", vocab},
            {"merges", nlohmann::ordered_json::array()}}}};
}

std::string streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) text += tokenizer.next_piece(std::span(ids).first(i), ids[i]);
  return text;
}

TEST_F(LibraryTokenizer, WordPiece_EncodesAndDecodes) {
  const auto tokenizer = load(word_piece());
  EXPECT_EQ(tokenizer->kind(), "tokenizers");
  const std::vector<int32_t> ids = {1, 2, 3, 4, 6, 5};
  EXPECT_EQ(tokenizer->encode("Hello WORLDS! [SEP]a"), ids);
  EXPECT_EQ(tokenizer->encode_batch(std::vector<std::string>{"a", "", "worlds"}),
            (std::vector<std::vector<int32_t>>{{5}, {}, {2, 3}}));
  EXPECT_EQ(tokenizer->decode(ids), "hello worlds ! [SEP] a");
  EXPECT_EQ(streamed(*tokenizer, ids), tokenizer->decode(ids));
  EXPECT_TRUE(tokenizer->is_special(6));
  EXPECT_EQ(tokenizer->vocab_size(), 7);
  EXPECT_THAT(error_of([&] { tokenizer->piece(7); }), Names({"id", 7, 6}));
  tokenizer->save(folder_ / "saved");
  EXPECT_EQ(load_tokenizer((folder_ / "saved").string())->fingerprint(), tokenizer->fingerprint());
}

TEST_F(LibraryTokenizer, PartialCharacter_IsStreamedAsBytes) {
  const auto tokenizer = load(bytes_first());
  EXPECT_EQ(tokenizer->kind(), "tokenizers");
  const std::vector<int32_t> ids = tokenizer->encode("a \u00e9\u4e2da");
  EXPECT_EQ(tokenizer->decode(ids), "a \u00e9\u4e2da");
  EXPECT_EQ(streamed(*tokenizer, ids), "a \u00e9\u4e2da");
}

TEST_F(LibraryTokenizer, ConcurrentThreads_ShareTheProcess) {
  const auto tokenizer = load(word_piece());
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) wrong += tokenizer->encode("hello worlds") != std::vector<int32_t>{1, 2, 3};
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// Returns the child processes of this process.
std::vector<pid_t> children() {
  std::vector<pid_t> found;
  std::ifstream list(fmt::format("/proc/self/task/{}/children", ::getpid()));
  for (pid_t child; list >> child;) found.push_back(child);
  return found;
}

TEST_F(LibraryTokenizer, TerminatedProcess_IsRestarted) {
  const auto tokenizer = load(word_piece());
  const std::vector<pid_t> all = children();
  if (all.size() != 1) GTEST_SKIP() << "the system does not list the children of a process";
  ::kill(all[0], SIGKILL);
  for (int i = 0; i < 1000 && read_file(fmt::format("/proc/{}/stat", all[0])).find(") Z") == std::string::npos; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(tokenizer->encode("hello"), std::vector<int32_t>{1});
}

TEST_F(LibraryTokenizer, PackageError_IsOneLine) {
  auto json = word_piece();
  json["model"]["vocab"].erase("[UNK]");
  json["normalizer"] = {{"type", "NoSuchNormalizer"}};
  const std::string message = error_of([&] { load(json); });
  EXPECT_THAT(message, Names({"tokenizer.json", "model.type", "WordPiece", "tokenizers"}));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace lazy
