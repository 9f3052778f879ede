// The decode kernel: blocks take items from a queue, in order, until it is empty. A value item waits until its tile's rows
// are complete, a key item until the scores that its own will overwrite are used up. What an item waits for stands before it
// in the queue, so a running block has it already: nothing can wait for a block that does not run, however few run at a
// time. Which block takes what changes no result.
#pragma once
#include "attention/cuda/decode_items.cuh"

namespace lazy::kernels::cuda::decoding {

__device__ inline int item_count(const Sequence& s, int keys) { return max((s.end - s.first + keys - 1) / keys, 1); }
__device__ inline int key_items(const Params& p, const Sequence& s) { return item_count(s, kWarps * p.part); }
__device__ inline int value_items(const Params& p, const Sequence& s) { return item_count(s, p.chunks * kWarps * p.scan); }

// x: an earlier item, or one whose phase is 0; becomes this one.
__device__ __noinline__ inline void find_item(const Params& p, int item, Item& x) {
  int phase = x.phase, end = phase_count(p);  // phases[phase] <= item < phases[end]
  x.none = item >= p.phases[end];
  if (x.none) return;
  while (end - phase > 1) {
    const int middle = (phase + end) / 2;
    (p.phases[middle] <= item ? phase : end) = middle;
  }
  x.phase = phase;
  x.values = phase % 2 == 1;
  const int unit = unit_of_phase(p, phase), within = item - p.phases[phase], tile = within % p.unit_tiles;
  const int heads = p.kv_heads / p.blocks, head = tile / p.tiles;
  RowTile& t = x.tile;
  t.batch = unit / p.blocks;
  t.kv_head = unit % p.blocks * heads + head;
  t.first = tile % p.tiles * kRows;
  t.rows = min(p.rows - t.first, kRows);
  t.row = (static_cast<int64_t>(t.batch) * p.kv_heads + t.kv_head) * p.rows + t.first;
  t.kept = (static_cast<int64_t>(unit % p.slots) * heads + head) * p.rows + t.first;
  t.index = unit * p.unit_tiles + tile;
  t.sequence = p.sequences[t.batch];
  x.index = within / p.unit_tiles;
  x.of = x.values ? value_items(p, t.sequence) : key_items(p, t.sequence);
}

__device__ inline void wait_for(const int* state, TileState wanted) {
  if (threadIdx.x == 0) {
    while (load_acquire(state) < wanted) __nanosleep(64);
  }
  __syncthreads();
}

template <typename Products>
__device__ void work(const Params& p, const Item& x, char* room, Shared& shared, int& next) {
  auto claim = [&] {
    if (threadIdx.x == 0) next = atomicAdd(p.queue, 1);
  };
  if (!x.values) {
    const int before = x.tile.index - p.slots * p.unit_tiles;  // the tile that had these scores
    if (before >= 0) wait_for(p.state + before, kValuesComplete);
    key_item<Products>(p, x.tile, x.index, room + threadIdx.x / 32 * p.warp_bytes, claim);
  } else {
    wait_for(p.state + x.tile.index, kRowsComplete);
    value_item<Products>(p, x.tile, x.index, room, shared, claim);
  }
}

// By the block that has finished the tile's last item of a kind.
__device__ __noinline__ inline void complete(const Params& p, const Item& x, Shared& shared) {
  const RowTile& t = x.tile;
  const int parts = x.of * kWarps;
  if (x.values) {
    complete_values(p, t, x.of);
  } else if (threshold_like(p.normalizer)) {
    for (int r = 0; r < t.rows; ++r) complete_threshold(p, t, r, parts, shared);
  } else {
    for (int r = threadIdx.x / 32; r < t.rows; r += kWarps) complete_row(p, t, r, parts);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    store_release(p.state + t.index, x.values ? kValuesComplete : kRowsComplete);
  }
}

template <typename Products>
__global__ void __launch_bounds__(kThreads, Products::kBlocks) run(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) char room[];
  __shared__ Shared shared;
  const Item& x = shared.item;
  wait_for_launcher();
  if (threadIdx.x == 0) {
    shared.item.phase = 0;
    find_item(p, atomicAdd(p.queue, 1), shared.item);
  }
  __syncthreads();
  while (!x.none) {
    int next = 0;                           // thread 0's
    work<Products>(p, x, room, shared, next);
    __syncthreads();                        // what it says is written, and the item itself used up
    if (threadIdx.x == 0) {
      __threadfence();
      int* done = (x.values ? p.done_values : p.done_keys) + x.tile.index;
      shared.last = atomicAdd(done, 1) == x.of - 1;
      __threadfence();
      if (!shared.last) find_item(p, next, shared.item);
    }
    __syncthreads();
    if (!shared.last) continue;
    complete(p, x, shared);
    __syncthreads();
    if (threadIdx.x == 0) find_item(p, next, shared.item);
    __syncthreads();
  }
}

// Behind the plan kernel, which lets it start early where the machine code can wait for it (sm_90).
template <typename Products>
void launch(const Params& p, cudaStream_t stream) {
  static const bool can_wait = [] {
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, run<Products>), "to describe decode");
    return attributes.ptxVersion >= 90;
  }();
  int device = 0, processors = 0, major = 0;
  check(cudaGetDevice(&device), "to name the device");
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "to count multiprocessors");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "to name the device");
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = processors * Products::kBlocks;
  config.blockDim = kThreads;
  config.dynamicSmemBytes = kWarps * p.warp_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = can_wait && major >= 9 ? 1 : 0;
  check(cudaLaunchKernelEx(&config, run<Products>, p), "decode");
}

}  // namespace lazy::kernels::cuda::decoding
