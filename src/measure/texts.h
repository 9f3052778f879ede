// Functions that provide texts for measurements: windows of the validation split, stretches of text and their losses,
// and the tokens of text files.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/sequences.h"
#include "data/tokenizer.h"
#include "eval/requests.h"
#include "eval/score.h"

namespace lazy {
struct ModelConfig;
}  // namespace lazy

namespace lazy::measure {

// Sequences of the validation split, built with the options `how` but in the order of the corpus. At most `most`
// sequences are selected, spread evenly over the split. A window scores all tokens of one sequence except the first
// token. Throws an Error if the split has no complete sequence or if the corpus was tokenized with a different
// tokenizer than the model's tokenizer.
struct HeldOutWindows {
  std::vector<eval::Window> windows;
  bool whole_split = false;
  double bytes_per_token = 0;  // bytes of text per token of the validation split
};
HeldOutWindows heldout_windows(const ModelConfig& model, const std::filesystem::path& corpus, SequenceOptions how,
                               int64_t most);

// Returns the tokens of files and of the text files in folders, without BOS, up to a limit that is large enough for
// every measurement.
std::vector<int32_t> text_tokens(const std::vector<std::string>& paths, const Tokenizer& tokenizer);

// Stretches of text (token sequences), each with the token that precedes it. At most `most` stretches are selected,
// spread evenly. The list is empty if the text is shorter than one stretch.
using Stretches = std::vector<std::vector<int64_t>>;
// Returns stretches of the validation split in the order of the corpus, with the separators that `how` defines.
Stretches heldout_stretches(const std::filesystem::path& corpus, SequenceOptions how, int64_t tokens, int64_t most);
// Cuts the stretches into windows of `length` tokens that together score every token. A window begins with `bos` or, if
// there is no `bos`, with the preceding token.
std::vector<eval::Window> length_windows(const Stretches& stretches, int64_t length, std::optional<int32_t> bos);
// Returns the mean loss of each stretch from the scores of its windows.
std::vector<double> stretch_losses(const Stretches& stretches, const std::vector<eval::Score>& scores);

constexpr size_t kLengthGroups = 64;
// Reduces `values` to at most `most` means over groups of neighbors. Group sizes differ by at most one.
std::vector<double> thinned(const std::vector<double>& values, size_t most);

}  // namespace lazy::measure
