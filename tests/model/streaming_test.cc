// Tests of the streaming cache: the definition in float64 loops, the fast implementation for long texts, whole models,
// and the published rule of StreamingLLM.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/forward_options.h"
#include "model/language_model.h"
#include "model/mixers/streaming.h"
#include "model/model_options.h"
#include "model/safetensors.h"
#include "model/temporary_folder.h"
#include "support/error_of.h"

namespace lazy {
namespace {

using testing::TemporaryFolder;

at::Tensor random(at::IntArrayRef sizes, uint64_t seed) {
  return at::empty(sizes, at::kFloat).normal_(0, 1, at::detail::createCPUGenerator(seed));
}

struct Case {
  const char* normalizer;
  double tau = NAN;
  const char* offset = "per_visible";
  int64_t bias = 0, window = -1, heads = 4, kv_heads = 2;
  StreamingCache cache{3, 7};
  int64_t length = 40;
  const char* scaling = "none";
  double softcap = 0;
};

std::vector<double> rotated(const float* x, int64_t dim, int64_t place, const ops::RopeFrequencies& f) {
  std::vector<double> out(static_cast<size_t>(dim));
  const int64_t half = dim / 2;
  for (int64_t p = 0; p < half; ++p) {
    const double angle = static_cast<double>(place) * f.per_pair[p], c = f.attention_factor * std::cos(angle),
                 s = f.attention_factor * std::sin(angle);
    out[p] = c * x[p] - s * x[p + half];
    out[p + half] = s * x[p] + c * x[p + half];
  }
  return out;
}

// Reference implementation, token by token: the cache is a list of tokens, and the position of a token is its index in
// the list.
at::Tensor by_loops(const StreamingInputs& in, const Case& c) {
  const int64_t batch = in.q.size(0), length = in.q.size(1), dim = in.q.size(3);
  const auto frequencies = ops::rope_frequencies(in.rope.base, dim, in.rope.scaling);
  const at::Tensor out = at::zeros(in.q.sizes(), at::kDouble);
  const auto row = [&](const at::Tensor& x, int64_t b, int64_t t, int64_t h) { return x[b][t][h].contiguous(); };
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < c.heads; ++h) {
      const int64_t g = h / (c.heads / c.kv_heads);
      std::vector<int64_t> cache;
      for (int64_t t = 0; t < length; ++t) {
        cache.push_back(t);
        const auto last = static_cast<int64_t>(cache.size()) - 1;
        const auto query = rotated(row(in.q, b, t, h).data_ptr<float>(), dim, last, frequencies);
        std::vector<double> score;
        std::vector<int64_t> token;
        for (int64_t place = 0; place <= last; ++place) {
          const int64_t distance = last - place;
          if (c.window > 0 && distance >= c.window) continue;
          const auto key = rotated(row(in.k, b, cache[place], g).data_ptr<float>(), dim, place, frequencies);
          double s = 0;
          for (int64_t d = 0; d < dim; ++d) s += query[d] * key[d];
          s /= std::sqrt(static_cast<double>(dim));
          if (c.softcap > 0) s = c.softcap * std::tanh(s / c.softcap);
          if (distance < c.bias) s += in.distance_bias[h][distance].item<double>();
          score.push_back(s);
          token.push_back(cache[place]);
        }
        const auto n = static_cast<double>(score.size());
        double largest = -INFINITY, sum = 0;
        for (const double s : score) largest = std::max(largest, s);
        for (const double s : score) sum += std::exp(s - largest);
        for (size_t j = 0; j < score.size(); ++j) {
          double weight = std::exp(score[j] - largest) / sum;
          if (std::string(c.normalizer) == "elastic")
            weight = std::max(0.0, weight + in.tau[h].item<double>() / (std::string(c.offset) == "constant" ? 1 : n));
          if (std::string(c.normalizer) == "sigmoid") weight = 1 / (1 + std::exp(std::log(n) - score[j]));
          out[b][t][h] += weight * in.v[b][token[j]][g].to(at::kDouble);
        }
        if (static_cast<int64_t>(cache.size()) > c.cache.size()) cache.erase(cache.begin() + c.cache.sinks);
      }
    }
  }
  return out;
}

