#include "train/batches.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tiny_run.h"

namespace lazy::train {
namespace {

Sequences tiny_sequences() {
  SequenceOptions options;
  options.length = 32;
  options.documents_per_group = 64;
  return Sequences(tiny_corpus(), "train", options);
}

TEST(Batches, Labels_AreTheNextIds) {
  const Sequences sequences = tiny_sequences();
  const Batch batch = read_batch(sequences, 3, 2, 32);
  EXPECT_TRUE(at::equal(batch.ids.slice(1, 1), batch.labels.slice(1, 0, 31)));
  EXPECT_TRUE(batch.labels.select(1, 31).eq(-100).all().item<bool>());
  std::vector<int64_t> row(32);
  sequences.read(4, row.data());
  EXPECT_TRUE(at::equal(batch.ids[1], at::tensor(row, at::kLong)));
}

TEST(Batches, PrefetchDepth_DoesNotChangeBatches) {
  const Sequences sequences = tiny_sequences();
  const int64_t first = sequences.size() - 5;  // the batches extend across the end of the epoch
  Batches near(sequences, first, 4, 32, 1), far(sequences, first, 4, 32, 16);
  for (int64_t i = 0; i < 6; ++i) {
    const Batch expected = read_batch(sequences, first + 4 * i, 4, 32);
    EXPECT_TRUE(at::equal(near.next().ids, expected.ids)) << i;
    EXPECT_TRUE(at::equal(far.next().ids, expected.ids)) << i;
  }
}  // the destructor stops the reading threads of `near` and `far`, although batches remain

TEST(Batches, ReaderError_ReachesCaller) {
  const Sequences sequences = tiny_sequences();
  Batches batches(sequences, -4, 4, 32, 2);  // sequence -4 does not exist, so reading fails
  EXPECT_ANY_THROW(batches.next());
  EXPECT_ANY_THROW(batches.next());
}

}  // namespace
}  // namespace lazy::train
