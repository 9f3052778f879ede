#include "data/prepare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "core/counted.h"
#include "core/error.h"
#include "core/log.h"
#include "core/output_folder.h"
#include "core/progress.h"
#include "core/random.h"
#include "core/stop.h"
#include "core/text.h"
#include "data/corpus/pipeline.h"
#include "data/shards/corpus.h"
#include "data/tokenizer.h"
#include "data/tokenizers/sentencepiece.h"

namespace lazy {
namespace fs = std::filesystem;

namespace {

void check_options(const PrepareOptions& options) {
  if (options.validation < 0 || options.validation >= 1) {
    fail("data", "validation: expected a fraction in [0, 1), found {}", options.validation);
  }
  if (options.tokenizer.empty() == (options.train_pieces == 0)) {
    fail("data", "expected either a tokenizer or the number of pieces of a tokenizer to train");
  }
  if (options.shard_bytes < 1 << 10) fail("data", "shard size: expected at least 1 KiB, found {}", options.shard_bytes);
  if (fs::exists(options.output)) {
    const bool empty = fs::is_directory(options.output) && fs::is_empty(options.output);
    if (!empty && !options.replace) {
      fail("data", "{}: already exists; choose another folder or use --force to replace it", options.output.string());
    }
    if (!empty && !fs::exists(options.output / "corpus.json")) {
      fail("data", "{}: exists but is not a corpus, so it is not replaced", options.output.string());
    }
  }
}

// Copies standard input and pipes to files, because training a tokenizer needs two passes and pipes can only be read
// once.
void spool_pipes(std::vector<Source>& sources, const fs::path& folder) {
  fs::create_directories(folder);
  for (size_t i = 0; i < sources.size(); ++i) {
    Source& source = sources[i];
    if (source.path != "-" && fs::is_regular_file(source.path)) continue;
    const fs::path spool = folder / std::to_string(i);
    FileWriter writer(spool);
    const auto stream = open_stream(source.path);
    std::string piece;
    while (stream->read(piece)) {
      writer.write(piece);
      piece.clear();
    }
    writer.close();
    source.path = spool;
    source.bytes = writer.size();
  }
}

// Documents of at least kLongDocument bytes are encoded in parts of about kPiece bytes if the tokenizer can cut texts
// without changing the ids (Tokenizer::cut).
constexpr size_t kLongDocument = 16 << 20, kPiece = 1 << 20;

void stop_if_asked() { end_if_stopped("data", "nothing was written"); }

// A uniform random sample of the text of a corpus. Its size is limited, and equal seeds give equal samples. Documents
// are cut into pieces of about 64 KiB at line ends, and every piece gets a random rank. The sample consists of the
// pieces with the lowest ranks, as many as fit into the given number of bytes.
class TextSample {
 public:
  TextSample(uint64_t seed, uint64_t bytes) : seed_(seed), room_(bytes) {}
  void add(std::string_view document) {
    constexpr size_t kPiece = 64 << 10;
    while (!document.empty()) {
      size_t size = document.size();
      if (size > kPiece) {
        const size_t line = document.find('\n', kPiece);
        size = line == std::string_view::npos ? size : line + 1;
      }
      const uint64_t number = next_++;
      heap_.push_back({Random(seed_ ^ Random(number).next()).next(), number, std::string(document.substr(0, size))});
      std::push_heap(heap_.begin(), heap_.end());
      bytes_ += size;
      while (bytes_ > room_ && heap_.size() > 1) {
        std::pop_heap(heap_.begin(), heap_.end());
        bytes_ -= heap_.back().text.size();
        heap_.pop_back();
      }
      document.remove_prefix(size);
    }
  }
  // Returns the pieces of the sample in corpus order.
  std::vector<std::string> take() {
    std::sort(heap_.begin(), heap_.end(),
              [](const DocumentPiece& a, const DocumentPiece& b) { return a.number < b.number; });
    std::vector<std::string> texts;
    for (DocumentPiece& piece : heap_) texts.push_back(std::move(piece.text));
    heap_.clear();
    return texts;
  }

 private:
  struct DocumentPiece {
    uint64_t rank, number;
    std::string text;
    bool operator<(const DocumentPiece& other) const {
      return rank != other.rank ? rank < other.rank : number < other.number;
    }
  };
  uint64_t seed_, room_, bytes_ = 0, next_ = 0;
  std::vector<DocumentPiece> heap_;  // max-heap: the piece with the highest rank is first
};

class Preparation {
 public:
  Preparation(const PrepareOptions& options, std::vector<Source> sources, fs::path folder)
      : options_(options), sources_(std::move(sources)), folder_(std::move(folder)) {
    for (const Source& source : sources_) total_bytes_ += source.bytes;
  }

