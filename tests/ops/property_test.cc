// Random valid and invalid calls of lazy::attention, its backward pass and lazy::decode. Each call must match the
// float64 definition according to the two-reference rule (tests/attention/compare.cc), or throw a c10::Error whose
// first line starts with "lazy::". LAZY_PROPERTY_CALLS (default 10000) sets the number of calls, LAZY_PROPERTY_SEED the
// seed. A failure or a crash prints the call.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <sstream>

#include "attention/case.h"
#include "core/random.h"
#include "ops/attention.h"
#include "ops/attention_arguments.h"
#include "ops/decode.h"
#include "ops/device.h"

namespace lazy::ops {

namespace {

using kernels::DType;
using kernels::Normalizer;
using kernels::test::Inputs;
using kernels::test::Results;
using kernels::test::Shape;
using test::test_device;

// Text of the current call. Failure messages and the signal handler for crashes print it.
char current_call[4000];
void print_call_and_die(int signal) {
  [[maybe_unused]] auto ignored = ::write(STDERR_FILENO, current_call, std::strlen(current_call));
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

int64_t environment(const char* name, int64_t fallback) {
  const char* value = std::getenv(name);
  return value && *value ? std::atoll(value) : fallback;
}

struct Draw {
  Random random;
  bool chance(int one_in) { return random.below(static_cast<uint64_t>(one_in)) == 0; }
  template <typename T>
  T of(std::initializer_list<T> choices) {
    return choices.begin()[random.below(choices.size())];
  }
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random.below(static_cast<uint64_t>(high - low + 1)));
  }
};

at::ScalarType torch_type(DType type) {
  switch (type) {
    case DType::f64:
      return at::kDouble;
    case DType::f32:
      return at::kFloat;
    case DType::bf16:
      return at::kBFloat16;
    case DType::f16:
      return at::kHalf;
  }
  return at::kFloat;
}

at::Tensor to_torch(const kernels::test::Tensor& t, at::ScalarType type) {
  return at::from_blob(const_cast<double*>(t.data.data()), {t.batch, t.tokens, t.heads, t.dim}, at::kDouble)
      .to(test_device(), type, false, true);
}
at::Tensor to_torch(const std::vector<double>& x, at::IntArrayRef sizes, at::ScalarType type) {
  return at::from_blob(const_cast<double*>(x.data()), sizes, at::kDouble).to(test_device(), type, false, true);
}
std::vector<double> values(const at::Tensor& t) {
  const at::Tensor x = t.to(at::kCPU, at::kDouble).contiguous();
  return {x.const_data_ptr<double>(), x.const_data_ptr<double>() + x.numel()};
}

// Returns a tensor with the same values as t but with a different memory layout: permuted, a slice of a larger tensor,
// strided, or with PyTorch's negative bit (values are negated when they are read). Memory between the elements is NaN.
at::Tensor restrided(const at::Tensor& t, Draw& draw) {
  if (t.dim() == 0) return t;
  switch (draw.between(0, 5)) {
    case 0: {
      std::vector<int64_t> order(static_cast<size_t>(t.dim())), back(order.size());
      for (size_t n = 0; n < order.size(); ++n) order[n] = static_cast<int64_t>(n);
      draw.random.shuffle(std::span(order));
      for (size_t n = 0; n < order.size(); ++n) back[static_cast<size_t>(order[n])] = static_cast<int64_t>(n);
      return t.permute(order).contiguous().permute(back);
    }
    case 1: {
      at::Tensor large = t;
      std::vector<int64_t> sizes = t.sizes().vec(), begin;
      for (auto& size : sizes) {
        begin.push_back(draw.between(0, 2));
        size += begin.back() + draw.between(0, 2);
      }
      large = at::full(sizes, t.is_floating_point() ? NAN : -7, t.options());
      for (int64_t n = 0; n < t.dim(); ++n) large = large.narrow(n, begin[static_cast<size_t>(n)], t.size(n));
      large.copy_(t);
      return large;
    }
    case 2: {
      const int64_t dim = draw.between(0, t.dim() - 1), step = draw.between(2, 3);
      std::vector<int64_t> sizes = t.sizes().vec();
      sizes[static_cast<size_t>(dim)] *= step;
      at::Tensor large = at::full(sizes, t.is_floating_point() ? NAN : -7, t.options());
      at::Tensor cut = large.slice(dim, 0, std::nullopt, step);
      cut.copy_(t);
      return cut;
    }
    case 3:
      return t.is_floating_point() ? at::_neg_view(t.neg()) : t;
    default:
      return t;
  }
}

Shape random_shape(Draw& draw) {
  Shape s;
  s.dtype = draw.of({DType::f32, DType::f32, DType::bf16, DType::f16});
  // Elastic has the largest number of parameters, so it is drawn twice as often.
  const auto normalizer = static_cast<size_t>(draw.between(0, std::size(kernels::kAllNormalizers)));
  s.normalizer =
      normalizer < std::size(kernels::kAllNormalizers) ? kernels::kAllNormalizers[normalizer] : Normalizer::elastic;
  const auto length = [&] {
    return draw.chance(25) ? 0 : draw.chance(20) ? draw.between(33, 90) : draw.between(1, 16);
  };
  s.batch = draw.chance(40) ? 0 : draw.between(1, 2);
  s.q_length = length();
  s.k_length = draw.chance(2) ? s.q_length : length();
  s.kv_heads = draw.between(1, 3);
  s.heads = draw.chance(50) ? 0 : s.kv_heads * draw.between(1, s.kv_heads == 1 ? 4 : 2);
  const auto dim = [&] {
    return draw.chance(20)  ? draw.between(65, 256)
           : draw.chance(3) ? draw.of<int64_t>({16, 32, 64})
                            : draw.between(1, 32);
  };
  s.head_dim = dim();
  s.value_dim = draw.chance(2) ? s.head_dim : dim();
  s.causal = !draw.chance(4);
  if (draw.chance(4)) s.softcap = draw.of({0.5, 5.0, 50.0});
  s.window = draw.chance(3) ? draw.of<int64_t>({1, 2, 7, 50, 1000}) : -1;
  s.bias_window = draw.chance(2) ? draw.of<int64_t>({0, 1, 5, 16, 300}) : 0;
  s.alibi = draw.chance(4);
  s.offset = draw.chance(4) ? kernels::Offset::constant : kernels::Offset::per_visible;
  s.tau = draw.of({-1.0, -1.0, -30.0, 0.0, 0.5});
  s.score_scale = draw.of({1.0, 1.0, 1.0, 40.0});
  return s;
}

// Returns the cumulative lengths of documents with random lengths; some documents are empty.
std::vector<int32_t> random_cumulative(Draw& draw, int64_t tokens, size_t documents) {
  std::vector<int32_t> cut{0, static_cast<int32_t>(tokens)};
  while (cut.size() < documents + 1) cut.push_back(static_cast<int32_t>(draw.between(0, tokens)));
  std::sort(cut.begin(), cut.end());
  return cut;
}

// A call of one of the operators, with every argument that a caller can set incorrectly.
struct Call {
  enum Kind { forward, autograd, backward, decode } kind = forward;
  std::map<std::string, at::Tensor> t;  // tensors by argument name; an absent name means None
  AttentionOptions o;
  std::string text;

