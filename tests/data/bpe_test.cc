#include "data/tokenizers/bpe.h"
#include "data/tokenizers/regex_syntax.h"

#include "bpe_files.h"
#include "conformance.h"

namespace lazy {
using namespace testing_support;

namespace {

std::unique_ptr<Tokenizer> write_and_load(const Folder& folder, const nlohmann::ordered_json& json) {
  return load_tokenizer(folder.write("tokenizer.json", json.dump()).string());
}

}  // namespace

TEST(Bpe, VocabAndMergesFiles_Load) {
  const Folder folder;
  const SmallBpe bpe = small_bpe();
  folder.write("vocab.json", bpe.vocab.dump());
  std::string merges = "#version: 0.2\n";
  for (const std::string& merge : bpe.merges) merges += merge + "\n";
  folder.write("merges.txt", merges);
  const auto tokenizer = load_tokenizer(folder.path().string());
  const std::string text = "x the attention";
  std::vector<std::string> pieces;
  for (const int32_t id : tokenizer->encode(text)) pieces.push_back(tokenizer->piece(id));
  EXPECT_THAT(pieces, testing::ElementsAre("x", " the", " attention"));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  EXPECT_EQ(tokenizer->bos_id(), std::nullopt);
}

TEST(Bpe, AddedTokens_AreMatchedInText) {
  const Folder folder;
  const auto tokenizer = write_and_load(folder, small_tokenizer_json());
  const auto last = static_cast<int32_t>(tokenizer->vocab_size() - 1);
  EXPECT_EQ(tokenizer->encode("<|endoftext|>"), std::vector<int32_t>{last - 1});
  // <|pad|> is defined with lstrip and rstrip, so it also consumes the adjacent white space.
  EXPECT_EQ(tokenizer->encode("a <|pad|> \n b"), (std::vector<int32_t>{'a', last, 'b'}));
  EXPECT_EQ(tokenizer->bos_id(), last - 1);
  EXPECT_EQ(tokenizer->eos_id(), last - 1);
  EXPECT_EQ(tokenizer->piece(last - 1), "<|endoftext|>");
  EXPECT_EQ(tokenizer->encode("<|endoftex|>").size(), 12u);
}

TEST(Bpe, IgnoreMerges_UsesWholeWords) {
  const Folder folder;
  auto json = small_tokenizer_json();
  json["model"]["vocab"]["zzz"] = json["model"]["vocab"].size() + 2;  // no merge rule produces this token
  EXPECT_EQ(write_and_load(folder, json)->encode("zzz").size(), 3u);
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(write_and_load(folder, json)->encode("zzz").size(), 1u);
}

TEST(Bpe, Decode_RestoresAnyTextIncludingInvalidUtf8) {
  const Folder folder;
  const auto tokenizer = write_and_load(folder, small_tokenizer_json());
  Random random(2);
  for (int i = 0; i < 200; ++i) {
    std::string text = random_text(random, random.below(40));
    for (size_t k = 0; k < text.size() && i % 2; k += 7) text[k] = static_cast<char>(random.below(256));
    if (text.find("<|pad|>") != std::string::npos) continue;
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
}

// With near-linear time, this takes well under one second. With quadratic time, it would exceed the time limit of the
// test.
TEST(Bpe, RepeatedLetter_EncodesInNearLinearTime) {
  const Folder folder;
  const auto tokenizer = write_and_load(folder, small_tokenizer_json());
  for (const char letter : {'a', ' ', '\n'}) {
    const std::string text(1 << 20, letter);
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << "letter " << static_cast<int>(letter);
  }
}

TEST(Bpe, SavedFolder_Loads) {
  const Folder folder;
  const auto tokenizer = write_and_load(folder, small_tokenizer_json());
  tokenizer->save(folder / "saved");
  const auto loaded = load_tokenizer((folder / "saved").string());
  EXPECT_EQ(loaded->fingerprint(), tokenizer->fingerprint());
  EXPECT_EQ(loaded->eos_id(), tokenizer->eos_id());
  auto other = small_tokenizer_json();
  std::swap(other["model"]["merges"][0], other["model"]["merges"][1]);
  const Folder second;
  EXPECT_NE(write_and_load(folder, other)->fingerprint(), tokenizer->fingerprint());
}

TEST(BpeData, Gpt2_MatchesReferenceIds) {
  const std::string gpt2 = test_data("tokenizers/gpt2");
  if (gpt2.empty()) GTEST_SKIP() << "LAZY_TEST_DATA does not contain tokenizers/gpt2";
  const auto tokenizer = load_tokenizer(gpt2);
  expect_conformance(*tokenizer, test_data("tokenizers/conformance"), "gpt-2");
  EXPECT_EQ(tokenizer->vocab_size(), 50257);
  EXPECT_EQ(tokenizer->bos_id(), 50256);
}

// Each case makes one field of the file invalid or unsupported. The message must contain the file, the field and the
// value. Files that are valid but that the native tokenizer does not support are errors here, because no Python is
// available to process them.
TEST(BpeFiles, MalformedOrNotNativeTokenizerJson_ErrorNamesField) {
  const EnvironmentVariable no_python("LAZY_PYTHON", "/nowhere/python");
  using Json = nlohmann::ordered_json;
  struct Case {
    const char* name;
    std::function<void(Json&)> spoil;
    std::vector<std::string> names;
  };
  const std::vector<Case> cases = {
      {"no model", [](Json& j) { j.erase("model"); }, {"model:"}},
      {"model type", [](Json& j) { j["model"]["type"] = "Unigram"; }, {"model.type", "Unigram", "Python"}},
      {"vocab kind", [](Json& j) { j["model"]["vocab"] = 3; }, {"model.vocab", "number"}},
      {"no vocab", [](Json& j) { j["model"].erase("vocab"); }, {"model.vocab"}},
      {"id kind", [](Json& j) { j["model"]["vocab"]["a"] = "x"; }, {"model.vocab", "\"a\"", "\"x\""}},
      {"id negative", [](Json& j) { j["model"]["vocab"]["a"] = -4; }, {"model.vocab", "\"a\"", "-4"}},
      {"id huge",
       [](Json& j) { j["model"]["vocab"]["a"] = 1ll << 60; },
       {"model.vocab", "\"a\"", std::to_string(1ll << 60)}},
      {"id twice", [](Json& j) { j["model"]["vocab"]["a"] = 98; }, {"model.vocab", "\"b\"", "98", "Python"}},
      {"byte missing",
       [](Json& j) {
         j["model"]["vocab"].erase("q");
         j["model"]["unk_token"] = "a";
       },
       {"model.unk_token", "\"a\"", "Python"}},
      {"merges kind", [](Json& j) { j["model"]["merges"] = "a b"; }, {"model.merges", "\"a b\""}},
      {"merge of three", [](Json& j) { j["model"]["merges"][2] = "a b c"; }, {"model.merges[2]", "\"a b c\""}},
      {"merge of one", [](Json& j) { j["model"]["merges"][2] = Json::array({"a"}); }, {"model.merges[2]", "array"}},
      {"merge of numbers",
       [](Json& j) {
         j["model"]["merges"][2] = Json::array({1, 2});
       },
       {"model.merges[2][0]", "1"}},
      {"unknown token",
       [](Json& j) { j["model"]["merges"][1] = "qx z"; },
       {"model.merges[1]", "\"qx\"", "model.vocab"}},
      {"unknown result",
       [](Json& j) { j["model"]["merges"][1] = "q z"; },
       {"model.merges[1]", "\"qz\"", "model.vocab"}},
      {"byte fallback", [](Json& j) { j["model"]["byte_fallback"] = true; }, {"pre_tokenizer", "Python"}},
      {"byte fallback, no spaces",
       [](Json& j) {
         j["model"]["byte_fallback"] = true;
         j["pre_tokenizer"] = nullptr;
       },
       {"pre_tokenizer", "null", "Python"}},
      {"byte fallback, no bytes",
       [](Json& j) {
         j["model"]["byte_fallback"] = true;
         j["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "\xE2\x96\x81"}};
       },
       {"model.vocab", "<0x00>", "Python"}},
      {"suffix",
       [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; },
       {"model.end_of_word_suffix", "\"</w>\"", "Python"}},
      {"dropout", [](Json& j) { j["model"]["dropout"] = 0.1; }, {"model.dropout", "0.1"}},
      {"ignore_merges", [](Json& j) { j["model"]["ignore_merges"] = 1; }, {"model.ignore_merges", "1"}},
      {"normalizer",
       [](Json& j) {
         j["normalizer"] = {{"type", "Lowercase"}};
       },
       {"normalizer.type", "Lowercase", "Python"}},
      {"no pre-tokenizer", [](Json& j) { j["pre_tokenizer"] = nullptr; }, {"pre_tokenizer", "null", "Python"}},
      {"pre-tokenizer",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "Metaspace"}};
       },
       {"pre_tokenizer.type", "Metaspace", "Python"}},
      {"regex",
       [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a"; },
       {"pre_tokenizer.pretokenizers[0].pattern", "\"(a\""}},
      {"behavior",
       [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "MergedWithNext"; },
       {"pre_tokenizer.pretokenizers[0].behavior", "MergedWithNext", "Python"}},
      {"after ByteLevel",
       [](Json& j) {
         j["pre_tokenizer"]["pretokenizers"].push_back({{"type", "Digits"}});
       },
       {"pre_tokenizer.pretokenizers[2]", "Python"}},
      {"added id", [](Json& j) { j["added_tokens"][0]["id"] = "7"; }, {"added_tokens[0].id", "\"7\""}},
      {"added content", [](Json& j) { j["added_tokens"][0].erase("content"); }, {"added_tokens[0].content"}},
      {"single word",
       [](Json& j) { j["added_tokens"][1]["single_word"] = true; },
       {"added_tokens[1].single_word", "true", "Python"}},
      {"added kind", [](Json& j) { j["added_tokens"] = 5; }, {"added_tokens", "5"}},
  };
  for (const Case& spoilt : cases) {
    const Folder folder;
    Json json = small_tokenizer_json();
    spoilt.spoil(json);
    const std::string message = error_of([&] { write_and_load(folder, json); });
    EXPECT_THAT(message, Names({"tokenizer", (folder / "tokenizer.json").string()})) << spoilt.name;
    EXPECT_THAT(message, NamesMatcher(spoilt.names)) << spoilt.name;
    EXPECT_EQ(message.find('\n'), std::string::npos) << spoilt.name;
  }
}

TEST(BpeFiles, TruncatedTokenizerJson_IsRejected) {
  const Folder folder;
  const std::string text = small_tokenizer_json().dump();
  for (size_t size = 0; size < text.size(); size += 61) {
    const auto path = folder.write("tokenizer.json", std::string_view(text).substr(0, size)).string();
    EXPECT_THAT(error_of([&] { load_tokenizer(path); }), Names({path, "JSON", "byte"})) << size;
  }
}

TEST(BpeFiles, NumberOutOfRange_IsReported) {
  const Folder folder;
  const auto path = folder.write("tokenizer.json", "{\"version\": 1e999}").string();
  EXPECT_THAT(error_of([&] { load_tokenizer(path); }), Names({path, "JSON"}));
}

TEST(BpeFiles, DeepNesting_IsReported) {
  const Folder folder;
  std::string text = small_tokenizer_json().dump();
  const std::string field = "\"normalizer\":null";
  text.replace(text.find(field), field.size(),
               "\"normalizer\":" + std::string(1 << 20, '[') + std::string(1 << 20, ']'));
  const auto path = folder.write("tokenizer.json", text).string();
  EXPECT_THAT(error_of([&] { load_tokenizer(path); }),
              IsMessage("tokenizer: " + path + ": normalizer: expected an object, found array"));
}

TEST(BpeFiles, MalformedMerges_ErrorNamesLine) {
  const Folder folder;
  folder.write("vocab.json", small_bpe().vocab.dump());
  struct Case {
    const char* merges;
    std::vector<std::string> names;
  };
  for (const Case& malformed : std::vector<Case>{{"#version: 0.2\na\n", {"merges.txt:2", "\"a\""}},
                                                 {"a b c\n", {"merges.txt:1", "\"a b c\""}},
                                                 {"i n\nq q\n", {"merges.txt:2", "\"qq\"", "vocab.json"}}}) {
    folder.write("merges.txt", malformed.merges);
    EXPECT_THAT(error_of([&] { load_tokenizer(folder.path().string()); }), NamesMatcher(malformed.names));
  }
}

TEST(BpeFiles, MalformedTokenizerConfig_ErrorNamesField) {
  const Folder folder;
  for (const auto& [config, names] : std::vector<std::pair<const char*, std::vector<std::string>>>{
           {"[", {"tokenizer_config.json", "JSON"}},
           {R"({"bos_token": 3})", {"tokenizer_config.json", "bos_token", "3"}},
           {R"({"added_tokens_decoder": {"x": {"content": "<x>"}}})", {"tokenizer_config.json", "\"x\""}},
           {R"({"added_tokens_decoder": {"3": {"content": "<x>"}}})", {"3", "<x>"}}}) {
    folder.write("tokenizer_config.json", config);
    EXPECT_THAT(error_of([&] { write_and_load(folder, small_tokenizer_json()); }), NamesMatcher(names)) << config;
  }
}

TEST(Regex, HostilePatterns_AreRejectedOrTimeOut) {
  EXPECT_THAT(error_of([] { Regex("\\C", "test"); }), Names({"test", "\"\\C\""}));
  const Regex regex("(a+)+$", "test");
  // the pattern can be matched against this text in 2^60 ways, all of which fail
  const std::string text = std::string(60, 'a') + "b";
  Regex::Scanner scanner(regex, text);
  size_t begin, end;
  EXPECT_THAT(error_of<RunError>([&] { scanner.next(&begin, &end); }), Names({"tokenizer", "limit"}));
}

TEST(Regex, WhiteSpaceClass_FollowsUnicode) {
  const Regex regex(*pcre2_from_oniguruma(R"(\s+|\S+)"), "test");
  const auto pieces = [&](const std::string& text) {
    std::vector<std::string> found;
    Regex::Scanner scanner(regex, text);
    for (size_t begin, end; scanner.next(&begin, &end);) found.push_back(text.substr(begin, end - begin));
    return found;
  };
  EXPECT_THAT(pieces("a\xC2\xA0\xE3\x80\x80"
                     "b"),
              testing::ElementsAre("a", "\xC2\xA0\xE3\x80\x80", "b"));
  EXPECT_THAT(pieces("a\xE1\xA0\x8E"
                     "b"),
              testing::SizeIs(1));  // since Unicode 6.3, U+180E is not white space
  EXPECT_THAT(pieces("a\xC2\x85"
                     "b"),
              testing::SizeIs(3));
}

}  // namespace lazy
