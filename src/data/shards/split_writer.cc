#include "data/shards/split_writer.h"

#include <fmt/format.h>

namespace lazy {

void SplitWriter::add(std::span<const int32_t> document, uint64_t source_bytes) {
  if (!shard_) {
    summary_.shards.push_back(fmt::format("{}-{:05}.bin", name_, summary_.shards.size()));
    shard_.emplace(folder_ / summary_.shards.back(), tokenizer_);
  }
  shard_->add(document, source_bytes);
  ++summary_.documents;
  summary_.tokens += static_cast<int64_t>(document.size());
  summary_.source_bytes += static_cast<int64_t>(source_bytes);
  if (shard_->bytes() >= shard_bytes_) close();
}

void SplitWriter::close() {
  if (shard_) shard_->close();
  shard_.reset();
}

}  // namespace lazy