StreamingInputs inputs(const Case& c) {
  const int64_t dim = 8;
  StreamingInputs in;
  in.q = random({2, c.length, c.heads, dim}, 1) * 2;
  in.k = random({2, c.length, c.kv_heads, dim}, 2);
  in.v = random({2, c.length, c.kv_heads, dim}, 3);
  if (c.bias > 0) in.distance_bias = random({c.heads, c.bias}, 4);
  if (!std::isnan(c.tau)) in.tau = at::full({c.heads}, c.tau) + 0.1 * random({c.heads}, 5);
  in.attention.normalizer = c.normalizer;
  in.attention.offset = c.offset;
  in.attention.window = c.window;
  in.attention.softcap = c.softcap;
  in.rope = {1e3, {}};
  if (std::string(c.scaling) == "yarn") in.rope.scaling = {.type = "yarn", .factor = 4, .original_length = 16};
  return in;
}

// Computes the same result as one call for the whole text, but in parts of `size` tokens with a cache.
at::Tensor in_parts(const StreamingInputs& in, const StreamingCache& cache, int64_t size) {
  std::vector<at::Tensor> out;
  at::Tensor k = in.k.narrow(1, 0, 0), v = in.v.narrow(1, 0, 0);
  for (int64_t begin = 0; begin < in.q.size(1); begin += size) {
    const int64_t count = std::min(size, in.q.size(1) - begin);
    StreamingInputs part = in;
    part.q = in.q.narrow(1, begin, count);
    part.k = at::cat({k, in.k.narrow(1, begin, count)}, 1);
    part.v = at::cat({v, in.v.narrow(1, begin, count)}, 1);
    out.push_back(streaming_attention(part, cache));
    k = apply_streaming_window(part.k, cache);
    v = apply_streaming_window(part.v, cache);
  }
  return at::cat(out, 1);
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

TEST(StreamingAttention, StreamingAttention_MatchesLoop) {
  const Case cases[] = {{"softmax"},
                        {"softmax", NAN, "per_visible", 6, -1, 4, 4, {0, 5}},
                        {"softmax", NAN, "per_visible", 20, 6, 3, 1, {4, 9}, 40, "yarn"},
                        {"elastic", -1, "per_visible", 5},
                        {"elastic", -1, "per_visible", 5, -1, 4, 2, {3, 7}, 40, "none", 1.5},
                        {"elastic", -1, "per_visible", 20, -1, 4, 1, {1, 12}, 40, "yarn"},
                        {"elastic", 0.5, "per_visible", 4, 8},
                        {"elastic", -0.05, "constant"},
                        {"sigmoid", NAN, "per_visible", 6},
                        // so long that the queries are processed in several blocks
                        {"softmax", NAN, "per_visible", 0, -1, 2, 2, {2, 150}, 300}};
  for (const Case& c : cases) {
    SCOPED_TRACE(fmt::format("{} tau {} {} bias {} window {} softcap {} cache {}", c.normalizer, c.tau, c.offset,
                             c.bias, c.window, c.softcap, c.cache.name()));
    const StreamingInputs in = inputs(c);
    const at::Tensor exact = by_loops(in, c);
    const double tolerance = 64 * std::numeric_limits<float>::epsilon() * exact.abs().max().item<double>();
    for (const int64_t size : {int64_t{1}, int64_t{9}, c.length}) {
      EXPECT_LT(largest_difference(in_parts(in, c.cache, size), exact), tolerance) << "parts of " << size;
    }
  }
}

TEST(StreamingAttention, OtherNormalizers_MatchLoop) {
  for (const char* normalizer : {"sparsemax", "entmax15"}) {
    const Case c{normalizer, NAN, "per_visible", 6};
    const StreamingInputs in = inputs(c);
    EXPECT_LT(largest_difference(in_parts(in, c.cache, 1), in_parts(in, c.cache, c.length)), 1e-5) << normalizer;
  }
}

ModelConfig small(const char* kind) {
  ModelConfig c{.vocab_size = 61,
                .hidden_size = 32,
                .num_layers = 3,
                .max_length = 32,
                .attention = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 8},
                .positions = {.rope_base = 1e3},
                .mlp = {.intermediate_size = 40}};
  c.init_std = 0.2;
  if (std::string(kind) == "lazy") {
    c.attention.normalizer = Normalizer::elastic;
    c.attention.distance_bias_window = 10;
    c.attention.distance_bias_init_std = 0.5;
  }
  return c;
}