  at::Tensor tensor(const std::string& name) const {
    const auto found = t.find(name);
    return found == t.end() ? at::Tensor() : found->second;
  }
  AttentionOptions options() const {
    AttentionOptions all = o;
    all.sink = tensor("sink");
    all.alibi_slopes = tensor("alibi_slopes");
    all.cu_seqlens_q = tensor("cu_seqlens_q");
    all.cu_seqlens_k = tensor("cu_seqlens_k");
    return all;
  }
};

const std::vector<std::string> kInputs = {"q", "k", "v", "distance_bias", "tau", "sink", "alibi_slopes"};

// Returns the outputs by name; gradients are named "d_q" and so on.
std::map<std::string, at::Tensor> run(const Call& c) {
  const AttentionOptions o = c.options();
  const auto x = [&](const char* name) { return c.tensor(name); };
  std::map<std::string, at::Tensor> r;
  if (c.kind == Call::decode) {
    std::tie(r["out"], r["lse"], r["stats"]) = decode(x("q"), x("k"), x("v"), x("cache_lengths"), x("distance_bias"),
                                                      x("tau"), o, x("block_table"), x("visible_count"));
    return r;
  }
  if (c.kind == Call::autograd) {
    std::vector<at::Tensor> leaves;
    std::vector<std::string> names;
    Call leaf = c;
    for (const auto& name : kInputs) {
      if (!c.tensor(name).defined() || !c.tensor(name).is_floating_point()) continue;
      leaf.t[name] = c.tensor(name).detach().requires_grad_(true);
      leaves.push_back(leaf.t[name]);
      names.push_back(name);
    }
    const AttentionOptions all = leaf.options();
    std::tie(r["out"], r["lse"], r["stats"]) = attention(leaf.tensor("q"), leaf.tensor("k"), leaf.tensor("v"),
                                                         leaf.tensor("distance_bias"), leaf.tensor("tau"), all);
    at::Tensor d_out = x("d_out");  // replaced if its shape or type is wrong, because PyTorch checks it
    if (d_out.sizes() != r["out"].sizes() || d_out.options().type_equal(r["out"].options()) == false)
      d_out = at::ones_like(r["out"]);
    const auto gradients = torch::autograd::grad({r["out"]}, leaves, {d_out});
    for (size_t n = 0; n < names.size(); ++n) r["d_" + names[n]] = gradients[n];
    for (auto& [name, tensor] : r) tensor = tensor.detach();
    return r;
  }
  std::tie(r["out"], r["lse"], r["stats"]) = attention(x("q"), x("k"), x("v"), x("distance_bias"), x("tau"), o);
  if (c.kind == Call::forward) return r;
  static const auto backward = c10::Dispatcher::singleton()
                                   .findSchemaOrThrow("lazy::attention_backward", "")
                                   .typed<BackwardOutputs(LAZY_ATTENTION_BACKWARD_PARAMETERS)>();
  const auto optional = [&](const char* name) {
    return c.t.contains(name) ? OptionalTensor(x(name)) : OptionalTensor();
  };
  std::array<bool, 7> mask;
  for (size_t n = 0; n < 7; ++n) mask[n] = c.t.contains(kInputs[n]);
  // Incorrect forward results may also be passed to the backward pass.
  const at::Tensor out = c.t.contains("out") ? x("out") : r["out"], lse = c.t.contains("lse") ? x("lse") : r["lse"];
  std::tie(r["d_q"], r["d_k"], r["d_v"], r["d_distance_bias"], r["d_tau"], r["d_sink"], r["d_alibi_slopes"]) =
      backward.call(x("d_out"), out, lse, x("q"), x("k"), x("v"), optional("distance_bias"), optional("tau"),
                    optional("sink"), optional("alibi_slopes"), o.normalizer, o.offset, o.sigmoid_bias, o.scale,
                    o.softcap, o.causal, o.window, optional("cu_seqlens_q"), optional("cu_seqlens_k"), o.deterministic,
                    mask, OptionalTensor());
  return r;
}

void describe(Call& c, int64_t number, const std::string& what) {
  std::ostringstream s;
  s << "call " << number << " (" << what
    << "): " << std::array{"attention", "attention + autograd", "attention_backward", "decode"}[c.kind];
  for (const auto& [name, t] : c.t) {
    s << ' ' << name << ' ' << t.scalar_type() << t.sizes() << " strides ";
    if (t.is_meta())
      s << "meta";
    else
      s << t.strides();
    if (t.defined() && !t.is_floating_point() && !t.is_complex() && !t.is_meta() && t.numel() <= 16 &&
        !t.is_quantized()) {
      s << " =";
      for (const double value : values(t)) s << ' ' << static_cast<int64_t>(value);
    }
    s << ';';
  }
  s << " normalizer \"" << c.o.normalizer << "\" offset \"" << c.o.offset << "\" sigmoid_bias "
    << (c.o.sigmoid_bias ? std::to_string(*c.o.sigmoid_bias) : "None") << " scale "
    << (c.o.scale ? std::to_string(*c.o.scale) : "None") << " softcap "
    << (c.o.softcap ? std::to_string(*c.o.softcap) : "None") << " causal " << c.o.causal << " window " << c.o.window
    << " return_stats " << c.o.return_stats << " deterministic " << c.o.deterministic << '\n';
  c.text = s.str();
  std::snprintf(current_call, sizeof current_call, "%s", c.text.c_str());
}

// Returns a valid call for `shape`. q and scale may be multiplied by powers of two whose product is one, which changes
// no score. gradient_scale: factor that converts the resulting d_q to the gradient of the original q.
Call make_call(const Shape& s, const Inputs& in, Draw& draw, double& gradient_scale) {
  Call c;
  const auto type = torch_type(s.dtype), real = s.dtype == DType::f64 ? at::kDouble : at::kFloat;
  const auto put = [&](const char* name, at::Tensor t) {
    c.t[name] = restrided(s.cu_q.empty() || t.dim() != 4 ? t : t.squeeze(0), draw);
  };
  gradient_scale = 1;
  at::Tensor q = to_torch(in.q, type);
  const double scale = 1 / std::sqrt(static_cast<double>(s.head_dim));
  if (draw.chance(3)) c.o.scale = scale;
  if (draw.chance(4) && s.dtype != DType::f16) {
    gradient_scale = 0.5;  // d_q is doubled, because q is halved
    q = q * 0.5;
    c.o.scale = 2 * scale;
  }
  put("q", q);
  put("k", to_torch(in.k, type));
  put("v", to_torch(in.v, type));
  put("d_out", to_torch(in.d_out, type));
  if (s.bias_window > 0) put("distance_bias", to_torch(in.distance_bias, {s.heads, s.bias_window}, real));
  if (kernels::traits(s.normalizer).takes_tau) {
    c.t["tau"] = draw.chance(3) && s.heads > 0
                     ? at::full({1}, s.tau, at::TensorOptions(test_device()).dtype(real)).expand({s.heads})
                     : restrided(to_torch(in.tau, {s.heads}, real), draw);
  }
  if (kernels::traits(s.normalizer).takes_sink) put("sink", to_torch(in.sink, {s.heads}, real));
  if (s.alibi) put("alibi_slopes", to_torch(in.alibi_slopes, {s.heads}, real));
  const auto integers = [&](const std::vector<int32_t>& x) {
    const at::Tensor t = at::tensor(std::vector<int64_t>(x.begin(), x.end()), at::kLong);
    const at::Tensor small = draw.chance(2) ? t.to(at::kInt) : t;
    return draw.chance(2) ? small.to(test_device()) : small;
  };
  if (!s.cu_q.empty()) {
    put("cu_seqlens_q", integers(s.cu_q));
    put("cu_seqlens_k", integers(s.cu_k));
  }
  c.o.normalizer = kernels::name(s.normalizer);
  c.o.offset = s.offset == kernels::Offset::constant ? "constant" : "per_visible";
  c.o.causal = s.causal;
  c.o.window = s.window;
  if (s.softcap > 0) c.o.softcap = s.softcap;
  c.o.return_stats = draw.chance(2);
  c.o.deterministic = draw.chance(2);
  return c;
}

// Converts a call for the packed problem `s` to a call of decode. Every document becomes a sequence with `rows`
// queries, whose keys are copied to a paged or contiguous cache. All other cache entries are NaN.
void turn_into_decode(Call& c, const Shape& s, int64_t rows, Draw& draw) {
  c.kind = Call::decode;
  c.t.erase("d_out");
  const int64_t batch = static_cast<int64_t>(s.cu_q.size()) - 1;
  int64_t longest = 0;
  std::vector<int64_t> lengths;
  for (int64_t b = 0; b < batch; ++b) {
    lengths.push_back(s.cu_k[static_cast<size_t>(b) + 1] - s.cu_k[static_cast<size_t>(b)]);
    longest = std::max(longest, lengths.back());
  }
  c.t["q"] = restrided(c.t["q"].reshape({batch, rows, s.heads, s.head_dim}).contiguous(), draw);
  const auto integers = [&](const at::Tensor& t) {
    return restrided((draw.chance(2) ? t.to(at::kInt) : t).to(test_device()), draw);
  };
  c.t["cache_lengths"] = integers(at::tensor(lengths, at::kLong));
  const bool paged = draw.chance(2);
  const int64_t page = paged ? draw.between(1, 9) : longest + draw.between(0, 3),
                pages = paged ? longest / page + 1 + draw.between(0, 1) : 1;
  std::vector<int64_t> table(static_cast<size_t>(batch * pages));
  for (size_t n = 0; n < table.size(); ++n) table[n] = static_cast<int64_t>(n);
  if (paged) draw.random.shuffle(std::span(table));
  for (const char* name : {"k", "v"}) {
    const at::Tensor tokens = c.t[name];
    at::Tensor cache = at::full({batch * pages, page, tokens.size(1), tokens.size(2)}, NAN, tokens.options());
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t j = 0; j < lengths[static_cast<size_t>(b)]; ++j) {
        cache[table[static_cast<size_t>(b * pages + j / page)]][j % page].copy_(
            tokens[s.cu_k[static_cast<size_t>(b)] + j]);
      }
    }
    c.t[name] = restrided(cache, draw);
  }
  if (paged) {
    for (int64_t b = 0; b < batch; ++b) {  // page indices after the length may have any value
      for (int64_t n = (lengths[static_cast<size_t>(b)] + page - 1) / page; n < pages; ++n)
        table[static_cast<size_t>(b * pages + n)] = draw.of<int64_t>({-1, 1 << 30, 0});
    }
    c.t["block_table"] = integers(at::tensor(table, at::kLong).view({batch, pages}));
  }
  c.t.erase("cu_seqlens_q");
  c.t.erase("cu_seqlens_k");
}

