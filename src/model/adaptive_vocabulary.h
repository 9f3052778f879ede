// Configuration of adaptive input embeddings (Baevski and Auli 2019) and the adaptive softmax (Grave et al. 2017), as
// in Transformer-XL. Tokens are sorted by frequency and split into clusters; the embedding width of each cluster is
// `divisor` times smaller than the width of the previous cluster.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace lazy {

struct AdaptiveVocabulary {
  bool used = false;
  std::vector<int64_t> cutoffs;  // ids at which the second cluster, the third, ... begin; empty: an ordinary softmax
  int64_t width = 0;             // embedding width of the first cluster
  int64_t divisor = 1;           // 1: all clusters have the same width and share one table
  // Per cluster: whether the output projection is tied to the input projection; missing entries are false.
  std::vector<bool> tied;

  int64_t clusters() const { return static_cast<int64_t>(cutoffs.size()) + 1; }
  int64_t tables() const { return divisor == 1 ? 1 : clusters(); }
  int64_t width_of(int64_t cluster) const;
  int64_t begin(int64_t cluster) const { return cluster == 0 ? 0 : cutoffs[static_cast<size_t>(cluster) - 1]; }
  int64_t end(int64_t cluster, int64_t vocabulary) const {
    return cluster + 1 == clusters() ? vocabulary : cutoffs[static_cast<size_t>(cluster)];
  }
  int64_t rows(int64_t vocabulary, int64_t table) const {
    return divisor == 1 ? vocabulary : end(table, vocabulary) - begin(table);
  }
  bool projected(int64_t hidden_size) const { return divisor > 1 || width != hidden_size; }
  bool ties(int64_t cluster) const {
    return static_cast<size_t>(cluster) < tied.size() && tied[static_cast<size_t>(cluster)];
  }
  void validate(int64_t vocabulary) const;  // throws an Error that names the invalid field
};

// Tensor names as in Transformer-XL checkpoints. {} is replaced by the index of the table; for output projections, by
// the index of the cluster.
namespace adaptive_names {
inline constexpr char kTable[] = "transformer.word_emb.emb_layers.{}.weight";  // (rows, width)
inline constexpr char kProjection[] = "transformer.word_emb.emb_projs.{}";     // (hidden_size, width)
inline constexpr char kOutTable[] = "crit.out_layers.{}.weight";               // same shapes as kTable
inline constexpr char kOutBias[] = "crit.out_layers.{}.bias";
inline constexpr char kOutProjection[] = "crit.out_projs.{}";
// (clusters - 1, width): for each cluster after the first, the row of the first softmax that predicts this cluster.
inline constexpr char kClusterWeight[] = "crit.cluster_weight";
inline constexpr char kClusterBias[] = "crit.cluster_bias";
}  // namespace adaptive_names
std::string adaptive_name(const char* name, int64_t number);

}  // namespace lazy
