// bench ROWS...: the four products of a layer, 24 layers in a graph, with each variant.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>

#ifndef EMULATED
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

#include <map>
#include <set>

#include "bench.h"
using namespace lazy::ops::cuda;

std::vector<Variant> variants(int product) {
  std::vector<Variant> all{
      {"base (few_rows_tiles)", [](const step::Packed& q, cudaStream_t s) { few_rows_tiles(q.p, s); }}};
  std::array{add_0, add_1, add_2, add_3}[product](all);
  return all;
}

namespace lazy::kernels::cuda {
void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}
}  // namespace lazy::kernels::cuda
static void check(cudaError_t status) { lazy::kernels::cuda::check(status, "bench"); }

namespace {

constexpr int kHidden = 1024, kHeads = 16, kDim = 64, kInner = 2816, kPositions = 2048;
#ifdef EMULATED
constexpr int kLayers = 1;
#else
constexpr int kLayers = 24;
#endif
const char* const kNames[4] = {"q/k/v to pages", "output", "gate/up", "down"};

template <typename T>
T* make(size_t n) {
  void* to = nullptr;
  check(cudaMalloc(&to, n * sizeof(T)));
  check(cudaMemset(to, 0, n * sizeof(T)));
  return static_cast<T*>(to);
}

inline uint32_t hash_of(uint64_t n, uint32_t seed) {
  uint64_t x = n * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
  x ^= x >> 32, x *= 0xD6E8FEB86659FD93ull, x ^= x >> 32, x *= 0xD6E8FEB86659FD93ull, x ^= x >> 32;
  return static_cast<uint32_t>(x);
}
#ifdef EMULATED
void fill(__nv_bfloat16* to, size_t n, float scale, uint32_t seed) {
  for (size_t i = 0; i < n; ++i) to[i] = __float2bfloat16((hash_of(i, seed) / 4294967296.0f - 0.5f) * 3.46f * scale);
}
#else
__global__ void fill_kernel(__nv_bfloat16* to, size_t n, float scale, uint32_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n; i += size_t{gridDim.x} * blockDim.x) {
    uint64_t x = i * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
    x ^= x >> 32, x *= 0xD6E8FEB86659FD93ull, x ^= x >> 32, x *= 0xD6E8FEB86659FD93ull, x ^= x >> 32;
    to[i] = __float2bfloat16((static_cast<uint32_t>(x) / 4294967296.0f - 0.5f) * 3.46f * scale);
  }
}
void fill(__nv_bfloat16* to, size_t n, float scale, uint32_t seed) {
  fill_kernel<<<1024, 256>>>(to, n, scale, seed);
  check(cudaGetLastError());
  check(cudaDeviceSynchronize());
}
__global__ void first_kernel() {}
__global__ void empty_kernel(int) {
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
#endif

using Half = __nv_bfloat16;

struct Bench {
  int rows;
  std::vector<Half*> W[4];  // by layer
  std::vector<float*> norm;
  Half *h0, *h1, *h_start, *q, *keys, *values, *inner, *weighed;
  float* scales;
  char *packed_x, *packed_inner;  // with room for whole tiles
  int64_t *positions, *slots;
  RopeTable table{};
  static constexpr int64_t kIn[4] = {kHidden, kHidden, kHidden, kInner};
  static constexpr int64_t kOut[4] = {3 * kHidden / 2, kHidden, kInner, kHidden};
  static constexpr int64_t kWRows[4] = {3 * kHidden, kHidden, 2 * kInner, kHidden};

  explicit Bench(int most_rows) {
    for (int p = 0; p < 4; ++p) {
      const size_t size = kWRows[p] * kIn[p];
#ifdef EMULATED
      const int count = 1;
#else
      const int count = std::max<int>(kLayers, static_cast<int>(320e6 / (size * 2)));
#endif
      for (int n = 0; n < count; ++n) {
        W[p].push_back(make<Half>(size));
        fill(W[p].back(), size, 1 / std::sqrt(static_cast<float>(kIn[p])), 100 * n + p);
      }
    }
    for (int n = 0; n < 2 * kLayers; ++n) {
      std::vector<float> w(kHidden);
      for (int i = 0; i < kHidden; ++i) w[i] = 1 + (hash_of(i, 7 + n) / 4294967296.0f - 0.5f) * 0.5f;
      norm.push_back(make<float>(kHidden));
      check(cudaMemcpy(norm.back(), w.data(), kHidden * 4, cudaMemcpyHostToDevice));
    }
    const size_t r = most_rows;
    h0 = make<Half>(r * kHidden), h1 = make<Half>(r * kHidden), h_start = make<Half>(r * kHidden);
    q = make<Half>(r * kHidden), inner = make<Half>(r * kInner), weighed = make<Half>(r * kInner);
    keys = make<Half>(2 * r * kHidden), values = make<Half>(2 * r * kHidden);
    packed_x = make<char>((r + 127) / 128 * 128 * kHidden * 2), packed_inner = make<char>((r + 127) / 128 * 128 * kInner * 2);
    scales = make<float>(r), positions = make<int64_t>(r), slots = make<int64_t>(r);
    fill(h_start, r * kHidden, 1, 9999);
    fill(q, r * kHidden, 1, 9998);
    fill(inner, r * kInner, 1, 9997);
    std::vector<int64_t> at(r), slot(r);
    for (size_t n = 0; n < r; ++n) at[n] = 1000 + 3 * n, slot[n] = (n * 5 + 3) % (2 * r);
    for (size_t n = 0; n < r; ++n) slot[n] = 2 * (r - 1 - n) + n % 2;
    check(cudaMemcpy(positions, at.data(), r * 8, cudaMemcpyHostToDevice));
    check(cudaMemcpy(slots, slot.data(), r * 8, cudaMemcpyHostToDevice));
    std::vector<float> cos(kPositions * kDim / 2), sin(cos.size());
    std::vector<double> frequency(kDim / 2);
    for (int i = 0; i < kDim / 2; ++i) frequency[i] = std::pow(10000.0, -2.0 * i / kDim);
    for (int n = 0; n < kPositions; ++n) {
      for (int i = 0; i < kDim / 2; ++i) {
        cos[n * kDim / 2 + i] = std::cos(n * frequency[i]), sin[n * kDim / 2 + i] = std::sin(n * frequency[i]);
      }
    }
    float *c = make<float>(cos.size()), *s = make<float>(cos.size());
    double* f = make<double>(frequency.size());
    check(cudaMemcpy(c, cos.data(), cos.size() * 4, cudaMemcpyHostToDevice));
    check(cudaMemcpy(s, sin.data(), cos.size() * 4, cudaMemcpyHostToDevice));
    check(cudaMemcpy(f, frequency.data(), frequency.size() * 8, cudaMemcpyHostToDevice));
    table = {c, s, f, 1, kPositions, kDim / 2};
    reset();
  }
  void reset() {}

  FewRows arguments(int product, int layer) const {
    FewRows p{};
    p.type = lazy::kernels::DType::bf16;
    p.W = W[product][layer % W[product].size()];
    p.rows = rows, p.in = kIn[product], p.out = kOut[product];
    p.x_stride = p.in;
    p.eps = 1e-5f;
    p.weighed = weighed, p.scales = scales;
    if (product == 0) {
      p.x = h0, p.norm_weight = norm[2 * (layer % kLayers)];
      p.pages = {q, keys, values, positions, slots, kHeads, kHeads, kDim, table, false};
    } else if (product == 1) {
      p.x = q, p.add = h0, p.y = h1;
    } else if (product == 2) {
      p.x = h1, p.norm_weight = norm[2 * (layer % kLayers) + 1], p.swiglu = true, p.y = inner;
    } else {
      p.x = inner, p.add = h1, p.y = h0;
    }
    return p;
  }

  step::Packed packed(int product, int layer) const {
    step::Packed q;
    q.p = arguments(product, layer);
    q.groups = (rows + 127) / 128 * 16;
    q.x = product == 3 ? packed_inner : packed_x;
    return q;
  }

  // What a product makes of the same inputs. packs: y is packed, and unpacked here.
  std::vector<uint16_t> result(int product, const std::function<void(const step::Packed&)>& run, bool packed_x = false,
                               bool packs = false) {
    const size_t r = rows;
    check(cudaMemcpy(h0, h_start, r * kHidden * 2, cudaMemcpyDeviceToDevice));
    check(cudaMemcpy(h1, h_start, r * kHidden * 2, cudaMemcpyDeviceToDevice));
    fill(q, r * kHidden, 1, 9998);
    fill(inner, r * kInner, 1, 9997);
    check(cudaMemset(keys, 0, 2 * r * kHidden * 2));
    check(cudaMemset(values, 0, 2 * r * kHidden * 2));
    step::Packed a = packed(product, 0);
    if (packed_x) step::run_pack(a, nullptr);
    if (packs) a.y = packed_inner;
    check(cudaDeviceSynchronize());
    run(a);
    check(cudaDeviceSynchronize());
    std::vector<uint16_t> all;
    const auto take = [&](const void* from, size_t n) {
      all.resize(all.size() + n);
      check(cudaMemcpy(all.data() + all.size() - n, from, n * 2, cudaMemcpyDeviceToHost));
    };
    if (product == 0) take(q, r * kHidden), take(keys, 2 * r * kHidden), take(values, 2 * r * kHidden);
    if (product == 1) take(h1, r * kHidden);
    if (product == 2 && !packs) take(inner, r * kInner);
    if (product == 2 && packs) {
      std::vector<uint16_t> from(size_t{kInner} * a.groups * 8);
      check(cudaMemcpy(from.data(), packed_inner, from.size() * 2, cudaMemcpyDeviceToHost));
      for (size_t row = 0; row < r; ++row) {
        for (int k = 0; k < kInner; ++k) {
          const size_t group = size_t(k / 32) * a.groups + row / 8;
          all.push_back(from[group * 256 + k % 8 / 2 * 64 + row % 8 * 8 + k % 32 / 8 * 2 + k % 2]);
        }
      }
    }
    if (product == 3) take(h0, r * kHidden);
    return all;
  }
};

void by_eights(const FewRows& all, cudaStream_t stream) {
  for (int64_t first = 0; first < all.rows; first += 8) {
    FewRows p = all;
    p.rows = std::min<int64_t>(8, all.rows - first);
    p.x = static_cast<const Half*>(p.x) + first * p.x_stride;
    if (p.add) p.add = static_cast<const Half*>(p.add) + first * p.out;
    if (p.y) {
      p.y = static_cast<Half*>(p.y) + first * p.out;
    } else {
      p.pages.q = static_cast<Half*>(p.pages.q) + first * kHidden;
      p.pages.positions += first, p.pages.slots += first;
    }
    few_rows(p, stream);
    check(cudaDeviceSynchronize());
  }
}

#ifndef EMULATED
struct Graph {
  cudaGraphExec_t graph = nullptr;
  int nodes = 0;
  Graph(cudaStream_t stream, const std::function<void()>& record) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    first_kernel<<<1, 32, 0, stream>>>();
    record();
    cudaGraph_t g;
    check(cudaStreamEndCapture(stream, &g));
    check(cudaGraphInstantiate(&graph, g, 0));
    check(cudaGraphDestroy(g));
  }
  ~Graph() { cudaGraphExecDestroy(graph); }
  // us, the median.
  float time(cudaStream_t stream, int times = 40) const {
    cudaEvent_t from, to;
    check(cudaEventCreate(&from)), check(cudaEventCreate(&to));
    std::vector<float> all;
    for (int n = 0; n < times + 5; ++n) {
      check(cudaEventRecord(from, stream));
      check(cudaGraphLaunch(graph, stream));
      check(cudaEventRecord(to, stream));
      check(cudaEventSynchronize(to));
      float ms = 0;
      check(cudaEventElapsedTime(&ms, from, to));
      if (n >= 5) all.push_back(1000 * ms);
    }
    cudaEventDestroy(from), cudaEventDestroy(to);
    std::nth_element(all.begin(), all.begin() + all.size() / 2, all.end());
    return all[all.size() / 2];
  }
};
#endif


