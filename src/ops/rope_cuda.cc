// lazy::rope on NVIDIA GPUs. Strided heads, such as slices of a joint projection, are read without a copy.
#include <map>
#include <mutex>

#include "ops/cuda_stream.h"
#include "ops/fused.h"
#include "ops/rope_cuda.h"

namespace lazy::ops {

static constexpr int64_t kMinPositions = 8192;  // minimum size of a table: 2 MiB with a head size of 64

cuda::RopeTable rope_table(const RopeArguments& a, int64_t positions, int8_t device) {
  static std::mutex mutex;
  static std::map<std::pair<int8_t, RopeKey>, cuda::RopeTable> tables;
  const std::lock_guard lock(mutex);
  cuda::RopeTable& known = tables[{device, rope_key(a)}];
  if (known.pairs == 0 || known.positions < positions) {
    const RopeFrequencies frequencies = rope_frequencies(a.base, a.rotary_dim, a.scaling);
    const int64_t doubled = std::min(2 * known.positions, kMaxRopePositions);
    known = cuda::make_rope_table(frequencies.per_pair, frequencies.attention_factor,
                                  std::max({positions, doubled, kMinPositions}));
  }
  return known;
}

namespace {

// Returns the stride of an axis for the kernel. The stride of an axis with one element is arbitrary, so 0 is returned,
// which passes the alignment checks.
int64_t step(const at::Tensor& t, int64_t axis) { return t.size(axis) == 1 ? 0 : t.stride(axis); }

at::Tensor rope_forward_cuda(LAZY_ROPE_PARAMETERS) {
  const RopeArguments arguments LAZY_ROPE_PACK;
  check_rope(x, positions, arguments);
  at::Tensor y = at::empty(x.sizes(), x.options());
  rope_into(x, arguments, inverse, positions, y);
  return y;
}

}  // namespace

void rope_into(const at::Tensor& x, const RopeArguments& arguments, bool inverse, const OptionalTensor& positions,
               at::Tensor& y) {
  if (y.numel() == 0) return;
  const DeviceGuard guard(x);
  const at::Tensor in = x.stride(-1) == 1 ? x : x.contiguous();
  const bool packed = x.dim() == 3;
  cuda::Rope a{.type = row_type("rope", x)};
  a.x = in.const_data_ptr();
  a.batch_stride = packed ? 0 : step(in, 0);
  a.token_stride = step(in, -3);
  a.head_stride = step(in, -2);
  a.y = y.mutable_data_ptr();
  a.y_stride = y.stride(-3);
  a.batch = packed ? 1 : x.size(0);
  a.length = x.size(-3);
  a.heads = x.size(-2);
  a.dim = x.size(-1);
  a.interleaved = arguments.interleaved;
  a.inverse = inverse;
  int64_t last = a.length - 1;  // explicit positions are usually in this range, too
  if (positions && positions->defined()) {
    if (positions->scalar_type() == at::kInt) {
      a.places32 = positions->const_data_ptr<int32_t>();
    } else {
      a.places64 = positions->const_data_ptr<int64_t>();
    }
    a.places_batch_stride = positions->dim() == 2 ? positions->stride(0) : 0;
    a.places_token_stride = positions->stride(-1);
    last = std::min(last, kMaxRopePositions - 1);
  } else {
    a.offset = arguments.offset;
    last += a.offset;
    check_last_rope_position(last);
  }
  a.table = rope_table(arguments, last + 1, x.get_device());
  cuda::rope(a, current_stream());
}

LAZY_KERNELS(CUDA, m) { m.impl("rope", LAZY_KERNEL(rope_forward_cuda)); }

}  // namespace lazy::ops
