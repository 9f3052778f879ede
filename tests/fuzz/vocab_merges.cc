// Fuzzes the reader of vocab.json and merges.txt. The input consists of these two files, a tokenizer_config.json (which
// does not exist if its part is empty) and a text to encode.
#include "bpe.h"

using namespace lazy;

LAZY_FUZZ_TARGET(vocab_merges) {
  const auto files = fuzz::parts(input, 4);
  const auto vocab = fuzz::put("vocab.json", files[0]), merges = fuzz::put("merges.txt", files[1]);
  std::filesystem::remove(fuzz::scratch() / "tokenizer_config.json");
  if (!files[2].empty()) fuzz::put("tokenizer_config.json", files[2]);
  fuzz::use_tokenizer(read_vocab_and_merges(vocab, merges), files[3]);
}