at::Tensor some_ids(int64_t batch, int64_t length) {
  return at::randint(0, 61, {batch, length}, at::detail::createCPUGenerator(7), at::TensorOptions().dtype(at::kLong));
}

at::Tensor streamed(LanguageModel& model, const at::Tensor& ids, const StreamingCache& keep, int64_t part) {
  const at::NoGradGuard guard;
  KVCache cache{.streaming = keep};
  std::vector<at::Tensor> out;
  for (int64_t begin = 0; begin < ids.size(1); begin += part) {
    out.push_back(model.logits(
        model.forward(ids.narrow(1, begin, std::min(part, ids.size(1) - begin)), {.cache = &cache}).hidden));
    EXPECT_LE(cache.length, keep.size());
    EXPECT_EQ(cache.keys[0].size(1), cache.length);
  }
  return at::cat(out, 1);
}

TEST(StreamingModel, FullPass_MatchesTokenByToken) {
  const StreamingCache keep{2, 9};
  for (const char* kind : {"lazy", "transformer"}) {
    LanguageModel model(small(kind), 3);
    const at::Tensor ids = some_ids(2, 60), single = streamed(model, ids, keep, 1);
    // A matrix product over many rows may sum in a different order than a product over one row, depending on the
    // processor.
    const double tolerance = 3e-5 * single.abs().max().item<double>();
    EXPECT_LT(largest_difference(streamed(model, ids, keep, 60), single), tolerance) << kind;
    EXPECT_LT(largest_difference(streamed(model, ids, keep, 13), single), tolerance) << kind;
    const at::NoGradGuard guard;
    // Until the first token is dropped, the results are equal to the results without a streaming cache; afterwards they
    // differ.
    const at::Tensor plain = model.logits(model.forward(ids).hidden);
    EXPECT_LT(largest_difference(single.narrow(1, 0, 12), plain.narrow(1, 0, 12)), tolerance) << kind;
    EXPECT_GT(largest_difference(single.narrow(1, 12, 48), plain.narrow(1, 12, 48)), 100 * tolerance) << kind;
    // The log-likelihoods must match the logits.
    KVCache cache{.streaming = keep};
    const at::Tensor labels = ids.roll(-1, 1);
    const auto [likelihood, best] = model.log_likelihood(ids, labels, {.cache = &cache});
    const at::Tensor expected = at::log_softmax(single, 2).gather(2, labels.unsqueeze(2)).squeeze(2);
    EXPECT_LT(largest_difference(likelihood, expected), tolerance) << kind;
  }
}

// Python code that applies the published rule of StreamingLLM with the weights and the RoPE of transformers.
constexpr char kPublished[] = R"(
import sys, torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
folder, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model = AutoModelForCausalLM.from_pretrained(folder + "/ours", dtype=torch.float32).eval().model
ids, out, caches = load_file(folder + "/ids.safetensors")["ids"], [], [([], []) for _ in model.layers]
with torch.no_grad():
    for token in ids[0]:
        x = model.embed_tokens(token[None, None])
        for layer, (keys, values) in zip(model.layers, caches):
            a, n = layer.self_attn, layer.input_layernorm(x)
            heads = lambda y: y.view(1, 1, -1, a.head_dim).transpose(1, 2)
            q, k, v = heads(a.q_proj(n)), heads(a.k_proj(n)), heads(a.v_proj(n))
            keys.append(k), values.append(v)
            k, v = torch.cat(keys, 2), torch.cat(values, 2)
            cos, sin = model.rotary_emb(k, torch.arange(len(keys))[None])
            k = apply_rotary_pos_emb(k, k, cos, sin)[0]
            q = apply_rotary_pos_emb(q, q, cos[:, -1:], sin[:, -1:])[0]
            o = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
            x = x + a.o_proj(o.transpose(1, 2).reshape(1, 1, -1))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            if len(keys) > first + last:
                del keys[first], values[first]
        out.append(model.norm(x))
