// Which pages of the pool are whose, and which hold prompts that others may share. Knows nothing of tensors.
//
// A prompt is shared by whole chunks of `chunk` tokens. A chunk is found by its tokens and the chunk before it; its
// pages are kept after the last user has gone, until the room is needed: what was used longest ago goes first.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace lazy {

class PagePool {
 public:
  // A chunk of a prompt, whose keys and values have been computed.
  struct Chunk {
    Chunk* before = nullptr;  // null: the prompt's first
    std::vector<int64_t> ids, pages;
    int64_t users = 0;      // requests that read it
    int64_t followers = 0;  // chunks that name it as `before`
    uint64_t used = 0;      // when it lost its last user
  };

  // Page 0 is nobody's: padding goes there. `chunk` is a multiple of page_size.
  PagePool(int64_t pages, int64_t page_size, int64_t chunk);

  // `count` pages, for as long as the caller wants; nothing when there are not as many free or unused ones.
  std::optional<std::vector<int64_t>> take(int64_t count);
  void give_back(std::span<const int64_t> pages);

  // The chunk of these tokens behind `before`, with one more user; null: not there.
  Chunk* find(Chunk* before, std::span<const int64_t> ids);
  // Shares `pages`, which the caller has taken and computed, with those to come, with one user. Null: another has them
  // already, and the pages stay the caller's.
  Chunk* keep(Chunk* before, std::span<const int64_t> ids, std::span<const int64_t> pages);
  void leave(Chunk* chunk);  // one user less

  int64_t page_size() const { return page_size_; }
  int64_t chunk() const { return chunk_; }
  int64_t pages() const { return pages_; }  // without page 0
  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  int64_t unused() const { return unused_; }  // pages of chunks without users

 private:
  uint64_t hash(const Chunk* before, std::span<const int64_t> ids) const;
  void evict();  // the unused chunk without followers that was used longest ago
  int64_t page_size_, chunk_, pages_, unused_ = 0;
  uint64_t now_ = 0;
  std::vector<int64_t> free_;
  std::unordered_multimap<uint64_t, std::unique_ptr<Chunk>> chunks_;
};

}  // namespace lazy
