#include "core/read_ahead.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "core/error.h"

namespace lazy {

using Items = ReadAhead<std::unique_ptr<int>>;  // items of a type that can be moved but not copied

void count(const Items::HandOver& hand_over, int end, std::atomic<int>& made) {
  for (int n = 0; n < end; ++n) {
    ++made;
    hand_over(std::make_unique<int>(n));
  }
}

TEST(ReadAhead, Next_ReturnsItemsInOrderThenNullopt) {
  for (const size_t ahead : {1, 3}) {
    std::atomic<int> made = 0;
    Items items(ahead, [&](const auto& hand_over) { count(hand_over, 100, made); });
    for (int n = 0; n < 100; ++n) {
      const auto item = items.next();
      ASSERT_TRUE(item.has_value());
      EXPECT_EQ(**item, n);
      EXPECT_LE(made, n + 1 + static_cast<int>(ahead));
    }
    EXPECT_FALSE(items.next().has_value());
    EXPECT_FALSE(items.next().has_value());
  }
}

TEST(ReadAhead, ProducerException_IsRethrownAfterItsItems) {
  std::atomic<int> made = 0;
  Items items(4, [&](const auto& hand_over) {
    count(hand_over, 2, made);
    fail("test", "broken");
  });
  EXPECT_EQ(**items.next(), 0);
  EXPECT_EQ(**items.next(), 1);
  EXPECT_THROW(items.next(), Error);
  EXPECT_THROW(items.next(), Error);
}

TEST(ReadAhead, Destructor_StopsProducerAtAnyPoint) {
  for (const int read : {0, 1, 5}) {
    std::atomic<int> made = 0;
    std::atomic<bool> unwound = false;
    {
      Items items(2, [&](const auto& hand_over) {
        const std::shared_ptr<void> last(nullptr, [&](void*) { unwound = true; });
        count(hand_over, 1 << 30, made);
      });
      for (int n = 0; n < read; ++n) items.next();
    }
    EXPECT_TRUE(unwound);
    EXPECT_LE(made, read + 2);
  }
}

}  // namespace lazy