save_file({"hidden": torch.cat(out, 1)}, folder + "/out.safetensors")
)";

TEST(StreamingModelSlow, LlamaModel_MatchesPublishedRule) {
  const std::string missing = testing::missing_python_modules("torch, transformers, safetensors");
  if (!missing.empty()) GTEST_SKIP() << missing;
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "ours");
  LanguageModel model(small("transformer"), 3);
  model.save(folder / "ours");
  const at::Tensor ids = some_ids(1, 50);
  write_safetensors(folder / "ids.safetensors", {{"ids", ids}});
  const auto [status, said] = testing::run_python(folder, kPublished, fmt::format("'{}' 4 11", folder.path().string()));
  ASSERT_EQ(status, 0) << said;
  const at::NoGradGuard guard;
  KVCache cache{.streaming = StreamingCache{4, 11}};
  const at::Tensor theirs = read_safetensors(folder / "out.safetensors").at("hidden");
  EXPECT_LT(largest_difference(model.forward(ids, {.cache = &cache}).hidden, theirs),
            1e-5 * theirs.abs().max().item<double>());
}

// Reference implementation of the cache that keeps the heaviest tokens: every key-value head has a separate list of
// tokens. After each token, it drops the token with the smallest weight that is not among the latest tokens.
at::Tensor heaviest_by_loops(const StreamingInputs& in, const StreamingCache& cache, int64_t* evicted) {
  const int64_t length = in.q.size(1), heads = in.q.size(2), kv_heads = in.k.size(2), dim = in.q.size(3);
  const auto frequencies = ops::rope_frequencies(in.rope.base, dim, in.rope.scaling);
  const at::Tensor out = at::zeros(in.q.sizes(), at::kDouble);
  const auto row = [](const at::Tensor& x, int64_t b, int64_t t, int64_t h) { return x[b][t][h].contiguous(); };
  for (int64_t b = 0; b < in.q.size(0); ++b) {
    for (int64_t g = 0; g < kv_heads; ++g) {
      std::vector<int64_t> kept;
      std::vector<double> received;
      for (int64_t t = 0; t < length; ++t) {
        kept.push_back(t);
        received.push_back(0);
        const auto n = static_cast<int64_t>(kept.size());
        for (int64_t h = g * heads / kv_heads; h < (g + 1) * heads / kv_heads; ++h) {
          const auto query = rotated(row(in.q, b, t, h).data_ptr<float>(), dim, n - 1, frequencies);
          std::vector<double> score;
          for (int64_t place = 0; place < n; ++place) {
            const auto key = rotated(row(in.k, b, kept[place], g).data_ptr<float>(), dim, place, frequencies);
            double s = 0;
            for (int64_t d = 0; d < dim; ++d) s += query[d] * key[d];
            score.push_back(std::exp(s / std::sqrt(static_cast<double>(dim))));
          }
          double sum = 0;
          for (const double s : score) sum += s;
          for (int64_t j = 0; j < n; ++j) {
            double weight = score[j] / sum;
            if (in.tau.defined()) weight = std::max(0.0, weight + in.tau[h].item<double>() / static_cast<double>(n));
            received[j] += weight;
            out[b][t][h] += weight * in.v[b][kept[j]][g].to(at::kDouble);
          }
        }
        if (n <= cache.size()) continue;
        const auto lightest = std::min_element(received.begin(), received.begin() + cache.heavy + 1) - received.begin();
        kept.erase(kept.begin() + lightest);
        received.erase(received.begin() + lightest);
        *evicted += lightest < cache.heavy;
      }
    }
  }
  return out;
}

