#include "model/paged_keys.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "core/error.h"

namespace lazy {

std::string paged_unsupported_reason(const ModelConfig& c, int64_t max_length) {
  if (!c.all_attention())
    return fmt::format("{} layers have a recurrent state instead of keys and values", name(c.mixer.type));
  if (c.positions.kind == PositionKind::transformer_xl) return "transformer_xl positions require whole segments";
  if (rope_varies(c, max_length))
    return fmt::format("{} RoPE depends on the length of each sequence beyond {} tokens", c.positions.rope_scaling.type,
                       c.positions.rope_scaling.original_length);
  return "";
}

PagedKeys make_paged_keys(const ModelConfig& c, int64_t pages, int64_t page_size, at::ScalarType dtype,
                          at::Device device, int64_t max_length) {
  const std::string why = paged_unsupported_reason(c, max_length);
  if (!why.empty()) fail("model", "paged KV cache: {}", why);
  PagedKeys out{.max_length = max_length};
  const auto pool = [&] {
    return at::empty({pages, page_size, c.attention.num_kv_heads, c.attention.head_dim},
                     at::TensorOptions().dtype(dtype).device(device));
  };
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    out.keys.push_back(pool());
    out.values.push_back(pool());
  }
  return out;
}

int64_t page_bytes(const ModelConfig& c, int64_t page_size, at::ScalarType dtype) {
  return 2 * c.num_layers * page_size * c.attention.num_kv_heads * c.attention.head_dim *
         static_cast<int64_t>(c10::elementSize(dtype));
}

}  // namespace lazy
