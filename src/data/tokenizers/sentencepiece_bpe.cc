#include "data/tokenizers/sentencepiece_bpe.h"

#include <algorithm>
#include <map>

#include "data/tokenizers/utf8.h"

namespace lazy {
namespace {

constexpr uint32_t kSpace = 0x2581;

}  // namespace

std::unique_ptr<SentencePieceBpe> SentencePieceBpe::make(const std::vector<Piece>& pieces,
                                                         const std::vector<int32_t>& byte_ids) {
  std::unordered_map<std::string_view, int32_t> ids;
  size_t splits = 0;
  std::map<float, uint32_t, std::greater<>> ranks;  // by score, the highest first; equal scores share a rank
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (!pieces[id].normal) continue;
    ids.emplace(pieces[id].text, static_cast<int32_t>(id));
    splits += pieces[id].text.size();
    ranks[pieces[id].score];
  }
  uint32_t next = 0;
  for (auto& [score, rank] : ranks) rank = next++;

  std::unique_ptr<SentencePieceBpe> bpe(new SentencePieceBpe(splits));
  bpe->byte_ids_ = byte_ids;
  bpe->cut_at_space_ = bpe->cut_at_line_end_ = true;
  bpe->ascii_.fill(-1);
  for (const auto& [text, id] : ids) {
    uint32_t left = 0;
    for (size_t at = 0; at < text.size();) {
      const size_t length = utf8_length(text, at);
      if (length == 0) return nullptr;
      const uint32_t code = utf8_code_point(text, at);
      if (!ids.contains(text.substr(at, length))) return nullptr;
      if (at > 0 && code == kSpace && left != kSpace) bpe->cut_at_space_ = false;
      if (code == '\n') bpe->cut_at_line_end_ = false;
      if (length == text.size()) {
        code < 128 ? bpe->ascii_[code] = id : bpe->characters_[code] = id;
      }
      left = code;
      at += length;
      if (at == text.size()) break;
      const auto first = ids.find(text.substr(0, at)), second = ids.find(text.substr(at));
      if (first != ids.end() && second != ids.end()) {
        bpe->merges_.add(first->second, second->second, id, ranks[pieces[id].score]);
      }
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

void SentencePieceBpe::encode(std::string_view text, bool prefix, std::vector<int32_t>& ids) const {
  static thread_local WordCache cache;
  const auto word = [&](std::string_view part) {
    cache.encode(owner_, part, ids, [&] { encode_word(part, ids); });
  };
  std::string prefixed;
  if (prefix) {  // the first word alone, so that a long text need not be copied
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
  // Characters without a piece stand as the complement of their code point, which no rule knows, until the end.
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
