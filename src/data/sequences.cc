#include "data/sequences.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "data/packing/order.h"
#include "data/packing/packed_corpus.h"

namespace lazy {
namespace fs = std::filesystem;

namespace {

constexpr uint64_t kPartStream = 0x5EED0000, kMixStream = 0x3117;

std::string name_of(fs::path path) {
  path = fs::absolute(path).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

}  // namespace

std::string CorpusMix::string() const {
  std::vector<std::string> names;
  for (const fs::path& path : paths) names.push_back(path.string());
  return fmt::format("{}", fmt::join(names, ", "));
}

struct Sequences::Impl {
  std::vector<std::unique_ptr<PackedCorpus>> corpora;
  std::vector<Part> parts;
  std::unique_ptr<MixSchedule> schedule;
  int64_t size = 0, tokens = 0, mask_position = 0;

  void open(const CorpusMix& mix, const std::string& split, const SequenceOptions& options) {
    for (size_t i = 0; i < mix.paths.size(); ++i) {
      SequenceOptions own = options;
      // Each corpus has a different seed. Otherwise corpora of equal size would have the same order.
      if (i > 0) own.seed = derive_seed(options.seed, kPartStream + i);
      corpora.push_back(PackedCorpus::open(mix.paths[i], split, own));
      const PackedCorpus& corpus = *corpora.back();
      const ShardHeader &here = corpus.header(), &first = corpora.front()->header();
      if (here.tokenizer_fingerprint != first.tokenizer_fingerprint) {
        fail("sequences",
             "{}: prepared with tokenizer {:016x}, but {} with {:016x}: all corpora of a mixture must use the same "
             "tokenizer",
             mix.paths[i].string(), here.tokenizer_fingerprint, mix.paths[0].string(), first.tokenizer_fingerprint);
      }
      std::string name = name_of(mix.paths[i]);
      const auto same = [&](const Part& part) { return part.name == name; };
      if (std::any_of(parts.begin(), parts.end(), same)) name += fmt::format("-{}", i + 1);
      tokens += corpus.tokens();
      parts.push_back({name, mix.paths[i], 1, corpus.size(), corpus.tokens(),
                       static_cast<double>(corpus.source_bytes()) / static_cast<double>(corpus.tokens())});
    }
  }

  std::vector<int64_t> counts(int64_t index) const { return schedule ? schedule->counts(index) : std::vector{index}; }

  void mix(std::vector<double> weights, const SequenceOptions& options) {
    if (weights.empty()) {
      for (const Part& part : parts) weights.push_back(static_cast<double>(part.sequences));
    }
    schedule = std::make_unique<MixSchedule>(weights, options.seed ^ kMixStream, options.shuffle);
    for (size_t i = 0; i < parts.size(); ++i) parts[i].share = schedule->shares()[i];
    // Binary search for the first index at which a corpus starts its second epoch. The index is in (low, high].
    int64_t low = 0, high = 1;
    for (const Part& part : parts) high += part.sequences;
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      const std::vector<int64_t> read = counts(middle);
      bool once = true;
      for (size_t i = 0; i < parts.size(); ++i) once = once && read[i] <= parts[i].sequences;
      (once ? low : high) = middle;
    }
    size = low;
  }
};

Sequences::Sequences(const CorpusMix& mix, const std::string& split, const SequenceOptions& options)
    : impl_(std::make_unique<Impl>()) {
  if (mix.paths.empty()) fail("sequences", "expected at least one corpus");
  if (!mix.weights.empty() && mix.weights.size() != mix.paths.size()) {
    fail("sequences", "weights: expected one weight for each of the {} corpora, found {}", mix.paths.size(),
         mix.weights.size());
  }
  for (const double weight : mix.weights) {
    if (!(weight > 0) || !std::isfinite(weight))
      fail("sequences", "weights: expected numbers above 0, found {}", weight);
  }
  impl_->open(mix, split, options);
  impl_->size = impl_->parts[0].sequences;
  impl_->mask_position = options.mask_position;
  if (mix.paths.size() > 1) impl_->mix(mix.weights, options);
}

Sequences::~Sequences() = default;

int64_t Sequences::size() const { return impl_->size; }
int64_t Sequences::tokens() const { return impl_->tokens; }
const std::vector<Sequences::Part>& Sequences::parts() const { return impl_->parts; }
std::vector<int64_t> Sequences::counts(int64_t index) const { return impl_->counts(index); }

double Sequences::bytes_per_token() const {
  double mean = 0;
  for (const Part& part : impl_->parts) mean += part.share * part.bytes_per_token;
  return mean;
}

int64_t Sequences::vocab_size() const { return impl_->corpora.front()->header().vocab_size; }
uint64_t Sequences::tokenizer_fingerprint() const { return impl_->corpora.front()->header().tokenizer_fingerprint; }

fs::path Sequences::tokenizer_path() const {
  const fs::path& corpus = impl_->parts.front().path;
  return (fs::is_directory(corpus) ? corpus : corpus.parent_path()) / "tokenizer";
}

void Sequences::read(int64_t index, int64_t* out) const {
  if (index < 0) fail("sequences", "index: expected at least 0, found {}", index);
  const MixSchedule::SequenceIndex place =
      impl_->schedule ? impl_->schedule->at(index) : MixSchedule::SequenceIndex{0, index};
  impl_->corpora[place.corpus]->read(place.index, out);
  if (impl_->mask_position > 0) out[impl_->mask_position - 1] = impl_->corpora.front()->header().bos_id;
}

}  // namespace lazy
