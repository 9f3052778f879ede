// Tests all combinations of normalizer, type and layout. Each combination is a separate test of the forward and of
// every gradient that the normalizer has. No combination is skipped.
#include <gtest/gtest.h>

#include "case.h"

namespace lazy::kernels::test {

namespace {

struct Cell {
  const char* name;
  void (*set)(Shape&);
};

const Cell kLayouts[] = {
    {"plain", [](Shape&) {}},
    {"full", [](Shape& s) { s.causal = false; }},
    {"grouped", [](Shape& s) { s.heads = 6, s.kv_heads = 2; }},
    {"multi_query", [](Shape& s) { s.heads = 4, s.kv_heads = 1; }},
    {"window", [](Shape& s) { s.window = 20; }},
    {"window_full", [](Shape& s) { s.window = 20, s.causal = false; }},
    {"cache", [](Shape& s) { s.q_length = 9, s.batch = 4; }},
    {"more_queries_than_keys", [](Shape& s) { s.k_length = 40; }},
    {"packed", [](Shape& s) { s.batch = 1, s.cu_q = {0, 30, 30, 31, 75, 75}, s.cu_k = {0, 30, 30, 30, 73, 75}; }},
    {"packed_full",
     [](Shape& s) {
       s.batch = 1, s.causal = false, s.cu_q = {0, 30, 31, 75}, s.cu_k = {0, 31, 32, 75};
     }},
    {"heads_first", [](Shape& s) { s.layout = Layout::heads_first; }},
    {"strided", [](Shape& s) { s.layout = Layout::strided_dims; }},
    {"odd_head_sizes", [](Shape& s) { s.head_dim = 17, s.value_dim = 33; }},
    {"head_size_256", [](Shape& s) { s.head_dim = s.value_dim = 256; }},
    {"distance_bias", [](Shape& s) { s.bias_window = 30; }},
    {"distance_bias_full", [](Shape& s) { s.bias_window = 100, s.causal = false; }},
    {"alibi", [](Shape& s) { s.alibi = true; }},
    {"softcap", [](Shape& s) { s.softcap = 50; }},
    {"softcap_saturated", [](Shape& s) { s.softcap = 5, s.score_scale = 40; }},
    {"softcap_bias_alibi_full", [](Shape& s) { s.softcap = 5, s.bias_window = 30, s.alibi = true, s.causal = false; }},
    {"softcap_packed_window_grouped",
     [](Shape& s) {
       s.softcap = 50, s.batch = 1, s.cu_q = {0, 30, 31, 75}, s.cu_k = {0, 31, 32, 75};
       s.window = 20, s.heads = 4, s.kv_heads = 2;
     }},
    {"constant_offset", [](Shape& s) { s.offset = Offset::constant, s.tau = -0.02; }},
};

using Parameter = std::tuple<DType, Normalizer, Cell>;

class Table : public testing::TestWithParam<Parameter> {};

TEST_P(Table, ForwardAndGradients_MatchReference) {
  const auto& [dtype, normalizer, layout] = GetParam();
  TwoReferences comparison;
  for (const uint64_t seed : {1, 2, 3}) {
    Shape s;
    s.dtype = dtype;
    s.normalizer = normalizer;
    s.batch = 2;
    s.q_length = s.k_length = 75;
    s.head_dim = s.value_dim = 48;
    layout.set(s);
    comparison.add(s, make_inputs(s, seed));
    if (HasFailure()) return;
  }
  comparison.check();
}

std::string cell_name(const testing::TestParamInfo<Parameter>& info) {
  return std::string(name(std::get<1>(info.param))) + "_" + name(std::get<0>(info.param)) + "_" +
         std::get<2>(info.param).name;
}

INSTANTIATE_TEST_SUITE_P(Cells, Table,
                         testing::Combine(testing::Values(DType::f32, DType::bf16, DType::f16),
                                          testing::ValuesIn(kAllNormalizers), testing::ValuesIn(kLayouts)),
                         cell_name);

}  // namespace

}  // namespace lazy::kernels::test
