// Tests which file of a folder load_tokenizer() uses.
#include <nlohmann/json.hpp>

#include "core/text.h"
#include "data/tokenizer.h"
#include "data/tokenizers/sentencepiece.h"
#include "support.h"

namespace lazy {
using namespace testing_support;
using ::testing::IsEmpty;

namespace {

const char* const kText = "The words, 42 of them:\n  \"new lines\" and a <|chat|> token";

std::unique_ptr<Tokenizer> trained_tokenizer() {
  Random random(29);
  std::vector<std::string> texts;
  for (int i = 0; i < 300; ++i) texts.push_back(to_valid_utf8(random_text(random, 40)));
  return train_sentencepiece(texts, 500);
}

nlohmann::ordered_json read_json(const fs::path& path) { return nlohmann::ordered_json::parse(read_file(path)); }

// Loads the tokenizer of the folder. Returns what was written to stderr, and the tokenizer.
std::pair<std::string, std::unique_ptr<Tokenizer>> load(const fs::path& folder) {
  testing::internal::CaptureStderr();
  auto tokenizer = load_tokenizer(folder.string());
  return {testing::internal::GetCapturedStderr(), std::move(tokenizer)};
}

void add_chat_token(const Folder& folder, int64_t id) {
  auto json = read_json(folder / "tokenizer.json");
  json["added_tokens"].push_back({{"id", id}, {"content", "<|chat|>"}, {"special", true}, {"normalized", false}});
  folder.write("tokenizer.json", json.dump());
}

}  // namespace

TEST(LoadTokenizer, SavedFolder_LoadsWithoutWarning) {
  const Folder folder;
  const auto saved = trained_tokenizer();
  saved->save(folder.path());
  ASSERT_TRUE(fs::exists(folder / "tokenizer.model") && fs::exists(folder / "tokenizer.json"));
  const auto [warning, tokenizer] = load(folder.path());
  EXPECT_THAT(warning, IsEmpty());
  EXPECT_EQ(tokenizer->fingerprint(), saved->fingerprint());
  for (const char* text : {kText, "\xE2\x96\x81 x"}) {
    EXPECT_EQ(tokenizer->encode(text), saved->encode(text));
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
}

// If tokenizer.json and tokenizer.model have the same vocabulary, the fingerprint of tokenizer.model is used. This is
// also true after the tokenizer has been saved again.
TEST(LoadTokenizer, EquivalentFiles_KeepModelFingerprint) {
  const Folder folder;
  const auto saved = trained_tokenizer();
  saved->save(folder.path());
  // the same content as save() writes, but with different formatting
  folder.write("tokenizer.json", read_json(folder / "tokenizer.json").dump(2));
  const auto [warning, tokenizer] = load(folder.path());
  EXPECT_THAT(warning, IsEmpty());
  EXPECT_EQ(tokenizer->fingerprint(), saved->fingerprint());
  EXPECT_EQ(tokenizer->vocab_size(), saved->vocab_size());
  EXPECT_EQ(tokenizer->bos_id(), saved->bos_id());
  EXPECT_EQ(tokenizer->eos_id(), saved->eos_id());
  EXPECT_EQ(tokenizer->encode(kText), saved->encode(kText));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(kText)), kText);
  EXPECT_EQ(tokenizer->encode("<s>"), std::vector<int32_t>{1}) << "tokenizer.json must be the file that is read";
  tokenizer->save(folder / "again");
  const auto [none, again] = load(folder / "again");
  EXPECT_THAT(none, IsEmpty());
  EXPECT_EQ(again->fingerprint(), saved->fingerprint());
}

TEST(LoadTokenizer, DifferentFiles_UseTokenizerJson) {
  const Folder folder;
  const auto saved = trained_tokenizer();
  saved->save(folder.path());
  add_chat_token(folder, saved->vocab_size());
  const auto [warning, tokenizer] = load(folder.path());
  EXPECT_THAT(warning, Names({(folder / "tokenizer.json").string(), (folder / "tokenizer.model").string()}));
  EXPECT_EQ(split(warning, '\n').size(), 2u) << "one line: " << warning;
  EXPECT_EQ(tokenizer->vocab_size(), saved->vocab_size() + 1);
  EXPECT_EQ(tokenizer->encode("<|chat|>"), std::vector<int32_t>{static_cast<int32_t>(saved->vocab_size())});
  EXPECT_NE(tokenizer->fingerprint(), saved->fingerprint());
  EXPECT_THAT(load(folder.path()).first, IsEmpty()) << "warned twice";
}

// The two files of the folder have different merges. load_tokenizer() must detect this by encoding probe texts, even
// without any added token.
TEST(LoadTokenizer, DifferentMerges_AreDetected) {
  const Folder folder;
  trained_tokenizer()->save(folder.path());
  auto json = read_json(folder / "tokenizer.json");
  json["model"]["merges"] = nlohmann::ordered_json::array();
  folder.write("tokenizer.json", json.dump());
  const auto [warning, tokenizer] = load(folder.path());
  EXPECT_THAT(warning, Names({(folder / "tokenizer.json").string(), (folder / "tokenizer.model").string()}));
  EXPECT_EQ(tokenizer->encode("the").size(), 3u);
}

