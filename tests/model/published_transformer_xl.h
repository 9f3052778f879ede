// Reference implementation of Transformer-XL as in Dai et al. 2019 and their program. It uses the tensors and tensor
// names of a checkpoint and full attention matrices. Segments are computed sequentially, each with the hidden states of
// earlier segments as memory.
#pragma once
#include <ATen/ATen.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lazy::testing {

class PublishedTransformerXl {
 public:
  using Tensors = std::map<std::string, at::Tensor>;
  PublishedTransformerXl(nlohmann::json config, Tensors weights) : c_(std::move(config)), w_(std::move(weights)) {}

  // Computes a text in segments of `segment` tokens. Returns the log-probabilities (batch, length, vocabulary) as
  // "logits", the hidden states before layer N and after the last layer as "hidden.N", and the attention weights as
  // "attention.N" (batch, heads, length, length), which are zero for masked keys.
  Tensors run(const at::Tensor& ids, int64_t segment) const {
    const int64_t layers = c_["n_layer"], most = c_["mem_len"], length = ids.size(1);
    std::vector<at::Tensor> memory(static_cast<size_t>(layers));
    std::map<std::string, std::vector<at::Tensor>> pieces;
    for (int64_t begin = 0; begin < length; begin += segment) {
      const at::Tensor own = ids.slice(1, begin, begin + segment);
      at::Tensor x = embedding(own);
      for (int64_t n = 0; n < layers; ++n) {
        pieces["hidden." + std::to_string(n)].push_back(x);
        at::Tensor& before = memory[static_cast<size_t>(n)];
        const at::Tensor all = before.defined() ? at::cat({before, x}, 1) : x;
        at::Tensor seen;
        const at::Tensor y = layer(n, x, all, &seen);
        const int64_t forgotten = begin - (all.size(1) - own.size(1));
        pieces["attention." + std::to_string(n)].push_back(
            at::constant_pad_nd(seen, {forgotten, length - begin - own.size(1)}));
        before = all.slice(1, std::max<int64_t>(0, all.size(1) - most)).detach();
        x = y;
      }
      pieces["hidden." + std::to_string(layers)].push_back(x);
      pieces["logits"].push_back(log_probabilities(x));
    }
    Tensors out;
    for (const auto& [name, parts] : pieces) out[name] = at::cat(parts, name.starts_with("attention") ? 2 : 1);
    return out;
  }

 private:
  const at::Tensor& w(const std::string& name) const { return w_.at(name); }
  int64_t size(const char* name) const { return c_.at(name); }

  std::vector<int64_t> ends() const {
    std::vector<int64_t> out = c_["cutoffs"];
    out.push_back(size("vocab_size"));
    return out;
  }
  bool one_table() const { return size("div_val") == 1; }
  bool projected() const { return !one_table() || size("d_embed") != size("d_model"); }

  // Looks up the embedding of each token separately.
  at::Tensor embedding(const at::Tensor& ids) const {
    std::vector<at::Tensor> rows;
    for (int64_t n = 0; n < ids.numel(); ++n) {
      int64_t id = ids.reshape({-1})[n].item<int64_t>(), table = 0, begin = 0;
      for (const int64_t end : ends()) {
        if (one_table() || id < end) break;
        begin = end, ++table;
      }
      const std::string number = std::to_string(table);
      at::Tensor row = w("transformer.word_emb.emb_layers." + number + ".weight")[id - begin];
      if (projected()) row = at::matmul(w("transformer.word_emb.emb_projs." + number), row);
      rows.push_back(row * std::sqrt(static_cast<double>(size("d_model"))));
    }
    return at::stack(rows).view({ids.size(0), ids.size(1), -1});
  }