TEST(HeaviestCache, HeaviestAttention_MatchesLoops) {
  const StreamingCache keep{0, 4, 5};
  EXPECT_EQ(keep.name(), "heaviest:5+4");
  for (const bool elastic : {false, true}) {
    Case c{elastic ? "elastic" : "softmax"};
    if (elastic) c.tau = -0.5;
    const StreamingInputs in = inputs(c);
    int64_t evicted = 0;
    const at::Tensor expected = heaviest_by_loops(in, keep, &evicted);
    // In several cases, the dropped token is an older token than the one that has just left the group of the latest
    // tokens.
    EXPECT_GT(evicted, 3);
    for (const int64_t part : {40, 7, 1}) {
      StreamingInputs own = in;
      own.k = own.v = at::Tensor();
      at::Tensor k = in.k.narrow(1, 0, 0), v = in.v.narrow(1, 0, 0), received;
      std::vector<at::Tensor> out;
      for (int64_t t = 0; t < c.length; t += part) {
        const int64_t rows = std::min(part, c.length - t);
        own.q = in.q.narrow(1, t, rows);
        own.k = at::cat({k, in.k.narrow(1, t, rows)}, 1);
        own.v = at::cat({v, in.v.narrow(1, t, rows)}, 1);
        out.push_back(heaviest_attention(own, received, keep));
        k = own.k, v = own.v;
        EXPECT_LE(k.size(1), keep.size());
        EXPECT_EQ(received.size(1), k.size(1));
      }
      EXPECT_LT(largest_difference(at::cat(out, 1), expected), 1e-5) << c.normalizer << " " << part;
    }
  }
}

TEST(StreamingModel, HeaviestTokens_FullPassMatchesTokenByToken) {
  const StreamingCache keep = StreamingCache::parse("heaviest:6+5", "--cache");
  for (const char* kind : {"lazy", "transformer"}) {
    LanguageModel model(small(kind), 3);
    const at::Tensor ids = some_ids(2, 50), single = streamed(model, ids, keep, 1);
    const double tolerance = 3e-5 * single.abs().max().item<double>();
    EXPECT_LT(largest_difference(streamed(model, ids, keep, 50), single), tolerance) << kind;
    const at::NoGradGuard guard;
    const at::Tensor plain = model.logits(model.forward(ids).hidden);
    EXPECT_LT(largest_difference(single.narrow(1, 0, 12), plain.narrow(1, 0, 12)), tolerance) << kind;
    EXPECT_GT(largest_difference(single.narrow(1, 12, 38), plain.narrow(1, 12, 38)), 100 * tolerance) << kind;
  }
}

