// Tests of Transformer-XL's positions and segments: blocks of queries against explicit float64 sums, gradients, packed
// documents, generation.
#include "model/positions/relative.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <ostream>
#include <vector>

#include "core/config.h"
#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "model/language_model.h"
#include "model/mixers/recurrence_checks.h"
#include "support/error_of.h"

namespace lazy {
namespace {

using testing::Tensors;

// Indices of the tensors of a test case.
enum Place { kQ, kK, kV, kPastK, kPastV, kR, kU, kW, kBias, kTau };

struct RelativeCase {
  const char* name;
  int64_t queries, keys, heads, kv_heads, dim;
  Segments segments;
  int64_t window = -1, first = 0;
  std::string normalizer = "softmax";
};

void PrintTo(const RelativeCase& c, std::ostream* out) { *out << c.name; }

const std::vector<RelativeCase>& cases() {
  static const std::vector<RelativeCase> all = {
      {"one_segment", 9, 9, 2, 2, 4, {}},     {"longer_than_a_strip", 140, 140, 2, 1, 3, {}},
      {"segments", 23, 23, 2, 2, 4, {5, 3}},  {"memory_of_two_segments", 23, 23, 2, 1, 4, {4, 8}},
      {"no_memory", 14, 14, 2, 2, 4, {4, 0}}, {"later_tokens", 6, 13, 2, 2, 4, {5, 7}, -1, 9},
      {"window", 150, 150, 2, 2, 3, {}, 6},   {"elastic", 19, 19, 2, 2, 4, {7, 4}, -1, 0, "elastic"}};
  return all;
}

Tensors random_case(const RelativeCase& c) {
  at::Generator generator = at::detail::createCPUGenerator(17);
  const auto normal = [&](at::IntArrayRef shape) {
    return at::randn(shape, generator, at::TensorOptions().dtype(at::kDouble));
  };
  const int64_t reach = relative_reach(c.first + c.keys, c.segments, c.window);
  Tensors t = {normal({2, c.queries, c.heads, c.dim}), normal({2, c.keys, c.kv_heads, c.dim}),
               normal({2, c.keys, c.kv_heads, c.dim})};
  t.push_back(t[kK].clone());  // equal to kK, but with a separate gradient
  t.push_back(t[kV].clone());
  t.push_back(normal({reach, c.heads, c.dim}));
  t.push_back(normal({c.heads, c.dim}));
  t.push_back(normal({c.heads, c.dim}));
  t.push_back(normal({c.heads, 4}));
  t.push_back(at::tensor({-0.4, 0.2}, at::kDouble));
  return t;
}

RelativeInputs inputs(const RelativeCase& c, const Tensors& t) {
  RelativeInputs in{.q = t[kQ],
                    .k = t[kK],
                    .v = t[kV],
                    .past_k = t[kPastK],
                    .past_v = t[kPastV],
                    .r = t[kR],
                    .content_bias = t[kU],
                    .position_bias = t[kW],
                    .distance_bias = t[kBias],
                    .tau = t[kTau],
                    .segments = c.segments,
                    .first = c.first};
  in.attention.normalizer = c.normalizer;
  in.attention.window = c.window;
  return in;
}

// Computes the attention output element by element, as defined in Dai et al., section 3.3. The weights of the elastic
// normalizer are relu(p + tau / n), where p is the softmax and n is the number of visible keys.
at::Tensor definition(const RelativeCase& c, const Tensors& t) {
  const auto q = t[kQ].accessor<double, 4>(), k = t[kK].accessor<double, 4>(), v = t[kV].accessor<double, 4>();
  const auto r = t[kR].accessor<double, 3>();
  const auto u = t[kU].accessor<double, 2>(), w = t[kW].accessor<double, 2>(), bias = t[kBias].accessor<double, 2>();
  const at::Tensor out = at::zeros_like(t[kQ]);
  auto o = out.accessor<double, 4>();
  for (int64_t b = 0; b < q.size(0); ++b) {
    for (int64_t h = 0; h < c.heads; ++h) {
      const int64_t g = h / (c.heads / c.kv_heads);
      for (int64_t row = 0; row < c.queries; ++row) {
        const int64_t i = c.first + c.keys - c.queries + row;  // position of the query in the text
        std::vector<std::pair<int64_t, double>> scores;
        for (int64_t j = c.first; j <= i; ++j) {
          const int64_t segment = c.segments.length > 0 ? i / c.segments.length * c.segments.length : 0;
          if (c.segments.length > 0 && j < segment - c.segments.memory) continue;
          if (c.window > 0 && i - j >= c.window) continue;
          double s = 0;
          for (int64_t d = 0; d < c.dim; ++d) {
            s += (q[b][row][h][d] + u[h][d]) * k[b][j - c.first][g][d] +
                 (q[b][row][h][d] + w[h][d]) * r[r.size(0) - 1 - (i - j)][h][d];
          }
          s /= std::sqrt(static_cast<double>(c.dim));
          if (i - j < bias.size(1)) s += bias[h][i - j];
          scores.emplace_back(j, s);
        }
        double sum = 0;
        for (const auto& [j, s] : scores) sum += std::exp(s);
        for (const auto& [j, s] : scores) {
          double weight = std::exp(s) / sum;
          if (c.normalizer == "elastic")
            weight = std::max(0.0, weight + t[kTau][h].item<double>() / static_cast<double>(scores.size()));
          for (int64_t d = 0; d < c.dim; ++d) o[b][row][h][d] += weight * v[b][j - c.first][g][d];
        }
      }
    }
  }
  return out;
}

class Relative : public ::testing::TestWithParam<RelativeCase> {};

INSTANTIATE_TEST_SUITE_P(TransformerXl, Relative, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Relative, RelativeAttention_MatchesDefinition) {
  const Tensors t = random_case(GetParam());
  EXPECT_LT(testing::largest_difference(relative_attention(inputs(GetParam(), t)).first, definition(GetParam(), t)),
            1e-12);
}

TEST_P(Relative, Gradients_MatchFiniteDifferences) {
  const RelativeCase& c = GetParam();
  Tensors t = random_case(c), used;
  std::vector<size_t> places;
  for (size_t n = 0; n < t.size(); ++n) {
    if (n == kTau && c.normalizer != "elastic") continue;
    if ((n == kPastK || n == kPastV) && c.segments.memory == 0) continue;
    places.push_back(n);
    used.push_back(t[n]);
  }
  testing::expect_gradients(
      [&](const Tensors& given) {
        Tensors all = t;
        for (size_t n = 0; n < places.size(); ++n) all[places[n]] = given[n];
        return Tensors{relative_attention(inputs(c, all)).first};
      },
      used);
}

TEST(TransformerXl, Encodings_AreSinesAndCosinesOfDistance) {
  const at::Tensor rows = relative_encodings(9, 6, 5, at::TensorOptions());
  ASSERT_EQ(rows.sizes(), (std::vector<int64_t>{9, 6}));
  for (int64_t n = 0; n < 9; ++n) {
    const double distance = std::min<double>(static_cast<double>(8 - n), 5);
    for (int64_t d = 0; d < 6; ++d) {
      const double angle = distance * std::pow(10000.0, -2.0 * static_cast<double>(d % 3) / 6);
      EXPECT_NEAR(rows[n][d].item<double>(), d < 3 ? std::sin(angle) : std::cos(angle), 1e-7) << n << " " << d;
    }
  }
}

TEST(TransformerXl, Statistics_MatchWeights) {
  const RelativeCase c{"", 7, 7, 2, 2, 4, {}, -1, 0, "elastic"};
  const Tensors t = random_case(c);
  const at::NoGradGuard no_grad;
  RelativeInputs in = inputs(c, t);
  in.attention.return_stats = true;
  const at::Tensor stats = relative_attention(in).second;
  ASSERT_EQ(stats.sizes(), (std::vector<int64_t>{3, 2, 2, 7}));
  // Compute the expected statistics as outputs: if v is 1 for the first key and 0 for all others, the output is the
  // weight of the first key; if v is 1 for all keys, the output is the sum of the weights.
  Tensors first = t, all = t;
  first[kV] = at::zeros_like(t[kV]);
  first[kV].select(1, 0).fill_(1);
  all[kV] = at::ones_like(t[kV]);
  const auto weights = [&](const Tensors& of) { return definition(c, of).select(3, 0).transpose(1, 2); };
  EXPECT_LT(testing::largest_difference(stats[0].to(at::kDouble), weights(first)), 1e-6);
  EXPECT_LT(testing::largest_difference(stats[1].to(at::kDouble), 1 - weights(all)), 1e-6);
  EXPECT_EQ(stats[2].max().item<double>(), std::round(stats[2].max().item<double>()));
  in.segments = {3, 1};
  EXPECT_EQ(relative_attention(in).second[0].narrow(2, 4, 3).abs().max().item<double>(), 0)
      << "the first key is not visible to these queries";
}

// Returns a small model with Transformer-XL's positions. Its weights are large enough that a wrong position changes the
// results.
ModelConfig relative_model(int64_t segment, int64_t memory) {
  ModelConfig c{.vocab_size = 61,
                .hidden_size = 32,
                .num_layers = 3,
                .max_length = 64,
                .attention = {.num_heads = 2, .num_kv_heads = 2, .head_dim = 16},
                .positions = {.kind = PositionKind::transformer_xl, .segment_length = segment, .memory_length = memory},
                .mlp = {.intermediate_size = 48}};
  c.init_std = 0.15;
  return c;
}

at::Tensor text(int64_t batch, int64_t length, uint64_t seed = 1) {
  return at::randint(61, {batch, length}, at::detail::createCPUGenerator(seed), at::kLong);
}

// Computing a text segment by segment, as in the paper, must give the same results as computing the whole text. The
// memory of a layer is the part of the preceding segments that stays in the layer's cache.
TEST(TransformerXl, WholeText_MatchesSegmentBySegment) {
  for (const auto& [segment, memory] : {std::pair{8, 8}, {8, 3}, {4, 16}, {0, 0}}) {
    LanguageModel model(relative_model(segment, memory), 3);
    const at::NoGradGuard no_grad;
    const at::Tensor ids = text(2, 42), whole = model.forward(ids).hidden;
    for (const int64_t step : {8, 5, 1}) {
      KVCache cache;
      for (int64_t begin = 0; begin < 42; begin += step) {
        const int64_t end = std::min<int64_t>(42, begin + step);
        const at::Tensor part = model.forward(ids.slice(1, begin, end), {.cache = &cache}).hidden;
        EXPECT_LT(testing::largest_difference(part, whole.slice(1, begin, end)), 2e-4)
            << segment << " " << memory << " " << begin;
      }
      const int64_t most = segment > 0 ? segment + memory : 42;
      EXPECT_LE(cache.states[0][0].size(1), most) << "the size of the cache must not grow";
    }
  }
}

TEST(TransformerXl, Gradient_DoesNotReachEarlierSegment) {
  LanguageModel model(relative_model(8, 8), 3);
  const at::Tensor ids = text(1, 16);
  at::Tensor labels = at::full({1, 16}, -100, at::kLong);
  labels.slice(1, 9).copy_(ids.slice(1, 8, 15));  // only the second segment has labels
  model.loss(ids, labels).backward();
  const at::Tensor gradient = model.parameters().front().second.grad();
  for (int64_t t = 0; t < 8; ++t) {
    const int64_t id = ids[0][t].item<int64_t>();
    if (ids.slice(1, 8).eq(id).any().item<bool>()) continue;
    EXPECT_EQ(gradient[id].abs().max().item<double>(), 0)
        << "token " << t << " is in the memory and must not receive a gradient";
  }
  const at::NoGradGuard no_grad;
  const double before = model.loss(ids, labels).item<double>();
  at::Tensor other = ids.clone();
  other.slice(1, 0, 8).copy_(text(1, 8, 5));
  EXPECT_GT(std::abs(model.loss(other, labels).item<double>() - before), 1e-4) << "the memory must affect the loss";
}

TEST(TransformerXl, PackedDocuments_AreIndependent) {
  LanguageModel model(relative_model(8, 5), 3);
  const at::NoGradGuard no_grad;
  const at::Tensor a = text(1, 21, 1), b = text(1, 38, 2);
  PackedSequences packed;
  packed.ids = at::cat({a, b}, 1).squeeze(0);
  packed.positions = at::cat({at::arange(21), at::arange(38)});
  packed.cu_seqlens_q = packed.cu_seqlens_k = at::tensor({0, 21, 59}, at::kInt);
  packed.longest = 38;
  const at::Tensor together = model.forward(packed.ids.unsqueeze(0), {.packed = &packed}).hidden;
  EXPECT_LT(testing::largest_difference(together, at::cat({model.forward(a).hidden, model.forward(b).hidden}, 1)),
            1e-4);
  // A document may continue the first 13 tokens of another document. It then contains only its new tokens.
  const at::Tensor more = at::cat({a.slice(1, 0, 13), b.slice(1, 0, 9)}, 1);
  packed.ids = at::cat({a, b.slice(1, 0, 9)}, 1).squeeze(0);
  packed.positions = at::cat({at::arange(21), at::arange(13, 22)});
  packed.cu_seqlens_q = at::tensor({0, 21, 30}, at::kInt);
  packed.cu_seqlens_k = at::tensor({0, 21, 43}, at::kInt);
  packed.keys = at::cat({at::arange(21), at::arange(13), at::arange(21, 30)});
  packed.longest = 22;
  const at::Tensor shared = model.forward(packed.ids.unsqueeze(0), {.packed = &packed}).hidden;
  EXPECT_LT(testing::largest_difference(shared.slice(1, 21), model.forward(more).hidden.slice(1, 13)), 1e-4);
}

TEST(TransformerXl, UnsupportedValues_AreRejected) {
  const auto refused = [](const std::string& keys) {
    return error_of([&] {
      Config config = Config::parse(
          "[model]\nkind = \"transformer\"\nhidden_size = 32\nnum_heads = 2\nmax_position_embeddings = 64\n" + keys);
      ModelConfig::from_toml(config);
    });
  };
  const std::string relative = "positions = \"transformer_xl\"\n";
  EXPECT_EQ(refused(relative + "segment_length = 16\nmemory_length = 48\nclamp_length = 40"), "");
  EXPECT_THAT(refused(relative + "memory_length = 16"), Names({"memory_length", 0, "segment_length", 16}));
  EXPECT_THAT(refused(relative + "segment_length = 65"), Names({"segment_length", 0, 64, 65}));
  EXPECT_THAT(refused("segment_length = 16"), Names({"segment_length", 0, "rope", 16}));
  EXPECT_THAT(refused(relative + "normalizer = \"sparsemax\""),
              Names({"normalizer", "softmax", "elastic", "sigmoid", "softmax_sink", "transformer_xl", "sparsemax"}));
  LanguageModel model(relative_model(8, 8), 1);
  KVCache streaming{.streaming = StreamingCache{.sinks = 2, .recent = 4}};
  const at::NoGradGuard no_grad;
  EXPECT_THAT(error_of([&] { model.forward(text(1, 3), {.cache = &streaming}); }),
              Names({"streaming", "RoPE", "transformer_xl"}));
  ForwardOptions options;
  options.on_attention_input = [](int64_t, const at::Tensor&, const at::Tensor&) {};
  EXPECT_THAT(error_of([&] { model.forward(text(1, 3), options); }), Names({"attention", "transformer_xl"}));
  RelativeInputs capped;
  capped.attention.softcap = 30;
  EXPECT_THROW(relative_attention(capped), c10::Error);
  EXPECT_THROW(relative_scores(capped), c10::Error);
}

}  // namespace
}  // namespace lazy
