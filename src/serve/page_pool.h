// Page ownership and prefix sharing for the KV-cache pool. This class manages page numbers only and does not depend on
// tensors.
//
// Prompts share whole chunks of `chunk` tokens. A chunk is identified by its tokens and by the preceding chunk. When no
// request uses a chunk any more, its pages are retained until their memory is needed. The least recently used chunk is
// evicted first.
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
  // A prompt chunk whose keys and values have been computed.
  struct Chunk {
    Chunk* before = nullptr;  // preceding chunk; null for the first chunk of a prompt
    std::vector<int64_t> ids, pages;
    int64_t users = 0;      // number of requests that use the chunk
    int64_t followers = 0;  // number of chunks whose `before` is this chunk
    uint64_t used = 0;      // value of the counter now_ when the last user left; the smallest value is evicted first
  };

  // Page 0 is reserved as the write target for padding tokens. `chunk` must be a multiple of page_size.
  PagePool(int64_t pages, int64_t page_size, int64_t chunk);

  // Allocates `count` pages and evicts unused chunks if necessary. Returns nullopt if the number of free pages plus
  // unused() is less than `count`.
  std::optional<std::vector<int64_t>> take(int64_t count);
  void give_back(std::span<const int64_t> pages);

  // Returns the chunk with tokens `ids` that follows the chunk `before`, and increments Chunk::users, because the
  // calling request now uses the chunk. Returns null if the pool does not have this chunk.
  Chunk* find(Chunk* before, std::span<const int64_t> ids);
  // Registers `pages`, which the caller has allocated and filled, as a chunk that later requests can share. The caller
  // is its first user. Returns null if the pool already has an equal chunk; the caller then remains the owner of the
  // pages.
  Chunk* keep(Chunk* before, std::span<const int64_t> ids, std::span<const int64_t> pages);
  void leave(Chunk* chunk);  // decrements Chunk::users: a request no longer uses the chunk

  int64_t page_size() const { return page_size_; }
  int64_t chunk() const { return chunk_; }
  int64_t pages() const { return pages_; }  // number of pages without page 0
  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  int64_t unused() const { return unused_; }  // number of pages in chunks that have no users

 private:
  uint64_t hash(const Chunk* before, std::span<const int64_t> ids) const;
  void evict();  // evicts the least recently used of the chunks that have neither users nor followers
  int64_t page_size_, chunk_, pages_, unused_ = 0;
  uint64_t now_ = 0;
  std::vector<int64_t> free_;
  std::unordered_multimap<uint64_t, std::unique_ptr<Chunk>> chunks_;
};

}  // namespace lazy
