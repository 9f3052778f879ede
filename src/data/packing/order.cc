#include "data/packing/order.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>

#include "core/random.h"

namespace lazy {

MixSchedule::MixSchedule(const std::vector<double>& weights, uint64_t seed, bool shuffle) : shares_(weights) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& share : shares_) share /= total;
  root_ = build(0, static_cast<int64_t>(weights.size()), seed, shuffle, 0);
}

int64_t MixSchedule::build(int64_t begin, int64_t end, uint64_t seed, bool shuffle, int64_t depth) {
  depth_ = std::max(depth_, depth);
  if (end - begin == 1) return -1 - begin;
  const int64_t middle = begin + (end - begin + 1) / 2;
  const auto sum = [&](int64_t from, int64_t to) {
    return std::accumulate(shares_.begin() + from, shares_.begin() + to, 0.0L);
  };
  const int64_t self = static_cast<int64_t>(nodes_.size());
  nodes_.emplace_back();
  Node node;
  const long double left = std::ldexp(sum(begin, middle) / sum(begin, end), 64);
  node.fraction = left >= 0x1p64L ? UINT64_MAX : std::max<uint64_t>(1, static_cast<uint64_t>(left));
  node.phase = shuffle ? Random(seed ^ Random(static_cast<uint64_t>(self)).next()).next() : 0;
  node.left = build(begin, middle, seed, shuffle, depth + 1);
  node.right = build(middle, end, seed, shuffle, depth + 1);
  nodes_[self] = node;
  return self;
}

MixSchedule::SequenceIndex MixSchedule::at(int64_t position) const {
  uint64_t n = static_cast<uint64_t>(position);
  int64_t at = root_;
  while (at >= 0) {
    const Node& node = nodes_[at];
    const uint64_t before = node.left_of(n);
    const bool left = node.left_of(n + 1) > before;
    at = left ? node.left : node.right;
    n = left ? before : n - before;
  }
  return {-1 - at, static_cast<int64_t>(n)};
}

std::vector<int64_t> MixSchedule::counts(int64_t positions) const {
  std::vector<int64_t> out(shares_.size());
  const std::function<void(int64_t, uint64_t)> descend = [&](int64_t at, uint64_t n) {
    if (at < 0) {
      out[-1 - at] = static_cast<int64_t>(n);
      return;
    }
    const uint64_t left = nodes_[at].left_of(n);
    descend(nodes_[at].left, left);
    descend(nodes_[at].right, n - left);
  };
  descend(root_, static_cast<uint64_t>(positions));
  return out;
}

Permutation::Permutation(uint64_t size, uint64_t key) : size_(size) {
  const int bits = size > 1 ? std::bit_width(size - 1) : 0;
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
  Random random(key);
  for (uint64_t& round : keys_) round = random.next();
}

uint64_t Permutation::scramble(uint64_t place) const {
  const uint64_t low_mask = (uint64_t{1} << low_bits_) - 1, high_mask = (uint64_t{1} << high_bits_) - 1;
  uint64_t low = place & low_mask, high = place >> low_bits_;
  for (int round = 0; round < kRounds; round += 2) {
    high ^= Random(keys_[round] ^ low).next() & high_mask;
    low ^= Random(keys_[round + 1] ^ high).next() & low_mask;
  }
  return high << low_bits_ | low;
}

uint64_t Permutation::operator()(uint64_t place) const {
  do place = scramble(place);
  while (place >= size_);
  return place;
}

}  // namespace lazy
