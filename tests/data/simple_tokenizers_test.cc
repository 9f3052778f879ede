#include "data/tokenizers/simple_tokenizers.h"

#include "support.h"

namespace lazy {
using namespace testing_support;

TEST(Bytes, Bytes_RoundTripEveryByte) {
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

TEST(Bytes, SavedFolder_Loads) {
  const Folder folder;
  const auto tokenizer = make_bytes_tokenizer();
  tokenizer->save(folder / "t");
  const auto loaded = load_tokenizer((folder / "t").string());
  EXPECT_EQ(loaded->kind(), "bytes");
  EXPECT_EQ(loaded->fingerprint(), tokenizer->fingerprint());
}

TEST(Bytes, IdOutOfRange_IsAnError) {
  const auto tokenizer = make_bytes_tokenizer();
  const std::vector<int32_t> ids = {1, 258};
  EXPECT_THAT(error_of([&] { tokenizer->decode(ids); }),
              IsMessage("tokenizer: id 258 is out of range: expected 0 to 257"));
  EXPECT_THAT(error_of([&] { tokenizer->piece(-1); }), Names({"id", -1, 0, 257}));
}

TEST(Words, Text_IsEncodedAsWordsAndLineEnds) {
  const Folder folder;
  folder.write("vocab.txt", "<eos>\nthe 1801350\n,\n<unk>\ncat\r\nStraße\n");
  const auto tokenizer = load_tokenizer(folder.path().string());
  EXPECT_EQ(tokenizer->kind(), "words");
  EXPECT_EQ(tokenizer->vocab_size(), 6);
  EXPECT_EQ(tokenizer->eos_id(), 0);
  EXPECT_EQ(tokenizer->bos_id(), std::nullopt);
  const std::vector<int32_t> ids = {1, 4, 2, 3, 0, 0, 5, 1};
  EXPECT_EQ(tokenizer->encode(" the\tcat , dog \n\nStraße  the"), ids);
  EXPECT_EQ(tokenizer->decode(ids), "the cat , <unk> \n\nStraße the ");
  EXPECT_EQ(tokenizer->encode(tokenizer->decode(ids)), ids);
  EXPECT_TRUE(tokenizer->encode(" ").empty());
  EXPECT_THAT(error_of([&] { tokenizer->piece(6); }), Names({"id", 6}));

  tokenizer->save(folder / "saved");
  const auto again = load_tokenizer((folder / "saved").string());
  EXPECT_EQ(again->fingerprint(), tokenizer->fingerprint());
  EXPECT_EQ(again->encode("cat Straße"), (std::vector<int32_t>{4, 5}));
  folder.write("other.txt", "<eos>\nthe\n,\n<unk>\ncat\nStrasse\n");
  EXPECT_NE(load_tokenizer((folder / "other.txt").string())->fingerprint(), tokenizer->fingerprint());
}

// The original vocabulary file of Transformer-XL is a pickle. Opening a pickle can run arbitrary code, so it must be
// rejected.
TEST(Words, Pickle_IsNotOpened) {
  const Folder folder;
  for (const char* name : {"vocab.pkl", "vocab.bin"}) {
    folder.write(name, "\x80\x03.");
    EXPECT_THAT(error_of([&] { load_tokenizer(folder.path().string()); }),
                Names({std::string(name), "vocab.txt", "docs/guides/models.md"}));
  }
  folder.write("vocab.txt", "<eos>\n<unk>\n");
  EXPECT_EQ(load_tokenizer(folder.path().string())->vocab_size(), 2);
}

TEST(Words, InvalidList_IsRejected) {
  const Folder folder;
  const auto error = [&](const std::string& list) {
    folder.write("vocab.txt", list);
    return error_of([&] { load_tokenizer(folder.path().string()); });
  };
  EXPECT_THAT(error("<eos>\na\n<unk>\na\n"), Names({"vocab.txt", 4, "a", 2}));
  EXPECT_THAT(error("<eos>\n\n<unk>\n"), Names({"vocab.txt", 2}));
  for (const char* list : {"<eos>\na\n", "<unk>\na\n", ""}) {
    EXPECT_THAT(error(list), Names({"vocab.txt", "<eos>", "<unk>"})) << list;
  }
}

}  // namespace lazy
