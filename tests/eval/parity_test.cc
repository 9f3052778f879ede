// Compares our log-likelihoods of texts with transformers, which scores the rolling windows that lm-evaluation-harness
// forms. Both programs use the same model folder and the same token ids.
#include <gtest/gtest.h>

#include <numeric>

#include "core/file.h"
#include "eval/score.h"
#include "harness.h"
#include "model/language_model.h"
#include "small_model.h"

namespace lazy::eval {
namespace fs = std::filesystem;

TEST(Parity, RollingLogLikelihood_MatchesTransformers) {
  LAZY_NEEDS_HARNESS();
  if (std::system(fmt::format("'{}' -c 'import torch, transformers' > /dev/null 2>&1", harness_python()).c_str()) !=
      0) {
    GTEST_SKIP() << harness_python() << " cannot import torch and transformers: no comparison with transformers";
  }
  LanguageModel model(grouped_config(199, 32), 5);
  const fs::path folder = fs::path(testing::TempDir()) / fmt::format("parity_{}", ::getpid());
  fs::create_directories(folder);
  model.save(folder);
  std::vector<std::vector<int32_t>> texts;
  for (int32_t n : {1, 5, 31, 32, 33, 64, 100}) {
    texts.emplace_back();
    for (int32_t i = 0; i < n; ++i) texts.back().push_back((i * i * 31 + n * 17 + 3) % 199);
  }
  const auto expected = harness_output(R"(
import json, sys, torch
from lm_eval import utils
from transformers import AutoModelForCausalLM
job = json.load(open(sys.argv[2]))
model = AutoModelForCausalLM.from_pretrained(job['model'], dtype=torch.float32).eval()
out = []
for tokens in job['texts']:
    total = 0.0
    pairs = utils.get_rolling_token_windows(token_list=tokens, prefix_token=1, max_seq_len=32, context_len=1)
    for context, targets in map(utils.make_disjoint_window, pairs):
        ids = torch.tensor([(context + targets)[:-1]])
        with torch.no_grad():
            log_p = torch.log_softmax(model(ids).logits.double(), -1)[0, -len(targets):]
        total += log_p.gather(1, torch.tensor(targets)[:, None]).sum().item()
    out.append(total)
json.dump(out, open(sys.argv[1], 'w'))
)",
                                       nlohmann::json({{"model", folder.string()}, {"texts", texts}}).dump());
  double worst = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    double total = 0;
    for (const Score& s : score(model, rolling_windows(texts[i], 1, 32), {3, ""})) total += s.log_likelihood;
    worst = std::max(worst, std::abs(total - expected[i].get<double>()));
  }
  RecordProperty("largest_difference", fmt::format("{:.2e}", worst));
  EXPECT_LT(worst, 1e-3);  // the project allows this difference from the harness per request
  fs::remove_all(folder);
}

}  // namespace lazy::eval