void say(const char* format, auto... values) {
  std::printf(format, values...);
  std::fflush(stdout);
}

size_t count_different(Bench& b, int p, const Variant& v, const std::vector<uint16_t>& expected, int times) {
  size_t different = 0;
  for (int again = 0; again < times; ++again) {
    for (int packs = 0; packs <= (v.can_pack_y ? 1 : 0); ++packs) {
      const auto got = b.result(p, [&](const step::Packed& a) { v.run(a, nullptr); }, v.packed_x, packs != 0);
      for (size_t n = 0; n < got.size(); ++n) different += got[n] != expected[n];
    }
  }
  return different;
}
bool fits(const Variant& v, int rows) { return v.tile == 0 || rows % v.tile == 0; }

#ifdef EMULATED
void bench(Bench& b, int rows, int only) {
  b.rows = rows;
  for (int p = 0; p < 4; ++p) {
    if (only >= 0 && p != only) continue;
    const auto expected = b.result(p, [](const step::Packed& a) { by_eights(a.p, nullptr); });
    const auto all = variants(p);
    for (size_t n = 0; n < all.size(); ++n) {
      if (!fits(all[n], rows) || (std::getenv("ONE") && std::atoi(std::getenv("ONE")) != int(n))) continue;
      say("%-15s %2d: ", kNames[p], int(n));
      const size_t different = count_different(b, p, all[n], expected, 1);
      say("%zu different of %zu: %s\n", different, expected.size(), all[n].name.c_str());
    }
  }
}
}  // namespace
int main(int argc, char** argv) {
  const int rows = argc > 1 ? std::atoi(argv[1]) : 128;
  Bench b(rows);
  bench(b, rows, argc > 2 ? std::atoi(argv[2]) : -1);
}
#else

