#include "serve/page_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "core/error.h"

namespace lazy {
namespace {

constexpr int64_t kPage = 4, kChunk = 8;

std::vector<int64_t> ids(int64_t first) {
  std::vector<int64_t> out(kChunk);
  for (size_t n = 0; n < out.size(); ++n) out[n] = first + static_cast<int64_t>(n);
  return out;
}

TEST(PagePool, Take_ReturnsAvailablePagesOnly) {
  PagePool pool(6, kPage, kChunk);
  EXPECT_EQ(pool.pages(), 5);
  auto three = pool.take(3);
  ASSERT_TRUE(three);
  EXPECT_EQ(pool.take(3), std::nullopt);
  EXPECT_EQ(pool.free(), 2);
  pool.give_back(*three);
  const auto all = pool.take(5);
  ASSERT_TRUE(all);
  // Page 0 is reserved, so the pool returns all pages except page 0.
  EXPECT_EQ(std::set<int64_t>(all->begin(), all->end()), (std::set<int64_t>{1, 2, 3, 4, 5}));
}

TEST(PagePool, Find_ComparesTokensAndPrecedingChunk) {
  PagePool pool(20, kPage, kChunk);
  const auto a = pool.take(2), b = pool.take(2);
  PagePool::Chunk* first = pool.keep(nullptr, ids(10), *a);
  PagePool::Chunk* second = pool.keep(first, ids(20), *b);
  EXPECT_EQ(pool.find(nullptr, ids(10)), first);
  EXPECT_EQ(pool.find(first, ids(20)), second);
  EXPECT_EQ(pool.find(nullptr, ids(20)), nullptr);
  EXPECT_EQ(pool.find(second, ids(20)), nullptr);
  EXPECT_EQ(pool.find(nullptr, ids(11)), nullptr);
  EXPECT_EQ(second->pages, *b);
}

TEST(PagePool, Keep_SharesOnlyTheFirstCopyOfAChunk) {
  PagePool pool(20, kPage, kChunk);
  const auto a = pool.take(2), b = pool.take(2);
  EXPECT_NE(pool.keep(nullptr, ids(1), *a), nullptr);
  EXPECT_EQ(pool.keep(nullptr, ids(1), *b), nullptr);
}

TEST(PagePool, Evict_RemovesTheLeastRecentlyUsedChunk) {
  PagePool pool(7, kPage, kChunk);
  std::vector<PagePool::Chunk*> chunks;
  for (int64_t n = 0; n < 3; ++n) chunks.push_back(pool.keep(nullptr, ids(100 * n), *pool.take(2)));
  pool.leave(chunks[1]);
  pool.leave(chunks[0]);
  EXPECT_EQ(pool.unused(), 4);
  EXPECT_EQ(pool.take(5), std::nullopt);  // only four pages are free, because chunk 2 is in use
  ASSERT_TRUE(pool.take(2));
  EXPECT_EQ(pool.find(nullptr, ids(100)), nullptr);
  EXPECT_NE(pool.find(nullptr, ids(0)), nullptr);
}

TEST(PagePool, Evict_RemovesFollowersBeforeTheirPredecessor) {
  PagePool pool(5, kPage, kChunk);
  PagePool::Chunk* first = pool.keep(nullptr, ids(0), *pool.take(2));
  PagePool::Chunk* second = pool.keep(first, ids(50), *pool.take(2));
  pool.leave(first);  // chunk `first` is released before the chunk that follows it
  pool.leave(second);
  ASSERT_TRUE(pool.take(1));
  EXPECT_NE(pool.find(nullptr, ids(0)), nullptr);
  EXPECT_EQ(pool.find(first, ids(50)), nullptr);
}

TEST(PagePool, InvalidSizes_AreErrors) {
  EXPECT_THROW(PagePool(10, 4, 6), Error);
  EXPECT_THROW(PagePool(1, 4, 8), Error);
}

// Requests arrive, share pages and leave in random order. No page may have two owners, and no page may be lost.
TEST(PagePool, RandomOperations_NeverLoseOrDuplicatePages) {
  std::mt19937 random(7);
  PagePool pool(40, kPage, kChunk);
  struct Request {
    std::vector<PagePool::Chunk*> chunks;
    std::vector<int64_t> own;
  };
  std::map<int, Request> requests;
  for (int n = 0; n < 20000; ++n) {
    if (random() % 2) {
      Request r;
      auto own = pool.take(8);
      if (!own) continue;
      r.own = *own;
      PagePool::Chunk* last = nullptr;
      for (int chunk = 0; chunk < static_cast<int>(random() % 4); ++chunk) {
        const auto text = ids(static_cast<int64_t>(random() % 3) * 100);
        const std::vector<int64_t> pages(r.own.begin(), r.own.begin() + 2);
        if (PagePool::Chunk* found = pool.find(last, text)) {
          pool.give_back(pages);
          last = found;
        } else {
          last = pool.keep(last, text, pages);
          ASSERT_NE(last, nullptr);
        }
        r.own.erase(r.own.begin(), r.own.begin() + 2);
        r.chunks.push_back(last);
      }
      requests[n] = r;
    } else if (!requests.empty()) {
      const auto gone = std::next(requests.begin(), static_cast<std::ptrdiff_t>(random() % requests.size()));
      pool.give_back(gone->second.own);
      for (PagePool::Chunk* chunk : gone->second.chunks) pool.leave(chunk);
      requests.erase(gone);
    }
    std::multiset<int64_t> used;
    std::set<PagePool::Chunk*> chunks;
    for (const auto& [id, r] : requests) {
      used.insert(r.own.begin(), r.own.end());
      chunks.insert(r.chunks.begin(), r.chunks.end());
    }
    for (const PagePool::Chunk* chunk : chunks) used.insert(chunk->pages.begin(), chunk->pages.end());
    ASSERT_EQ(std::set<int64_t>(used.begin(), used.end()).size(), used.size());
    ASSERT_EQ(static_cast<int64_t>(used.size()) + pool.free() + pool.unused(), pool.pages());
  }
}

}  // namespace
}  // namespace lazy
