// Tests Packing::windows: its definition, its epochs, which bytes it reads from the disk, and a corpus of 10^12 tokens.
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <set>

#include "data/sequences.h"
#include "data/shards/corpus.h"
#include "numbered_corpus.h"
#include "support.h"

namespace lazy {
using namespace testing_support;

namespace {

constexpr int32_t kWindowBos = 7;

std::vector<std::vector<int64_t>> read(const Sequences& sequences, int64_t length, int64_t first, int64_t count) {
  std::vector<std::vector<int64_t>> all;
  for (int64_t i = first; i < first + count; ++i) {
    all.emplace_back(length, -1);
    sequences.read(i, all.back().data());
  }
  return all;
}

SequenceOptions windows(int64_t length, bool shuffle = true) {
  return {.length = length, .shuffle = shuffle, .packing = Packing::windows};
}

TEST(Windows, CorpusOrder_MatchesDefinition) {
  const Folder folder;
  const auto shards = write_numbered_corpus(folder / "c", 90, kWindowBos);
  for (const int64_t length : {1, 2, 7, 64, 300}) {
    for (const bool per_document : {true, false}) {
      for (const bool per_sequence : {true, false}) {
        if (length == 1 && per_sequence) continue;
        SequenceOptions options = windows(length, false);
        options.bos_per_document = per_document;
        options.bos_per_sequence = per_sequence;
        std::vector<std::vector<int64_t>> expected;
        const size_t payload = length - per_sequence;
        for (const auto& documents : shards) {
          std::vector<int64_t> joined;
          for (const auto& document : documents) {
            if (per_document) joined.push_back(kWindowBos);
            joined.insert(joined.end(), document.begin(), document.end());
          }
          for (size_t at = 0; at + payload <= joined.size(); at += payload) {
            expected.emplace_back(joined.begin() + at, joined.begin() + at + payload);
            if (per_sequence) expected.back().insert(expected.back().begin(), kWindowBos);
          }
        }
        const Sequences sequences(folder / "c", "train", options);
        EXPECT_EQ(read(sequences, length, 0, sequences.size()), expected) << length;
      }
    }
  }
}

TEST(Windows, Epoch_ContainsEveryWindowInNewOrder) {
  const Folder folder;
  write_numbered_corpus(folder / "c", 300, kWindowBos);
  const Sequences sequences(folder / "c", "train", windows(8)), again(folder / "c", "train", windows(8));
  const auto all = read(Sequences(folder / "c", "train", windows(8, false)), 8, 0, sequences.size());
  std::set<std::vector<std::vector<int64_t>>> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const auto found = read(sequences, 8, epoch * sequences.size(), sequences.size());
    orders.insert(found);
    EXPECT_EQ(std::multiset(found.begin(), found.end()), std::multiset(all.begin(), all.end()));
  }
  EXPECT_EQ(orders.size(), 3u);
  SequenceOptions other = windows(8);
  other.seed = 43;
  EXPECT_NE(read(Sequences(folder / "c", "train", other), 8, 0, 50), read(sequences, 8, 0, 50));
}

// Four ranks that read micro-batches in turn must read the same windows in total as a single rank.
TEST(Windows, Order_IsIndependentOfRanks) {
  const Folder folder;
  write_numbered_corpus(folder / "c", 300, kWindowBos);
  const auto one = read(Sequences(folder / "c", "train", windows(8)), 8, 0, 320);
  for (const int64_t ranks : {2, 4}) {
    std::vector<std::vector<int64_t>> together(320);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const Sequences own(folder / "c", "train", windows(8));
      for (int64_t first = rank * 4; first < 320; first += ranks * 4) {
        const auto batch = read(own, 8, first, 4);
        std::copy(batch.begin(), batch.end(), together.begin() + first);
      }
    }
    EXPECT_EQ(together, one);
  }
}