// Bits and rates of Tile's two products, without memory.
template <bool WGMMA>
__global__ void __launch_bounds__(256, 1) tile_kernel(const uint4* w_from, const char* x_from, float* to, int times) {
  extern __shared__ __align__(128) char memory[];
  using Unit = step::Tile<WGMMA, 128>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  constexpr int kChunks = 4;
  const uint32_t base = lazy::kernels::cuda::shared_address(memory);
  for (int n = threadIdx.x; n < kChunks * 512; n += blockDim.x) {
    reinterpret_cast<uint4*>(memory)[n] = reinterpret_cast<const uint4*>(x_from)[n];
  }
  fence_for_bulk_copies();
  __syncthreads();
  uint4 w[kChunks][Unit::TILES][2];
  for (int i = 0; i < kChunks; ++i) {
    for (int t = 0; t < Unit::TILES; ++t) {
      for (int h = 0; h < 2; ++h) w[i][t][h] = w_from[((Unit::first_w(warp) + t * 16 + h * 8 + g) * kChunks + i) * 4 + c];
    }
  }
  typename Unit::Operands a[kChunks];
  for (int i = 0; i < kChunks; ++i) Unit::arrange(a[i], w[i], 0);
  float sum[Unit::kSums];
#pragma unroll 1
  for (int n = 0; n < times; ++n) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if constexpr (WGMMA) step::wgmma_fence();
      Unit::template multiply<Half>(sum, a[i], base + i * 8192, warp, i == 0);
      if constexpr (WGMMA) step::wgmma_commit();
    }
    if constexpr (WGMMA) step::wgmma_wait<0>();
  }
  if (blockIdx.x == 0 || times == 0) Unit::store(sum, to, 132, warp, lane);
}
void micro() {
  std::vector<uint16_t> w(128 * 128), x(128 * 128);
  for (int kind = 0; kind < 4; ++kind) {
    // Numbers alike; numbers of very different sizes; products that nearly cancel; x = 1 and powers of two.
    for (size_t n = 0; n < w.size(); ++n) {
      const uint32_t a = hash_of(n, 11 + kind), b = hash_of(n, 23 + kind);
      const auto number = [&](uint32_t h, int spread) {
        return static_cast<uint16_t>((h & 0x807F) | (127 - spread / 2 + (spread ? h >> 16 & 0xFF : 0) % (spread + 1)) << 7);
      };
      w[n] = number(a, kind == 0 ? 2 : kind == 1 ? 24 : kind == 2 ? 12 : 40);
      x[n] = kind == 3 ? 0x3F80 : number(b, kind == 0 ? 2 : kind == 1 ? 24 : 12);
    }
    uint16_t* dw = make<uint16_t>(w.size());
    char* dx = make<char>(x.size() * 2);
    float* dy = make<float>(2 * 128 * 132);
    check(cudaMemcpy(dw, w.data(), w.size() * 2, cudaMemcpyHostToDevice));
    check(cudaMemcpy(dx, x.data(), x.size() * 2, cudaMemcpyHostToDevice));
    tile_kernel<true><<<1, 256, 65536>>>(reinterpret_cast<uint4*>(dw), dx, dy, 1);
    tile_kernel<false><<<1, 256, 65536>>>(reinterpret_cast<uint4*>(dw), dx, dy + 128 * 132, 1);
    check(cudaGetLastError());
    check(cudaDeviceSynchronize());
    std::vector<uint32_t> y(2 * 128 * 132);
    check(cudaMemcpy(y.data(), dy, y.size() * 4, cudaMemcpyDeviceToHost));
    size_t different = 0;
    int shown = 0;
    for (size_t n = 0; n < 128 * 132; ++n) {
      if (n % 132 >= 128) continue;
      const bool not_equal = y[n] != y[n + 128 * 132];
      different += not_equal;
      float a, b;
      std::memcpy(&a, &y[n], 4), std::memcpy(&b, &y[n + 128 * 132], 4);
      if (not_equal && shown++ < 2) say("  wgmma %.9g, mma.sync %.9g\n", a, b);
    }
    say("micro: wgmma against mma.sync, kind of numbers %d: %zu different of %d\n", kind, different, 128 * 128);
    if (kind < 3) continue;
    cudaEvent_t from, to;
    check(cudaEventCreate(&from)), check(cudaEventCreate(&to));
    for (int which = 0; which < 4; ++which) {
      const int times = 2000;
      check(cudaEventRecord(from));
      which % 2 == 0 ? tile_kernel<true><<<132, 256, 65536>>>(reinterpret_cast<uint4*>(dw), dx, dy, times)
                     : tile_kernel<false><<<132, 256, 65536>>>(reinterpret_cast<uint4*>(dw), dx, dy, times);
      check(cudaEventRecord(to));
      check(cudaEventSynchronize(to));
      float ms;
      check(cudaEventElapsedTime(&ms, from, to));
      if (which >= 2) {
        say("micro: %s, 128 x 128 a block, operands at hand: %.0f TFLOP/s\n", which % 2 == 0 ? "wgmma" : "mma.sync",
            132.0 * 2 * 128 * 128 * 128 * times / ms * 1e-9);
      }
    }
  }
}

