#include "model/families/families.h"

#include "model/parameters.h"

namespace lazy {

const std::vector<const Family*>& families() {
  static const std::vector<const Family*> all = {&kGpt2,  &kBloom, &kGptOss, &kGraniteSwa, &kSmolLm3,
                                                 &kOlmo2, &kPhi3,  &kGemma2, &kGemma3,     &kTransformerXl};
  return all;
}

const Family* find_family(const std::string& model_type) {
  for (const Family* family : families()) {
    if (name(family->family) == model_type) return family;
  }
  return nullptr;
}

const Family* family_of(const ModelConfig& config) {
  return config.all_attention() ? find_family(name(config.family)) : nullptr;
}

namespace {

// Replaces the query tensor and the gate tensor of each layer, which are adjacent in the list, by one combined tensor.
void join_gates(const ModelConfig& config, std::vector<StoredTensor>& tensors) {
  const AttentionConfig& a = config.attention;
  const std::string gate = CheckpointNames(config).output_gate;
  std::vector<StoredTensor> out;
  for (StoredTensor& stored : tensors) {
    if (!stored.name.ends_with(gate)) {
      out.push_back(std::move(stored));
      continue;
    }
    StoredTensor& queries = out.back();
    queries.rows = {queries.shape[0] / a.num_kv_heads, stored.shape[0] / a.num_kv_heads};
    queries.shape[0] += stored.shape[0];
    queries.parts.push_back(stored.parts.front());
    queries.interleaving = Interleaving::by_head;
    queries.heads = a.num_kv_heads;
  }
  tensors = std::move(out);
}

}  // namespace

std::vector<StoredTensor> plain_tensors(const ModelConfig& config) {
  std::vector<StoredTensor> out;
  for (const ParameterShape& p : parameter_shapes(config)) out.push_back({p.name, p.shape, {p.name}});
  return out;
}

std::vector<StoredTensor> stored_tensors(const ModelConfig& config) {
  std::vector<StoredTensor> out;
  if (const Family* family = family_of(config)) {
    out = family->tensors(config);
  } else {
    out = plain_tensors(config);
    if (config.gates_in_queries()) join_gates(config, out);
  }
  const CheckpointNames names(config);
  for (StoredTensor& stored : out) {
    if (config.tie_embeddings && stored.parts.front() == names.embedding) stored.also.push_back(names.head);
  }
  return out;
}

std::string head_name(const ModelConfig& config) {
  const Family* family = family_of(config);
  return family ? family->head : CheckpointNames(config).head;
}

}  // namespace lazy
