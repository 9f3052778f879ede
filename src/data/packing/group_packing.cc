// Packing::groups: documents are shuffled, concatenated in groups and cut into sequences. The sequences are shuffled
// again in every epoch. Memory: 4 bytes per document and per sequence.
#include <algorithm>
#include <array>
#include <mutex>
#include <numeric>

#include "core/error.h"
#include "data/packing/packed_corpus.h"
#include "data/shards/corpus.h"

namespace lazy {
namespace fs = std::filesystem;

namespace {

// Splits with at most this number of bytes are verified when they are opened. Larger splits are verified only by `lazy
// data inspect --verify`.
constexpr uint64_t kVerifyAlways = 2ull << 30;
constexpr uint64_t kDocumentStream = 0xD0C5;

class GroupPacking final : public PackedCorpus {
 public:
  GroupPacking(const fs::path& corpus, const std::string& split, const SequenceOptions& options,
               std::vector<Shard> shards)
      : PackedCorpus(corpus, split, options, shards), shards_(std::move(shards)) {
    const auto too_many = [&](const char* what) {
      fail("sequences", "{}: more than 2^32 {}: set packing = \"windows\"", corpus.string(), what);
    };
    if (documents_ > UINT32_MAX) too_many("documents");
    uint64_t payload_bytes = 0;
    for (const Shard& shard : shards_) payload_bytes += shard.header().tokens * shard.header().token_bytes;
    if (payload_bytes <= kVerifyAlways) {
      for (const Shard& shard : shards_) shard.verify();
    }
    first_document_.push_back(0);
    for (const Shard& shard : shards_) first_document_.push_back(first_document_.back() + shard.documents());
    if (options.shuffle) {
      order_.resize(documents_);
      std::iota(order_.begin(), order_.end(), 0u);
      Random random(derive_seed(options.seed, kDocumentStream));
      random.shuffle(std::span(order_));
    }
    index_groups();
    check_size(split);
    if (size() > UINT32_MAX) too_many("sequences");
  }

  int64_t size() const override { return group_sequences_.back(); }

  void read(int64_t index, int64_t* out) const override {
    const int64_t place = index % size();
    read_in_order(options_.shuffle ? epoch(index / size())->order[place] : place, out);
  }

 private:
  // The order of the sequences in one epoch. The orders of two epochs are cached, because a reader that prefetches may
  // request sequences of two adjacent epochs alternately.
  struct Epoch {
    int64_t number = -1;
    std::vector<uint32_t> order;
  };

  const Shard& shard_of(int64_t document, int64_t* local) const {
    const auto next = std::upper_bound(first_document_.begin(), first_document_.end(), document);
    const auto index = next - first_document_.begin() - 1;
    *local = document - first_document_[index];
    return shards_[index];
  }
  int64_t document_at(int64_t place) const { return order_.empty() ? place : order_[place]; }
  int64_t document_tokens(int64_t document) const {
    int64_t local;
    const Shard& shard = shard_of(document, &local);
    return shard.start(local + 1) - shard.start(local) + (separates() ? 1 : 0);
  }

  void index_groups() {
    group_sequences_ = {0};
    for (int64_t begin = 0; begin < documents_; begin += options_.documents_per_group) {
      int64_t total = 0;
      const int64_t end = std::min(documents_, begin + options_.documents_per_group);
      for (int64_t place = begin; place < end; ++place) total += document_tokens(document_at(place));
      group_sequences_.push_back(group_sequences_.back() + total / payload());
    }
  }

  std::shared_ptr<const Epoch> epoch(int64_t number) const {
    const std::lock_guard lock(mutex_);
    auto& slot = epochs_[number % 2];
    if (!slot || slot->number != number) {
      auto fresh = std::make_shared<Epoch>();
      fresh->number = number;
      fresh->order.resize(size());
      std::iota(fresh->order.begin(), fresh->order.end(), 0u);
      Random random(derive_seed(options_.seed, static_cast<uint64_t>(number)));
      random.shuffle(std::span(fresh->order));
      slot = fresh;
    }
    return slot;
  }

  // Reads the sequence with index `number`. The indices follow the order in which the groups were cut, before the
  // sequences are shuffled.
  void read_in_order(int64_t number, int64_t* out) const {
    if (options_.bos_per_sequence) *out++ = bos();
    const auto next = std::upper_bound(group_sequences_.begin(), group_sequences_.end(), number);
    const int64_t group = next - group_sequences_.begin() - 1;
    int64_t skip = (number - group_sequences_[group]) * payload();
    int64_t missing = payload();
    for (int64_t place = group * options_.documents_per_group; missing > 0; ++place) {
      int64_t local;
      const Shard& shard = shard_of(document_at(place), &local);
      const int64_t begin = shard.start(local);
      const int64_t before = separates() ? 1 : 0;
      const int64_t length = shard.start(local + 1) - begin + before;
      if (skip >= length) {
        skip -= length;
        continue;
      }
      int64_t at = skip;
      skip = 0;
      if (at < before) {
        *out++ = separator();
        --missing;
        ++at;
      }
      const int64_t count = std::min(missing, length - at);
      shard.read(begin + at - before, count, out);
      out += count;
      missing -= count;
    }
  }

  std::vector<Shard> shards_;
  // Index of the first document of each shard; the last element is the number of documents.
  std::vector<int64_t> first_document_;
  std::vector<uint32_t> order_;  // shuffled document indices; empty: corpus order
  // group_sequences_[g] is the number of sequences in the groups before group g; the last element is the total.
  std::vector<int64_t> group_sequences_;
  mutable std::mutex mutex_;
  mutable std::array<std::shared_ptr<const Epoch>, 2> epochs_;
};

}  // namespace

std::unique_ptr<PackedCorpus> pack_groups(const fs::path& corpus, const std::string& split,
                                          const SequenceOptions& options) {
  return std::make_unique<GroupPacking>(corpus, split, options, open_shards(corpus, split));
}

}  // namespace lazy