TEST(ModelOptions, Positions_AreChangedAndErrorsNameOption) {
  const ModelConfig model = small("lazy");
  const auto applied = [&](const std::string& positions, double base = 0) {
    return ModelOptions{.positions = positions, .rope_base = base}.apply(model);
  };
  EXPECT_EQ(applied("yarn:4").positions.rope_scaling.type, "yarn");
  EXPECT_EQ(applied("yarn:4").positions.rope_scaling.original_length, 32);
  EXPECT_EQ(applied("linear:2.5").positions.rope_scaling.factor, 2.5);
  EXPECT_EQ(applied("none").positions.rope_scaling.type, "none");
  EXPECT_EQ(applied("", 5e5).positions.rope_base, 5e5);
  ModelConfig stretched = model;
  stretched.positions.rope_scaling = {.type = "yarn", .factor = 2, .original_length = 16};
  EXPECT_EQ((ModelOptions{.positions = "yarn:8"}.apply(stretched).positions.rope_scaling.original_length), 16);
  for (const char* bad : {"yarn", "yarn:", "yarn:0.5", "yarn:nan", "yarn:4x", "llama3:4", ":4"}) {
    EXPECT_THAT(error_of([&] { applied(bad); }),
                Names({"--positions", "yarn:FACTOR", "linear:FACTOR", "dynamic:FACTOR", fmt::format("'{}'", bad)}))
        << bad;
  }
  EXPECT_THAT(error_of([&] { applied("", 0.5); }), Names({"--rope-base", 1, "0.5"}));
  stretched.positions.layer_bases = {1e4, 0};
  EXPECT_THAT(error_of([&] { (ModelOptions{.rope_base = 5e5}.apply(stretched)); }), Names({"--rope-base"}));
  EXPECT_EQ((ModelOptions{.cache = "streaming:4+508"}.streaming()), (StreamingCache{4, 508}));
  EXPECT_EQ((StreamingCache{4, 508}.name()), "streaming:4+508");
  for (const char* bad : {"streaming", "streaming:4", "streaming:4+0", "streaming:-1+5", "streaming:4+5x", "window:4+5",
                          "heaviest:0+5", "streaming:99999999999999999999+5"}) {
    EXPECT_THAT(error_of([&] { (ModelOptions{.cache = bad}.streaming()); }),
                Names({"--cache", "streaming:FIRST+LAST", "heaviest:HEAVY+LAST", fmt::format("'{}'", bad)}))
        << bad;
  }
}

// A model that is opened with a position-scaling option must give the same logits as a folder whose config.json has
// this scaling.
TEST(ModelOptions, OpenedFolder_UsesOptions) {
  const TemporaryFolder folder;
  LanguageModel(small("transformer"), 3).save(folder.path());
  const at::NoGradGuard guard;
  const at::Tensor ids = some_ids(1, 60);
  LanguageModel plain = LanguageModel::load(folder.path());
  const at::Tensor base = plain.forward(ids).hidden;
  for (const char* positions : {"yarn:4", "linear:4", "dynamic:4"}) {
    LanguageModel model = open_model(folder.path(), {.positions = positions});
    const at::Tensor changed = model.forward(ids).hidden;
    EXPECT_GT(largest_difference(changed, base), 1e-3) << positions;
    const TemporaryFolder saved;
    model.save(saved.path());
    EXPECT_TRUE(at::equal(LanguageModel::load(saved.path()).forward(ids).hidden, changed)) << positions;
  }
  EXPECT_TRUE(at::equal(open_model(folder.path(), {.positions = "dynamic:4"}).forward(ids.narrow(1, 0, 32)).hidden,
                        plain.forward(ids.narrow(1, 0, 32)).hidden));
}

// With int8 weights, full passes use weights that are rounded to int8 and stored as floating-point numbers, whereas
// decoding uses the int8 values. Both must give the same results.
TEST(ModelOptions, Int8Weights_MatchRoundedModel) {
  const TemporaryFolder folder;
  for (const char* kind : {"transformer", "lazy"}) {
    LanguageModel(small(kind), 3).save(folder.path());
    const at::NoGradGuard guard;
    const at::Tensor ids = some_ids(1, 40);
    LanguageModel plain = LanguageModel::load(folder.path());
    LanguageModel model = open_model(folder.path(), {.weights = "int8"});
    const at::Tensor whole = model.logits(model.forward(ids).hidden);
    KVCache cache;
    for (int64_t n = 0; n < 40; ++n) {
      const at::Tensor one = model.logits(model.forward(ids.narrow(1, n, 1), {.cache = &cache}).hidden);
      EXPECT_LE(largest_difference(one, whole.narrow(1, n, 1)), 1e-5 * whole.abs().max().item<double>()) << n;
    }
    const double apart = largest_difference(whole, plain.logits(plain.forward(ids).hidden));
    EXPECT_GT(apart, 1e-5);
    EXPECT_LT(apart, 0.1 * whole.abs().max().item<double>());
  }
  EXPECT_THAT(error_of([&] { open_model(folder.path(), {.weights = "int4"}); }),
              IsMessage("model: --weights: expected int8, found 'int4'"));
}

}  // namespace
}  // namespace lazy
