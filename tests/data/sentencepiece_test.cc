#include "data/tokenizers/sentencepiece.h"

#include "conformance.h"
#include "core/text.h"

namespace lazy {
using namespace testing_support;

namespace {

std::vector<std::string> training_text() {
  std::vector<std::string> texts;
  Random random(7);
  for (int i = 0; i < 60; ++i) texts.push_back(random_text(random, 200));
  for (int i = 0; i < 60; ++i) {
    texts.push_back("The attention of a model\n    is spread over all the words of its context, number " +
                    std::to_string(i * 37) + ".\n\nSo it is.");
  }
  return texts;
}

const Tokenizer& trained() {
  static const auto tokenizer = train_sentencepiece(training_text(), 420);
  return *tokenizer;
}

}  // namespace

TEST(SentencePiece, TrainedModel_RoundTripsAnyText) {
  Random random(3);
  for (int i = 0; i < 300; ++i) {
    const std::string text = random_text(random, random.below(60)) + (i % 3 ? "" : "\xE2\x96\x81 x \xE2\x96\x81");
    EXPECT_EQ(trained().decode(trained().encode(text)), text) << "text " << i;
  }
  for (const char* text : {" ", "  a", "a ", "\n", "", "\xE2\x96\x81", "<s>", "</s>", "<unk>", "<0x41>"}) {
    EXPECT_EQ(trained().decode(trained().encode(text)), text);
  }
}

TEST(SentencePiece, Pieces_ConcatenateToTheText) {
  const std::string text = "The words of 中 🦙\n  end";
  std::string sum;
  for (const int32_t id : trained().encode(text)) sum += trained().piece(id);
  EXPECT_EQ(sum, text);
}

TEST(SentencePiece, SpecialTokens_HaveExpectedIds) {
  EXPECT_EQ(trained().bos_id(), 1);
  EXPECT_EQ(trained().eos_id(), 2);
  EXPECT_EQ(trained().vocab_size(), 420);
  EXPECT_EQ(trained().decode(std::vector<int32_t>{1, 2}), "<s></s>");
  EXPECT_TRUE(trained().is_special(1) && trained().is_special(2) && !trained().is_special(65));
  EXPECT_THAT(error_of([] { trained().decode(std::vector<int32_t>{420}); }), Names({"id", 420, 0, 419}));
}

TEST(SentencePiece, Digits_AreSeparatePieces) {
  for (const int32_t id : trained().encode("20260917")) EXPECT_EQ(trained().piece(id).size(), 1u);
}

TEST(SentencePiece, Training_IsDeterministic) {
  EXPECT_EQ(train_sentencepiece(training_text(), 420)->fingerprint(), trained().fingerprint());
  EXPECT_NE(train_sentencepiece(training_text(), 400)->fingerprint(), trained().fingerprint());
}

TEST(SentencePiece, SavedFolder_Loads) {
  const Folder folder;
  trained().save(folder / "t");
  const auto loaded = load_tokenizer((folder / "t").string());
  EXPECT_EQ(loaded->fingerprint(), trained().fingerprint());
  EXPECT_EQ(loaded->encode("The attention"), trained().encode("The attention"));
}

TEST(SentencePiece, InvalidUtf8_BecomesReplacementCharacter) {
  EXPECT_EQ(trained().decode(trained().encode("a\xFFz")), "a\xEF\xBF\xBDz");
}

TEST(SentencePiece, InvalidTraining_ErrorNamesReason) {
  EXPECT_THAT(error_of([] { train_sentencepiece({"abc"}, 100); }), Names({100, 259}));
  EXPECT_THAT(error_of([] { train_sentencepiece({"", "\n\n"}, 500); }), Names({"tokenizer"}));
  EXPECT_THAT(error_of([] { train_sentencepiece(training_text(), 262); }), Names({262, "required_chars"}));
}

TEST(SentencePiece, DamagedModel_IsRejected) {
  const Folder folder;
  trained().save(folder.path());
  const std::string model = read_file(folder / "tokenizer.model");
  for (size_t size = 0; size < model.size(); size += 97) {
    const fs::path path = folder.write("cut.model", std::string_view(model).substr(0, size));
    const std::string message = error_of([&] { load_tokenizer(path.string()); });
    // A file that is cut off between two pieces of the vocabulary may be a valid smaller model. If it loads, it must
    // work.
    if (message.empty()) {
      EXPECT_NO_THROW(load_tokenizer(path.string())->encode("The attention"));
    } else {
      EXPECT_THAT(message, Names({"tokenizer", path.string()}));
    }
  }
  const fs::path path = folder.write("text.model", "this is not a model");
  EXPECT_THAT(error_of([&] { load_tokenizer(path.string()); }), Names({path.string(), "SentencePiece"}));
}

TEST(SentencePieceData, Llama2_MatchesReferenceIds) {
  const std::string model = test_data("tokenizers/llama2-tokenizer.model");
  if (model.empty()) GTEST_SKIP() << "LAZY_TEST_DATA does not contain tokenizers/llama2-tokenizer.model";
  const auto tokenizer = load_tokenizer(model);
  expect_conformance(*tokenizer, test_data("tokenizers/conformance"), "llama-spm");
  EXPECT_EQ(tokenizer->vocab_size(), 32000);
}

TEST(SentencePiece, LongText_EncodesLikeItsParts) {
  std::string text;
  Random random(11);
  while (text.size() < 3 << 20) text += random_text(random, 50) + "\n";
  std::vector<int32_t> by_line;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at) + 1;
    const auto ids = trained().encode(std::string_view(text).substr(at, end - at));
    by_line.insert(by_line.end(), ids.begin(), ids.end());
    at = end;
  }
  EXPECT_TRUE(trained().encode(text) == by_line);
}

}  // namespace lazy
