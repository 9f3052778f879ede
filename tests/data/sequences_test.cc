#include "data/sequences.h"

#include <algorithm>
#include <set>
#include <thread>

#include "data/shards/corpus.h"
#include "numbered_corpus.h"
#include "support.h"

namespace lazy {
using namespace testing_support;

namespace {

constexpr int32_t kBos = 999, kEos = 998;

Documents write_corpus(const fs::path& folder, int count, int32_t bos = kBos, int32_t eos = kEos) {
  Documents all;
  for (const Documents& shard : write_numbered_corpus(folder, count, bos, eos)) {
    all.insert(all.end(), shard.begin(), shard.end());
  }
  return all;
}

std::vector<std::vector<int64_t>> read_all(const Sequences& sequences, int64_t length, int64_t epoch = 0) {
  std::vector<std::vector<int64_t>> all;
  for (int64_t i = 0; i < sequences.size(); ++i) {
    all.emplace_back(length, -1);
    sequences.read(epoch * sequences.size() + i, all.back().data());
  }
  return all;
}

// Reference implementation of Packing::groups with plain loops. It returns the sequences in corpus order.
std::vector<std::vector<int64_t>> by_definition(const std::vector<std::vector<int64_t>>& documents,
                                                const SequenceOptions& o) {
  std::vector<std::vector<int64_t>> sequences;
  const size_t payload = o.length - (o.bos_per_sequence ? 1 : 0);
  for (size_t begin = 0; begin < documents.size(); begin += o.documents_per_group) {
    std::vector<int64_t> joined;
    for (size_t d = begin; d < std::min<size_t>(documents.size(), begin + o.documents_per_group); ++d) {
      if (o.bos_per_document) joined.push_back(kBos);
      joined.insert(joined.end(), documents[d].begin(), documents[d].end());
    }
    for (size_t at = 0; at + payload <= joined.size(); at += payload) {
      sequences.emplace_back(joined.begin() + at, joined.begin() + at + payload);
      if (o.bos_per_sequence) sequences.back().insert(sequences.back().begin(), kBos);
    }
  }
  return sequences;
}

}  // namespace

TEST(Sequences, CorpusOrder_MatchesReferenceImplementation) {
  const Folder folder;
  const auto documents = write_corpus(folder / "c", 100);
  for (const int64_t length : {1, 2, 7, 64, 500}) {
    for (const int64_t group : {1, 7, 40, 2048}) {
      for (const bool per_document : {true, false}) {
        for (const bool per_sequence : {true, false}) {
          const SequenceOptions options{.length = length,
                                        .bos_per_document = per_document,
                                        .bos_per_sequence = per_sequence,
                                        .documents_per_group = group,
                                        .shuffle = false};
          if (length == 1 && per_sequence) continue;
          const auto expected = by_definition(documents, options);
          if (expected.empty()) {
            EXPECT_THAT(error_of([&] { Sequences(folder / "c", "train", options); }),
                        Names({(folder / "c").string(), "train", length}));
            continue;
          }
          const Sequences sequences(folder / "c", "train", options);
          EXPECT_EQ(read_all(sequences, length), expected) << length << " " << group;
          EXPECT_EQ(read_all(sequences, length, 3), expected);  // without shuffling, all epochs have the same order
        }
      }
    }
  }
}

TEST(Sequences, MaskPosition_PutsBosAtThatPositionOfEverySequence) {
  const Folder folder;
  write_corpus(folder / "c", 100);
  for (const Packing packing : {Packing::groups, Packing::windows}) {
    SequenceOptions options{.length = 16, .bos_per_document = false, .packing = packing};
    const auto plain = read_all(Sequences(folder / "c", "train", options), 16);
    for (const int64_t position : {1, 5, 16}) {
      options.mask_position = position;
      const auto masked = read_all(Sequences(folder / "c", "train", options), 16);
      ASSERT_EQ(masked.size(), plain.size());
      for (size_t n = 0; n < plain.size(); ++n) {
        auto expected = plain[n];
        expected[static_cast<size_t>(position - 1)] = kBos;
        EXPECT_EQ(masked[n], expected) << position;
      }
    }
    options.mask_position = 17;
    EXPECT_THAT(error_of([&] { Sequences(folder / "c", "train", options); }), Names({"mask_position", 0, 16, 17}));
    options.mask_position = 3;
    options.bos_per_sequence = true;
    EXPECT_THAT(error_of([&] { Sequences(folder / "c", "train", options); }),
                Names({"mask_position", "bos_per_document", "bos_per_sequence"}));
  }
}

TEST(Sequences, Shuffle_ReordersDocumentsAndSequences) {
  const Folder folder;
  const auto documents = write_corpus(folder / "c", 200);
  const SequenceOptions options{.length = 8, .seed = 1, .documents_per_group = 10};
  const Sequences sequences(folder / "c", "train", options);
  const auto first = read_all(sequences, 8), second = read_all(sequences, 8, 1);
  EXPECT_NE(first, second);
  EXPECT_EQ(std::multiset(first.begin(), first.end()), std::multiset(second.begin(), second.end()));
  EXPECT_EQ(read_all(sequences, 8, 0), first);
  EXPECT_EQ(read_all(sequences, 8, 1), second);

  // Within a sequence, each token must be followed by the next token of its document. The last token of a document must
  // be followed by BOS.
  std::map<int64_t, int64_t> follows;
  std::set<int64_t> ends, begins;
  for (const auto& document : documents) {
    if (document.empty()) continue;
    begins.insert(document.front());
    ends.insert(document.back());
    for (size_t i = 0; i + 1 < document.size(); ++i) follows[document[i]] = document[i + 1];
  }
  for (const auto& sequence : first) {
    for (size_t i = 0; i + 1 < sequence.size(); ++i) {
      const int64_t now = sequence[i], next = sequence[i + 1];
      if (now == kBos) {
        EXPECT_TRUE(next == kBos || begins.contains(next));
      } else if (next == kBos) {
        EXPECT_TRUE(ends.contains(now));
      } else {
        EXPECT_EQ(follows.at(now), next);
      }
    }
  }
  // Documents are shuffled before they are packed into sequences, so the sequences differ from those in corpus order.
  const auto unshuffled = by_definition(documents, options);
  EXPECT_NE(std::multiset(first.begin(), first.end()), std::multiset(unshuffled.begin(), unshuffled.end()));

  SequenceOptions other = options;
  other.seed = 2;
  EXPECT_NE(read_all(Sequences(folder / "c", "train", other), 8), first);
  EXPECT_EQ(read_all(Sequences(folder / "c", "train", options), 8), first);
}

// The tokens for a given corpus, seed and index must never change, because resumed runs depend on them.
TEST(Sequences, Order_MatchesRecordedValues) {
  const Folder folder;
  write_corpus(folder / "c", 50);
  const Sequences sequences(folder / "c", "train", {.length = 4, .seed = 42, .documents_per_group = 16});
  std::vector<int64_t> read;
  for (const int64_t index : {int64_t{0}, int64_t{1}, sequences.size(), 100 * sequences.size() + 7}) {
    std::vector<int64_t> sequence(4);
    sequences.read(index, sequence.data());
    read.push_back(sequence[0]);
  }
  EXPECT_THAT(read, testing::ElementsAre(1945, 1466, 1584, 1763));
}

// With EOS per document, the sequences must be the same as with BOS per document, except that EOS replaces BOS.
TEST(Sequences, EosPerDocument_SeparatesDocuments) {
  const Folder folder;
  write_corpus(folder / "c", 60);
  for (const Packing packing : {Packing::groups, Packing::windows}) {
    const Sequences bos(folder / "c", "train", {.length = 16, .packing = packing});
    const Sequences eos(folder / "c", "train",
                        {.length = 16, .bos_per_document = false, .eos_per_document = true, .packing = packing});
    auto expected = read_all(bos, 16);
    for (auto& sequence : expected) std::replace(sequence.begin(), sequence.end(), int64_t{kBos}, int64_t{kEos});
    EXPECT_EQ(read_all(eos, 16), expected);
    EXPECT_EQ(eos.tokens(), bos.tokens());
  }
  const SequenceOptions both{.length = 16, .eos_per_document = true};
  EXPECT_THAT(error_of([&] { Sequences(folder / "c", "train", both); }),
              Names({"bos_per_document", "eos_per_document"}));
  write_corpus(folder / "no_eos", 60, kBos, -1);
  const SequenceOptions eos{.length = 16, .bos_per_document = false, .eos_per_document = true};
  EXPECT_THAT(error_of([&] { Sequences(folder / "no_eos", "train", eos); }),
              Names({"no_eos", "EOS", "eos_per_document"}));
}

TEST(Sequences, Sequences_CountTokensAndBytes) {
  const Folder folder;
  const auto documents = write_corpus(folder / "c", 60);
  int64_t tokens = 0;
  for (const auto& document : documents) tokens += static_cast<int64_t>(document.size());
  const Sequences with(folder / "c", "train", {.length = 16});
  EXPECT_EQ(with.tokens(), tokens + 60);
  EXPECT_DOUBLE_EQ(with.bytes_per_token(), 2.0 * tokens / (tokens + 60));
  EXPECT_EQ(with.vocab_size(), 100000);
  EXPECT_EQ(with.tokenizer_fingerprint(), 5u);
  EXPECT_EQ(with.tokenizer_path(), folder / "c" / "tokenizer");
  EXPECT_EQ(Sequences(folder / "c", "train", {.length = 16, .bos_per_document = false}).tokens(), tokens);
  const Sequences one(folder / "c" / "train-1.bin", "train", {.length = 16});  // reads a single shard of the corpus
  EXPECT_LT(one.tokens(), with.tokens());
}

TEST(Sequences, ConcurrentReads_ReturnTheSame) {
  const Folder folder;
  write_corpus(folder / "c", 100);
  const Sequences sequences(folder / "c", "train", {.length = 16});
  std::vector<std::vector<std::vector<int64_t>>> epochs;
  for (int64_t e = 0; e < 4; ++e) epochs.push_back(read_all(sequences, 16, e));
  const Sequences shared(folder / "c", "train", {.length = 16});
  std::vector<std::thread> threads;
  std::array<int, 4> different{};
  for (int64_t e = 0; e < 4; ++e) threads.emplace_back([&, e] { different[e] = read_all(shared, 16, e) != epochs[e]; });
  for (auto& thread : threads) thread.join();
  EXPECT_THAT(different, testing::Each(0));
}

TEST(Sequences, InvalidOptions_ErrorNamesReason) {
  const Folder folder;
  write_corpus(folder / "c", 30);
  const auto message = [&](const SequenceOptions& options) {
    return error_of([&] { Sequences(folder / "c", "train", options); });
  };
  EXPECT_THAT(message({.length = 0}), Names({"length", 1, 0}));
  EXPECT_THAT(message({.length = 1, .bos_per_sequence = true}), Names({"length", 2, 1}));
  EXPECT_THAT(message({.length = 8, .documents_per_group = 0}), Names({"documents_per_group", 1, 0}));
  EXPECT_THAT(message({.length = 100000}), Names({(folder / "c").string(), "train", 30, 100000}));
  const Sequences sequences(folder / "c", "train", {.length = 8});
  int64_t out[8];
  EXPECT_THAT(error_of([&] { sequences.read(-1, out); }), Names({"index", 0, -1}));

  write_corpus(folder / "no_bos", 30, -1);
  EXPECT_THAT(error_of([&] { Sequences(folder / "no_bos", "train", {.length = 8}); }),
              Names({"no_bos", "BOS", "bos_per_document", "bos_per_sequence"}));
  EXPECT_NO_THROW(Sequences(folder / "no_bos", "train", {.length = 8, .bos_per_document = false}));

  std::string shard = read_file(folder / "c" / "train-1.bin");
  shard[140] ^= 1;
  folder.write("c/train-1.bin", shard);
  EXPECT_THAT(message({.length = 8}), Names({"train-1.bin", "checksum", "tokens"}));
}

}  // namespace lazy
