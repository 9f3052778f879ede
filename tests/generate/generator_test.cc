// Generation against the full forward pass, and model folders whose tokenizer does not belong to them.
#include "generate/generator.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/text.h"
#include "generate/model_folder.h"
#include "model/temporary_folder.h"

namespace lazy {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

ModelConfig small(const char* kind) {
  ModelConfig c{.vocab_size = 259,
                .hidden_size = 32,
                .num_layers = 2,
                .max_length = 64,
                .attention = {.num_heads = 2, .num_kv_heads = 2, .head_dim = 16},
                .mlp = {.intermediate_size = 48}};
  c.init_std = 0.2;
  if (std::string(kind) == "lazy") {
    c.attention.normalizer = Normalizer::elastic;
    c.attention.distance_bias_window = 12;
  }
  return c;
}

std::vector<int64_t> greedy_by_full_forwards(LanguageModel& model, std::vector<int64_t> ids, int64_t n) {
  const at::NoGradGuard guard;
  std::vector<int64_t> out;
  for (int64_t i = 0; i < n; ++i) {
    const at::Tensor hidden = model.forward(at::tensor(ids, at::kLong).unsqueeze(0)).hidden;
    const at::Tensor logits = model.logits(hidden.select(1, static_cast<int64_t>(ids.size()) - 1));
    out.push_back(logits.argmax().item<int64_t>());
    ids.push_back(out.back());
  }
  return out;
}

// Far beyond the cache's size, and a second time after the same prompt.
TEST(Generator, AStreamingCacheWritesOn) {
  const StreamingCache keep{2, 14};
  LanguageModel model(small("lazy"), 11);
  Generator generator(model, keep);
  std::vector<int64_t> ids(30);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * 37 % 259);
  generator.set_prompt(ids);
  const GenerateOptions options{.sampling = {.temperature = 0}, .max_tokens = 40};
  const auto text = generator.run(options).tokens;
  EXPECT_EQ(generator.run(options).tokens, text);
  const at::NoGradGuard guard;
  for (const int64_t token : text) {
    KVCache cache{.streaming = keep};
    const at::Tensor hidden = model.forward(at::tensor(ids, at::kLong).unsqueeze(0), {.cache = &cache}).hidden;
    ASSERT_EQ(model.logits(hidden.select(1, hidden.size(1) - 1)).argmax().item<int64_t>(), token);
    ids.push_back(token);
  }
}

TEST(Generator, GreedyTextIsThatOfFullForwards) {
  for (const char* kind : {"transformer", "lazy"}) {
    LanguageModel model(small(kind), 11);
    Generator generator(model);
    const std::vector<int64_t> prompt = {1, 70, 80, 90};
    generator.set_prompt(prompt);
    const GenerateOptions options{.sampling = {.temperature = 0}, .max_tokens = 40};
    const Generation text = generator.run(options);
    EXPECT_EQ(text.tokens, greedy_by_full_forwards(model, prompt, 40)) << kind;
    EXPECT_EQ(text.finish_reason, "length");
    // The prompt's cache is not disturbed by what followed it.
    EXPECT_EQ(generator.run(options).tokens, text.tokens);
  }
}

TEST(Generator, LongPromptsGoInChunksAndSeedsDecide) {
  LanguageModel model(small("lazy"), 11);
  std::vector<int64_t> prompt;
  for (int64_t i = 0; i < 1100; ++i) prompt.push_back(i * i % 259);
  Generator generator(model);
  generator.set_prompt(prompt);
  EXPECT_EQ(generator.run({.sampling = {.temperature = 0}, .max_tokens = 3}).tokens,
            greedy_by_full_forwards(model, prompt, 3));
  const auto with_seed = [&](uint64_t seed) {
    return generator.run({.sampling = {.seed = seed}, .max_tokens = 30}).tokens;
  };
  EXPECT_EQ(with_seed(1), with_seed(1));
  EXPECT_NE(with_seed(1), with_seed(2));
}

TEST(Generator, StopsAtStopTokensAndAtTheCallersWord) {
  LanguageModel model(small("lazy"), 11);
  Generator generator(model);
  generator.set_prompt({1, 5, 6});
  const GenerateOptions greedy{.sampling = {.temperature = 0}, .max_tokens = 20};
  const std::vector<int64_t> all = generator.run(greedy).tokens;
  GenerateOptions stopping = greedy;
  stopping.stop_tokens = {all[7]};
  const auto first = std::find(all.begin(), all.end(), all[7]);
  const Generation stopped = generator.run(stopping);
  EXPECT_EQ(stopped.tokens, std::vector<int64_t>(all.begin(), first));
  EXPECT_EQ(stopped.finish_reason, "stop");
  int64_t n = 0;
  EXPECT_EQ(generator.run(greedy, [&](int64_t) { return ++n < 5; }).tokens.size(), 5u);
  EXPECT_EQ(generator.run({.max_tokens = 0}).tokens.size(), 0u);
}

TEST(Generator, BadPrompts) {
  LanguageModel model(small("lazy"), 11);
  Generator generator(model);
  EXPECT_THROW(generator.run({}), Error);
  EXPECT_THROW(generator.set_prompt({}), Error);
  EXPECT_THROW(generator.set_prompt({1, 259}), Error);
  EXPECT_THROW(generator.set_prompt({-1}), Error);
}

std::string folder_error(const std::filesystem::path& folder) {
  try {
    load_model_folder(folder);
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    return e.what();
  }
  return "";
}

TEST(ModelFolder, ATokenizerOfAnotherModelIsAnError) {
  const auto bytes = load_tokenizer("bytes");
  ModelConfig config = small("lazy");
  config.vocab_size = bytes->vocab_size() + 5;  // padding is fine
  config.tokenizer_fingerprint = bytes->fingerprint();
  const TemporaryFolder folder;
  LanguageModel(config, 1).save(folder.path());
  EXPECT_THAT(folder_error(folder.path()), HasSubstr("tokenizer"));  // there is none
  bytes->save(folder.path());
  EXPECT_EQ(folder_error(folder.path()), "");

  config.tokenizer_fingerprint ^= 1;
  LanguageModel(config, 1).save(folder.path());
  EXPECT_THAT(folder_error(folder.path()), AllOf(HasSubstr("does not match the model"), HasSubstr("fingerprint")));
  config.tokenizer_fingerprint = 0;
  config.vocab_size = 100;
  LanguageModel(config, 1).save(folder.path());
  EXPECT_THAT(folder_error(folder.path()), AllOf(HasSubstr("does not match the model"), HasSubstr("at most 100"),
                                                 HasSubstr(std::to_string(bytes->vocab_size()))));
}

TEST(TextStream, NeverEndsWithinACharacter) {
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
