// This build has only the tokenizers `bytes` and byte-level BPE. SentencePiece is not included: it takes minutes to
// build, and it uses no threads of this project. Parquet files are read by a separate process.
#include "core/error.h"
#include "data/corpus/source.h"
#include "data/tokenizer.h"
#include "data/tokenizers/bpe.h"
#include "data/tokenizers/sentencepiece.h"
#include "data/tokenizers/simple_tokenizers.h"

namespace lazy {

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& source) {
  if (source == "bytes") return make_bytes_tokenizer();
  return make_bpe_tokenizer(read_tokenizer_json(source));
}

std::unique_ptr<Tokenizer> train_sentencepiece(const std::vector<std::string>&, int64_t) {
  fail_run("tokenizer", "this build does not include SentencePiece");
}

std::unique_ptr<ByteStream> open_parquet(const std::filesystem::path& path, const std::string&) {
  fail_run("parquet", "{}: this build cannot read Parquet files", path.string());
}

}  // namespace lazy