using Choice = std::array<int, 4>;
struct Known {
  std::map<std::pair<int, int>, std::pair<float, int>> alone;  // product, variant: us, state (1 bits equal)
  std::set<Choice> bad;
  static Known parse(const char* text) {
    Known k;
    for (const char* at = text; at && *at; at = std::strchr(at, ';') ? std::strchr(at, ';') + 1 : nullptr) {
      int p, v, state;
      float us;
      Choice c;
      if (std::sscanf(at, "v%d,%d,%f,%d", &p, &v, &us, &state) == 4) k.alone[{p, v}] = {us, state};
      if (std::sscanf(at, "c%d,%d,%d,%d", &c[0], &c[1], &c[2], &c[3]) == 4) k.bad.insert(c);
    }
    return k;
  }
};

void bench(int rows, Known known) {
  Bench b(rows);
  b.rows = rows;
  std::vector<Variant> by[4];
  cudaStream_t stream;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  if (known.alone.empty()) say("\n=== rows %d\n", rows);
  for (int p = 0; p < 4; ++p) {
    by[p] = variants(p);
    std::vector<uint16_t> expected;
    for (size_t n = 0; n < by[p].size(); ++n) {
      const Variant& v = by[p][n];
      if (!fits(v, rows) || known.alone.count({p, int(n)})) continue;
      say("@start v%d,%d\n", p, int(n));
      if (expected.empty()) expected = b.result(p, [](const step::Packed& a) { by_eights(a.p, nullptr); });
      float us = 0;
      int state = 0;
      try {
        const size_t different = count_different(b, p, v, expected, 2);
        state = different == 0;
        const int count = std::max<int>(kLayers, b.W[p].size());
        const Graph graph(stream, [&] {
          for (int i = 0; i < count; ++i) v.run(b.packed(p, i), stream);
        });
        us = graph.time(stream, 12) / count;
        const auto bits = different == 0 ? std::string("bits equal") : std::to_string(different) + " DIFFERENT";
        say("%3d %-15s %2d %6.2f us, %s  %s%s\n", rows, kNames[p], int(n), us, bits.c_str(), v.name.c_str(),
            v.weighs ? ", with its norm kernel" : "");
        const auto last = cudaDeviceSynchronize();
        if (last != cudaSuccess) throw std::runtime_error(cudaGetErrorString(last));
      } catch (const std::exception& e) {
        say("%3d %-15s %2d FAILED %s: %s\n", rows, kNames[p], int(n), e.what(), v.name.c_str());
        say("@done v%d,%d,0,-1\n", p, int(n));
        if (cudaDeviceSynchronize() != cudaSuccess) std::_Exit(3);
        cudaGetLastError();
        continue;
      }
      known.alone[{p, int(n)}] = {us, state};
      say("@done v%d,%d,%f,%d\n", p, int(n), us, state);
    }
  }
  const auto run_layer = [&](const Choice& choice, int layer) {
    for (int p = 0; p < 4; ++p) {
      const Variant& v = by[p][choice[p]];
      step::Packed q = b.packed(p, layer);
      const bool next_packed = p == 2 && by[3][choice[3]].packed_x;
      if (v.packed_x && !(p == 3 && by[2][choice[2]].can_pack_y)) step::run_pack(q, stream);
      if (next_packed && v.can_pack_y) q.y = b.packed_inner;
      v.run(q, stream);
    }
  };
  const auto chain = [&](const Choice& choice) {
    const Graph graph(stream, [&] {
      for (int layer = 0; layer < kLayers; ++layer) run_layer(choice, layer);
    });
    check(cudaMemcpy(b.h0, b.h_start, size_t{2} * rows * kHidden, cudaMemcpyDeviceToDevice));
    check(cudaGraphLaunch(graph.graph, stream));
    check(cudaStreamSynchronize(stream));
    std::vector<uint16_t> h(size_t{1} * rows * kHidden);
    check(cudaMemcpy(h.data(), b.h0, h.size() * 2, cudaMemcpyDeviceToHost));
    uint64_t hash = 0;
    for (const uint16_t x : h) hash = (hash ^ x) * 0x100000001B3ull;
    return std::pair<float, uint64_t>(graph.time(stream, 10), hash);
  };
  say("@start c0,0,0,0\n");
  const auto base = chain({0, 0, 0, 0});
  say("%3d chain, base: %.1f us, %.2f a layer\n", rows, base.first, base.first / kLayers);
  // Bits that differ are let into a second chain, to know what they would bring.
  std::vector<Choice> finals;
  for (int least = 1; least >= 0; --least) {
    const auto order = [&](int p) {
      std::vector<int> all;
      for (const auto& [at, one] : known.alone) {
        if (at.first == p && one.second >= least) all.push_back(at.second);
      }
      std::sort(all.begin(), all.end(), [&](int x, int y) { return known.alone[{p, x}].first < known.alone[{p, y}].first; });
      return all;
    };
    Choice best;
    for (int p = 0; p < 4; ++p) best[p] = order(p)[0];
    if (least == 0 && std::find(finals.begin(), finals.end(), best) != finals.end()) break;
    finals.push_back(best);
    float best_time = 1e9f;
    std::set<Choice> tried;
    for (const int p : {3, 2, 0, 1}) {
      const auto all = order(p);
      Choice chosen = best;
      for (size_t n = 0; n < std::min<size_t>(all.size(), 5); ++n) {
        Choice c = best;
        c[p] = all[n];
        if (known.bad.count(c) || !tried.insert(c).second) continue;
        say("@start c%d,%d,%d,%d\n", c[0], c[1], c[2], c[3]);
        const auto t = chain(c);
        const bool equal = t.second == base.second;
        say("%3d chain %d,%d,%d,%d: %.1f us, %.2f a layer, %s\n", rows, c[0], c[1], c[2], c[3], t.first,
            t.first / kLayers, equal ? "bits equal" : "BITS DIFFER");
        if (t.first < best_time && (equal || least == 0)) best_time = t.first, chosen = c;
      }
      best = chosen;
    }
    say("%3d rows, BEST chain%s: %.2f us a layer (base %.2f): %d,%d,%d,%d\n", rows,
        least ? " with equal bits" : ", bits let differ", best_time / kLayers, base.first / kLayers, best[0], best[1],
        best[2], best[3]);
    for (int p = 0; p < 4; ++p) {
      say("    %-15s %2d %.2f us alone, %s\n", kNames[p], best[p], known.alone[{p, best[p]}].first,
          by[p][best[p]].name.c_str());
    }
  }
}

}  // namespace

