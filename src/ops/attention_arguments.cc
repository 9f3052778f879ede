#include "ops/attention_arguments.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <mutex>
#include <string>
#include <string_view>

#include "ops/cuda_library.h"
#include "ops/library.h"

namespace lazy::ops {

using kernels::DType;

// TORCH_CHECK with a message that begins with the operator's name, which the caller's variable `operation` contains.
#define LAZY_EXPECT(condition, ...) TORCH_CHECK(condition, "lazy::", operation, ": expected ", __VA_ARGS__)

namespace {

// With a softcap outside of this range, scale q . k / softcap would underflow, lose precision or overflow in fp32.
constexpr double kMinSoftcap = 1e-6, kMaxSoftcap = 1e6;

// Returns the names of the normalizers for which `condition` is true, in the form "a", "b" or "c".
template <typename Condition>
std::string normalizers_where(const Condition& condition) {
  std::vector<std::string> names;
  for (const kernels::NormalizerTraits& t : kernels::kNormalizers) {
    if (condition(t)) names.push_back('"' + std::string(t.name) + '"');
  }
  std::string list;
  for (size_t n = 0; n < names.size(); ++n) list += (n == 0 ? "" : n + 1 == names.size() ? " or " : ", ") + names[n];
  return list;
}

const kernels::NormalizerTraits& normalizer_from(const char* operation, std::string_view name) {
  if (const auto found = kernels::normalizer_from_name(name)) return kernels::traits(*found);
  LAZY_EXPECT(false, "normalizer to be ", normalizers_where([](const auto&) { return true; }), ", received \"", name,
              "\"");
}

// Checks that a parameter is given if the normalizer takes it (`takes`), and that it is not given otherwise.
void check_taken(const AttentionArguments& a, bool given, const kernels::NormalizerTraits& normalizer,
                 bool kernels::NormalizerTraits::*takes, const char* name) {
  const char* const operation = a.operation;
  LAZY_EXPECT(given || !(normalizer.*takes), name, " for normalizer \"", normalizer.name, "\", received None");
  LAZY_EXPECT(!given || normalizer.*takes, name, " only with normalizer ",
              normalizers_where([&](const auto& t) { return t.*takes; }), ", received it with \"", a.normalizer, "\"");
}

DType dtype_from(const char* operation, at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return DType::f64;
    case at::kFloat:
      return DType::f32;
    case at::kBFloat16:
      return DType::bf16;
    case at::kHalf:
      return DType::f16;
    default:
      LAZY_EXPECT(false, "q of type float32, bfloat16, float16 or float64, received ", type);
  }
}

// Checks that t, a parameter with one entry (rank 1) or one row (rank 2) per head, has the expected dtype, device and
// shape. Any strides are allowed.
void check_parameter(const AttentionArguments& a, const OptionalTensor& t, const char* name, int64_t rank) {
  if (!given(t)) return;
  const char* const operation = a.operation;
  const c10::SymInt heads = a.q.sym_size(-2);
  LAZY_EXPECT(t->dim() == rank && t->sym_size(0) == heads, name, " of shape (", heads, rank == 2 ? ", window)" : ")",
              ", received ", t->sym_sizes());
  LAZY_EXPECT(t->scalar_type() == accumulate_type(a.q.scalar_type()), name, " of type ",
              accumulate_type(a.q.scalar_type()), " for q of type ", a.q.scalar_type(), ", received ",
              t->scalar_type());
  LAZY_EXPECT(t->device() == a.q.device(), name, " on ", a.q.device(), " like q, received ", t->device());
}

void check_normalizer_arguments(const AttentionArguments& a) {
  const char* const operation = a.operation;
  const kernels::NormalizerTraits& normalizer = normalizer_from(operation, a.normalizer);
  check_taken(a, given(a.tau), normalizer, &kernels::NormalizerTraits::takes_tau, "tau");
  check_taken(a, given(a.sink), normalizer, &kernels::NormalizerTraits::takes_sink, "sink");
  LAZY_EXPECT(!a.sigmoid_bias || normalizer.takes_sigmoid_bias, "sigmoid_bias only with normalizer ",
              normalizers_where([](const auto& t) { return t.takes_sigmoid_bias; }), ", received it with \"",
              a.normalizer, "\"");
  // The values are later converted to fp32, where NaN means that an argument is not given. NaN is therefore rejected.
  for (const auto& [value, name] : {std::pair{a.scale, "scale"}, std::pair{a.sigmoid_bias, "sigmoid_bias"}}) {
    LAZY_EXPECT(!value || std::abs(*value) <= std::numeric_limits<float>::max(), name,
                " to be a finite number in float32's range, received ", *value);
  }
  if (a.softcap) {
    LAZY_EXPECT(*a.softcap == 0 || (*a.softcap >= kMinSoftcap && *a.softcap <= kMaxSoftcap),
                "softcap to be None, 0 (none) or from ", kMinSoftcap, " to ", kMaxSoftcap, ", received ", *a.softcap);
    LAZY_EXPECT(*a.softcap == 0 || std::abs(a.scale.value_or(1)) / *a.softcap <= std::numeric_limits<float>::max(),
                "scale / softcap in float32's range, received scale ", a.scale.value_or(1), " and softcap ",
                *a.softcap);
  }
  LAZY_EXPECT(a.offset == "per_visible" || a.offset == "constant",
              "offset to be \"per_visible\" or \"constant\", received \"", a.offset, "\"");
}

// Remembers the cu_seqlens tensors that were checked most recently. All layers of a model share the same tensors, so
// only the check in the first layer synchronizes with the GPU.
class CheckedTensors {
 public:
  bool contains(const at::Tensor& t, int64_t tokens) {
    const std::lock_guard lock(mutex_);
    return std::any_of(known_.begin(), known_.end(),
                       [&](const Entry& e) { return e.tensor && e.tensor->is(t) && e.tokens == tokens; });
  }
  void add(const at::Tensor& t, int64_t tokens) {
    const std::lock_guard lock(mutex_);
    known_[next_++ % known_.size()] = Entry{SeenTensor(t), tokens};
  }

