#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "core/error.h"
#include "core/random.h"
#include "eval/length/synthetic.h"
#include "length_stub.h"
#include "support/test_data.h"

namespace lazy::eval::length {

// Returns the tokenizer `bytes`, and also the tokenizers of Llama 2 and GPT-2 if LAZY_TEST_DATA contains them.
std::vector<std::shared_ptr<Tokenizer>> tokenizers() {
  std::vector<std::shared_ptr<Tokenizer>> all = {load_tokenizer("bytes")};
  for (const char* name : {"tokenizers/llama2-tokenizer.model", "tokenizers/gpt2"}) {
    if (const std::string path = test_data(name); !path.empty()) all.push_back(load_tokenizer(path));
  }
  return all;
}

// Returns a scorer that searches the last `reach` bytes of the text for the key and predicts it. If the key is not
// there, the answer is wrong.
Scorer key_reader(std::shared_ptr<Tokenizer> tokenizer, size_t reach) {
  return [=](const std::vector<Window>& windows, const std::string&) {
    std::vector<Score> scores;
    for (const Window& window : windows) {
      std::vector<int32_t> all = window.input;
      all.push_back(window.targets.back());
      const size_t skip = all[0] == tokenizer->bos_id() ? 1 : 0;
      const std::string text =
          tokenizer->decode(std::span(all).subspan(std::max(skip, all.size() - std::min(all.size(), reach))));
      const std::string answer = text.substr(text.size() - 5);
      const size_t planted = text.find("The pass key is " + answer + ".");
      Score score;
      score.greedy = planted != std::string::npos;
      score.log_likelihood = score.greedy ? 0 : -5;
      scores.push_back(score);
    }
    return scores;
  };
}

TEST(LengthPasskey, KeyReader_ScoresAllAndLimitedReachNone) {
  for (const auto& tokenizer : tokenizers()) {
    SyntheticOptions options;
    options.samples = 3;
    if (tokenizer->kind() != "bpe") options.bos = tokenizer->bos_id();
    for (const int64_t length : {300, 2000}) {
      const auto all = evaluate_passkey(key_reader(tokenizer, 1 << 20), *tokenizer, length, options, "");
      ASSERT_EQ(all.size(), 5u);
      for (const DepthResult& cell : all) {
        EXPECT_EQ(cell.trials, 3);
        EXPECT_EQ(cell.exact, 3) << tokenizer->kind() << " " << length << " " << cell.depth;
        EXPECT_EQ(cell.log_likelihood, 0);
        // if the text does not contain the key, the scorer cannot find the answer
        EXPECT_EQ(*cell.log_likelihood_absent, -5);
        EXPECT_LE(cell.input_tokens, length);
        EXPECT_GT(cell.input_tokens, length - 60);  // one sentence has fewer than 60 tokens in each of these tokenizers
      }
      for (const DepthResult& cell : evaluate_passkey(key_reader(tokenizer, 20), *tokenizer, length, options, ""))
        EXPECT_EQ(cell.exact, 0);
    }
    // A scorer that sees only the second half of the context must find exactly the keys in this half.
    const auto half = evaluate_passkey(key_reader(tokenizer, 1000), *tokenizer, 2000, options, "");
    EXPECT_EQ(half[0].exact, 0);
    EXPECT_EQ(half[1].exact, 0);
    EXPECT_EQ(half[3].exact, 3);
    EXPECT_EQ(half[4].exact, 3);
    const int64_t least = min_passkey_length(*tokenizer, options);
    EXPECT_NO_THROW(evaluate_passkey(key_reader(tokenizer, 1 << 20), *tokenizer, least, options, ""));
    EXPECT_THROW(evaluate_passkey(key_reader(tokenizer, 1 << 20), *tokenizer, least - 1, options, ""), Error);
  }
}

TEST(LengthPasskey, Prompt_IsDeterminedBySeed) {
  const auto a = passkey_prompt(10, 0.5, 7);
  EXPECT_EQ(a.text, passkey_prompt(10, 0.5, 7).text);
  EXPECT_NE(a.text, passkey_prompt(10, 0.5, 8).text);
  EXPECT_THAT(a.text, testing::EndsWith("What is the pass key?\nThe pass key is"));
  EXPECT_EQ(a.answer.size(), 6u);
  const std::string needle = "The pass key is" + a.answer + ". ";
  EXPECT_THAT(a.text, testing::HasSubstr(needle));
  // The depth changes only the position of the key; the remaining text is the same. The prompt without the key must not
  // contain any part of the key.
  const auto without = passkey_prompt(10, 0.5, 7, false);
  EXPECT_EQ(without.text.find(a.answer), std::string::npos);
  for (const double depth : {0.0, 0.3, 1.0}) {
    std::string text = passkey_prompt(10, depth, 7).text;
    const size_t at = text.find("The pass key is" + a.answer + ".");
    ASSERT_NE(at, std::string::npos);
    if (depth == 0) {
      EXPECT_EQ(at, text.find('\n') + 2);
    }
    text.erase(at + (depth == 1 ? -1 : 0), needle.size());
    EXPECT_EQ(text, without.text);
  }
}

TEST(LengthRecall, Sequence_ContainsPairsOnceAtDepth) {
  const auto tokenizer = load_tokenizer("bytes");
  const auto vocabulary = recall_vocabulary(*tokenizer, 8);
  EXPECT_EQ(std::count_if(vocabulary.begin(), vocabulary.end(), [](int32_t id) { return id > 255; }),
            0);  // the vocabulary contains neither BOS nor EOS
  for (const std::optional<int32_t> bos : {std::optional<int32_t>(), std::optional<int32_t>(256)}) {
    for (const double depth : {0.0, 0.4, 1.0}) {
      for (const int64_t length : {32, 100}) {
        const RecallSequence s = recall_sequence(vocabulary, length, 8, depth, 5, bos);
        ASSERT_EQ(s.window.input.size(), size_t(length));
        EXPECT_EQ(s.value_targets.size(), 8u);
        std::vector<int32_t> ids = s.window.input;
        ids.push_back(s.window.targets.back());
        const int64_t filler = length + 1 - 32 - (bos ? 1 : 0);
        const auto first = static_cast<size_t>(std::lround(depth * double(filler)) + (bos ? 1 : 0));
        std::set<int32_t> keys, values;
        for (size_t p = 0; p < 8; ++p) {
          keys.insert(ids[first + 2 * p]);
          values.insert(ids[first + 2 * p + 1]);
        }
        EXPECT_EQ(keys.size(), 8u);
        EXPECT_EQ(values.size(), 8u);
        for (size_t i = bos ? 1 : 0; i < ids.size() - 16; ++i) {
          if (i >= first && i < first + 16) continue;
          EXPECT_FALSE(keys.contains(ids[i]) || values.contains(ids[i]));
        }
        // In the list of pairs, the key of each question must be followed by the expected value.
        for (const size_t t : s.value_targets) {
          const size_t at = ids.size() - s.window.targets.size() + t;
          const auto planted = std::find(ids.begin() + static_cast<int64_t>(first), ids.end(), ids[at - 1]);
          EXPECT_EQ(planted[1], s.window.targets[t]);
          values.erase(s.window.targets[t]);
        }
        EXPECT_TRUE(values.empty());
      }
    }
  }
}

TEST(LengthRecall, Induction_ScoresAllAndGuessing_ScoresChance) {
  for (const auto& tokenizer : tokenizers()) {
    SyntheticOptions options;
    options.samples = 4;
    const Scorer induction = stub([](const std::vector<int32_t>& before, int32_t target) {
      for (size_t i = 0; i + 1 < before.size(); ++i) {
        if (before[i] == before.back()) return TargetScore{0, before[i + 1] == target};
      }
      return TargetScore{-3, false};
    });
    for (const DepthResult& cell : evaluate_recall(induction, *tokenizer, 200, options, "")) {
      EXPECT_EQ(cell.trials, 32);
      EXPECT_EQ(cell.exact, 32);
      EXPECT_EQ(cell.log_likelihood, 0);
    }
    // This scorer predicts a random token of the preceding text of 200 tokens, so about one in 200 predictions is
    // correct.
    Random random(1);
    const Scorer guess = stub([&](const std::vector<int32_t>& before, int32_t target) {
      return TargetScore{-3, before[random.below(before.size())] == target};
    });
    int64_t right = 0;
    for (const DepthResult& cell : evaluate_recall(guess, *tokenizer, 200, options, "")) right += cell.exact;
    EXPECT_LT(right, 12);  // of 160 answers, 0.8 are correct on average
  }
  SyntheticOptions options;
  const auto bytes = load_tokenizer("bytes");
  const Scorer none = stub([](const auto&, int32_t) { return TargetScore{}; });
  EXPECT_EQ(min_recall_length(options), 31);
  EXPECT_NO_THROW(evaluate_recall(none, *bytes, 31, options, ""));
  EXPECT_THROW(evaluate_recall(none, *bytes, 30, options, ""), Error);
  options.pairs = 100;  // 100 pairs need four times as many distinct tokens as the tokenizer `bytes` has
  EXPECT_THROW(evaluate_recall(none, *bytes, 1000, options, ""), Error);
}

}  // namespace lazy::eval::length
