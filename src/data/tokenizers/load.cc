#include "core/error.h"
#include "core/file.h"
#include "data/tokenizer.h"
#include "data/tokenizers/bpe.h"
#include "data/tokenizers/bytes.h"
#include "data/tokenizers/sentencepiece.h"
#include "data/tokenizers/tokenizer_json.h"
#include "data/tokenizers/transformers_files.h"
#include "data/tokenizers/words.h"

namespace lazy {
namespace fs = std::filesystem;

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& source) {
  if (source == "bytes") return make_bytes_tokenizer();
  fs::path path = source;
  if (!fs::exists(path)) fail("tokenizer", "{}: expected \"bytes\", a file or a folder, found nothing there", source);
  if (fs::is_directory(path)) {
    if (is_bytes_config(path)) return make_bytes_tokenizer();
    for (const char* name : {"tokenizer.model", "tokenizer.json"}) {
      if (fs::exists(path / name)) return load_tokenizer((path / name).string());
    }
    if (fs::exists(path / "vocab.json") && fs::exists(path / "merges.txt")) {
      return make_bpe_tokenizer(read_vocab_and_merges(path / "vocab.json", path / "merges.txt"));
    }
    if (fs::exists(path / "vocab.txt")) return load_words_tokenizer(path / "vocab.txt");
    for (const char* name : {"vocab.bin", "vocab.pkl"}) {
      if (!fs::exists(path / name)) continue;
      fail("tokenizer",
           "{}: expected vocab.txt beside it, found a pickle alone, which may run any program: docs/models.md has the "
           "command that lists its words",
           (path / name).string());
    }
    fail("tokenizer",
         "{}: expected tokenizer.model, tokenizer.json, or vocab.json and merges.txt, or vocab.txt in this folder",
         source);
  }
  if (path.extension() == ".json") {
    TokenizerJson file(path);
    if (file.is_sentencepiece()) return make_sentencepiece(std::move(file));
    return make_bpe_tokenizer(read_byte_level(std::move(file)));
  }
  if (path.extension() == ".model") return load_sentencepiece(read_file(path), source);
  if (path.extension() == ".txt") return load_words_tokenizer(path);
  fail("tokenizer", "{}: expected a .model file, a tokenizer.json, a vocab.txt or a folder", source);
}

}  // namespace lazy