// Runs this program's `arguments`, hands its lines on; false and what it was at, if it ended with an error or was silent.
static bool attend(std::vector<std::string> arguments, std::string& known, std::string& at) {
  int ends[2];
  if (pipe(ends) != 0) return false;
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], 1);
    dup2(ends[1], 2);
    close(ends[0]), close(ends[1]);
    setenv("KNOWN", known.c_str(), 1);
    std::string self = "/proc/self/exe";
    std::vector<char*> argv{self.data()};
    for (auto& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    execv(self.c_str(), argv.data());
    _exit(9);
  }
  close(ends[1]);
  std::string line;
  bool silent = false;
  for (;;) {
    pollfd p{ends[0], POLLIN, 0};
    if (poll(&p, 1, 15000) <= 0) {
      silent = true;
      kill(child, SIGKILL);
      break;
    }
    char buffer[4096];
    const auto n = read(ends[0], buffer, sizeof buffer);
    if (n <= 0) break;
    for (ssize_t i = 0; i < n; ++i) {
      if (buffer[i] != '\n') {
        line += buffer[i];
        continue;
      }
      if (line.starts_with("@start ")) {
        at = line.substr(7);
      } else if (line.starts_with("@done ")) {
        known += line.substr(6) + ";";
        at.clear();
      } else {
        std::printf("%s\n", line.c_str());
        std::fflush(stdout);
      }
      line.clear();
    }
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return !silent && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(int argc, char** argv) {
  try {
    if (argc > 2 && !std::strcmp(argv[1], "--rows")) {
      bench(std::atoi(argv[2]), Known::parse(std::getenv("KNOWN")));
      return 0;
    }
    if (argc > 1 && !std::strcmp(argv[1], "--micro")) {
      cudaDeviceProp device;
      check(cudaGetDeviceProperties(&device, 0));
      say("%s, %d multiprocessors\n", device.name, device.multiProcessorCount);
      check(cudaFuncSetAttribute(tile_kernel<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536));
      check(cudaFuncSetAttribute(tile_kernel<false>, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536));
      micro();
      return 0;
    }
  } catch (const std::exception& e) {
    say("FAILED %s\n", e.what());
    return 3;
  }
  std::vector<std::string> rows;
  for (int n = 1; n < argc; ++n) rows.push_back(argv[n]);
  if (rows.empty()) rows = {"256", "128", "192"};
  std::string none, at;
  if (!attend({"--micro"}, none, at)) std::printf("micro FAILED\n");
  for (const auto& r : rows) {
    std::string known;
    for (int tries = 0; tries < 12; ++tries) {
      at.clear();
      if (attend({"--rows", r}, known, at)) break;
      std::printf("%s: FAILED or silent at %s\n", r.c_str(), at.c_str());
      std::fflush(stdout);
      if (at.empty()) continue;  // the failure was told already
      known += at[0] == 'v' ? at + ",0,-1;" : at + ";";
      if (at == "c0,0,0,0") break;
    }
  }
}
#endif
