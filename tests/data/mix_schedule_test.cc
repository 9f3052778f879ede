// Tests mixtures of corpora: the share of each corpus in every prefix of the sequence order, random access to
// positions, and the sequences that a mixture reads.
#include "data/packing/order.h"

#include <cmath>
#include <set>

#include "data/sequences.h"
#include "data/shards/corpus.h"
#include "support.h"

namespace lazy {
using namespace testing_support;

namespace {

TEST(MixSchedule, PrefixShares_DeviateByLessThanTreeDepth) {
  Random random(1);
  for (int trial = 0; trial < 40; ++trial) {
    std::vector<double> weights(2 + random.below(9));
    for (double& weight : weights) weight = std::exp(6 * random.uniform());
    if (trial == 0) weights = {1, 1};
    const MixSchedule schedule(weights, static_cast<uint64_t>(trial), trial % 4 != 3);
    EXPECT_EQ(schedule.depth(), static_cast<int64_t>(std::ceil(std::log2(weights.size()))));
    std::vector<int64_t> seen(weights.size());
    for (int64_t n = 0; n < 4000; ++n) {
      ASSERT_EQ(schedule.counts(n), seen);
      const auto [corpus, index] = schedule.at(n);
      ASSERT_EQ(index, seen[corpus]);  // every corpus is read in order without gaps
      ++seen[corpus];
      for (size_t i = 0; i < weights.size(); ++i) {
        ASSERT_LT(std::abs(static_cast<double>(seen[i]) - static_cast<double>(n + 1) * schedule.shares()[i]),
                  static_cast<double>(schedule.depth()))
            << n << " " << i;
      }
    }
  }
}

TEST(MixSchedule, At_WorksForAnyPosition) {
  const MixSchedule schedule({0.7, 0.2, 0.1}, 3, true);
  const int64_t far = int64_t{1} << 60;
  const auto before = schedule.counts(far), after = schedule.counts(far + 1);
  const auto [corpus, index] = schedule.at(far);
  EXPECT_EQ(before[corpus], index);
  EXPECT_EQ(after[corpus], index + 1);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(static_cast<double>(before[i]) / 0x1p60, schedule.shares()[i], 1e-15);
}

TEST(MixSchedule, Seed_ChangesPhases) {
  const auto corpora = [](uint64_t seed, bool shuffle) {
    const MixSchedule schedule({3, 2, 1}, seed, shuffle);
    std::vector<int64_t> out;
    for (int64_t n = 0; n < 100; ++n) out.push_back(schedule.at(n).corpus);
    return out;
  };
  EXPECT_NE(corpora(1, true), corpora(2, true));
  EXPECT_EQ(corpora(1, true), corpora(1, true));
  EXPECT_EQ(corpora(1, false), corpora(2, false));
}

// Writes a corpus of `count` documents, each with a single token. Their ids are first, first + 1, ...
void write_numbers(const fs::path& folder, int32_t first, int count, uint64_t fingerprint = 5) {
  fs::create_directories(folder);
  CorpusInfo info;
  info.tokenizer_kind = "bytes";
  info.tokenizer = {.fingerprint = fingerprint, .vocab_size = 100000, .bos_id = 1};
  ShardWriter writer(folder / "train-00000.bin", info.tokenizer);
  for (int32_t i = 0; i < count; ++i) writer.add(std::vector<int32_t>{first + i}, 3);
  writer.close();
  info.splits["train"] = {{"train-00000.bin"}, count, count, 3 * count};
  write_corpus_info(folder, info);
}

CorpusMix mixture(const Folder& folder, std::vector<double> weights) {
  CorpusMix mix(folder / "a");
  mix.paths.push_back(folder / "b");
  mix.weights = std::move(weights);
  return mix;
}

TEST(Mixture, Mixture_EachCorpusHasSeparateEpochs) {
  const Folder folder;
  write_numbers(folder / "a", 1000, 300);
  write_numbers(folder / "b", 5000, 40);
  for (const Packing packing : {Packing::groups, Packing::windows}) {
    const Sequences sequences(mixture(folder, {3, 1}), "train",
                              {.length = 2, .packing = packing});  // each sequence consists of BOS and one token
    ASSERT_EQ(sequences.parts()[1].sequences, 40);
    EXPECT_EQ(sequences.parts()[1].name, "b");
    EXPECT_DOUBLE_EQ(sequences.parts()[0].share, 0.75);
    // The size of a mixture is the number of sequences after which corpus b has been read once completely.
    EXPECT_NEAR(static_cast<double>(sequences.size()), 160, 4);
    EXPECT_EQ(sequences.tokens(), 2 * 340);
    std::vector<std::vector<int64_t>> read(2);
    for (int64_t i = 0; i < 1200; ++i) {
      int64_t ids[2];
      sequences.read(i, ids);
      EXPECT_EQ(ids[0], 1);
      read[ids[1] >= 5000].push_back(ids[1]);
    }
    EXPECT_EQ(sequences.counts(1200),
              (std::vector<int64_t>{static_cast<int64_t>(read[0].size()), static_cast<int64_t>(read[1].size())}));
    EXPECT_NEAR(static_cast<double>(read[0].size()), 900, 1);
    std::set<std::vector<int64_t>> orders;
    for (const auto& [part, size] : {std::pair{0, size_t{300}}, std::pair{1, size_t{40}}}) {
      for (size_t epoch = 0; (epoch + 1) * size <= read[part].size(); ++epoch) {
        std::vector<int64_t> ids(read[part].begin() + epoch * size, read[part].begin() + (epoch + 1) * size);
        orders.insert(ids);
        EXPECT_EQ(std::set(ids.begin(), ids.end()).size(), size);  // the epoch contains every sequence exactly once
      }
    }
    EXPECT_GE(orders.size(), 8u);  // the order of sequences differs from epoch to epoch
    // A reader that starts at a later position must read the same sequences from there on.
    const Sequences resumed(mixture(folder, {3, 1}), "train", {.length = 2, .packing = packing});
    std::vector<int64_t> place = resumed.counts(700);
    for (int64_t i = 700; i < 800; ++i) {
      int64_t ids[2];
      resumed.read(i, ids);
      const size_t part = ids[1] >= 5000;
      EXPECT_EQ(ids[1], read[part][place[part]++]);
    }
  }
}

TEST(Mixture, DefaultWeights_EpochsEndTogether) {
  const Folder folder;
  write_numbers(folder / "a", 1000, 300);
  write_numbers(folder / "b", 5000, 60);
  const Sequences sequences(mixture(folder, {}), "train", {.length = 2});
  EXPECT_NEAR(sequences.parts()[0].share, 300.0 / 360, 1e-12);
  EXPECT_GE(sequences.size(), 357);
  EXPECT_LE(sequences.size(), 360);
}

TEST(Mixture, InvalidMixture_ErrorNamesReason) {
  const Folder folder;
  write_numbers(folder / "a", 1000, 30);
  write_numbers(folder / "b", 1000, 30, 6);
  const auto message = [&](const CorpusMix& mix) { return error_of([&] { Sequences(mix, "train", {.length = 2}); }); };
  EXPECT_THAT(message(mixture(folder, {1, 1})),
              Names({(folder / "b").string(), "0000000000000006", "0000000000000005"}));
  EXPECT_THAT(message(mixture(folder, {1})), Names({"weights", 2, 1}));
  EXPECT_THAT(message(mixture(folder, {1, 0})), Names({"weights", 0}));
}

}  // namespace
}  // namespace lazy
