#include "data/shards/corpus.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include <type_traits>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/json_field.h"

namespace lazy {
namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

namespace {

constexpr const char* kName = "corpus.json";

// Returns one field of an object as type T.
template <typename T>
T field(const fs::path& path, const OrderedJson& json, const std::string& key, const char* expected) {
  const auto found = json.find(key);
  if (found == json.end())
    fail("corpus", "{}: {}: expected {}, but the field is missing", path.string(), key, expected);
  const auto wrong = [&] {
    fail("corpus", "{}: {}: expected {}, found {}", path.string(), key, expected, json_summary(*found));
  };
  if constexpr (std::is_integral_v<T>) {  // reject 1.5 and 1e300, which nlohmann::json would truncate
    const bool fits = found->is_number_unsigned()
                          ? std::in_range<T>(found->get<uint64_t>())
                          : found->is_number_integer() && std::in_range<T>(found->get<int64_t>());
    if (!fits) wrong();
  }
  try {
    return found->get<T>();
  } catch (const OrderedJson::exception&) {
    wrong();
  }
  return {};
}

}  // namespace

void write_corpus_info(const fs::path& folder, const CorpusInfo& info) {
  OrderedJson splits = OrderedJson::object();
  for (const auto& [name, split] : info.splits) {
    splits[name] = {{"shards", split.shards},
                    {"documents", split.documents},
                    {"tokens", split.tokens},
                    {"source_bytes", split.source_bytes}};
  }
  const OrderedJson json = {
      {"format", "lazy-corpus"},
      {"version", kCorpusVersion},
      {"tokenizer",
       {{"path", "tokenizer"},
        {"kind", info.tokenizer_kind},
        {"fingerprint", fmt::format("{:016x}", info.tokenizer.fingerprint)},
        {"vocab_size", info.tokenizer.vocab_size},
        {"bos_id", info.tokenizer.bos_id},
        {"eos_id", info.tokenizer.eos_id}}},
      {"splits", splits},
      {"inputs", info.inputs},
      {"seed", info.seed},
      {"validation", info.validation},
      {"replaced_characters", info.replaced_characters},
  };
  write_file_atomic(folder / kName, json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
}

CorpusInfo read_corpus_info(const fs::path& folder) {
  const fs::path path = folder / kName;
  if (!fs::exists(path)) {
    fail("corpus", "{}: expected a folder written by `lazy data prepare`; it has no {}", folder.string(), kName);
  }
  const OrderedJson json = OrderedJson::parse(read_file(path), nullptr, false);
  if (json.is_discarded() || !json.is_object()) fail("corpus", "{}: expected a JSON object", path.string());
  if (const auto format = field<std::string>(path, json, "format", "\"lazy-corpus\""); format != "lazy-corpus") {
    fail("corpus", "{}: format: expected \"lazy-corpus\", found \"{}\"", path.string(), format);
  }
  if (const auto version = field<int>(path, json, "version", "a number"); version != kCorpusVersion) {
    fail("corpus", "{}: version: expected {}, found {}; prepare the corpus again", path.string(), kCorpusVersion,
         version);
  }
  CorpusInfo info;
  const OrderedJson tokenizer = field<OrderedJson>(path, json, "tokenizer", "an object");
  info.tokenizer_kind = field<std::string>(path, tokenizer, "kind", "a string");
  const auto fingerprint = field<std::string>(path, tokenizer, "fingerprint", "16 hexadecimal digits");
  if (fingerprint.size() != 16 || fingerprint.find_first_not_of("0123456789abcdef") != std::string::npos) {
    fail("corpus", "{}: tokenizer.fingerprint: expected 16 hexadecimal digits, found \"{}\"", path.string(),
         fingerprint);
  }
  info.tokenizer.fingerprint = std::stoull(fingerprint, nullptr, 16);
  info.tokenizer.vocab_size = field<int64_t>(path, tokenizer, "vocab_size", "a number");
  info.tokenizer.bos_id = field<int32_t>(path, tokenizer, "bos_id", "a number");
  info.tokenizer.eos_id = field<int32_t>(path, tokenizer, "eos_id", "a number");
  const OrderedJson splits = field<OrderedJson>(path, json, "splits", "an object");
  if (!splits.is_object()) fail("corpus", "{}: splits: expected an object", path.string());
  for (const auto& [name, split] : splits.items()) {
    SplitSummary& summary = info.splits[name];
    summary.shards = field<std::vector<std::string>>(path, split, "shards", "a list of file names");
    // The file is untrusted input: only files inside the folder are accepted.
    for (const std::string& file : summary.shards) {
      const fs::path shard = file;
      if (file.empty() || shard != shard.filename() || file == "." || file == ".." ||
          file.find('\0') != std::string::npos) {
        fail("corpus", "{}: splits.{}.shards: expected plain file names, found {}", path.string(), name,
             json_summary(OrderedJson(file)));
      }
    }
    summary.documents = field<int64_t>(path, split, "documents", "a number");
    summary.tokens = field<int64_t>(path, split, "tokens", "a number");
    summary.source_bytes = field<int64_t>(path, split, "source_bytes", "a number");
  }
  info.inputs = field<std::vector<std::string>>(path, json, "inputs", "a list of strings");
  info.seed = field<uint64_t>(path, json, "seed", "a number");
  info.validation = field<double>(path, json, "validation", "a number");
  info.replaced_characters = field<int64_t>(path, json, "replaced_characters", "a number");
  return info;
}

std::vector<Shard> open_shards(const fs::path& corpus, const std::string& split, ShardCheck check) {
  std::vector<Shard> shards;
  if (!fs::exists(corpus))
    fail("corpus", "{}: expected a corpus folder or a shard of `lazy data prepare`, found nothing", corpus.string());
  if (!fs::is_directory(corpus)) {
    shards.emplace_back(corpus, check);
    return shards;
  }
  const CorpusInfo info = read_corpus_info(corpus);
  const auto found = info.splits.find(split);
  if (found == info.splits.end()) {
    std::vector<std::string> names;
    for (const auto& [name, summary] : info.splits) names.push_back(name);
    fail("corpus", "{}: split \"{}\": expected one of {}", corpus.string(), split, fmt::join(names, ", "));
  }
  int64_t documents = 0, tokens = 0;
  shards.reserve(found->second.shards.size());
  for (const std::string& name : found->second.shards) {
    shards.emplace_back(corpus / name, check);
    const ShardHeader& h = shards.back().header();
    if (h.tokenizer_fingerprint != info.tokenizer.fingerprint || h.vocab_size != info.tokenizer.vocab_size) {
      fail("corpus", "{}: prepared with tokenizer {:016x} ({} entries), but corpus.json specifies {:016x} ({} entries)",
           (corpus / name).string(), h.tokenizer_fingerprint, h.vocab_size, info.tokenizer.fingerprint,
           info.tokenizer.vocab_size);
    }
    documents += shards.back().documents();
    tokens += shards.back().tokens();
  }
  if (documents != found->second.documents || tokens != found->second.tokens) {
    fail("corpus",
         "{}: split \"{}\": corpus.json specifies {} tokens in {} documents, but the shards contain {} tokens in {} "
         "documents",
         corpus.string(), split, found->second.tokens, found->second.documents, tokens, documents);
  }
  return shards;
}

void SplitWriter::append(std::span<const int32_t> ids) {
  if (!shard_) {
    summary_.shards.push_back(fmt::format("{}-{:05}.bin", name_, summary_.shards.size()));
    shard_.emplace(folder_ / summary_.shards.back(), tokenizer_);
  }
  shard_->append(ids);
  summary_.tokens += static_cast<int64_t>(ids.size());
}

void SplitWriter::end_document(uint64_t source_bytes) {
  shard_->end_document(source_bytes);
  ++summary_.documents;
  summary_.source_bytes += static_cast<int64_t>(source_bytes);
  if (shard_->bytes() >= shard_bytes_) close();
}

void SplitWriter::close() {
  if (shard_) shard_->close();
  shard_.reset();
}

}  // namespace lazy
