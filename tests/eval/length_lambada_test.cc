#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "core/error.h"
#include "core/file.h"
#include "eval/length/lambada.h"
#include "eval/tasks/documents.h"
#include "length_stub.h"
#include "support/error_of.h"

namespace lazy::eval::length {
namespace fs = std::filesystem;

std::vector<LambadaItem> numbered_items(const std::vector<std::pair<int, int>>& sizes) {
  std::vector<LambadaItem> items;
  int32_t id = 10;
  for (const auto& [context, word] : sizes) {
    items.push_back({{}, static_cast<size_t>(context)});
    for (int i = 0; i < context + word; ++i) items.back().ids.push_back(id++);
  }
  return items;
}

TEST(LengthLambada, Streams_ContainEveryTokenOnceAndWholeItems) {
  const auto items = numbered_items({{5, 1}, {9, 3}, {1, 1}, {12, 2}, {7, 1}, {4, 4}});
  const std::vector<int32_t> separator = {1, 2};
  for (const std::optional<int32_t> bos : {std::optional<int32_t>(), std::optional<int32_t>(0)}) {
    const int64_t least = min_lambada_length(items, separator, bos);
    // Two separator tokens and an item of 14 tokens are 16 tokens. The last one is only a target and not an input.
    EXPECT_EQ(least, 15 + (bos ? 1 : 0));
    EXPECT_THROW(lambada_streams(items, separator, bos, least - 1), Error);
    for (const int64_t length : {least, least + 1, least + 9, int64_t{1000}}) {
      std::vector<int32_t> targets;
      size_t next = 0;
      for (const LambadaStream& stream : lambada_streams(items, separator, bos, length)) {
        EXPECT_LE(stream.window.input.size(), size_t(length));
        EXPECT_EQ(stream.first_item, next);
        EXPECT_EQ(stream.window.input[0], bos ? 0 : 1);
        for (size_t k = 0; k < stream.starts.size(); ++k, ++next) {
          const auto begin = stream.window.targets.begin() + static_cast<int64_t>(stream.starts[k]);
          const std::vector<int32_t> found(begin, begin + static_cast<int64_t>(items[next].ids.size()));
          EXPECT_EQ(found, items[next].ids);
        }
        for (int32_t id : stream.window.targets) {
          if (id >= 10) targets.push_back(id);
        }
      }
      EXPECT_EQ(next, items.size());
      ASSERT_EQ(targets.size(), 50u);
      for (int32_t i = 0; i < 50; ++i) EXPECT_EQ(targets[size_t(i)], 10 + i);
    }
    EXPECT_EQ(lambada_streams(items, separator, bos, 1000).size(), 1u);
  }
}

TEST(LengthLambada, ContextFreeModel_GivesTheSameSumsForEveryLength) {
  const auto items = numbered_items({{5, 1}, {9, 3}, {1, 1}, {12, 2}, {7, 1}, {4, 4}});
  const std::vector<int32_t> separator = {1, 2};
  // Every id has the loss id / 100, and even ids are predicted correctly. The ids of the last word of each of the six
  // items are 15 | 25-27 | 29 | 42, 43 | 51 | 56-59.
  const Scorer rule = stub([](const std::vector<int32_t>&, int32_t id) {
    return TargetScore{-float(id) / 100, id % 2 == 0 || id == 29 || id == 51};
  });
  for (const int64_t length : {15, 40, 100}) {
    const LambadaSums sums = score_lambada(rule, items, separator, std::nullopt, length, "");
    EXPECT_EQ(sums.tokens, (std::vector<double>{6, 12, 2, 14, 8, 8}));
    EXPECT_NEAR(sums.loss[1], 12 * 0.215, 1e-5);  // this item has the ids 16 to 27
    EXPECT_NEAR(sums.word_loss[1], 0.25 + 0.26 + 0.27, 1e-5);
    EXPECT_EQ(sums.word_correct, (std::vector<double>{0, 0, 1, 0, 1, 0}));
    const LambadaSums standard = score_lambada_standard(rule, items, std::nullopt, 10, "");
    EXPECT_EQ(standard.word_correct, sums.word_correct);
    for (size_t i = 0; i < items.size(); ++i) EXPECT_NEAR(standard.word_loss[i], sums.word_loss[i], 1e-6);
  }
}

TEST(LengthLambada, LastWord_FollowsLastSpace) {
  const auto tokenizer = load_tokenizer("bytes");
  const auto items = tokenize_lambada({{"one two", " three"}}, *tokenizer);
  EXPECT_EQ(items[0].context, 7u);
  EXPECT_EQ(items[0].ids.size(), 13u);
}

TEST(LengthLambada, InvalidRow_IsNamed) {
  const fs::path folder = fs::path(testing::TempDir()) / fmt::format("lambada_{}", ::getpid());
  fs::create_directories(folder);
  EXPECT_FALSE(has_task_files(find_task("lambada_openai"), folder));
  EXPECT_THROW(load_lambada(folder, std::nullopt), Error);
  const auto error = [&](const std::string& content) {
    write_file_atomic(folder / "lambada_openai.jsonl", content);
    return error_of([&] { load_lambada(folder, std::nullopt); });
  };
  EXPECT_THAT(error("{\"text\": \"a b\"}\n{\"text\": 3}\n"), Names({"lambada_openai.jsonl:2", "text", 3}));
  EXPECT_THAT(error("not json\n"), Names({"lambada_openai.jsonl:1", "JSON"}));
  EXPECT_THAT(error("{\"text\": \"oneword\"}\n"), Names({"lambada_openai.jsonl:1", "oneword"}));
  EXPECT_EQ(error("{\"text\": \"a b\"}\n{\"text\": \"c d\"}\n"), "");
  EXPECT_EQ(load_lambada(folder, 1).size(), 1u);
  EXPECT_EQ(load_lambada(folder, 0.5).size(), 1u);
  EXPECT_EQ(load_lambada(folder, std::nullopt)[1].continuation, " d");
  fs::remove_all(folder);
}

}  // namespace lazy::eval::length