 private:
  struct Entry {
    std::optional<SeenTensor> tensor;
    int64_t tokens = 0;
  };
  std::mutex mutex_;
  std::array<Entry, 8> known_;
  size_t next_ = 0;
};

// Returns the cumulative lengths as int32 on the device of q. They must start at 0, be nondecreasing and end at the
// number of tokens.
at::Tensor cumulative(const AttentionArguments& a, const at::Tensor& t, int64_t tokens, bool of_keys) {
  // This object is never destroyed: at process exit the tensors may outlive their device.
  static CheckedTensors& checked = *new CheckedTensors;
  const char* const operation = a.operation;
  LAZY_EXPECT(tokens < std::numeric_limits<int32_t>::max(), "fewer than 2^31 - 1 packed tokens, received ", tokens);
  if (const auto in_graph = cuda_library().checks_lengths_in_graph; in_graph && t.is_cuda()) {
    const at::Tensor lengths = t.contiguous();
    if (in_graph(lengths, tokens, of_keys)) return lengths.to(a.q.device(), at::kInt);
  }
  const char* const name = of_keys ? "cu_seqlens_k" : "cu_seqlens_q";
  const bool remember = !t.is_cpu() && !t.is_inference();
  if (remember && checked.contains(t, tokens)) return t.to(a.q.device(), at::kInt).contiguous();
  // The values are checked before the conversion to int32, which could wrap an out-of-range value to a valid one.
  const at::Tensor copy = t.to(at::kCPU, at::kLong).contiguous();
  const int64_t* data = copy.const_data_ptr<int64_t>();
  LAZY_EXPECT(data[0] == 0, name, "[0] == 0, received ", data[0]);
  for (int64_t n = 1; n < copy.numel(); ++n) {
    LAZY_EXPECT(data[n] >= data[n - 1], name, " to be nondecreasing, received ", name, "[", n, "] = ", data[n],
                " after ", data[n - 1]);
  }
  LAZY_EXPECT(data[copy.numel() - 1] == tokens, name, " to end at the number of tokens, ", tokens, ", received ",
              data[copy.numel() - 1]);
  if (remember) checked.add(t, tokens);
  if (a.q.is_cpu()) return copy.to(at::kInt);
  // A copy from pinned memory is asynchronous; any other copy would synchronize with the GPU in every layer.
  return t.to(a.q.device(), at::kInt, /*non_blocking=*/t.is_cpu() && t.is_pinned()).contiguous();
}

}  // namespace

at::ScalarType accumulate_type(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }

void check_attention(const AttentionArguments& a) {
  const char* const operation = a.operation;
  const bool packed = given(a.cu_seqlens_q);
  LAZY_EXPECT(packed == given(a.cu_seqlens_k), "cu_seqlens_q and cu_seqlens_k together, received only one");
  const int64_t rank = packed ? 3 : 4;
  const bool unpacked = !packed && std::string_view(operation) == "attention";  // decode has no packed documents
  const char* shape = packed ? "(tokens, heads, head_dim)" : "(batch, length, heads, head_dim)";
  for (const auto& [t, name] : {std::pair{&a.q, "q"}, std::pair{&a.k, "k"}, std::pair{&a.v, "v"}}) {
    LAZY_EXPECT(t->dim() == rank, name, " of shape ", shape, packed ? " with cu_seqlens_q" : "", ", received ",
                t->sym_sizes(), unpacked && t->dim() == 3 ? ": pass cu_seqlens_q and cu_seqlens_k" : "");
    LAZY_EXPECT(t->scalar_type() == a.q.scalar_type(), name, " of type ", a.q.scalar_type(), " like q, received ",
                t->scalar_type());
    LAZY_EXPECT(t->device() == a.q.device(), name, " on ", a.q.device(), " like q, received ", t->device());
  }
  dtype_from(operation, a.q.scalar_type());
  if (!packed && !a.paged) {
    LAZY_EXPECT(a.k.sym_size(0) == a.q.sym_size(0), "k of batch size ", a.q.sym_size(0), " like q, received ",
                a.k.sym_sizes());
  }
  LAZY_EXPECT(a.v.sym_sizes().slice(0, rank - 1) == a.k.sym_sizes().slice(0, rank - 1),
              "v of the same shape as k except for the last dimension, ", a.k.sym_sizes(), ", received ",
              a.v.sym_sizes());
  LAZY_EXPECT(a.k.sym_size(-1) == a.q.sym_size(-1), "k of head_dim ", a.q.sym_size(-1), " like q, received ",
              a.k.sym_size(-1));
  LAZY_EXPECT(a.q.sym_size(-1) >= 1 && a.q.sym_size(-1) <= 256 && a.v.sym_size(-1) >= 1 && a.v.sym_size(-1) <= 256,
              "head sizes from 1 to 256, received ", a.q.sym_size(-1), " for q and ", a.v.sym_size(-1), " for v");
  LAZY_EXPECT(a.k.sym_size(-2) >= 1 && a.q.sym_size(-2) % a.k.sym_size(-2) == 0,
              "q's heads to be a multiple of k's heads, received ", a.q.sym_size(-2), " and ", a.k.sym_size(-2));
  LAZY_EXPECT(a.window == -1 || a.window >= 1, "window to be -1 (none) or at least 1, received ", a.window);
  check_normalizer_arguments(a);
  check_parameter(a, a.distance_bias, "distance_bias", 2);
  check_parameter(a, a.tau, "tau", 1);
  check_parameter(a, a.sink, "sink", 1);
  check_parameter(a, a.alibi_slopes, "alibi_slopes", 1);
  if (packed) {
    for (const auto* t : {&*a.cu_seqlens_q, &*a.cu_seqlens_k}) {
      LAZY_EXPECT(
          t->dim() == 1 && t->sym_size(0) >= 1 && (t->scalar_type() == at::kInt || t->scalar_type() == at::kLong),
          "cu_seqlens of shape (documents + 1) and type int32 or int64, received ", t->sym_sizes(), " of ",
          t->scalar_type());
    }
    LAZY_EXPECT(a.cu_seqlens_q->sym_size(0) == a.cu_seqlens_k->sym_size(0),
                "cu_seqlens_q and cu_seqlens_k of the same size, received ", a.cu_seqlens_q->sym_size(0), " and ",
                a.cu_seqlens_k->sym_size(0));
  }
}

bool deterministic_wanted(bool argument) { return argument || deterministic_algorithms(); }

kernels::Problem problem_of_any_length(const AttentionArguments& a) {
  kernels::Problem p;
  p.head_dim = a.q.size(-1);
  p.value_dim = a.v.size(-1);
  p.dtype = dtype_from(a.operation, a.q.scalar_type());
  p.scale = a.scale.value_or(1 / std::sqrt(static_cast<double>(p.head_dim)));
  p.causal = a.causal;
  p.window =
      // Limit the window to a value that exceeds the distance between any two tokens, but is so small that position +
      // window does not overflow.
      std::min(a.window, int64_t{1} << 40);
  p.normalizer = normalizer_from(a.operation, a.normalizer).normalizer;
  p.offset = a.offset == "constant" ? kernels::Offset::constant : kernels::Offset::per_visible;
  p.softcap = a.softcap.value_or(0);
  if (a.sigmoid_bias) p.sigmoid_bias = *a.sigmoid_bias;
  p.bias_window = given(a.distance_bias) ? a.distance_bias->size(1) : 0;
  p.alibi = given(a.alibi_slopes);
  return p;
}

kernels::Problem attention_problem(const AttentionArguments& a, at::Tensor& cu_q, at::Tensor& cu_k) {
  const bool packed = given(a.cu_seqlens_q);
  kernels::Problem p = problem_of_any_length(a);
  p.batch = packed ? 1 : a.q.size(0);
  p.q_length = a.q.size(-3);
  p.k_length = a.k.size(-3);
  p.heads = a.q.size(-2);
  p.kv_heads = a.k.size(-2);
  if (packed) {
    cu_q = cumulative(a, *a.cu_seqlens_q, p.q_length, /*of_keys=*/false);
    cu_k = cumulative(a, *a.cu_seqlens_k, p.k_length, /*of_keys=*/true);
    p.cu_seqlens_q = cu_q.const_data_ptr<int32_t>();
    p.cu_seqlens_k = cu_k.const_data_ptr<int32_t>();
    p.sequences = cu_q.numel() - 1;
  }
  return p;
}

template <typename V>
static V any_view(const at::Tensor& t, decltype(V::data) data) {
  V view;
  view.data = data;
  view.batch = t.dim() == 4 ? t.stride(0) : 0;
  view.token = t.stride(-3);
  view.head = t.stride(-2);
  view.dim = t.stride(-1);
  return view;
}

kernels::ConstView const_view(const at::Tensor& t) { return any_view<kernels::ConstView>(t, t.const_data_ptr()); }
kernels::View view(const at::Tensor& t) { return any_view<kernels::View>(t, t.mutable_data_ptr()); }

}  // namespace lazy::ops