  CorpusInfo run() {
    std::unique_ptr<Tokenizer> tokenizer = options_.tokenizer.empty() ? train() : load_tokenizer(options_.tokenizer);
    tokenizer->save(folder_ / "tokenizer");
    CorpusInfo info;
    info.tokenizer_kind = tokenizer->kind();
    info.tokenizer = {tokenizer->fingerprint(), tokenizer->vocab_size(), tokenizer->bos_id().value_or(-1),
                      tokenizer->eos_id().value_or(-1)};
    info.inputs = options_.inputs;
    info.seed = options_.seed;
    info.validation = options_.validation;
    encode(*tokenizer, info);
    write_corpus_info(folder_, info);
    return info;
  }

 private:
  struct Encoded {
    std::vector<int32_t> ids;                   // ids of all documents
    std::vector<size_t> lengths, source_bytes;  // one value per document
    // Long documents that are not encoded yet: maps the document's index to its text. Their entries in `lengths` are 0.
    std::map<size_t, std::string> long_texts;
    int64_t replaced = 0, left_out = 0;
    std::string first_left_out;
    uint64_t consumed = 0, skipped = 0;
  };

  // Counts input lines without a text, and stores the description of the first one for a message.
  struct LeftOut {
    int64_t count = 0;
    std::string first;
    void add(int64_t more, const std::string& why) {
      if (count == 0) first = why;
      count += more;
    }
    std::string note() const {
      return count == 0 ? "" : fmt::format("; {} skipped: {}", counted(count, "line"), first);
    }
  };

  // Returns the names of the inputs for messages.
  std::string names() const {
    std::vector<std::string> names = options_.inputs;
    std::replace(names.begin(), names.end(), std::string("-"), std::string("standard input"));
    return fmt::format("{}", fmt::join(names, ", "));
  }

  bool is_validation(uint64_t document) const {
    return Random(options_.seed ^ Random(document).next()).uniform() < options_.validation;
  }

  template <typename Out>
  void each_batch(const char* title, const std::function<Out(DocumentBatch&&)>& work,
                  const std::function<void(Out&&)>& consume) {
    DocumentReader reader(sources_, options_.documents);
    Progress progress(title, total_bytes_, "B");
    ordered_pipeline<RawBatch, Out>(
        [&](RawBatch& batch) { return reader.next(batch); }, [](const RawBatch& batch) { return batch.text.size(); },
        [&](RawBatch&& batch) { return work(extract_documents(std::move(batch), options_.documents)); },
        [&](Out&& out) {
          progress.update(out.consumed);
          consume(std::move(out));
        },
        stop_if_asked, options_.threads);
    progress.finish();
  }

  std::unique_ptr<Tokenizer> train() {
    TextSample sample(options_.seed, static_cast<uint64_t>(options_.train_bytes));
    uint64_t document = 0;
    LeftOut left_out;
    each_batch<DocumentBatch>(
        "sampling text", [](DocumentBatch&& batch) { return std::move(batch); },
        [&](DocumentBatch&& batch) {
          left_out.add(batch.left_out, batch.first_left_out);
          for (const std::string& text : batch.documents) {
            // The tokenizer is not trained with documents of the validation split.
            if (!is_validation(document++)) sample.add(text);
          }
        });
    const std::vector<std::string> texts = sample.take();
    if (texts.empty()) fail("data", "{}: found no text to train a tokenizer with{}", names(), left_out.note());
    const size_t bytes = std::accumulate(texts.begin(), texts.end(), size_t{0},
                                         [](size_t sum, const std::string& text) { return sum + text.size(); });
    log::info("training a tokenizer with {} pieces on {}", options_.train_pieces,
              human_bytes(static_cast<double>(bytes)));
    return train_sentencepiece(texts, options_.train_pieces);
  }