// Converts the results of a call to the shapes that compare.cc expects: (batch, tokens, heads, dim) for tensors, and
// (heads, tokens) for values per row such as lse.
Results collect(const Shape& s, const std::map<std::string, at::Tensor>& r, double gradient_scale,
                int64_t decode_rows) {
  Results x;
  const auto get = [&](const char* name) { return r.contains(name) ? r.at(name) : at::Tensor(); };
  const auto tensor = [&](const char* name, int64_t tokens, int64_t heads, int64_t dim) {
    kernels::test::Tensor out;
    if (!get(name).defined()) return out;
    out = kernels::test::Tensor(s.batch, tokens, heads, dim);
    out.data = values(get(name));
    return out;
  };
  const auto numbers = [&](const char* name) {
    return get(name).defined() ? values(get(name)) : std::vector<double>();
  };
  x.out = tensor("out", s.q_length, s.heads, s.value_dim);
  x.d_q = tensor("d_q", s.q_length, s.heads, s.head_dim);
  for (double& value : x.d_q.data) value *= gradient_scale;
  x.d_k = tensor("d_k", s.k_length, s.kv_heads, s.head_dim);
  x.d_v = tensor("d_v", s.k_length, s.kv_heads, s.value_dim);
  const auto rows = [&](const char* name, int64_t parts) -> std::vector<double> {
    at::Tensor t = get(name);
    if (!t.defined() || t.numel() == 0) return {};
    if (decode_rows > 0) {  // converts (batch, heads, rows) to (heads, tokens)
      t = t.view({parts, -1, s.heads, decode_rows}).transpose(1, 2);
    }
    return values(t);
  };
  x.lse = rows("lse", 1);
  x.stats = rows("stats", 3);
  x.score_stats = rows("score_stats", 2);
  if (s.bias_window > 0) x.d_distance_bias = numbers("d_distance_bias");
  if (kernels::traits(s.normalizer).takes_tau) x.d_tau = numbers("d_tau");
  if (kernels::traits(s.normalizer).takes_sink) x.d_sink = numbers("d_sink");
  if (s.alibi) x.d_alibi_slopes = numbers("d_alibi_slopes");
  return x;
}

