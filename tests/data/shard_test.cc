#include "data/shards/shard.h"

#include <cstring>

#include "data/shards/corpus.h"
#include "support.h"

namespace lazy {
using namespace testing_support;

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

// Changes the header and recomputes its checksum. Such a file could be the result of a bug in the writer.
std::string with_header(std::string file, const std::function<void(ShardHeader&)>& change) {
  ShardHeader header;
  std::memcpy(&header, file.data(), sizeof header);
  change(header);
  header.header_checksum = header_checksum(header);
  std::memcpy(file.data(), &header, sizeof header);
  return file;
}

}  // namespace

TEST(Shard, WrittenShard_ReadsBack) {
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

TEST(Shard, FileLayout_MatchesDocumentation) {
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

TEST(Shard, TruncatedFile_IsAnError) {
  const Folder folder;
  write_shard(folder / "s.bin", 300, 20);
  const std::string file = read_file(folder / "s.bin");
  for (size_t size = 0; size < file.size(); size += size < 130 ? 1 : 13) {
    const auto path = folder.write("cut.bin", std::string_view(file).substr(0, size));
    EXPECT_THAT(error_of([&] { Shard{path}; }), Names({"shard", path.string()})) << size;
  }
  const auto cut = folder.write("cut.bin", std::string_view(file).substr(0, file.size() - 1));
  EXPECT_THAT(error_of([&] { Shard{cut}; }),
              IsMessage(fmt::format("shard: {}: expected {} bytes, found {}: the file is truncated", cut.string(),
                                    file.size(), file.size() - 1)));
  EXPECT_THAT(error_of([&] { Shard{folder.write("long.bin", file + "x")}; }),
              Names({"long.bin", file.size(), file.size() + 1}));
}

TEST(Shard, FlippedByte_IsDetected) {
  const Folder folder;
  write_shard(folder / "s.bin", 300, 20);
  const std::string file = read_file(folder / "s.bin");
  const uint64_t tokens_end = 128 + Shard(folder / "s.bin").tokens() * 2;
  const uint64_t index = Shard(folder / "s.bin").header().index_offset;
  for (size_t at = 0; at < file.size(); ++at) {
    if (at >= tokens_end && at < index) continue;  // padding bytes are not covered by a checksum
    std::string flipped = file;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    const auto path = folder.write("flipped.bin", flipped);
    EXPECT_NE(error_of([&] { Shard(path).verify(); }), "") << "byte " << at;
  }
}

TEST(Shard, WrongHeaderField_ErrorNamesField) {
  const Folder folder;
  write_shard(folder / "s.bin", 300, 20);
  const std::string file = read_file(folder / "s.bin");
  const ShardHeader written = Shard(folder / "s.bin").header();
  const auto message = [&](const std::function<void(ShardHeader&)>& change) {
    return error_of([&] { Shard(folder.write("w.bin", with_header(file, change))).verify(); });
  };
  const auto hex = [](uint64_t checksum) { return fmt::format("{:016x}", checksum); };
  int32_t largest = 0;
  for (const auto& document : some_documents(300, 20)) {
    for (const int32_t id : document) largest = std::max(largest, id);
  }
  EXPECT_THAT(message([](ShardHeader& h) { h.magic[0] = 'X'; }), Names({"w.bin", "LAZYSHRD"}));
  EXPECT_THAT(message([](ShardHeader& h) { h.version = 9; }), Names({"version", 1, 9}));
  EXPECT_THAT(message([](ShardHeader& h) { h.header_bytes = 64; }), Names({"header_bytes", 128, 64}));
  EXPECT_THAT(message([](ShardHeader& h) { h.token_bytes = 4; }), Names({"token_bytes", 2, 4}));
  EXPECT_THAT(message([](ShardHeader& h) { h.vocab_size = 0; }), Names({"vocab_size", 0}));
  EXPECT_THAT(message([](ShardHeader& h) { h.tokens = 1ull << 60; }), Names({1ull << 60, file.size()}));
  EXPECT_THAT(message([](ShardHeader& h) { h.documents = UINT64_MAX; }),
              Names({std::to_string(UINT64_MAX), file.size()}));
  EXPECT_THAT(message([](ShardHeader& h) { h.index_offset += 8; }),
              Names({"index_offset", written.index_offset, written.index_offset + 8}));
  EXPECT_THAT(message([](ShardHeader& h) { h.vocab_size = 200; }), Names({"id", largest, 200}));
  EXPECT_THAT(message([](ShardHeader& h) { h.tokens_checksum ^= 1; }),
              Names({hex(written.tokens_checksum ^ 1), hex(written.tokens_checksum)}));
  EXPECT_THAT(message([](ShardHeader& h) { h.index_checksum ^= 1; }),
              Names({hex(written.index_checksum ^ 1), hex(written.index_checksum)}));
  EXPECT_THAT(message([](ShardHeader& h) { h.bos_id = static_cast<int32_t>(h.vocab_size); }),
              Names({"bos_id", -1, 299, 300}));
  EXPECT_THAT(message([](ShardHeader& h) { h.eos_id = -2; }), Names({"eos_id", -1, 299, -2}));
  std::string unsigned_header = file;
  unsigned_header[40] ^= 1;
  EXPECT_THAT(error_of([&] { Shard{folder.write("w.bin", unsigned_header)}; }),
              Names({"w.bin", hex(written.header_checksum)}));
}

TEST(Shard, Writer_RejectsIdsOutOfRange) {
  const Folder folder;
  ShardWriter writer(folder / "s.bin", {.vocab_size = 10});
  EXPECT_THROW(writer.add(std::vector<int32_t>{10}, 1), RunError);
  EXPECT_THROW(writer.add(std::vector<int32_t>{-1}, 1), RunError);
  // a file that the writer has not finished must be rejected
  EXPECT_THAT(error_of([&] { Shard{folder / "s.bin"}; }), Names({"shard", "s.bin"}));
}

TEST(BlockChecksum, Checksum_DoesNotDependOnPartSizes) {
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

TEST(Corpus, MalformedCorpusJson_ErrorNamesField) {
  const Folder folder;
  CorpusInfo info;
  info.tokenizer_kind = "bytes";
  info.tokenizer = {.fingerprint = 77, .vocab_size = 300, .bos_id = 1, .eos_id = 2};
  const ShardHeader h = write_shard(folder / "train-00000.bin", 300, 20);
  info.splits["train"] = {
      {"train-00000.bin"}, 20, static_cast<int64_t>(h.tokens), static_cast<int64_t>(h.source_bytes)};
  write_corpus_info(folder.path(), info);
  EXPECT_EQ(open_shards(folder.path(), "train").size(), 1u);
  EXPECT_THAT(error_of([&] { open_shards(folder.path(), "test"); }), Names({"split", "test", "train"}));

  const std::string good = read_file(folder / "corpus.json");
  const auto message = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    folder.write("corpus.json", text);
    return error_of([&] { open_shards(folder.path(), "train"); });
  };
  EXPECT_THAT(message("lazy-corpus", "other"), Names({"corpus.json", "format", "lazy-corpus", "other"}));
  EXPECT_THAT(message("\"version\": 1", "\"version\": 8"), Names({"corpus.json", "version", 1, 8}));
  EXPECT_THAT(message("\"version\": 1", "\"version\": \"1\""), Names({"corpus.json", "version", "\"1\""}));
  EXPECT_THAT(message("000000000000004d", "xyz"), Names({"tokenizer.fingerprint", 16, "xyz"}));
  EXPECT_THAT(message("000000000000004d", "000000000000004e"),
              Names({"train-00000.bin", "000000000000004d", "000000000000004e", 300}));
  EXPECT_THAT(message("\"documents\": 20", "\"documents\": 21"), Names({"corpus.json", "train", h.tokens, 21, 20}));
  EXPECT_THAT(message("\"splits\"", "\"spl\""), Names({"corpus.json", "splits"}));
  EXPECT_THAT(message("train-00000.bin", "train-00007.bin"), Names({"train-00007.bin"}));
  EXPECT_THAT(message("\"documents\": 20", "\"documents\": 1e300"), Names({"documents", "1e+300"}));
  EXPECT_THAT(message("\"bos_id\": 1", "\"bos_id\": 4294967297"), Names({"bos_id", 4294967297}));
  // names of shards outside of the corpus folder must be rejected
  for (const char* name : {"../train-00000.bin", "/etc/passwd", "", "..", "a/b"}) {
    EXPECT_THAT(message("train-00000.bin", name), Names({"splits.train.shards", "\"" + std::string(name) + "\""}));
  }
  EXPECT_THAT(message("{", ""), Names({"corpus.json", "JSON"}));
  EXPECT_THAT(error_of([&] { open_shards(folder / "nowhere", "train"); }), Names({(folder / "nowhere").string()}));
}

}  // namespace lazy
