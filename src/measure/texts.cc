#include "measure/texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "core/error.h"
#include "data/corpus/documents.h"
#include "model/config.h"

namespace lazy::measure {
namespace fs = std::filesystem;

namespace {

// Reads at most `most` sequences, which are spread evenly over all sequences.
Stretches spread(const Sequences& sequences, int64_t length, int64_t most) {
  const int64_t all = sequences.size(), count = std::min(all, most);
  Stretches out;
  for (int64_t n = 0; n < count; ++n) {
    out.emplace_back(static_cast<size_t>(length));
    sequences.read(n * all / count, out.back().data());
  }
  return out;
}

constexpr int64_t kMaxMeasuredBytes = 16 << 20;

// Returns whether the file contains text. A file with a zero byte in its first 4096 bytes is treated as binary.
bool is_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string head(4096, '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(file.gcount()));
  return !head.empty() && head.find('\0') == std::string::npos;
}

}  // namespace

Stretches heldout_stretches(const fs::path& corpus, SequenceOptions how, int64_t tokens, int64_t most) {
  how.shuffle = false;
  how.bos_per_sequence = false;
  how.length = tokens + 1;
  return spread(Sequences(corpus, "validation", how), how.length, most);
}

std::vector<eval::Window> length_windows(const Stretches& stretches, int64_t length, std::optional<int32_t> bos) {
  std::vector<eval::Window> windows;
  for (const std::vector<int64_t>& stretch : stretches) {
    const auto tokens = static_cast<int64_t>(stretch.size()) - 1;
    for (int64_t at = 0; at < tokens; at += length) {
      const int64_t end = std::min(at + length, tokens);
      eval::Window window{{stretch.begin() + at, stretch.begin() + end},
                          {stretch.begin() + at + 1, stretch.begin() + end + 1}};
      if (bos) window.input[0] = *bos;
      windows.push_back(std::move(window));
    }
  }
  return windows;
}

std::vector<double> stretch_losses(const Stretches& stretches, const std::vector<eval::Score>& scores) {
  std::vector<double> losses(stretches.size());
  // All stretches have equal length, and therefore the same number of windows.
  for (size_t w = 0; w < scores.size(); ++w) losses[w * stretches.size() / scores.size()] -= scores[w].log_likelihood;
  for (double& loss : losses) loss /= static_cast<double>(stretches.front().size() - 1);
  return losses;
}

std::vector<double> thinned(const std::vector<double>& values, size_t most) {
  if (values.size() <= most) return values;
  std::vector<double> out;
  for (size_t n = 0; n < most; ++n) {
    const size_t begin = n * values.size() / most, end = (n + 1) * values.size() / most;
    double total = 0;
    for (size_t i = begin; i < end; ++i) total += values[i];
    out.push_back(total / static_cast<double>(end - begin));
  }
  return out;
}

std::vector<int32_t> text_tokens(const std::vector<std::string>& paths, const Tokenizer& tokenizer) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (!fs::is_directory(path)) {
      if (!fs::exists(path))
        fail("measure", "{}: expected a file or folder of text, but the path does not exist", path);
      files.push_back(path);
      continue;
    }
    std::vector<std::string> inside;
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      const std::string extension = entry.path().extension().string();
      const bool packed = extension == ".gz" || extension == ".zst" || extension == ".parquet";
      if (entry.is_regular_file() && (packed || is_text(entry.path()))) inside.push_back(entry.path().string());
    }
    if (inside.empty()) fail("measure", "{}: the folder contains no text files", path);
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  DocumentReader reader(find_sources(files, TextFormat::plain), {});
  std::vector<int32_t> ids;
  RawBatch raw;
  int64_t bytes = 0;
  while (bytes < kMaxMeasuredBytes && reader.next(raw)) {
    for (const std::string& document : extract_documents(std::move(raw), reader.options()).documents) {
      const auto more = tokenizer.encode(document);
      ids.insert(ids.end(), more.begin(), more.end());
      bytes += static_cast<int64_t>(document.size());
    }
    raw = {};
  }
  return ids;
}

HeldOutWindows heldout_windows(const ModelConfig& model, const fs::path& corpus, SequenceOptions how, int64_t most) {
  how.shuffle = false;
  const Sequences sequences(corpus, "validation", how);
  check_corpus(model, sequences.tokenizer_fingerprint(), sequences.vocab_size(), corpus.string());
  const int64_t all = sequences.size();
  if (all == 0) fail("measure", "{}: the validation split has no sequence of {} tokens", corpus.string(), how.length);
  return {length_windows(spread(sequences, how.length, most), how.length - 1, {}), all <= most,
          sequences.bytes_per_token()};
}

}  // namespace lazy::measure
