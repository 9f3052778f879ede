#include "data/inspect.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <memory>

#include "core/error.h"
#include "core/text.h"
#include "data/shards/corpus.h"
#include "data/tokenizer.h"

namespace lazy {
namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

namespace {

struct Shown {
  std::string split;
  std::vector<Shard> shards;
};

std::vector<Shown> open_all(const InspectOptions& options) {
  std::vector<Shown> all;
  if (fs::is_directory(options.path)) {
    for (const auto& [split, summary] : read_corpus_info(options.path).splits) {
      all.push_back({split, open_shards(options.path, split)});
    }
  } else {
    all.push_back({options.split, open_shards(options.path, options.split)});
  }
  if (options.verify) {
    for (const Shown& shown : all) {
      for (const Shard& shard : shown.shards) shard.verify();
    }
  }
  return all;
}

OrderedJson header_json(const std::string& split, const Shard& shard) {
  const ShardHeader& h = shard.header();
  return {{"file", shard.path().string()},
          {"split", split},
          {"version", h.version},
          {"token_type", h.token_bytes == 2 ? "uint16" : "uint32"},
          {"documents", h.documents},
          {"tokens", h.tokens},
          {"source_bytes", h.source_bytes},
          {"bytes_per_token", h.tokens ? static_cast<double>(h.source_bytes) / static_cast<double>(h.tokens) : 0.0},
          {"vocab_size", h.vocab_size},
          {"bos_id", h.bos_id},
          {"eos_id", h.eos_id},
          {"tokenizer_fingerprint", fmt::format("{:016x}", h.tokenizer_fingerprint)},
          {"tokens_checksum", fmt::format("{:016x}", h.tokens_checksum)}};
}

// Decodes the requested documents with the tokenizer of the corpus.
OrderedJson documents_json(const InspectOptions& options, const std::vector<Shown>& all) {
  OrderedJson documents = OrderedJson::array();
  if (options.documents <= 0) return documents;
  const fs::path folder = fs::is_directory(options.path) ? options.path : options.path.parent_path();
  const auto tokenizer = load_tokenizer((folder / "tokenizer").string());
  int64_t number = 0;
  for (const Shown& shown : all) {
    if (shown.split != options.split) continue;
    for (const Shard& shard : shown.shards) {
      if (tokenizer->fingerprint() != shard.header().tokenizer_fingerprint) {
        fail("inspect", "{}: prepared with the tokenizer {:016x}, but the tokenizer in {} is {:016x}",
             shard.path().string(), shard.header().tokenizer_fingerprint, (folder / "tokenizer").string(),
             tokenizer->fingerprint());
      }
      for (int64_t d = 0; d < shard.documents(); ++d, ++number) {
        if (number < options.first) continue;
        if (static_cast<int64_t>(documents.size()) == options.documents) return documents;
        const std::vector<int32_t> ids = shard.document(d);
        documents.push_back({{"document", number}, {"tokens", ids.size()}, {"text", tokenizer->decode(ids)}});
      }
    }
  }
  return documents;
}

}  // namespace

std::string inspect_json(const InspectOptions& options) {
  const std::vector<Shown> all = open_all(options);
  OrderedJson shards = OrderedJson::array();
  for (const Shown& shown : all) {
    for (const Shard& shard : shown.shards) shards.push_back(header_json(shown.split, shard));
  }
  const OrderedJson json = {
      {"shards", shards}, {"documents", documents_json(options, all)}, {"verified", options.verify}};
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

std::string inspect_text(const InspectOptions& options) {
  const std::vector<Shown> all = open_all(options);
  std::string text = fmt::format("{:<24} {:>10} {:>10} {:>12} {:>10} {:>7} {:>7}  {}\n", "shard", "documents", "tokens",
                                 "text", "bytes/tok", "type", "vocab", "tokenizer");
  for (const Shown& shown : all) {
    for (const Shard& shard : shown.shards) {
      const ShardHeader& h = shard.header();
      const auto tokens = static_cast<double>(h.tokens), bytes = static_cast<double>(h.source_bytes);
      text +=
          fmt::format("{:<24} {:>10} {:>10} {:>12} {:>10.3f} {:>7} {:>7}  {:016x}\n", shard.path().filename().string(),
                      h.documents, human_count(tokens), human_bytes(bytes), tokens > 0 ? bytes / tokens : 0.0,
                      h.token_bytes == 2 ? "uint16" : "uint32", h.vocab_size, h.tokenizer_fingerprint);
    }
  }
  if (options.verify) text += "checksums: all tokens were read and all checksums match\n";
  for (const OrderedJson& document : documents_json(options, all)) {
    text += fmt::format("\n--- {} document {}, {} tokens ---\n{}\n", options.split, document["document"].get<int64_t>(),
                        document["tokens"].get<int64_t>(), document["text"].get<std::string>());
  }
  return text;
}

}  // namespace lazy
