// A corpus in which all tokens differ, so that a token identifies its position.
#pragma once
#include <numeric>
#include <vector>

#include "data/shards/corpus.h"
#include "support.h"

namespace lazy::testing_support {

using Documents = std::vector<std::vector<int64_t>>;

// Writes `count` documents of 0 to 39 tokens to three shards. Token ids are consecutive and start at 1000. Returns the
// documents of each shard.
inline std::vector<Documents> write_numbered_corpus(const fs::path& folder, int count, int32_t bos, int32_t eos = -1) {
  fs::create_directories(folder);
  Random random(count);
  CorpusInfo info;
  info.tokenizer_kind = "bytes";
  info.tokenizer = {.fingerprint = 5, .vocab_size = 100000, .bos_id = bos, .eos_id = eos};
  SplitSummary& split = info.splits["train"];
  std::vector<Documents> shards(3);
  int32_t next = 1000;
  for (int shard = 0; shard < 3; ++shard) {
    split.shards.push_back(fmt::format("train-{}.bin", shard));
    ShardWriter writer(folder / split.shards.back(), info.tokenizer);
    for (int d = shard * count / 3; d < (shard + 1) * count / 3; ++d) {
      std::vector<int32_t> document(random.below(40));
      std::iota(document.begin(), document.end(), next);
      next += static_cast<int32_t>(document.size());
      writer.add(document, 2 * document.size());
      shards[static_cast<size_t>(shard)].emplace_back(document.begin(), document.end());
      split.tokens += static_cast<int64_t>(document.size());
      split.source_bytes += 2 * static_cast<int64_t>(document.size());
      ++split.documents;
    }
    writer.close();
  }
  write_corpus_info(folder, info);
  return shards;
}

}  // namespace lazy::testing_support