// Changes the call in one random way. The change is a mistake that the operator must reject, or an unusual argument
// that may be valid. Returns a description.
std::string make_mistake(Call& c, Draw& draw) {
  std::vector<std::string> names;
  for (const auto& [name, t] : c.t) names.push_back(name);
  const std::string name = names[draw.random.below(names.size())];
  at::Tensor& t = c.t[name];
  switch (draw.between(0, 11)) {
    case 0:
      t = t.to(draw.of({at::kInt, at::kLong, at::kBool, at::kByte, at::kDouble, at::kFloat, at::kBFloat16, at::kHalf,
                        at::kComplexFloat, at::kFloat8_e5m2, at::kShort}));
      return name + " with a different type";
    case 1:
      if (draw.chance(2) || t.dim() == 0) {
        t = t.unsqueeze(draw.between(0, t.dim()));
      } else {  // PyTorch cannot sum 8-bit floating-point numbers
        const at::ScalarType type = t.scalar_type();
        t = (type == at::kFloat8_e5m2 ? t.to(at::kFloat) : t).sum(draw.between(0, t.dim() - 1)).to(type);
      }
      return name + " with a different rank";
    case 2: {
      if (t.dim() == 0) return name;
      const int64_t dim = draw.between(0, t.dim() - 1);
      if (draw.chance(2) && t.size(dim) > 0) {
        t = t.narrow(dim, 0, draw.between(0, t.size(dim) - 1));
      } else {
        t = at::cat({t, t, t.narrow(dim, 0, t.size(dim) / 2)}, dim);
      }
      return name + " with a different size";
    }
    case 3:
      c.t.erase(name == "q" || name == "k" || name == "v" || name == "d_out" || name == "cache_lengths" ? "tau" : name);
      return "without " + name;
    case 4: {
      const std::string extra =
          draw.of<std::string>({"tau", "sink", "alibi_slopes", "distance_bias", "cu_seqlens_q", "cu_seqlens_k",
                                c.kind == Call::decode ? "block_table" : "lse", "visible_count", "out"});
      c.t[extra] = draw.chance(2) ? at::zeros({draw.between(0, 4)})
                                  : at::ones({draw.between(0, 4), draw.between(0, 4)}, at::kInt);
      return "with " + extra;
    }
    case 5:
      c.o.normalizer =
          draw.of<std::string>({"", "softmax1", "SOFTMAX", "softmax", "elastic", "sigmoid", "sparsemax", "entmax15",
                                std::string(5000, 'x'), "soft\nmax", std::string("elastic\0x", 9)});
      return "another normalizer";
    case 6:
      c.o.offset = draw.of<std::string>({"", "none", "per visible", "constant", "per_visible", "\xff\xfe"});
      return "another offset";
    case 7:
      c.o.window = draw.of<int64_t>({0, -2, INT64_MIN, INT64_MAX, INT64_MAX - 1, INT32_MAX, int64_t{1} << 32, 3});
      return "another window";
    case 8:
      c.o.scale = draw.of({0.0, -1.0, double{NAN}, double{INFINITY}, -double{INFINITY}, 1e300, 1e-300, 3.0});
      if (draw.chance(2)) c.o.softcap = draw.of({0.0, -1.0, double{NAN}, double{INFINITY}, 1e300, 1e-300, 3.0});
      return "different scale or softcap";
    case 9:
      c.o.sigmoid_bias = draw.of({0.0, double{NAN}, double{INFINITY}, -1e30, -2.0});
      return "with sigmoid_bias";
    case 10: {  // sets one integer of a tensor to a value that may be out of range
      for (const auto& key : {"cu_seqlens_q", "cu_seqlens_k", "cache_lengths", "block_table", "visible_count"}) {
        if (!c.t.contains(key) || c.t[key].numel() == 0 || c.t[key].is_floating_point()) continue;
        at::Tensor changed = c.t[key].to(at::kLong, false, true).contiguous();
        changed.view(-1)[draw.between(0, changed.numel() - 1)] =
            draw.of<int64_t>({-1, 1, INT32_MAX, INT64_MAX, INT64_MIN, int64_t{1} << 32, 1000});
        c.t[key] = changed;
        return std::string("different number in ") + key;
      }
      t = t.to(at::kMeta);
      return name + " without data";
    }
    default:
      if (t.dim() == 0 || t.numel() == 0) return name;
      t = t.narrow(draw.between(0, t.dim() - 1), 0, 1).expand(t.sizes());
      return name + " expanded";
  }
}

