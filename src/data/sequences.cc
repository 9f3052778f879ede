#include "data/sequences.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <numeric>

#include "core/error.h"
#include "core/random.h"
#include "core/text.h"
#include "data/shards/corpus.h"

namespace lazy {
namespace fs = std::filesystem;

namespace {

constexpr uint64_t kVerifyAlways = 2ull << 30;  // larger splits are verified by `lazy data inspect --verify`

// Different streams of random numbers from one seed.
uint64_t derive(uint64_t seed, uint64_t stream) { return Random(seed ^ Random(stream).next()).next(); }
constexpr uint64_t kDocumentStream = 0xD0C5;

}  // namespace

struct Sequences::Impl {
  fs::path corpus;
  SequenceOptions options;
  std::vector<Shard> shards;
  std::vector<int64_t> first_document;  // of each shard, and the total
  int64_t documents = 0, tokens = 0, source_bytes = 0, size = 0;
  int64_t payload = 0;  // tokens of a sequence that come from documents: length, less a BOS
  int32_t bos = -1;
  std::vector<uint32_t> order;           // documents in the order of the epoch; empty: corpus order
  std::vector<int64_t> group_sequences;  // sequences before group g, and the total

  // An epoch's order of sequences. Two are kept, so that a prefetching reader may cross the border.
  struct Epoch {
    int64_t number = -1;
    std::vector<uint32_t> order;
  };
  mutable std::mutex mutex;
  mutable std::array<std::shared_ptr<const Epoch>, 2> epochs;

  const Shard& shard_of(int64_t document, int64_t* local) const {
    const auto next = std::upper_bound(first_document.begin(), first_document.end(), document);
    const auto index = next - first_document.begin() - 1;
    *local = document - first_document[index];
    return shards[index];
  }
  int64_t document_at(int64_t place) const { return order.empty() ? place : order[place]; }
  int64_t document_tokens(int64_t document) const {
    int64_t local;
    const Shard& shard = shard_of(document, &local);
    return shard.start(local + 1) - shard.start(local) + (options.bos_per_document ? 1 : 0);
  }

  void index_groups() {
    group_sequences = {0};
    for (int64_t begin = 0; begin < documents; begin += options.documents_per_group) {
      int64_t total = 0;
      const int64_t end = std::min(documents, begin + options.documents_per_group);
      for (int64_t place = begin; place < end; ++place) total += document_tokens(document_at(place));
      group_sequences.push_back(group_sequences.back() + total / payload);
    }
    size = group_sequences.back();
  }

  std::shared_ptr<const Epoch> epoch(int64_t number) const {
    const std::lock_guard lock(mutex);
    auto& slot = epochs[number % 2];
    if (!slot || slot->number != number) {
      auto fresh = std::make_shared<Epoch>();
      fresh->number = number;
      fresh->order.resize(size);
      std::iota(fresh->order.begin(), fresh->order.end(), 0u);
      Random random(derive(options.seed, static_cast<uint64_t>(number)));
      random.shuffle(std::span(fresh->order));
      slot = fresh;
    }
    return slot;
  }

  // Sequence `number` in the order of construction: group after group.
  void read_in_order(int64_t number, int64_t* out) const {
    if (options.bos_per_sequence) *out++ = bos;
    const auto next = std::upper_bound(group_sequences.begin(), group_sequences.end(), number);
    const int64_t group = next - group_sequences.begin() - 1;
    int64_t skip = (number - group_sequences[group]) * payload;
    int64_t missing = payload;
    for (int64_t place = group * options.documents_per_group; missing > 0; ++place) {
      int64_t local;
      const Shard& shard = shard_of(document_at(place), &local);
      const int64_t begin = shard.start(local);
      const int64_t with_bos = options.bos_per_document ? 1 : 0;
      const int64_t length = shard.start(local + 1) - begin + with_bos;
      if (skip >= length) {
        skip -= length;
        continue;
      }
      int64_t at = skip;
      skip = 0;
      if (at < with_bos) {
        *out++ = bos;
        --missing;
        ++at;
      }
      const int64_t count = std::min(missing, length - at);
      shard.read(begin + at - with_bos, count, out);
      out += count;
      missing -= count;
    }
  }
};

Sequences::Sequences(const fs::path& corpus, const std::string& split, const SequenceOptions& options)
    : impl_(std::make_unique<Impl>()) {
  Impl& s = *impl_;
  s.corpus = corpus;
  s.options = options;
  s.payload = options.length - (options.bos_per_sequence ? 1 : 0);
  if (s.payload < 1) {
    fail("sequences", "length: expected at least {} tokens, found {}", options.bos_per_sequence ? 2 : 1,
         options.length);
  }
  if (options.documents_per_group < 1) {
    fail("sequences", "documents_per_group: expected at least 1, found {}", options.documents_per_group);
  }
  s.shards = open_shards(corpus, split);
  uint64_t payload_bytes = 0;
  for (const Shard& shard : s.shards) {
    const ShardHeader& h = shard.header();
    s.first_document.push_back(s.documents);
    s.documents += shard.documents();
    s.tokens += shard.tokens();
    s.source_bytes += static_cast<int64_t>(h.source_bytes);
    payload_bytes += h.tokens * h.token_bytes;
  }
  s.first_document.push_back(s.documents);
  if (s.documents == 0) fail("sequences", "{}: split \"{}\" holds no documents", corpus.string(), split);
  if (s.documents > UINT32_MAX) fail("sequences", "{}: more than 2^32 documents are not supported", corpus.string());
  if (payload_bytes <= kVerifyAlways) {
    for (const Shard& shard : s.shards) shard.verify();
  }
  s.bos = s.shards.front().header().bos_id;
  if (s.bos < 0 && (options.bos_per_document || options.bos_per_sequence)) {
    fail("sequences", "{}: its tokenizer has no BOS; set bos_per_document and bos_per_sequence to false",
         corpus.string());
  }
  if (options.bos_per_document) s.tokens += s.documents;
  if (options.shuffle) {
    s.order.resize(s.documents);
    std::iota(s.order.begin(), s.order.end(), 0u);
    Random random(derive(options.seed, kDocumentStream));
    random.shuffle(std::span(s.order));
  }
  s.index_groups();
  if (s.size == 0) {
    fail("sequences", "{}: split \"{}\" has {} tokens in {} documents, fewer than one sequence of {}", corpus.string(),
         split, s.tokens, s.documents, options.length);
  }
  if (s.size > UINT32_MAX) fail("sequences", "{}: more than 2^32 sequences are not supported", corpus.string());
}

Sequences::~Sequences() = default;

int64_t Sequences::size() const { return impl_->size; }
int64_t Sequences::tokens() const { return impl_->tokens; }

double Sequences::bytes_per_token() const {
  return static_cast<double>(impl_->source_bytes) / static_cast<double>(impl_->tokens);
}

int64_t Sequences::vocab_size() const { return impl_->shards.front().header().vocab_size; }
uint64_t Sequences::tokenizer_fingerprint() const { return impl_->shards.front().header().tokenizer_fingerprint; }

fs::path Sequences::tokenizer_path() const {
  return (fs::is_directory(impl_->corpus) ? impl_->corpus : impl_->corpus.parent_path()) / "tokenizer";
}

void Sequences::read(int64_t index, int64_t* out) const {
  const Impl& s = *impl_;
  if (index < 0) fail("sequences", "index: expected at least 0, found {}", index);
  const int64_t place = index % s.size;
  s.read_in_order(s.options.shuffle ? s.epoch(index / s.size)->order[place] : place, out);
}

}  // namespace lazy
