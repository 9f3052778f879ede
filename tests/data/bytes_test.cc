#include "data/tokenizers/bytes.h"

#include "support.h"

namespace lazy {
using namespace testing_support;

TEST(Bytes, EveryByteComesBack) {
  const auto tokenizer = load_tokenizer("bytes");
  std::string text;
  for (int i = 0; i < 512; ++i) text += static_cast<char>(i);
  const auto ids = tokenizer->encode(text);
  EXPECT_EQ(ids.size(), text.size());
  EXPECT_EQ(ids[200], 200);
  EXPECT_EQ(tokenizer->decode(ids), text);
  EXPECT_EQ(tokenizer->bos_id(), 256);
  EXPECT_EQ(tokenizer->eos_id(), 257);
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{256, 'a', 257}), "a");
}

TEST(Bytes, SavedFolderLoads) {
  const Folder folder;
  const auto tokenizer = make_bytes_tokenizer();
  tokenizer->save(folder / "t");
  const auto loaded = load_tokenizer((folder / "t").string());
  EXPECT_EQ(loaded->kind(), "bytes");
  EXPECT_EQ(loaded->fingerprint(), tokenizer->fingerprint());
}

TEST(Bytes, IdOutOfRange) {
  const auto tokenizer = make_bytes_tokenizer();
  EXPECT_EQ(error_of([&] {
              tokenizer->decode(std::vector<int32_t>{1, 258});
            }),
            "tokenizer: id 258 is out of range: expected 0 to 257");
  EXPECT_EQ(error_of([&] { tokenizer->piece(-1); }), "tokenizer: id -1 is out of range: expected 0 to 257");
}

TEST(LoadTokenizer, SaysWhatWasExpected) {
  const Folder folder;
  EXPECT_THAT(error_of([&] { load_tokenizer((folder / "none").string()); }), testing::HasSubstr("found nothing there"));
  EXPECT_THAT(error_of([&] { load_tokenizer(folder.path().string()); }),
              testing::HasSubstr("expected tokenizer.model, tokenizer.json, or vocab.json and merges.txt"));
}

}  // namespace lazy