// If the operator accepted a mistake, the float64 operator must accept the same values. The shapes of the results must
// be equal, and a result may be NaN only where the float64 result is NaN.
void compare_loosely(const Call& c, const std::map<std::string, at::Tensor>& found) {
  Call exact = c;
  for (auto& [name, t] : exact.t) {
    if (!t.is_meta()) t = t.to(at::kCPU);
    if (t.is_floating_point()) t = t.to(at::kDouble).contiguous();
  }
  exact.t.erase("lse");
  exact.t.erase("out");
  std::map<std::string, at::Tensor> reference;
  try {
    reference = run(exact);
  } catch (const c10::Error& e) {
    if (test_device().is_cuda() && c.kind == Call::decode) return;  // on a GPU, invalid lengths and pages result in NaN
    ADD_FAILURE() << "the operator rejects a call in float64 that it accepted in another type: "
                  << e.what_without_backtrace() << '\n'
                  << c.text;
    return;
  }
  for (const auto& [name, t] : found) {
    ASSERT_EQ(t.sizes(), reference.at(name).sizes()) << name << '\n' << c.text;
    if (t.is_meta() || t.numel() == 0) continue;
    const at::Tensor exact_values = reference.at(name).abs();
    // Values that are finite in float64 may overflow in the type.
    const double limit = t.scalar_type() == at::kHalf ? 6e4 : 1e37;
    if (!(exact_values.isinf() | exact_values.lt(limit)).all().item<bool>()) continue;
    EXPECT_FALSE((t.to(at::kCPU).isnan() & reference.at(name).isnan().logical_not()).any().item<bool>())
        << name << " is NaN\n"
        << c.text;
  }
}

