// Fuzzes the reader of corpus.json, in a folder with two valid shards.
#include "data/sequences.h"
#include "data/shards/corpus.h"
#include "target.h"

using namespace lazy;

LAZY_FUZZ_TARGET(corpus_json) {
  const auto& folder = fuzz::scratch();
  static const bool written = [&] {
    for (const char* name : {"train-00000.bin", "validation-00000.bin"}) {
      ShardWriter writer(folder / name, {0x1234, 300, 1, 2});
      for (int32_t d = 0; d < 3; ++d) writer.add(std::vector<int32_t>{d, 7, 299}, 5);
      writer.close();
    }
    return true;
  }();
  fuzz::require(written, "shards written");
  fuzz::put("corpus.json", input);
  const CorpusInfo info = read_corpus_info(folder);
  for (const auto& [name, split] : info.splits) {
    const auto shards = open_shards(folder, name);
    fuzz::require(shards.size() == split.shards.size(), "one shard is opened for each listed file");
  }
  if (info.splits.contains("train") && info.splits.at("train").documents > 0) {
    const Sequences sequences(folder, "train", {.length = 2});
    int64_t ids[2];
    sequences.read(0, ids);
  }
  // Accepted values must be the same after they have been written and read again.
  write_corpus_info(folder, info);
  const CorpusInfo again = read_corpus_info(folder);
  fuzz::require(again.inputs == info.inputs && again.seed == info.seed && again.splits.size() == info.splits.size() &&
                    again.tokenizer.fingerprint == info.tokenizer.fingerprint,
                "the information is unchanged after it was written and read again");
}
