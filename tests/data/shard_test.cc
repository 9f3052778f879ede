#include "data/shards/shard.h"

#include <cstring>

#include "data/shards/corpus.h"
#include "support.h"

namespace lazy {
using namespace testing_support;
using testing::HasSubstr;

namespace {

std::vector<std::vector<int32_t>> some_documents(int64_t vocab_size, int count) {
  Random random(vocab_size);
  std::vector<std::vector<int32_t>> documents;
  for (int i = 0; i < count; ++i) {
    std::vector<int32_t> document(random.below(50));
    for (int32_t& id : document) id = static_cast<int32_t>(random.below(vocab_size));
    documents.push_back(std::move(document));
  }
  return documents;
}

ShardHeader write_shard(const fs::path& path, int64_t vocab_size, int count) {
  ShardWriter writer(path, {.fingerprint = 77, .vocab_size = vocab_size, .bos_id = 1, .eos_id = 2});
  for (const auto& document : some_documents(vocab_size, count)) writer.add(document, 3 * document.size());
  return writer.close();
}

// The header changed and its checksum made right again: what a wrong writer would leave.
std::string with_header(std::string file, const std::function<void(ShardHeader&)>& change) {
  ShardHeader header;
  std::memcpy(&header, file.data(), sizeof header);
  change(header);
  header.header_checksum = header_checksum(header);
  std::memcpy(file.data(), &header, sizeof header);
  return file;
}

}  // namespace

TEST(Shard, GivesBackWhatWasWritten) {
  const Folder folder;
  for (const int64_t vocab_size : {300, 65536, 65537, 200000}) {
    const auto path = folder / "s.bin";
    const ShardHeader header = write_shard(path, vocab_size, 100);
    const Shard shard(path);
    shard.verify();
    const auto documents = some_documents(vocab_size, 100);
    ASSERT_EQ(shard.documents(), 100);
    int64_t tokens = 0;
    for (int64_t d = 0; d < 100; ++d) {
      EXPECT_EQ(shard.document(d), documents[d]);
      tokens += static_cast<int64_t>(documents[d].size());
    }
    EXPECT_EQ(shard.tokens(), tokens);
    EXPECT_EQ(header.source_bytes, 3u * tokens);
    EXPECT_EQ(shard.header().token_bytes, vocab_size <= 65536 ? 2u : 4u);
    EXPECT_EQ(shard.header().tokenizer_fingerprint, 77u);
  }
}

TEST(Shard, LayoutIsAsDocumented) {
  const Folder folder;
  {
    ShardWriter writer(folder / "s.bin", {.fingerprint = 0x0102030405060708, .vocab_size = 1000, .bos_id = 5});
    writer.add(std::vector<int32_t>{258, 3, 999}, 10);
    writer.add(std::vector<int32_t>{}, 0);
    writer.close();
  }
  const std::string file = read_file(folder / "s.bin");
  ASSERT_EQ(file.size(), 128u + 8 + 3 * 8);
  EXPECT_EQ(file.substr(0, 12), std::string("LAZYSHRD\1\0\0\0", 12));
  EXPECT_EQ(file.substr(48, 8), "\x08\x07\x06\x05\x04\x03\x02\x01");
  EXPECT_EQ(file.substr(128, 8), std::string("\2\1\3\0\xE7\3\0\0", 8));
  EXPECT_EQ(file.substr(136), std::string("\0\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0", 24));
}

TEST(Shard, EveryTruncationIsAnError) {
  const Folder folder;
  write_shard(folder / "s.bin", 300, 20);
  const std::string file = read_file(folder / "s.bin");
  for (size_t size = 0; size < file.size(); size += size < 130 ? 1 : 13) {
    const auto path = folder.write("cut.bin", std::string_view(file).substr(0, size));
    EXPECT_THAT(error_of([&] { Shard{path}; }), testing::StartsWith("shard: " + path.string())) << size;
  }
  EXPECT_THAT(error_of([&] { Shard{folder.write("long.bin", file + "x")}; }), HasSubstr("longer than its header says"));
}

TEST(Shard, EveryFlippedByteIsFound) {
  const Folder folder;
  write_shard(folder / "s.bin", 300, 20);
  const std::string file = read_file(folder / "s.bin");
  const uint64_t tokens_end = 128 + Shard(folder / "s.bin").tokens() * 2;
  const uint64_t index = Shard(folder / "s.bin").header().index_offset;
  for (size_t at = 0; at < file.size(); ++at) {
    if (at >= tokens_end && at < index) continue;  // padding says nothing
    std::string flipped = file;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    const auto path = folder.write("flipped.bin", flipped);
    EXPECT_NE(error_of([&] { Shard(path).verify(); }), "") << "byte " << at;
  }
}

TEST(Shard, WrongFieldsAreNamed) {
  const Folder folder;
  write_shard(folder / "s.bin", 300, 20);
  const std::string file = read_file(folder / "s.bin");
  const auto message = [&](const std::function<void(ShardHeader&)>& change) {
    return error_of([&] { Shard(folder.write("w.bin", with_header(file, change))).verify(); });
  };
  EXPECT_THAT(message([](ShardHeader& h) { h.magic[0] = 'X'; }), HasSubstr("not a shard of `lazy data prepare`"));
  EXPECT_THAT(message([](ShardHeader& h) { h.version = 9; }), HasSubstr("version: expected 1, found 9"));
  EXPECT_THAT(message([](ShardHeader& h) { h.header_bytes = 64; }), HasSubstr("header_bytes: expected 128, found 64"));
  EXPECT_THAT(message([](ShardHeader& h) { h.token_bytes = 4; }), HasSubstr("token_bytes: expected 2, found 4"));
  EXPECT_THAT(message([](ShardHeader& h) { h.vocab_size = 0; }), HasSubstr("vocab_size: expected a positive number"));
  EXPECT_THAT(message([](ShardHeader& h) { h.tokens = 1ull << 60; }),
              HasSubstr("header claims 1152921504606846976 tokens"));
  EXPECT_THAT(message([](ShardHeader& h) { h.documents = UINT64_MAX; }), HasSubstr("header claims"));
  EXPECT_THAT(message([](ShardHeader& h) { h.index_offset += 8; }), HasSubstr("index_offset: expected"));
  EXPECT_THAT(message([](ShardHeader& h) { h.vocab_size = 200; }), HasSubstr("is outside the vocabulary of 200"));
  EXPECT_THAT(message([](ShardHeader& h) { h.tokens_checksum ^= 1; }), HasSubstr("checksum of the tokens"));
  EXPECT_THAT(message([](ShardHeader& h) { h.index_checksum ^= 1; }), HasSubstr("checksum of the document index"));
  EXPECT_THAT(message([](ShardHeader& h) { h.bos_id = static_cast<int32_t>(h.vocab_size); }),
              HasSubstr("bos_id: expected -1 (none) to"));
  EXPECT_THAT(message([](ShardHeader& h) { h.eos_id = -2; }), HasSubstr("eos_id: expected -1 (none) to"));
  std::string unsigned_header = file;
  unsigned_header[40] ^= 1;
  EXPECT_THAT(error_of([&] { Shard{folder.write("w.bin", unsigned_header)}; }), HasSubstr("header checksum"));
}

TEST(Shard, TheWriterRefusesIdsOutOfRange) {
  const Folder folder;
  ShardWriter writer(folder / "s.bin", {.vocab_size = 10});
  EXPECT_THROW(writer.add(std::vector<int32_t>{10}, 1), RunError);
  EXPECT_THROW(writer.add(std::vector<int32_t>{-1}, 1), RunError);
  EXPECT_THAT(error_of([&] { Shard{folder / "s.bin"}; }), HasSubstr("shard: "));  // unfinished: not a shard
}

TEST(BlockChecksum, DoesNotDependOnTheParts) {
  std::string data((5 << 20) + 123, '\0');
  Random random(4);
  for (char& c : data) c = static_cast<char>(random.next());
  BlockChecksum whole;
  whole.add(data.data(), data.size());
  BlockChecksum parts;
  for (size_t at = 0; at < data.size();) {
    const size_t n = std::min<size_t>(data.size() - at, 1 + random.below(1 << 19));
    parts.add(data.data() + at, n);
    at += n;
  }
  EXPECT_EQ(parts.finish(), whole.finish());
}

TEST(Corpus, MalformedInfoNamesTheField) {
  const Folder folder;
  CorpusInfo info;
  info.tokenizer_kind = "bytes";
  info.tokenizer = {.fingerprint = 77, .vocab_size = 300, .bos_id = 1, .eos_id = 2};
  const ShardHeader h = write_shard(folder / "train-00000.bin", 300, 20);
  info.splits["train"] = {
      {"train-00000.bin"}, 20, static_cast<int64_t>(h.tokens), static_cast<int64_t>(h.source_bytes)};
  write_corpus_info(folder.path(), info);
  EXPECT_EQ(open_shards(folder.path(), "train").size(), 1u);
  EXPECT_THAT(error_of([&] { open_shards(folder.path(), "test"); }),
              HasSubstr("split \"test\": expected one of train"));

  const std::string good = read_file(folder / "corpus.json");
  const auto message = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    folder.write("corpus.json", text);
    return error_of([&] { open_shards(folder.path(), "train"); });
  };
  EXPECT_THAT(message("lazy-corpus", "other"), HasSubstr("format: expected \"lazy-corpus\", found \"other\""));
  EXPECT_THAT(message("\"version\": 1", "\"version\": 8"), HasSubstr("version: expected 1, found 8"));
  EXPECT_THAT(message("\"version\": 1", "\"version\": \"1\""), HasSubstr("version: expected a number, found \"1\""));
  EXPECT_THAT(message("000000000000004d", "xyz"), HasSubstr("tokenizer.fingerprint: expected 16 hexadecimal digits"));
  EXPECT_THAT(message("000000000000004d", "000000000000004e"),
              HasSubstr("made with tokenizer 000000000000004d of 300"));
  EXPECT_THAT(message("\"documents\": 20", "\"documents\": 21"), HasSubstr("in 21 documents, the shards hold"));
  EXPECT_THAT(message("\"splits\"", "\"spl\""), HasSubstr("splits: expected an object, the field is missing"));
  EXPECT_THAT(message("train-00000.bin", "train-00007.bin"), HasSubstr("train-00007.bin"));
  EXPECT_THAT(message("\"documents\": 20", "\"documents\": 1e300"),
              HasSubstr("documents: expected a number, found 1e+300"));
  EXPECT_THAT(message("\"bos_id\": 1", "\"bos_id\": 4294967297"),
              HasSubstr("bos_id: expected a number, found 4294967297"));
  for (const char* name : {"../train-00000.bin", "/etc/passwd", "", "..", "a/b"}) {  // files of its own only
    EXPECT_THAT(message("train-00000.bin", name), HasSubstr("splits.train.shards: expected plain file names, found"))
        << name;
  }
  EXPECT_THAT(message("{", ""), HasSubstr("corpus.json: expected a JSON object"));
  EXPECT_THAT(error_of([&] { open_shards(folder / "nowhere", "train"); }), HasSubstr("found nothing"));
}

}  // namespace lazy
