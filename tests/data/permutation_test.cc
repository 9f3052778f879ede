// Tests the keyed permutation that defines the order of windows: it is a bijection, different keys give different
// orders, and adjacent positions are independent.
#include "data/packing/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/random.h"

namespace lazy {
namespace {

std::vector<uint64_t> order(uint64_t size, uint64_t key) {
  const Permutation permutation(size, key);
  std::vector<uint64_t> out(size);
  for (uint64_t i = 0; i < size; ++i) out[i] = permutation(i);
  return out;
}

TEST(Permutation, Permutation_IsABijectionForEverySize) {
  std::vector<uint64_t> sizes(70);
  std::iota(sizes.begin(), sizes.end(), 1);
  for (const uint64_t size : {127, 128, 129, 1000, 4095, 4096, 4097, 65537}) sizes.push_back(size);
  for (const uint64_t size : sizes) {
    for (const uint64_t key : {0, 1, 2}) {
      auto places = order(size, key);
      std::sort(places.begin(), places.end());
      for (uint64_t i = 0; i < size; ++i) ASSERT_EQ(places[i], i) << size << " " << key;
    }
  }
}

TEST(Permutation, DifferentKeys_GiveDifferentOrders) {
  const auto first = order(5000, 1), second = order(5000, 2);
  int64_t equal = 0;
  for (size_t i = 0; i < first.size(); ++i) equal += first[i] == second[i];
  // On average, one position is equal in both orders. A Poisson count with mean 1 exceeds 8 once in a million cases.
  EXPECT_LE(equal, 8);
}

// The permutation is too large to be stored in an array. The results must be within the range, and a million of them
// must be different.
TEST(Permutation, LargeSize_HasNoCollisions) {
  const uint64_t size = (uint64_t{1} << 40) + 12345;
  const Permutation permutation(size, 7);
  std::vector<uint64_t> seen;
  for (uint64_t i = 0; i < 500000; ++i) {
    seen.push_back(permutation(i));
    seen.push_back(permutation(size - 1 - i));
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_LT(seen.back(), size);
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
  EXPECT_GT(seen.back(), size - size / 1000);
  EXPECT_LT(seen.front(), size / 1000);
}

// Returns how far the chi-square statistic of a grid of cells is from its expected value, in units of its standard
// deviation.
double deviation(const std::vector<int64_t>& cells, double expected) {
  double chi = 0;
  for (const int64_t count : cells)
    chi += (static_cast<double>(count) - expected) * (static_cast<double>(count) - expected) / expected;
  const double degrees = static_cast<double>(cells.size() - 1);
  return (chi - degrees) / std::sqrt(2 * degrees);
}

// The position of a window on disk must be independent of three other positions: of the next window in the stream, of
// the window 256 steps later, and of the same window in the next epoch. Pairs of positions are counted in a grid of 32
// x 32 cells, which must be filled evenly for several keys and sizes.
TEST(Permutation, AdjacentPositions_AreIndependent) {
  constexpr uint64_t kCells = 32;
  for (const uint64_t size : {20000, 65536, 100003}) {
    for (const uint64_t key : {11, 12, 13, 14}) {
      const auto now = order(size, key), next_epoch = order(size, key + 100);
      std::vector<int64_t> neighbours(kCells * kCells), epochs(kCells * kCells), strides(kCells * kCells),
          single(kCells * kCells);
      const auto cell = [&](uint64_t place) { return place * kCells / size; };
      for (uint64_t i = 0; i < size; ++i) {
        ++neighbours[cell(now[i]) * kCells + cell(now[(i + 1) % size])];
        ++strides[cell(now[i]) * kCells + cell(now[(i + 256) % size])];
        ++epochs[cell(now[i]) * kCells + cell(next_epoch[i])];
        ++single[cell(i) * kCells + cell(now[i])];  // compares the position in the stream with the position on disk
      }
      const double expected = static_cast<double>(size) / (kCells * kCells);
      for (const auto* cells : {&neighbours, &strides, &epochs, &single}) {
        EXPECT_LT(std::abs(deviation(*cells, expected)), 5) << size << " " << key;
      }
    }
  }
}

// In a random order, about half of all positions are followed by a larger one.
TEST(Permutation, Order_AscendsAtHalfOfThePositions) {
  const auto places = order(100000, 3);
  int64_t up = 0;
  for (size_t i = 0; i + 1 < places.size(); ++i) up += places[i] < places[i + 1];
  EXPECT_NEAR(static_cast<double>(up), 50000,
              5 * std::sqrt(100001.0 / 12));  // a random permutation has this variance of the number of ascents
}

TEST(Permutation, Order_MatchesRecordedValues) {
  const Permutation small(10, 42), large(uint64_t{1} << 45, 42);
  std::vector<uint64_t> found;
  for (uint64_t i = 0; i < 10; ++i) found.push_back(small(i));
  EXPECT_EQ(found, (std::vector<uint64_t>{9, 8, 2, 3, 6, 5, 1, 7, 0, 4}));
  EXPECT_EQ(large(123456789), 29568590005170u);
}

}  // namespace
}  // namespace lazy
