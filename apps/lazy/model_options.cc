#include "model_options.h"

namespace lazy::cli {

void add_model_options(CLI::App& command, ModelOptions& options) {
  command.add_option("--positions", options.positions,
                     "Stretch RoPE: yarn:4, linear:4, dynamic:4; none undoes the model's own stretching");
  command.add_option("--rope-base", options.rope_base, "RoPE's base (default: the model's)");
  command.add_option("--cache", options.cache,
                     "streaming:4+508 keeps the first 4 and the last 508 tokens (StreamingLLM)");
}

}  // namespace lazy::cli
