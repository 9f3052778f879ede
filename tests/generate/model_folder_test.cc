// Tests model folders whose tokenizer does not match the model, and incremental decoding of text.
#include "generate/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/text.h"
#include "model/temporary_folder.h"
#include "support/error_of.h"

namespace lazy {
namespace {

using testing::TemporaryFolder;

const ModelConfig kSmall{.vocab_size = 259,
                         .hidden_size = 32,
                         .num_layers = 2,
                         .max_length = 64,
                         .attention = {.num_heads = 2, .num_kv_heads = 2, .head_dim = 16},
                         .mlp = {.intermediate_size = 48}};

TEST(ModelFolder, MismatchingTokenizer_IsAnError) {
  const auto bytes = load_tokenizer("bytes");
  ModelConfig config = kSmall;
  // the embedding may have more rows than the tokenizer has tokens, as padding
  config.vocab_size = bytes->vocab_size() + 5;
  config.tokenizer_fingerprint = bytes->fingerprint();
  const TemporaryFolder folder;
  const auto error = [&] { return error_of([&] { load_model_folder(folder.path()); }); };
  LanguageModel(config, 1).save(folder.path());
  // The folder has no tokenizer yet, so loading must fail.
  EXPECT_THAT(error(), Names({folder.path().string(), "tokenizer.model", "tokenizer.json"}));
  bytes->save(folder.path());
  EXPECT_EQ(error(), "");

  config.tokenizer_fingerprint ^= 1;
  LanguageModel(config, 1).save(folder.path());
  EXPECT_THAT(error(),
              IsMessage(fmt::format("tokenizer: {}: does not match the model: expected fingerprint {:016x} "
                                    "(config.json), found {:016x}",
                                    folder.path().string(), config.tokenizer_fingerprint, bytes->fingerprint())));
  config.tokenizer_fingerprint = 0;
  config.vocab_size = 100;
  LanguageModel(config, 1).save(folder.path());
  EXPECT_EQ(error(), "");  // the tokenizer may have more tokens than the embedding has rows
  const auto use = [&](const std::string& text) {
    return error_of([&] { check_embedding_rows(bytes->encode(text), config, *bytes, "generate"); });
  };
  EXPECT_EQ(use("Abc"), "");
  EXPECT_THAT(use("xyz"), Names({"120", "\"x\"", 100}));  // error, because "x" (id 120) has no row in the embedding
}

TEST(TextStream, Push_ReturnsWholeCharacters) {
  const auto bytes = load_tokenizer("bytes");
  const std::string text = "na\u00efve \u2192 \U0001F600!";
  TextStream stream(*bytes);
  std::string whole;
  for (const int32_t id : bytes->encode(text)) {
    const std::string piece = stream.push(id);
    EXPECT_EQ(complete_utf8_prefix(piece), piece.size());
    EXPECT_EQ(to_valid_utf8(piece), piece);
    whole += piece;
  }
  EXPECT_EQ(whole + stream.finish(), text);
  const std::vector<int32_t> ids = bytes->encode("\u2192");
  EXPECT_EQ(stream.push(ids[0]), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
}

}  // namespace
}  // namespace lazy
