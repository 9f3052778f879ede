// The digest's second check: exact twins, differing in the attention alone, over seeds.
#include "repro/recipe.h"

namespace lazy::repro {

Recipe parity() {
  return {"parity",
          "exact twins: Lazy against softmax, all else equal",
          "digest, check 2",
          [](const Conditions& c) {
            const Budget b = Budget::ablation;
            return Plan(c)
                .train(lazy_model(c.scale, b))
                .train(softmax_twin(b))
                .train(softmax_model(b))
                .measure(StepKind::heldout)
                .measure(StepKind::sinks)
                .steps();
          },
          [](const Conditions&, const Results& r) {
            const std::string sequences = over(r, "held-out sequences"), samples = over(r, "samples of held-out text");
            const char* missing = "one of the two was not measured";
            return std::vector<Finding>{
                judge({"Lazy Attention's held-out loss is below its twin's: same shape, data, order, seed and RoPE "
                       "base 1.5e5",
                       "improves language modeling (paper, section 1)", "nats a token", sequences},
                      r.paired_difference("lazy", "softmax-rope150k", StepKind::heldout, "loss"), Sign::below_zero,
                      missing),
                judge({"the same against softmax at RoPE base 1e4", "as above", "nats a token", sequences},
                      r.paired_difference("lazy", "softmax", StepKind::heldout, "loss"), Sign::below_zero, missing),
                judge({"Lazy Attention's sink ratio is below its twin's", "5.46 % to 0.18 % (paper, Table 2)",
                       "share of weight", samples},
                      r.paired_difference("lazy", "softmax-rope150k", StepKind::sinks, "sink_ratio"), Sign::below_zero,
                      missing),
                judge({"Lazy Attention's density is below its twin's", "94.53 % to 40.24 % (paper, Table 2)",
                       "share of weight", samples},
                      r.paired_difference("lazy", "softmax-rope150k", StepKind::sinks, "density"), Sign::below_zero,
                      missing)};
          },
          {},
          {"--seeds N trains every model N times; the interval then is about other seeds too."}};
}

}  // namespace lazy::repro
