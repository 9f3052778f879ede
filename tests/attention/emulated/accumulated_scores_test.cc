// Tests of score_stats, two statistics per row that the Hopper forward computes: the maximum score and the entropy of
// the softmax. The CPU emulator of CUDA kernels does not support the matrix products and the copies of this kernel. The
// test therefore passes tiles of scores to a warp itself, in the register layout of wgmma's accumulators.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "attention/cuda/hopper_forward_elastic.cuh"
#include "attention/cuda/hopper_forward_softmax.cuh"
#include "attention/reference/normalizers.h"
#include "emulator.h"

namespace lazy::kernels::cuda::hopper {
namespace {

constexpr int kRows = 16, kTile = 64;  // kRows: rows per warp; kTile: keys per tile

// Processes a tile of scores with the same steps as softmax_rows, a function of the Hopper forward.
void add_softmax(float (&s)[kTile / 2], float c, float (&base)[2], float (&sum)[2], RowScores& rows) {
  float again[kTile / 2], part[2], shrink[2];
  std::copy(std::begin(s), std::end(s), again);
  TileScores of_tile;
  exponentials<true>(s, c, base, part, of_tile);
  if (__all_sync(~0u, part[0] < 0x1p15f && part[1] < 0x1p15f)) {
    for (int h = 0; h < 2; ++h) sum[h] += part[h];
    rows.add(c, of_tile.most, of_tile.added);
  } else {
    raise_rows<true>(again, c, base, sum, shrink, rows);
  }
}

// scores: shape (kRows, keys), before they are scaled. Returns score_stats of shape (2, kRows).
std::vector<float> statistics(Params p, const std::vector<float>& scores) {
  std::vector<float> found(2 * kRows, NAN);
  p.score_stats = found.data();
  Tile t{};
  t.q_length = kRows;
  t.k_length = p.k_length;
  emulated::launch({}, {32}, 0, [&] {
    RowGroup b(p, t);
    b.start(0, nullptr);
    float base[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    RowScores rows;
    // Processes tiles of keys from the last tile (at the diagonal) to the first.
    for (int key = (p.k_length - 1) / kTile * kTile; key >= 0; key -= kTile) {
      float s[kTile / 2];
      for (int n = 0; n < kTile / 2; ++n) {
        const int row = b.lane / 4 + n / 2 % 2 * 8, at = key + n / 4 * 8 + 2 * (b.lane % 4) + n % 2;
        s[n] = at < p.k_length ? scores[row * p.k_length + at] : 0;
      }
      const float c = b.finish<kTile>(s, key);
      if (p.normalizer == Normalizer::elastic) {
        add_row_sums<true>(s, c, base, sum, rows);
      } else {
        add_softmax(s, c, base, sum, rows);
      }
    }
    rows.write(b, base, sum);
  });
  return found;
}

class AccumulatedScores : public testing::TestWithParam<std::tuple<Normalizer, bool, int>> {};

TEST_P(AccumulatedScores, MatchReference) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  Params p{};
  std::tie(p.normalizer, p.causal, p.k_length) = GetParam();
  p.batch = p.heads = p.kv_heads = 1;
  p.q_length = kRows;
  p.window = -1;
  p.scale = 0.7F;
  const int keys = p.k_length;
  for (const float deviation : {1.0F, 40.0F}) {
    for (const float slope : {0.0F, 0.5F, -0.5F}) {  // average increase of the scores from one key to the next
      std::vector<float> scores;
      for (int n = 0; n < kRows * keys; ++n) {
        scores.push_back(deviation * normal(random) + slope * static_cast<float>(n % keys));
      }
      const std::vector<float> found = statistics(p, scores);
      for (int row = 0; row < kRows; ++row) {
        SCOPED_TRACE(testing::Message() << "deviation " << deviation << " slope " << slope << " row " << row);
        const int seen = p.causal ? row + keys - kRows + 1 : keys;
        if (seen <= 0) {
          EXPECT_EQ(found[row], -INFINITY);
          EXPECT_EQ(found[kRows + row], 0);
          continue;
        }
        std::vector<double> exact;
        double most = 1;
        for (int key = 0; key < seen; ++key) {
          exact.push_back(static_cast<double>(scores[row * keys + key]) * p.scale);
          most = std::max(most, std::abs(exact.back()));
        }
        const reference::ScoreStatistics expected = reference::score_statistics(exact);
        EXPECT_NEAR(found[row], expected.largest, 2e-7 * most);
        EXPECT_NEAR(found[kRows + row], expected.entropy, 5e-7 * (most + std::log(keys)));
        if (seen == 1) {
          EXPECT_EQ(found[kRows + row], 0);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AccumulatedScores,
                         testing::Combine(testing::Values(Normalizer::softmax, Normalizer::elastic), testing::Bool(),
                                          testing::Values(1, 16, 70, 200, 500)));

}  // namespace
}  // namespace lazy::kernels::cuda::hopper
