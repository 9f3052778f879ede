#include "data/tokenizers/sentencepiece.h"

#include <sentencepiece_trainer.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "core/error.h"
#include "core/log.h"

namespace lazy {
namespace spm = ::sentencepiece;

namespace {

constexpr size_t kLongestSentence = 4096;  // bytes; longer lines are split, because the trainer would skip them

// Iterates over the lines of the documents. Pieces never contain line ends.
class Lines final : public spm::SentenceIterator {
 public:
  explicit Lines(const std::vector<std::string>& documents) : documents_(documents) { Next(); }
  bool done() const override { return done_; }
  const std::string& value() const override { return value_; }
  spm::util::Status status() const override { return {}; }
  void Next() override {
    while (document_ < documents_.size()) {
      const std::string_view text = documents_[document_];
      if (at_ >= text.size()) {
        ++document_;
        at_ = 0;
        continue;
      }
      const size_t end = std::min(text.find('\n', at_), text.size());
      size_t stop = std::min(end, at_ + kLongestSentence);
      while (stop < end && (static_cast<unsigned char>(text[stop]) & 0xC0) == 0x80) ++stop;
      value_ = text.substr(at_, stop - at_);
      at_ = stop == end ? end + 1 : stop;
      if (!value_.empty()) return;
    }
    done_ = true;
  }

 private:
  const std::vector<std::string>& documents_;
  size_t document_ = 0, at_ = 0;
  std::string value_;
  bool done_ = false;
};

// Removes the location from a message: "src/x.cc(12) [condition] what happened" -> "what happened".
std::string plain(const std::string& message) {
  const size_t at = message.rfind("] ");
  return at == std::string::npos ? message : message.substr(at + 2);
}

}  // namespace

std::unique_ptr<Tokenizer> train_sentencepiece(const std::vector<std::string>& documents, int64_t vocab_size) {
  constexpr int64_t kSpecial = 3 + 256;
  if (vocab_size <= kSpecial) {
    fail("tokenizer", "cannot train {} pieces: expected more than {}, the number of special tokens and bytes",
         vocab_size, kSpecial);
  }
  Lines lines(documents);
  if (lines.done()) fail("tokenizer", "cannot train: the documents contain no text");
  spm::SetMinLogLevel(3);  // errors are returned as a status instead of being logged
  std::string model;
  const auto status = spm::SentencePieceTrainer::Train(
      std::unordered_map<std::string, std::string>{
          {"model_type", "bpe"},
          {"vocab_size", std::to_string(vocab_size)},
          {"hard_vocab_limit", "false"},
          {"byte_fallback", "true"},
          {"split_digits", "true"},
          {"allow_whitespace_only_pieces", "true"},
          {"normalization_rule_name", "identity"},
          {"remove_extra_whitespaces", "false"},
          {"add_dummy_prefix", "false"},
          {"max_sentence_length", std::to_string(2 * kLongestSentence)},
          {"num_threads", "1"},
          {"unk_id", "0"},
          {"bos_id", "1"},
          {"eos_id", "2"},
      },
      &lines, &model);
  if (!status.ok()) fail("tokenizer", "cannot train {} pieces: {}", vocab_size, plain(status.message()));
  auto tokenizer = load_sentencepiece(std::move(model), "the trained model");
  if (tokenizer->vocab_size() < vocab_size) {
    log::warn("the text supports only {} of the {} requested pieces", tokenizer->vocab_size(), vocab_size);
  }
  return tokenizer;
}

}  // namespace lazy