int failures() { return testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count(); }

TEST(OperatorPropertiesSlow, RandomCall_MatchesReferenceOrThrows) {
  const int64_t calls = environment("LAZY_PROPERTY_CALLS", 10000), seed = environment("LAZY_PROPERTY_SEED", 1);
  std::printf("LAZY_PROPERTY_CALLS=%ld LAZY_PROPERTY_SEED=%ld\n", static_cast<long>(calls), static_cast<long>(seed));
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGILL}) std::signal(signal, print_call_and_die);
  const int threads = at::get_num_threads();
  kernels::test::TwoReferences comparison;
  int64_t right = 0, refused = 0, unusual = 0, done = 0;
  for (int64_t number = 0; number < calls && failures() < 8; ++number, ++done) {
    Draw draw{Random(static_cast<uint64_t>(seed) ^ Random(static_cast<uint64_t>(number)).next())};
    Shape shape = random_shape(draw);
    int64_t decode_rows = 0;
    if (draw.chance(3)) {  // a call of decode, whose results are compared with a packed problem
      const auto documents = static_cast<size_t>(draw.between(1, 3));
      shape.batch = 1;
      decode_rows = draw.between(1, 3);
      shape.q_length = decode_rows * static_cast<int64_t>(documents);
      for (size_t n = 0; n <= documents; ++n)
        shape.cu_q.push_back(static_cast<int32_t>(n) * static_cast<int32_t>(decode_rows));
      shape.cu_k = random_cumulative(draw, shape.k_length, documents);
    } else if (draw.chance(4)) {
      const auto documents = static_cast<size_t>(draw.between(1, 4));
      shape.batch = 1;
      shape.cu_q = random_cumulative(draw, shape.q_length, documents);
      shape.cu_k = random_cumulative(draw, shape.k_length, documents);
    }
    const Inputs in = kernels::test::make_inputs(shape, draw.random.next());
    double gradient_scale = 1;
    Call call = make_call(shape, in, draw, gradient_scale);
    call.kind = draw.of({Call::forward, Call::autograd, Call::backward});
    if (decode_rows > 0) turn_into_decode(call, shape, decode_rows, draw);
    std::string what = "right";
    const bool mistaken = draw.chance(2);
    if (mistaken) {
      if (decode_rows > 0) {  // the mistake may expose entries after the length, which are NaN
        for (const char* name : {"k", "v"}) call.t[name] = at::nan_to_num(call.t[name]);
      }
      what = make_mistake(call, draw);
      if (draw.chance(4)) what += ", " + make_mistake(call, draw);
    }
    describe(call, number, what);
    at::set_num_threads(draw.chance(8) ? 3 : 1);
    std::map<std::string, at::Tensor> found;
    try {
      found = run(call);
    } catch (const c10::Error& e) {
      const std::string message = e.what_without_backtrace();
      EXPECT_TRUE(mistaken) << "a valid call was rejected: " << message << '\n' << call.text;
      EXPECT_EQ(message.substr(0, message.find('\n')).find("lazy::"), 0u) << message << '\n' << call.text;
      ++refused;
      continue;
    } catch (const std::exception& e) {
      FAIL() << "unexpected type of exception: " << e.what() << '\n' << call.text;
    }
    if (mistaken) {
      ++unusual;
      compare_loosely(call, found);
    } else {
      ++right;
      SCOPED_TRACE(call.text);
      call.o.return_score_stats = true;  // computing score statistics must not change the other results
      const auto counted = run(call);
      EXPECT_TRUE(at::equal(counted.at("out"), found.at("out")) && at::equal(counted.at("lse"), found.at("lse")));
      const at::Tensor stats = counted.at("stats").narrow(0, 0, 3);
      if (call.o.return_stats) {
        EXPECT_TRUE(at::equal(stats, found.at("stats")));
      } else {
        EXPECT_EQ(found.at("stats").numel(), 0);
      }
      found["stats"] = stats;
      found["score_stats"] = counted.at("stats").narrow(0, 3, 2);
      comparison.add(shape, in, collect(shape, found, gradient_scale, decode_rows));
    }
  }
  at::set_num_threads(threads);
  if (!testing::Test::HasFailure()) comparison.check();
  std::printf("%ld valid, %ld unusual and accepted, %ld rejected\n", static_cast<long>(right),
              static_cast<long>(unusual), static_cast<long>(refused));
  EXPECT_GT(right, done / 4);
  EXPECT_GT(refused, done / 8);
}

}  // namespace

}  // namespace lazy::ops
