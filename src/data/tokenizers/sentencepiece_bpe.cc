#include "data/tokenizers/sentencepiece_bpe.h"

#include <algorithm>
#include <map>

#include "data/tokenizers/unicode.h"

namespace lazy {
namespace {

constexpr uint32_t kSpace = 0x2581;

}  // namespace

std::vector<SentencePieceMerge> sentencepiece_merges(const std::vector<SentencePiece>& pieces) {
  std::unordered_map<std::string_view, int32_t> ids;
  std::map<float, uint32_t, std::greater<>> ranks;  // ranks by descending score; equal scores share a rank
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (!pieces[id].normal) continue;
    ids.emplace(pieces[id].text, static_cast<int32_t>(id));
    ranks[pieces[id].score];
  }
  uint32_t next = 0;
  for (auto& [score, rank] : ranks) rank = next++;
  std::vector<SentencePieceMerge> merges;
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (!pieces[id].normal) continue;
    const std::string_view text = pieces[id].text;
    for (size_t at = 1; at < text.size(); ++at) {
      if ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) continue;
      const auto left = ids.find(text.substr(0, at)), right = ids.find(text.substr(at));
      if (left == ids.end() || right == ids.end()) continue;
      merges.push_back({left->second, right->second, static_cast<int32_t>(id), ranks[pieces[id].score]});
    }
  }
  std::stable_sort(merges.begin(), merges.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return merges;
}

std::unique_ptr<SentencePieceBpe> SentencePieceBpe::make(const std::vector<SentencePiece>& pieces,
                                                         const std::vector<int32_t>& byte_ids) {
  return make(pieces, sentencepiece_merges(pieces), byte_ids);
}

std::unique_ptr<SentencePieceBpe> SentencePieceBpe::make(const std::vector<SentencePiece>& pieces,
                                                         const std::vector<SentencePieceMerge>& merges,
                                                         const std::vector<int32_t>& byte_ids) {
  std::unique_ptr<SentencePieceBpe> bpe(new SentencePieceBpe(merges.size()));
  for (const SentencePieceMerge& m : merges) bpe->merges_.add(m.left, m.right, m.merged, m.rank);
  bpe->byte_ids_ = byte_ids;
  bpe->ascii_.fill(-1);
  for (size_t id = 0; id < pieces.size(); ++id) {
    const std::string_view text = pieces[id].text;
    if (!pieces[id].normal || text.empty() || utf8_length(text, 0) != text.size()) continue;
    const uint32_t code = utf8_code_point(text, 0);
    (code < 128 ? bpe->ascii_[code] : bpe->characters_[code]) = static_cast<int32_t>(id);
  }
  bpe->cut_at_space_ = bpe->cut_at_line_end_ = true;
  for (const SentencePiece& piece : pieces) {
    const std::string_view text = piece.text;
    uint32_t left = kSpace;
    for (size_t at = 0; piece.normal && at < text.size();) {
      const size_t length = utf8_length(text, at);
      if (length == 0) return nullptr;
      const uint32_t code = utf8_code_point(text, at);
      if (bpe->character(code) < 0) return nullptr;
      if (code == kSpace && left != kSpace) bpe->cut_at_space_ = false;
      if (code == '\n') bpe->cut_at_line_end_ = false;
      left = code;
      at += length;
    }
  }
  return bpe;
}

int32_t SentencePieceBpe::character(uint32_t code) const {
  if (code == ' ') code = kSpace;
  if (code < 128) return ascii_[code];
  const auto found = characters_.find(code);
  return found == characters_.end() ? -1 : found->second;
}

size_t SentencePieceBpe::cut(std::string_view text, size_t at) const {
  if (!cut_at_space_) return text.size();
  for (at = std::max<size_t>(at, 1); at < text.size(); ++at) {
    if (text[at] == ' ' && text[at - 1] != ' ') break;
  }
  return std::min(at, text.size());
}

void SentencePieceBpe::encode(std::string_view text, bool prefix, std::vector<int32_t>& ids) const {
  static thread_local WordCache cache;
  const auto word = [&](std::string_view part) { cache.encode(owner_, part, ids, [&] { encode_word(part, ids); }); };
  std::string prefixed;
  if (prefix) {  // encode a copy of the first word with the space, so that only this word must be copied
    size_t end = std::min(text.find_first_not_of(' '), text.size());
    if (cut_at_space_) {
      end = std::min(text.find(' ', end), text.size());
      if (cut_at_line_end_) end = std::min(text.find('\n'), end);
    } else {
      end = text.size();
    }
    prefixed = " " + std::string(text.substr(0, end));
    encode_word(prefixed, ids);
    text.remove_prefix(end);
  }
  if (!cut_at_space_) {
    if (!text.empty()) encode_word(text, ids);
    return;
  }
  size_t at = 0;
  while (at < text.size()) {
    size_t end = at;
    if (cut_at_line_end_ && text[at] == '\n') {
      end = at + 1;
    } else {
      while (end < text.size() && text[end] == ' ') ++end;
      while (end < text.size() && text[end] != ' ' && !(cut_at_line_end_ && text[end] == '\n')) ++end;
    }
    word(text.substr(at, end - at));
    at = end;
  }
}

void SentencePieceBpe::encode_word(std::string_view word, std::vector<int32_t>& ids) const {
  // A character without a piece is represented by its negated code point. No merge rule applies to such values.
  static thread_local std::vector<int32_t> symbols;
  symbols.clear();
  for (size_t at = 0; at < word.size(); at += utf8_length(word, at)) {
    const uint32_t code = utf8_code_point(word, at);
    const int32_t id = character(code);
    symbols.push_back(id >= 0 ? id : -2 - static_cast<int32_t>(code));
  }
  merges_.merge(symbols);
  for (const int32_t symbol : symbols) {
    if (symbol >= 0) {
      ids.push_back(symbol);
      continue;
    }
    for (const char byte : utf8_encode(static_cast<uint32_t>(-2 - symbol))) {
      ids.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
    }
  }
}

}  // namespace lazy