// A resumed run may read only the shard of the requested window. The tokens and the index of the two other shards are
// overwritten, so that reading them would be an error. Their headers stay valid, because all headers are read when a
// corpus is opened.
TEST(Windows, Resume_ReadsOnlyTheNextWindow) {
  const Folder folder;
  write_numbered_corpus(folder / "c", 300, kWindowBos);
  const int64_t position = 1000;
  const auto expected = read(Sequences(folder / "c", "train", windows(8)), 8, position, 1).front();
  int64_t first = 0;  // a token id of the sequence, which tells in which shard the sequence is stored
  for (const int64_t id : expected) first = id != kWindowBos ? id : first;
  int spoiled = 0;
  for (const char* name : {"train-0.bin", "train-1.bin", "train-2.bin"}) {
    const Shard shard(folder / "c" / name);
    const auto begin = shard.document(1), end = shard.document(shard.documents() - 2);
    std::vector<int64_t> ids(shard.tokens());
    shard.read(0, shard.tokens(), ids.data());
    if (std::find(ids.begin(), ids.end(), first) != ids.end()) continue;
    std::string bytes = read_file(folder / "c" / name);
    std::memset(bytes.data() + sizeof(ShardHeader), 0xFF, bytes.size() - sizeof(ShardHeader));
    folder.write(fmt::format("c/{}", name), bytes);
    ++spoiled;
  }
  ASSERT_EQ(spoiled, 2);
  const Sequences resumed(folder / "c", "train", windows(8));
  EXPECT_EQ(read(resumed, 8, position, 1).front(), expected);
  EXPECT_THAT(error_of([&] { read(resumed, 8, 0, resumed.size()); }), Names({"shard", "document", "index"}));
  SequenceOptions plain = windows(8);
  plain.bos_per_document = false;
  const Sequences ids(folder / "c", "train", plain);
  EXPECT_THAT(error_of([&] { read(ids, 8, 0, ids.size()); }), Names({"shard", "id", 0xFFFFFFFF, 100000}));
}

// A corpus of 10^12 tokens in 10^4 shards, which are stored as sparse files. Opening it must read only the headers, its
// memory use must grow only with the number of shards, and each of its more than 2^33 windows must be readable
// directly.
TEST(Windows, TrillionTokens_OpenFastWithLittleMemory) {
  const Folder folder;
  constexpr int64_t kShards = 10000, kTokens = 100000000, kLength = 64;
  CorpusInfo info;
  info.tokenizer_kind = "bytes";
  info.tokenizer = {.fingerprint = 5, .vocab_size = 50000, .bos_id = kWindowBos};
  SplitSummary& split = info.splits["train"];
  ShardHeader header{};
  std::memcpy(header.magic, kShardMagic, sizeof header.magic);
  header.version = kShardVersion;
  header.header_bytes = header.tokens_offset = sizeof header;
  header.token_bytes = 2;
  header.tokens = header.source_bytes = kTokens;
  header.documents = 1;
  header.tokenizer_fingerprint = 5;
  header.vocab_size = 50000;
  header.bos_id = header.eos_id = kWindowBos;
  header.index_offset = sizeof header + 2 * kTokens;
  header.header_checksum = header_checksum(header);
  const uint64_t index[2] = {0, kTokens};
  for (int64_t i = 0; i < kShards; ++i) {
    split.shards.push_back(fmt::format("train-{:05}.bin", i));
    std::ofstream file(folder / split.shards.back(), std::ios::binary);
    file.write(reinterpret_cast<const char*>(&header), sizeof header);
    file.seekp(static_cast<std::streamoff>(header.index_offset));
    file.write(reinterpret_cast<const char*>(index), sizeof index);
    ASSERT_TRUE(file.good());
  }
  split.documents = kShards;
  split.tokens = split.source_bytes = kShards * kTokens;
  write_corpus_info(folder.path(), info);
  const auto resident = [] {  // returns the private memory of this process in KiB, without mapped files
    std::ifstream status("/proc/self/status");
    std::string word;
    int64_t kib = 0;
    while (status >> word) {
      if (word == "RssAnon:") status >> kib;
    }
    return kib;
  };
  const int64_t before = resident();
  const auto begin = std::chrono::steady_clock::now();
  const Sequences sequences(folder.path(), "train", windows(kLength));
  const double opened = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const int64_t kib = resident() - before;
  EXPECT_EQ(sequences.size(), kShards * ((kTokens + 1) / kLength));
  EXPECT_GT(sequences.size(), int64_t{1} << 33);
  const auto reading = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < 10000; ++i) {
    int64_t ids[kLength];
    sequences.read(sequences.size() / 10000 * i + i, ids);
    for (int64_t t = 0; t < kLength; ++t) ASSERT_TRUE(ids[t] == 0 || (t == 0 && ids[t] == kWindowBos));
  }
  const double each = std::chrono::duration<double>(std::chrono::steady_clock::now() - reading).count() / 10000;
  RecordProperty("open_seconds", fmt::format("{:.3f}", opened));
  RecordProperty("memory_kib", std::to_string(kib));
  fmt::print("opened {} shards in {:.2f} s, {} KiB of memory; {:.1f} us per window\n", kShards, opened, kib,
             1e6 * each);
  EXPECT_LT(kib, kShards);  // opening needs less than 1 KiB per shard
}

}  // namespace
}  // namespace lazy