  // Encodes a long document in parts, in parallel. The ids of the whole document are never in memory at the same time.
  void encode_long(const Tokenizer& tokenizer, std::string_view text, SplitWriter& split) const {
    ordered_pipeline<std::string_view, std::vector<int32_t>>(
        [&](std::string_view& piece) {
          piece = text.substr(0, tokenizer.cut(text, std::min(kPiece, text.size())));
          text.remove_prefix(piece.size());
          return !piece.empty();
        },
        [](std::string_view piece) { return piece.size(); },
        [&](std::string_view piece) { return tokenizer.encode(piece); },
        [&](std::vector<int32_t>&& ids) { split.append(ids); }, stop_if_asked, options_.threads);
  }

  void encode(const Tokenizer& tokenizer, CorpusInfo& info) {
    SplitWriter train(folder_, "train", info.tokenizer, static_cast<uint64_t>(options_.shard_bytes));
    SplitWriter validation(folder_, "validation", info.tokenizer, static_cast<uint64_t>(options_.shard_bytes));
    uint64_t document = 0, skipped = 0;
    LeftOut left_out;
    each_batch<Encoded>(
        "encoding",
        [&](DocumentBatch&& batch) {
          Encoded out;
          out.replaced = batch.replaced;
          out.left_out = batch.left_out;
          out.first_left_out = std::move(batch.first_left_out);
          out.consumed = batch.consumed;
          out.skipped = batch.skipped;
          for (size_t i = 0; i < batch.documents.size(); ++i) {
            std::string& text = batch.documents[i];
            out.source_bytes.push_back(text.size());
            if (text.size() < kLongDocument || tokenizer.cut(text, kPiece) == text.size()) continue;
            out.long_texts[i] = std::exchange(text, {});
          }
          std::vector<std::vector<int32_t>> encoded = tokenizer.encode_batch(batch.documents);
          for (size_t i = 0; i < encoded.size(); ++i) {
            std::vector<int32_t>& ids = encoded[i];
            out.lengths.push_back(ids.size());
            if (out.ids.empty()) {
              out.ids = std::move(ids);
            } else {
              out.ids.insert(out.ids.end(), ids.begin(), ids.end());
            }
          }
          return out;
        },
        [&](Encoded&& out) {
          const int32_t* ids = out.ids.data();
          for (size_t i = 0; i < out.lengths.size(); ++i) {
            SplitWriter& split = is_validation(document++) ? validation : train;
            if (const auto text = out.long_texts.find(i); text != out.long_texts.end()) {
              encode_long(tokenizer, text->second, split);
            } else {
              split.append({ids, out.lengths[i]});
            }
            split.end_document(out.source_bytes[i]);
            ids += out.lengths[i];
          }
          info.replaced_characters += out.replaced;
          left_out.add(out.left_out, out.first_left_out);
          skipped = out.skipped;
        });
    train.close();
    validation.close();
    if (document == 0) fail("data", "{}: contains no text{}", names(), left_out.note());
    if (left_out.count > 0)
      log::warn("{} skipped; the first skipped line: {}", counted(left_out.count, "line"), left_out.first);
    if (skipped > 0)
      log::warn("{} without a text (null values) skipped", counted(static_cast<int64_t>(skipped), "row"));
    info.splits["train"] = train.summary();
    info.splits["validation"] = validation.summary();
    if (info.replaced_characters > 0) {
      log::warn("replaced invalid UTF-8 in the input by {} U+FFFD characters", info.replaced_characters);
    }
    for (const auto& [name, split] : info.splits) {
      if (split.documents == 0 && (name == "train" || options_.validation > 0)) {
        log::warn(
            "the {} split is empty, because the corpus has only {}; cut documents (--split-blank, --max-document) or "
            "change --validation",
            name, counted(static_cast<int64_t>(document), "document"));
      }
    }
  }

  const PrepareOptions& options_;
  std::vector<Source> sources_;
  fs::path folder_;
  uint64_t total_bytes_ = 0;
};

}  // namespace

CorpusInfo prepare_corpus(const PrepareOptions& options) {
  check_options(options);
  fs::path output = options.output;
  if (!output.has_filename()) output = output.parent_path();  // "folder/" is the same as "folder"
  std::vector<Source> sources = find_sources(options.inputs, options.other_format, options.code);
  OutputFolder temporary(output);
  const fs::path spool = temporary.path() / "spool";
  if (options.tokenizer.empty()) spool_pipes(sources, spool);
  const CorpusInfo info = Preparation(options, std::move(sources), temporary.path()).run();
  fs::remove_all(spool);
  stop_if_asked();
  temporary.publish(options.replace);
  return info;
}

}  // namespace lazy