TEST(LoadTokenizer, SingleFile_IsRead) {
  const Folder folder;
  const auto saved = trained_tokenizer();
  saved->save(folder.path());
  fs::create_directories(folder / "model");
  fs::create_directories(folder / "json");
  fs::copy_file(folder / "tokenizer.model", folder / "model/tokenizer.model");
  fs::copy_file(folder / "tokenizer.json", folder / "json/tokenizer.json");
  const auto [no_warning, model] = load(folder / "model");
  EXPECT_THAT(no_warning, IsEmpty());
  EXPECT_EQ(model->fingerprint(), saved->fingerprint());
  const auto [none, json] = load(folder / "json");
  EXPECT_THAT(none, IsEmpty());
  EXPECT_NE(json->fingerprint(), saved->fingerprint());
  for (const auto* tokenizer : {model.get(), json.get()}) EXPECT_EQ(tokenizer->encode(kText), saved->encode(kText));
}

TEST(LoadTokenizer, UnreadableFile_UsesTheOtherFile) {
  const Folder folder;
  const auto saved = trained_tokenizer();
  saved->save(folder.path());
  auto json = read_json(folder / "tokenizer.json");
  json["model"]["type"] = "Unigram";
  folder.write("tokenizer.json", json.dump());
  const auto [warning, model] = load(folder.path());
  EXPECT_THAT(warning, Names({(folder / "tokenizer.model").string(), "tokenizer.json", "model.type", "Unigram"}));
  EXPECT_EQ(model->fingerprint(), saved->fingerprint());

  saved->save(folder / "other");
  folder.write("other/tokenizer.model", "no SentencePiece model");
  const auto [other, loaded] = load(folder / "other");
  EXPECT_THAT(other, Names({(folder / "other/tokenizer.json").string(), (folder / "other/tokenizer.model").string()}));
  EXPECT_EQ(loaded->encode(kText), saved->encode(kText));
}

// Loads the tokenizer of Llama 2 from tokenizer.model and from the tokenizer.json for transformers.
TEST(LoadTokenizerData, Llama2_LoadsFromBothFormats) {
  const std::string file = test_data("tokenizers/llama2-tokenizer.model");
  if (file.empty()) GTEST_SKIP() << "LAZY_TEST_DATA does not contain tokenizers/llama2-tokenizer.model";
  const Folder folder;
  const auto llama = load_tokenizer(file);
  llama->save(folder.path());
  folder.write("tokenizer.json", read_json(folder / "tokenizer.json").dump(1));
  const auto [none, same] = load(folder.path());
  EXPECT_THAT(none, IsEmpty());
  EXPECT_EQ(same->fingerprint(), llama->fingerprint());
  EXPECT_EQ(same->encode(kText), llama->encode(kText));
  llama->save(folder / "chat");
  auto json = read_json(folder / "chat/tokenizer.json");
  json["added_tokens"].push_back({{"id", 32000}, {"content", "<|chat|>"}, {"special", true}, {"normalized", false}});
  folder.write("chat/tokenizer.json", json.dump());
  const auto [warning, chat] = load(folder / "chat");
  EXPECT_THAT(warning, Names({(folder / "chat/tokenizer.json").string(), (folder / "chat/tokenizer.model").string()}));
  EXPECT_EQ(chat->vocab_size(), 32001);
}

TEST(LoadTokenizer, AddedTokensAfterPieces_AreLoaded) {
  const Folder folder;
  train_sentencepiece({std::string(300, 'a') + " some text of a model"}, 300)->save(folder.path());
  fs::remove(folder / "tokenizer.json");
  const auto pieces = load_tokenizer((folder / "tokenizer.model").string());
  const auto size = static_cast<int32_t>(pieces->vocab_size());
  // <x> gets an id after three unused ids
  folder.write("added_tokens.json", fmt::format(R"({{"<x>": {}}})", size + 3));
  folder.write("tokenizer_config.json", R"({"eos_token": "<x>", "add_bos_token": false})");
  const auto tokenizer = load_tokenizer(folder.path().string());
  EXPECT_EQ(tokenizer->vocab_size(), size + 4);
  EXPECT_EQ(tokenizer->eos_id(), size + 3);
  EXPECT_TRUE(tokenizer->tokens().prefix.empty());
  std::vector<int32_t> ids = pieces->encode("some");
  ids.push_back(size + 3);
  EXPECT_EQ(tokenizer->encode("some<x>"), ids);
  ids.push_back(size + 1);
  EXPECT_EQ(tokenizer->decode(ids), "some<x>");
  EXPECT_EQ(tokenizer->piece(size + 1), "");
  EXPECT_THAT(error_of([&] { tokenizer->piece(size + 4); }), Names({"id", size + 4}));
}

TEST(LoadTokenizer, MissingFiles_ErrorNamesExpectedFiles) {
  const Folder folder;
  const std::string none = (folder / "none").string();
  EXPECT_THAT(error_of([&] { load_tokenizer(none); }), Names({none}));
  EXPECT_THAT(error_of([&] { load_tokenizer(folder.path().string()); }),
              Names({folder.path().string(), "tokenizer.model", "tokenizer.json", "vocab.json", "merges.txt"}));
}

}  // namespace lazy
