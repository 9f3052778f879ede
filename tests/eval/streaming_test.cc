// Windows scored through a streaming cache are what the model says token by token.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "eval/score.h"
#include "model/language_model.h"

namespace lazy::eval {
namespace {

TEST(StreamingScore, IsTokenByToken) {
  ModelConfig c{.vocab_size = 61,
                .hidden_size = 32,
                .num_layers = 2,
                .num_heads = 4,
                .num_kv_heads = 2,
                .head_dim = 8,
                .intermediate_size = 40,
                .max_length = 32};
  c.init_std = 0.2;
  c.normalizer = "elastic";
  c.distance_bias_window = 10;
  LanguageModel model(c, 3);
  const at::NoGradGuard guard;
  std::vector<Window> windows;
  for (int32_t length : {40, 5, 23}) {
    Window w;
    for (int32_t t = 0; t <= length; ++t) w.input.push_back((t * 7 + length) % 61);
    w.targets.assign(w.input.end() - length / 2, w.input.end());
    w.input.pop_back();
    windows.push_back(w);
  }
  const StreamingCache keep{2, 6};
  const auto scores = score(model, windows, {.batch_size = 2, .title = "", .cache = keep});
  for (size_t i = 0; i < windows.size(); ++i) {
    const Window& w = windows[i];
    KVCache cache{.streaming = keep};
    double sum = 0;
    bool greedy = true;
    for (size_t t = 0; t < w.input.size(); ++t) {
      const at::Tensor logits =
          model.logits(model.forward(at::full({1, 1}, w.input[t], at::kLong), {.cache = &cache}).hidden)[0][0];
      const auto first = w.input.size() - w.targets.size();
      if (t < first) continue;
      const int32_t target = w.targets[t - first];
      sum += at::log_softmax(logits, 0)[target].item<double>();
      greedy = greedy && logits.argmax().item<int64_t>() == target;
    }
    EXPECT_NEAR(scores[i].log_likelihood, sum, 1e-5 * std::abs(sum));
    EXPECT_EQ(scores[i].greedy, greedy);
  }
  const auto plain = score(model, windows, {.batch_size = 2, .title = ""});
  EXPECT_GT(std::abs(plain[0].log_likelihood - scores[0].log_likelihood), 1e-2);
}

}  // namespace
}  // namespace lazy::eval
