// Packing::windows: the documents of every shard are concatenated and cut into windows, each of which becomes one
// sequence. An epoch reads all windows in the order of a keyed permutation. Memory: 8 bytes per shard in addition to
// the memory maps. Only the requested windows are read from disk.
#include <algorithm>

#include "core/error.h"
#include "data/packing/order.h"
#include "data/packing/packed_corpus.h"
#include "data/shards/corpus.h"

namespace lazy {
namespace fs = std::filesystem;

namespace {

constexpr uint64_t kWindowStream = 0x817D;

class WindowPacking final : public PackedCorpus {
 public:
  WindowPacking(const fs::path& corpus, const std::string& split, const SequenceOptions& options,
                std::vector<Shard> shards)
      : PackedCorpus(corpus, split, options, shards), shards_(std::move(shards)) {
    first_.push_back(0);
    for (const Shard& shard : shards_) {
      const int64_t joined = shard.tokens() + (separates() ? shard.documents() : 0);
      first_.push_back(first_.back() + joined / payload());
    }
    check_size(split);
  }

  int64_t size() const override { return first_.back(); }

  void read(int64_t index, int64_t* out) const override {
    int64_t place = index % size();
    if (options_.shuffle) {
      const uint64_t epoch = static_cast<uint64_t>(index / size());
      const Permutation order(static_cast<uint64_t>(size()), derive_seed(options_.seed ^ kWindowStream, epoch));
      place = static_cast<int64_t>(order(static_cast<uint64_t>(place)));
    }
    const auto next = std::upper_bound(first_.begin(), first_.end(), place);
    const int64_t shard = next - first_.begin() - 1;
    if (options_.bos_per_sequence) *out++ = bos();
    read_window(shards_[shard], (place - first_[shard]) * payload(), out);
  }

 private:
  // Reads payload() tokens from position `begin` of the shard's documents, concatenated with their separators. The
  // document index is not checked when the shard is opened, because that would read the whole index. Shard::range()
  // checks the entries that are used.
  void read_window(const Shard& shard, int64_t begin, int64_t* out) const {
    if (!separates()) return shard.read_checked(begin, payload(), out);
    // In the concatenation, the separator of document d is at position start(d) + d, because d separators precede it.
    // Binary search for the last document whose separator is at or before `begin`.
    int64_t low = 0, high = shard.documents();
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (shard.range(middle).begin + middle <= begin ? low : high) = middle;
    }
    int64_t skip = begin - (shard.range(low).begin + low);
    if (skip < 0) shard.fail_index(low);
    for (int64_t missing = payload(), d = low; missing > 0; ++d) {
      const Shard::Range document = shard.range(d);
      if (skip == 0) {
        *out++ = separator();
        --missing;
        skip = 1;
      }
      const int64_t first = document.begin + skip - 1;
      const int64_t count = std::min(missing, document.end - first);
      skip = 0;
      if (count <= 0) continue;
      shard.read_checked(first, count, out);
      out += count;
      missing -= count;
    }
  }

  std::vector<Shard> shards_;
  // first_[s] is the number of windows in the shards before shard s; the last element is the total.
  std::vector<int64_t> first_;
};

}  // namespace

std::unique_ptr<PackedCorpus> pack_windows(const fs::path& corpus, const std::string& split,
                                           const SequenceOptions& options) {
  return std::make_unique<WindowPacking>(corpus, split, options, open_shards(corpus, split, ShardCheck::header));
}

}  // namespace lazy