  at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    const at::Tensor centred = x - x.mean(-1, true);
    return centred / (centred.square().mean(-1, true) + c_["layer_norm_epsilon"].get<double>()).sqrt() *
               w(name + ".weight") +
           w(name + ".bias");
  }

  // Returns the output of layer n. x: hidden states of the segment. all: hidden states of the memory, followed by the
  // hidden states of the segment.
  at::Tensor layer(int64_t n, const at::Tensor& x, const at::Tensor& all, at::Tensor* seen) const {
    const std::string at = "transformer.layers." + std::to_string(n) + ".", attention = at + "dec_attn.",
                      mlp = at + "pos_ff.";
    const bool before = c_["pre_lnorm"];
    const at::Tensor mixed = x + attend(n, before ? norm(all, attention + "layer_norm") : all, x.size(1), seen);
    const at::Tensor h = before ? mixed : norm(mixed, attention + "layer_norm");
    const at::Tensor inner = at::relu(
        at::linear(before ? norm(h, mlp + "layer_norm") : h, w(mlp + "CoreNet.0.weight"), w(mlp + "CoreNet.0.bias")));
    const at::Tensor sum = h + at::linear(inner, w(mlp + "CoreNet.3.weight"), w(mlp + "CoreNet.3.bias"));
    return before ? sum : norm(sum, mlp + "layer_norm");
  }

  at::Tensor attend(int64_t n, const at::Tensor& all, int64_t queries, at::Tensor* seen) const {
    const std::string at = "transformer.layers." + std::to_string(n) + ".dec_attn.", shared = "transformer.";
    const int64_t H = size("n_head"), D = size("d_head"), keys = all.size(1), clamp = size("clamp_len"),
                  width = size("d_model");
    const auto three = at::linear(all, w(at + "qkv_net.weight")).chunk(3, -1);
    const auto heads = [&](const at::Tensor& t) { return t.unflatten(-1, {H, D}).transpose(1, 2); };
    const at::Tensor q = heads(three[0].slice(1, keys - queries)), k = heads(three[1]), v = heads(three[2]);
    const bool untied = c_["untie_r"];
    const at::Tensor u = w((untied ? at : shared) + "r_w_bias").unsqueeze(1),
                     b = w((untied ? at : shared) + "r_r_bias").unsqueeze(1);
    at::Tensor s = at::matmul(q + u, k.transpose(2, 3));
    std::vector<at::Tensor> by_distance;
    for (int64_t d = 0; d < keys; ++d) {
      const double distance = static_cast<double>(clamp > 0 ? std::min(d, clamp) : d);
      std::vector<double> encoding;
      for (const bool cosine : {false, true}) {
        for (int64_t t = 0; t < width; t += 2) {
          const double angle = distance / std::pow(10000.0, static_cast<double>(t) / static_cast<double>(width));
          encoding.push_back(cosine ? std::cos(angle) : std::sin(angle));
        }
      }
      const at::Tensor r =
          at::matmul(w(at + "r_net.weight"), at::tensor(encoding, at::kDouble).to(all.scalar_type())).view({H, 1, D});
      by_distance.push_back(((q + b) * r).sum(-1));
    }
    const at::Tensor position = at::stack(by_distance, -1);
    std::vector<at::Tensor> rows;
    for (int64_t i = 0; i < queries; ++i) {
      const at::Tensor distance = (keys - queries + i - at::arange(keys)).clamp_min(0);
      rows.push_back(position.select(2, i).index_select(-1, distance));
    }
    s = (s + at::stack(rows, 2)) / std::sqrt(static_cast<double>(D));
    // The masks of the published program: keys after the query are masked. With same_length, the last query of a
    // segment sees as many keys as the first query does.
    const int64_t remembered = keys - queries, most = size("mem_len"), beyond = keys - most;
    at::Tensor hidden = at::ones({queries, keys}, at::kBool).triu(1 + remembered);
    if (c_["same_length"])
      hidden = hidden.logical_or(at::ones({queries, keys}, at::kBool).tril(-(beyond > 0 ? queries - beyond : queries)));
    const at::Tensor p = at::softmax(s.masked_fill(hidden, -INFINITY), -1);
    *seen = p;
    return at::linear(at::matmul(p, v).transpose(1, 2).flatten(2), w(at + "o_net.weight"));
  }

  at::Tensor log_probabilities(const at::Tensor& x) const {
    const std::vector<int64_t> all = ends();
    const auto scores = [&](size_t cluster, int64_t begin) {
      const std::string table = std::to_string(one_table() ? 0 : cluster), number = std::to_string(cluster);
      const bool ties = c_["tie_projs"][cluster];
      at::Tensor weight =
          w((c_["tie_word_embeddings"] ? "transformer.word_emb.emb_layers." : "crit.out_layers.") + table + ".weight");
      at::Tensor bias = w("crit.out_layers." + table + ".bias");
      if (one_table()) weight = weight.slice(0, begin, all[cluster]), bias = bias.slice(0, begin, all[cluster]);
      if (cluster == 0 && all.size() > 1)
        weight = at::cat({weight, w("crit.cluster_weight")}), bias = at::cat({bias, w("crit.cluster_bias")});
      at::Tensor y = x;
      if (projected())
        y = at::matmul(y, w(ties ? "transformer.word_emb.emb_projs." + table : "crit.out_projs." + number));
      return at::log_softmax(at::matmul(y, weight.t()) + bias, -1);
    };
    const at::Tensor first = scores(0, 0);
    std::vector<at::Tensor> parts = {first.slice(-1, 0, all[0])};
    for (size_t n = 1; n < all.size(); ++n) {
      parts.push_back(first.select(-1, all[0] + static_cast<int64_t>(n) - 1).unsqueeze(-1) + scores(n, all[n - 1]));
    }
    return at::cat(parts, -1);
  }

  nlohmann::json c_;
  Tensors w_;
};

}  // namespace lazy::testing
