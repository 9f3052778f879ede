// Fuzzes the reader of tokenizer.json. The input consists of a tokenizer.json, a tokenizer_config.json (which does not
// exist if its part is empty) and a text to encode.
#include "bpe.h"

using namespace lazy;

LAZY_FUZZ_TARGET(tokenizer_json) {
  const auto files = fuzz::parts(input, 3);
  const auto path = fuzz::put("tokenizer.json", files[0]);
  std::filesystem::remove(fuzz::scratch() / "tokenizer_config.json");
  if (!files[1].empty()) fuzz::put("tokenizer_config.json", files[1]);
  fuzz::use_tokenizer(read_tokenizer_json(path), files[2]);
}
