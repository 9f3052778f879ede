// Tests special and added tokens, and which file takes precedence if several files define them. The expected values are
// the results of transformers 5.24 unless a comment states otherwise.
#include <nlohmann/json.hpp>

#include "bpe_files.h"
#include "data/tokenizers/regex_syntax.h"
#include "support.h"

namespace lazy {
using namespace testing_support;

namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<int32_t>;

// A tokenizer whose vocabulary consists of the 256 bytes and the added tokens <|bos|> (256) and <|x|> (257).
Json byte_tokenizer() {
  Json vocab = Json::object(), added = Json::array();
  for (int b = 0; b < 256; ++b) vocab[bytes_to_printable(std::string(1, static_cast<char>(b)))] = b;
  for (const char* content : {"<|bos|>", "<|x|>"}) {
    added.push_back({{"id", 256 + added.size()},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  return {{"version", "1.0"},
          {"added_tokens", added},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}};
}

Json bos_template() {
  const auto entry = [](const char* kind, const char* id) { return Json{{kind, {{"id", id}, {"type_id", 0}}}}; };
  return {{"type", "TemplateProcessing"},
          {"single", Json::array({entry("SpecialToken", "<|bos|>"), entry("Sequence", "A")})},
          {"pair", Json::array({entry("Sequence", "A"), entry("Sequence", "B")})},
          {"special_tokens", {{"<|bos|>", {{"id", "<|bos|>"}, {"ids", {256}}, {"tokens", {"<|bos|>"}}}}}}};
}

struct TestFolder : Folder {
  explicit TestFolder(const Json& tokenizer = byte_tokenizer()) { file("tokenizer.json", tokenizer); }
  TestFolder& file(const std::string& name, const Json& content) {
    write(name, content.dump());
    return *this;
  }
  std::unique_ptr<Tokenizer> load() const { return load_tokenizer(path().string()); }
};

const AddedToken* find(const Tokenizer& tokenizer, const std::string& content) {
  for (const AddedToken& token : tokenizer.tokens().added) {
    if (token.content == content) return &token;
  }
  return nullptr;
}

TEST(TokenTable, NamedToken_IsSpecialAndKeepsFlags) {
  Json json = byte_tokenizer();
  json["added_tokens"][1].update({{"special", false}, {"normalized", true}, {"lstrip", true}});
  const auto tokenizer = TestFolder(json).file("tokenizer_config.json", {{"eos_token", "<|x|>"}}).load();
  EXPECT_EQ(tokenizer->eos_id(), 257);
  EXPECT_EQ(tokenizer->bos_id(), std::nullopt);
  const AddedToken& x = *find(*tokenizer, "<|x|>");
  EXPECT_TRUE(x.special && x.normalized && x.lstrip);
  EXPECT_EQ(tokenizer->encode("hi <|x|> y"), (Ids{'h', 'i', 257, ' ', 'y'}));
}

TEST(TokenTable, NamedToken_MayBeKnownOrNewText) {
  const auto tokenizer =
      TestFolder().file("tokenizer_config.json", {{"eos_token", "<|y|>"}, {"bos_token", "h"}}).load();
  EXPECT_EQ(tokenizer->bos_id(), 'h');
  EXPECT_EQ(tokenizer->eos_id(), 258);  // the new token has the first id after the existing ids
  EXPECT_EQ(tokenizer->encode("hi<|x|> y<|y|>"), (Ids{'h', 'i', 257, ' ', 'y', 258}));
  EXPECT_EQ(tokenizer->decode(without_special_tokens(*tokenizer, tokenizer->encode("hi<|x|> y<|y|>"))), "i y");
}

TEST(TokenTable, AddedTokensDecoder_OverridesTokenizerJson) {
  const Json decoder = {{"257", {{"content", "<|x|>"}, {"special", true}, {"rstrip", true}}},
                        {"258", {{"content", "<|z|>"}, {"special", true}}}};
  const auto tokenizer = TestFolder()
                             .file("tokenizer_config.json", {{"added_tokens_decoder", decoder}})
                             .file("special_tokens_map.json", {{"eos_token", "<|z|>"}})
                             .load();
  EXPECT_EQ(tokenizer->encode("hi <|x|> y<|z|>"), (Ids{'h', 'i', ' ', 257, 'y', 258}));
  // special_tokens_map.json is ignored if tokenizer_config.json has added_tokens_decoder
  EXPECT_EQ(tokenizer->eos_id(), std::nullopt);
}

TEST(TokenTable, AddedTokensJson_AddsTokens) {
  const auto tokenizer = TestFolder()
                             .file("added_tokens.json", {{"<|z|>", 258}, {"<|x|>", 257}})
                             .file("tokenizer_config.json", {{"bos_token", "<|bos|>"}})
                             .load();
  EXPECT_EQ(tokenizer->bos_id(), 256);
  EXPECT_EQ(tokenizer->encode("hi <|x|> y<|z|>"), (Ids{'h', 'i', ' ', 257, ' ', 'y', 258}));
  EXPECT_TRUE(tokenizer->is_special(257));
  EXPECT_FALSE(tokenizer->is_special(258));
}

TEST(TokenTable, SpecialTokensMap_OverridesTokenizerConfig) {
  const auto tokenizer =
      TestFolder()
          .file("tokenizer_config.json", {{"bos_token", "<|x|>"}, {"unk_token", nullptr}})
          .file("special_tokens_map.json",
                {{"bos_token", {{"content", "<|bos|>"}, {"rstrip", true}}}, {"additional_special_tokens", {"<|q|>"}}})
          .load();
  EXPECT_EQ(tokenizer->tokens().texts.at("bos_token"), "<|bos|>");
  EXPECT_EQ(tokenizer->encode("<|q|><|bos|> a"), (Ids{258, 256, ' ', 'a'}));
}

TEST(TokenTable, ExtraSpecialTokens_ReplaceOlderKey) {
  const auto tokenizer = TestFolder()
                             .file("tokenizer_config.json", {{"additional_special_tokens", {"<|q|>"}},
                                                             {"image_token", "<|im|>"},
                                                             {"extra_special_tokens", {"<|p|>"}}})
                             .load();
  EXPECT_EQ(tokenizer->encode("<|im|><|p|>"), (Ids{258, 259}));
  // extra_special_tokens replaces the older key additional_special_tokens
  EXPECT_EQ(find(*tokenizer, "<|q|>"), nullptr);
  EXPECT_EQ(tokenizer->tokens().texts.at("image_token"), "<|im|>");
}

TEST(TokenTable, LastKeyForAText_SetsItsFlags) {
  const Json strips = {{"content", "<a>"}, {"lstrip", true}};
  const auto first = TestFolder().file("tokenizer_config.json", {{"bos_token", strips}, {"pad_token", "<a>"}}).load();
  EXPECT_EQ(first->encode("x <a>"), (Ids{'x', ' ', 258}));
  const auto last = TestFolder().file("tokenizer_config.json", {{"bos_token", "<a>"}, {"pad_token", strips}}).load();
  EXPECT_EQ(last->encode("x <a>"), (Ids{'x', 258}));
}

TEST(TokenTable, NonStandardKey_UsesFirstSource) {
  const auto map = TestFolder()
                       .file("tokenizer_config.json", {{"image_token", "<a>"}, {"pad_token", "<c>"}})
                       .file("special_tokens_map.json", {{"image_token", "<b>"}, {"pad_token", "<d>"}})
                       .load();
  EXPECT_EQ(map->tokens().texts.at("image_token"), "<a>");
  EXPECT_EQ(map->tokens().texts.at("pad_token"), "<d>");
  const auto extra =
      TestFolder()
          .file("tokenizer_config.json", {{"image_token", "<a>"}, {"extra_special_tokens", {{"image_token", "<b>"}}}})
          .load();
  EXPECT_EQ(extra->encode("<b>"), Ids{258});
  EXPECT_EQ(find(*extra, "<a>"), nullptr);
}

TEST(TokenTable, Defaults_ComeFromClassAndModel) {
  Json json = byte_tokenizer();
  json["added_tokens"][1]["content"] = "<|endoftext|>";
  {  // the files of GPT-2 on the Hub define no special tokens, so the defaults are used
    const auto tokenizer = TestFolder(json)
                               .file("config.json", {{"model_type", "gpt2"}, {"eos_token_id", 50256}})
                               .file("tokenizer_config.json", {{"model_max_length", 1024}})
                               .load();
    EXPECT_EQ(tokenizer->bos_id(), 257);
    EXPECT_EQ(tokenizer->eos_id(), 257);
    EXPECT_TRUE(tokenizer->tokens().prefix.empty());
  }
  {
    const auto tokenizer =
        TestFolder(json).file("tokenizer_config.json", {{"tokenizer_class", "Qwen2TokenizerFast"}}).load();
    EXPECT_EQ(tokenizer->bos_id(), std::nullopt);
    EXPECT_EQ(tokenizer->eos_id(), 257);
    EXPECT_EQ(tokenizer->tokens().texts.at("pad_token"), "<|endoftext|>");
  }
  {  // "bos_token": null disables BOS, so the default is not used
    const auto tokenizer =
        TestFolder(json)
            .file("tokenizer_config.json", {{"tokenizer_class", "GPT2Tokenizer"}, {"bos_token", nullptr}})
            .load();
    EXPECT_EQ(tokenizer->bos_id(), std::nullopt);
  }
  // If no tokenizer file defines BOS or EOS, this program uses the ids in config.json. transformers does not use them;
  // its tokenizer then has no BOS and no EOS.
  {
    const auto tokenizer =
        TestFolder(json)
            .file("config.json", {{"model_type", "llama"}, {"bos_token_id", 256}, {"eos_token_id", {257, 3}}})
            .file("tokenizer_config.json", {{"model_max_length", 1024}})
            .load();
    EXPECT_EQ(tokenizer->bos_id(), 256);
    EXPECT_EQ(tokenizer->eos_id(), 257);
    EXPECT_EQ(tokenizer->tokens().texts.at("bos_token"), "<|bos|>");
  }
}

// As in transformers 5, add_bos_token is only used for folders without tokenizer.json.
TEST(TokenTable, Bos_IsAddedAsInTransformers) {
  for (const Json& add : {Json(nullptr), Json(true), Json(false)}) {
    for (const bool with_template : {false, true}) {
      Json json = byte_tokenizer(), config = {{"bos_token", "<|bos|>"}, {"eos_token", "<|x|>"}};
      if (with_template) json["post_processor"] = bos_template();
      if (!add.is_null()) config["add_bos_token"] = add;
      const auto tokenizer = TestFolder(json).file("tokenizer_config.json", config).load();
      EXPECT_EQ(tokenizer->tokens().prefix, with_template ? Ids{256} : Ids{});
      EXPECT_TRUE(tokenizer->tokens().suffix.empty());
    }
  }
  Json json = byte_tokenizer();
  json["post_processor"] = {{"type", "RobertaProcessing"}, {"cls", {"<|bos|>", 256}}, {"sep", {"<|x|>", 257}}};
  const auto roberta = TestFolder(json).load();
  EXPECT_EQ(roberta->tokens().prefix, Ids{256});
  EXPECT_EQ(roberta->tokens().suffix, Ids{257});
  const SmallBpe bpe = small_bpe();
  std::string merges = "#version: 0.2\n";
  for (const std::string& merge : bpe.merges) merges += merge + "\n";
  for (const bool add : {false, true}) {
    const Folder folder;
    Json vocab = bpe.vocab;
    const auto end = static_cast<int32_t>(vocab.size());
    vocab["<|endoftext|>"] = end;
    folder.write("vocab.json", vocab.dump());
    folder.write("merges.txt", merges);
    folder.write("tokenizer_config.json", Json{{"tokenizer_class", "GPT2Tokenizer"}, {"add_bos_token", add}}.dump());
    const auto tokenizer = load_tokenizer(folder.path().string());
    EXPECT_EQ(tokenizer->bos_id(), end);
    EXPECT_EQ(tokenizer->tokens().prefix, add ? Ids{end} : Ids{});
  }
}

// How vocab.json and merges.txt are read depends on the tokenizer class.
TEST(SlowFolder, VocabAndMerges_AreReadAsTheClassDefines) {
  const SmallBpe bpe = small_bpe();
  Json vocab = bpe.vocab;
  std::string merges = "#version: 0.2\n";
  for (const std::string& merge : bpe.merges) merges += merge + "\n";
  const auto one = static_cast<int32_t>(vocab.size());
  vocab["12"] = one;
  merges += "1 2\n";
  const auto load = [&](const Json& config) {
    const Folder folder;
    folder.write("vocab.json", vocab.dump());
    folder.write("merges.txt", merges);
    folder.write("added_tokens.json", R"({"<|im_start|>": 400})");
    folder.write("tokenizer_config.json", config.dump());
    return load_tokenizer(folder.path().string());
  };
  const auto gpt2 = load({{"tokenizer_class", "GPT2Tokenizer"}});
  EXPECT_EQ(gpt2->encode("123"), (Ids{one, '3'}));
  EXPECT_EQ(gpt2->encode("e\u0301").size(), 3u);
  const auto qwen = load({{"tokenizer_class", "Qwen2Tokenizer"}});
  EXPECT_EQ(qwen->encode("123"), (Ids{'1', '2', '3'}));   // digits are split
  EXPECT_EQ(qwen->encode("e\u0301"), qwen->encode("é"));  // the text is normalized to NFC
  EXPECT_EQ(qwen->encode("<|im_start|>"), Ids{400});
  vocab["<mask>"] = one + 1;
  EXPECT_EQ(load({{"tokenizer_class", "RobertaTokenizer"}})->encode("<mask>"), Ids{one + 1});
  EXPECT_EQ(load({{"tokenizer_class", "GPT2Tokenizer"}, {"add_prefix_space", true}})->encode("the"),
            gpt2->encode(" the"));
  EXPECT_THAT(error_of([&] {
                load({{"tokenizer_class", "CLIPTokenizer"}});
              }),
              Names({"CLIPTokenizer", "tokenizer.json"}));
}

TEST(Bpe, ByteWithoutToken_IsSkipped) {
  Json json = byte_tokenizer();
  Json vocab = Json::object();
  for (const auto& [token, id] : json["model"]["vocab"].items()) {
    if (token != "q") vocab[token] = vocab.size();
  }
  json["model"]["vocab"] = vocab;
  json["added_tokens"] = Json::array();
  const auto tokenizer = TestFolder(json).load();
  EXPECT_EQ(tokenizer->kind(), "bpe");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("aqb")), "ab");
}

// The patterns of the first list must be translated to PCRE2. The patterns of the second list must not be translated;
// the package `tokenizers` processes them. The second list was determined with Oniguruma, the regular-expression engine
// of that package.
TEST(RegexSyntax, Translation_AcceptsOnlyPatternsThatBothEnginesMatchEqually) {
  for (const char* native :
       {R"(\p{N}{1,3}|a)", R"([^\r\n\p{L}\p{N}]?+\p{L}+)", R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|\s+(?!\S))",
        R"( ?[^(\s|[.,!?])]+)", R"([\p{Lu}\p{M}]*[\p{Ll}]+)", R"(\u00e9+?)", "(?<=a)b", ".", "a{2,}", "[a-z-]"}) {
    EXPECT_TRUE(pcre2_from_oniguruma(native)) << native;
  }
  for (const char* left : {R"(\p{N}{1,3}+|.)",
                           "ab$|.",
                           "^ab|.",
                           R"([\p{L}&&[^\p{Han}]]+|.)",
                           R"(\p{Han})",
                           R"(\w+)",
                           R"(\h)",
                           R"(a{,2}b)",
                           R"(a*)",
                           R"(\pL)",
                           "[[:alpha:]]",
                           "(?i:ss)",
                           "(?i)a",
                           "(?x)a",
                           "(a)\\1",
                           "(?>a)",
                           "[^\\S]",
                           R"(\x41)",
                           "[[^a]b]",
                           "a{2}?",
                           "(a?)*b",
                           "(",
                           "a)",
                           "[a",
                           ""}) {
    EXPECT_FALSE(pcre2_from_oniguruma(left)) << left;
  }
}

}  // namespace
}  // namespace lazy
