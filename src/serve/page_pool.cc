#include "serve/page_pool.h"

#include <xxhash.h>

#include <algorithm>

#include "core/error.h"

namespace lazy {

PagePool::PagePool(int64_t pages, int64_t page_size, int64_t chunk)
    : page_size_(page_size), chunk_(chunk), pages_(pages - 1) {
  if (page_size < 1 || chunk < page_size || chunk % page_size != 0) {
    fail("serve", "chunk: expected a multiple of the page size ({} tokens), found {}", page_size, chunk);
  }
  if (pages < 2) fail("serve", "cache size: expected at least 2 pages, found {}", pages);
  for (int64_t page = pages - 1; page > 0; --page) free_.push_back(page);
}

std::optional<std::vector<int64_t>> PagePool::take(int64_t count) {
  if (free() + unused_ < count) return std::nullopt;
  while (free() < count) evict();
  std::vector<int64_t> taken(free_.end() - count, free_.end());
  free_.resize(free_.size() - static_cast<size_t>(count));
  return taken;
}

void PagePool::give_back(std::span<const int64_t> pages) { free_.insert(free_.end(), pages.begin(), pages.end()); }

uint64_t PagePool::hash(const Chunk* before, std::span<const int64_t> ids) const {
  return XXH3_64bits_withSeed(ids.data(), ids.size_bytes(), reinterpret_cast<uintptr_t>(before));
}

PagePool::Chunk* PagePool::find(Chunk* before, std::span<const int64_t> ids) {
  const auto [begin, end] = chunks_.equal_range(hash(before, ids));
  for (auto at = begin; at != end; ++at) {
    Chunk& chunk = *at->second;
    if (chunk.before != before || !std::equal(ids.begin(), ids.end(), chunk.ids.begin(), chunk.ids.end())) continue;
    if (chunk.users++ == 0) unused_ -= static_cast<int64_t>(chunk.pages.size());
    return &chunk;
  }
  return nullptr;
}

PagePool::Chunk* PagePool::keep(Chunk* before, std::span<const int64_t> ids, std::span<const int64_t> pages) {
  if (Chunk* other = find(before, ids)) {
    leave(other);
    return nullptr;
  }
  auto chunk = std::make_unique<Chunk>();
  chunk->before = before;
  chunk->ids.assign(ids.begin(), ids.end());
  chunk->pages.assign(pages.begin(), pages.end());
  chunk->users = 1;
  if (before) ++before->followers;
  Chunk* const kept = chunk.get();
  chunks_.emplace(hash(before, ids), std::move(chunk));
  return kept;
}

void PagePool::leave(Chunk* chunk) {
  if (--chunk->users > 0) return;
  chunk->used = ++now_;
  unused_ += static_cast<int64_t>(chunk->pages.size());
}

// If pages without users exist, a chunk can always be evicted: every request that uses a chunk also uses all preceding
// chunks, so the last chunk of an unused chain has neither users nor following chunks.
void PagePool::evict() {
  auto oldest = chunks_.end();
  for (auto at = chunks_.begin(); at != chunks_.end(); ++at) {
    const Chunk& chunk = *at->second;
    if (chunk.users > 0 || chunk.followers > 0) continue;
    if (oldest == chunks_.end() || chunk.used < oldest->second->used) oldest = at;
  }
  const Chunk& chunk = *oldest->second;
  give_back(chunk.pages);
  unused_ -= static_cast<int64_t>(chunk.pages.size());
  if (chunk.before) --chunk.before->followers;
  chunks_.erase(oldest);
}

}  // namespace lazy
