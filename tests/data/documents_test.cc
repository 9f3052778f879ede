#include "data/corpus/documents.h"

#include <nlohmann/json.hpp>

#include "compressed.h"
#include "core/text.h"
#include "support.h"

namespace lazy {
using namespace testing_support;
using testing::ElementsAre;

namespace {

std::vector<std::string> documents(const std::vector<std::string>& inputs, const DocumentOptions& options = {},
                                   int64_t* replaced = nullptr) {
  DocumentReader reader(find_sources(inputs, TextFormat::plain), options);
  std::vector<std::string> all;
  RawBatch batch;
  while (reader.next(batch)) {
    DocumentBatch found = extract_documents(std::move(batch), options);
    if (replaced) *replaced += found.replaced;
    for (std::string& document : found.documents) all.push_back(std::move(document));
    batch = {};
  }
  return all;
}

}  // namespace

TEST(Documents, Folder_FilesAreDocumentsInSortedOrder) {
  const Folder folder;
  folder.write("b.txt", "second\n");
  folder.write("a/z.txt", "first");
  folder.write("c.jsonl", "{\"text\": \"third\"}\n\n{\"text\": \"fourth\", \"id\": 4}");
  folder.write("ignored.bin", "no");
  folder.write("empty.txt", "");
  EXPECT_THAT(documents({folder.path().string()}), ElementsAre("first", "second\n", "third", "fourth"));
}

TEST(Documents, CompressedFile_ReadsLikePlainFile) {
  const Folder folder;
  std::string text;
  Random random(1);
  while (text.size() < 5 << 20) text += random_text(random, 100);
  const std::string plain = folder.write("a.txt", text).string();
  const std::string gz = folder.write("a.txt.gz", gzip(text)).string();
  const std::string two = folder.write("two.txt.gz", gzip(text) + gzip(text)).string();
  const std::string zst = folder.write("a.txt.zst", zstd(text) + zstd("")).string();
  const auto expected = documents({plain});
  EXPECT_TRUE(documents({gz}) == expected);
  EXPECT_TRUE(documents({zst}) == expected);
  EXPECT_EQ(documents({two})[0].size(), 2 * expected[0].size());
}

TEST(Documents, TruncatedArchive_ErrorNamesFile) {
  const Folder folder;
  std::string text;
  Random random(1);
  while (text.size() < 300000) text += random_text(random, 100);
  struct Case {
    const char* name;
    std::string kind, archive;
  };
  for (const auto& [name, kind, archive] :
       std::vector<Case>{{"t.txt.gz", "gzip", gzip(text)}, {"t.txt.zst", "zstd", zstd(text)}}) {
    for (const size_t size : {archive.size() - 1, archive.size() / 2, size_t{20}, size_t{5}}) {
      const auto path = folder.write(name, archive.substr(0, size)).string();
      EXPECT_THAT(error_of([&] { documents({path}); }), Names({"data", path, kind})) << size;
    }
    std::string damaged = archive;
    for (size_t i = 100; i < 140; ++i) damaged[i] = static_cast<char>(~damaged[i]);
    const auto path = folder.write(name, damaged).string();
    EXPECT_THAT(error_of([&] { documents({path}); }), Names({path, kind}));
    folder.write(name, "plain text");
    EXPECT_THAT(error_of([&] { documents({path}); }), Names({path, kind}));
  }
}

TEST(Documents, FileFormat_IsDetectedFromFirstBytes) {
  using namespace std::literals;
  const Folder folder;
  const auto text_of = [&](const std::string& name, const std::string& content) {
    return documents({folder.write(name, content).string()});
  };
  const std::string skippable = "\x50\x2A\x4D\x18\x04\0\0\0abcd"s;
  EXPECT_THAT(text_of("a.txt", skippable + zstd("hello")), ElementsAre("hello"));
  EXPECT_THAT(text_of("b.txt.zst", zstd("he") + skippable + zstd("llo")), ElementsAre("hello"));
  EXPECT_THAT(text_of("c.txt", gzip("hello") + std::string(700, '\0')), ElementsAre("hello"));
  EXPECT_THAT(text_of("u16le.txt", "\xFF\xFEh\0\x16\x4E\x3D\xD8\0\xDE\n\0"s), ElementsAre("h世😀\n"));
  EXPECT_THAT(text_of("u16be.txt", "\xFE\xFF\0h\x4E\x16\xD8\x3D\xDE\0\0\n"s), ElementsAre("h世😀\n"));
  EXPECT_THAT(text_of("u32.txt", "\xFF\xFE\0\0h\0\0\0\0\xF6\1\0"s), ElementsAre("h😀"));
  EXPECT_THAT(text_of("lone.txt", "\xFF\xFE\x3D\xD8h\0x"s), ElementsAre("\xEF\xBF\xBDh\xEF\xBF\xBD"));
  EXPECT_THAT(text_of("u16.txt.gz", gzip("\xFF\xFEh\0i\0"s)), ElementsAre("hi"));
  std::string wide = "\xFF\xFE", narrow;
  for (int i = 0; i < 3'000'000; ++i) wide += "\x16\x4E", narrow += "世";
  EXPECT_TRUE(text_of("long.txt", wide) == std::vector<std::string>{narrow});
  for (const auto& [content, found] : std::vector<std::pair<std::string, std::string>>{{"\xFD"
                                                                                        "7zXZ\0rest"s,
                                                                                        "xz"},
                                                                                       {"BZh91AY", "bzip2"},
                                                                                       {"PK\3\4rest", "zip"},
                                                                                       {"PAR1rest", "Parquet"},
                                                                                       {"some\0text"s, "NUL"},
                                                                                       {gzip("\0x"s), "NUL"}}) {
    const auto path = folder.write("x.txt", content).string();
    EXPECT_THAT(error_of([&] { documents({path}); }), Names({path, found})) << found;
  }
  const auto path = folder.write("y.txt.gz", gzip("hello") + "rest").string();
  EXPECT_THAT(error_of([&] { documents({path}); }), Names({path, std::string("gzip")}));
}

TEST(Documents, NulByteAfterTheFirstBlock_IsRejected) {
  const Folder folder;
  const std::string text(3 << 20, 'a');
  for (const std::string& content : {text + '\0', gzip(text + '\0')}) {
    const auto path = folder.write("late.txt", content).string();
    EXPECT_THAT(error_of([&] { documents({path}); }), Names({path, std::string("NUL"), 3 << 20}));
  }
}

TEST(ReadText, File_IsDecodedOrRejectedWithThePosition) {
  using namespace std::literals;
  const Folder folder;
  const auto text_of = [&](const std::string& content) { return read_text(folder.write("x", content)); };
  EXPECT_EQ(text_of("caf\u00e9 \U0001F600\n"), "caf\u00e9 \U0001F600\n");
  EXPECT_EQ(text_of(""), "");
  EXPECT_EQ(text_of("\xEF\xBB\xBFtext"), "text");
  EXPECT_EQ(text_of(gzip("hello")), "hello");
  EXPECT_EQ(text_of("\xFF\xFEh\0i\0"s), "hi");
  const auto path = (folder / "x").string();
  const std::string ascii(2 << 20, 'a');
  for (const auto& [content, at] : std::vector<std::pair<std::string, size_t>>{
           {"caf\xE9 au lait", 3}, {ascii + "\u00e9\xC3", ascii.size() + 2}, {"\xED\xA0\x80", 0}, {"ab\xC0\x80", 2}}) {
    EXPECT_THAT(error_of([&] { text_of(content); }), Names({path, std::string("UTF-8"), at}));
  }
  EXPECT_THAT(error_of([&] { text_of("some\0text"s); }), Names({path, std::string("NUL"), 4}));
  EXPECT_THAT(error_of([&] { read_text(folder / "missing"); }), Names({std::string("missing")}));
}

TEST(Documents, SplitBlank_SplitsAtBlankLines) {
  const Folder folder;
  const auto path = folder.write("a.txt", "\n\none\n\nstill one\n\n \t\r\n\ntwo\n\n\n\n").string();
  EXPECT_THAT(documents({path}, {.split_blank = 2}), ElementsAre("one\n\nstill one\n", "two\n"));
  EXPECT_THAT(documents({path}, {.split_blank = 1}), ElementsAre("one\n", "still one\n", "two\n"));
  EXPECT_THAT(documents({path}, {.split_blank = 9}), ElementsAre("\n\none\n\nstill one\n\n \t\r\n\ntwo\n"));
}

TEST(Documents, Splits_DoNotDependOnReadSize) {
  const Folder folder;
  std::string text;
  std::vector<std::string> expected;
  for (int i = 0; i < 40000; ++i) {
    expected.push_back("document " + std::to_string(i) + "\n\nwith two paragraphs of some length, and more words\n");
    text += expected.back() + "\n\n";
  }
  // The blank lines at the end of the file do not belong to the last document.
  EXPECT_TRUE(documents({folder.write("a.txt", text).string()}, {.split_blank = 2}) == expected);
}

TEST(Documents, LongDocument_IsCut) {
  const Folder folder;
  const auto path = folder.write("a.txt", "aaaa bbbb\n\ncccc dddd\neeee ffff gggg").string();
  const auto cut = documents({path}, {.max_bytes = 12});
  EXPECT_THAT(cut, ElementsAre("aaaa bbbb\n\n", "cccc dddd\n", "eeee ffff ", "gggg"));
  const auto wide = folder.write("b.txt", "文字文字文字").string();
  EXPECT_THAT(documents({wide}, {.max_bytes = 7}), ElementsAre("文字", "文字", "文字"));
  for (const int64_t limit : {1, 2, 3}) {  // a character is never cut, even if it is longer than the limit
    EXPECT_THAT(documents({wide}, {.max_bytes = limit}), ElementsAre("文", "字", "文", "字", "文", "字")) << limit;
  }
  const auto narrow = folder.write("c.txt", "a\n\nb").string();
  EXPECT_THAT(documents({narrow}, {.max_bytes = 1}), ElementsAre("a", "\n", "\n", "b"));
}

TEST(Documents, JsonLinesError_NamesFileLineAndField) {
  const Folder folder;
  const auto message = [&](const std::string& content, const std::string& field = "text") {
    const auto path = folder.write("x.jsonl", content).string();
    const std::string error = error_of([&] { documents({path}, {.text_field = field, .strict = true}); });
    EXPECT_EQ(error.find('\n'), std::string::npos);
    return error;
  };
  EXPECT_THAT(message("{\"text\": \"ok\"}\n\n{\"text\": \"cut\n"),
              Names({"x.jsonl:3", "JSON", std::string("{\"text\": \"cut")}));
  EXPECT_THAT(message("[1]\n"), Names({"x.jsonl:1", "JSON", "array"}));
  EXPECT_THAT(
      message("{\"text\": \"ok\"}\n{\"body\": \"b\", \"id\": 1}\n"),
      IsMessage("data: " + (folder / "x.jsonl").string() + ":2: field \"text\" is missing; the line has body, id"));
  EXPECT_THAT(message("{\"text\": 5}"), Names({"x.jsonl:1", "\"text\"", "number"}));
  EXPECT_THAT(message("{\"body\": null}", "body"), Names({"x.jsonl:1", "\"body\"", "null"}));
}

// The string of a JSON line is decoded in parts if it has at least 16 MiB.
TEST(Documents, LongTextInLine_IsDecodedInParts) {
  const Folder folder;
  Random random(9);
  std::string text;
  while (text.size() < (17 << 20)) text += random_text(random, 500) + "\"\\\n\t/";
  text = to_valid_utf8(text);
  const auto read = [&](const std::string& line) {
    return documents({folder.write("a.jsonl", line + "\n{\"text\": \"next\"}\n").string()});
  };
  // ascii: whether characters outside of ASCII are written as escapes such as \uD83D\uDE42
  for (const bool ascii : {false, true}) {
    const std::string dumped = nlohmann::json(text).dump(-1, ' ', ascii);
    for (const std::string& line :
         {"{\"text\": " + dumped + "}", "{\"a\": \"\\\"\", \"text\":" + dumped + ", \"z\": [1]}"}) {
      const auto found = read(line);
      ASSERT_EQ(found.size(), 2u);
      EXPECT_TRUE(found[0] == text);
    }
    EXPECT_THAT(read("{\"other\": " + dumped + ", \"text\": \"short\"}"), ElementsAre("short", "next"));
    EXPECT_THAT(read("{\"text\": [" + dumped + "]}"), ElementsAre("next"));
    EXPECT_THAT(read("{\"text\": " + dumped), ElementsAre("next"));  // this line is not valid JSON and is skipped
    EXPECT_THAT(read("{\"text\": \"\t" + dumped.substr(1) + "}"), ElementsAre("next"));
  }
  const auto surrogate = read("{\"text\": \"" + std::string(17 << 20, 'x') + "\\ud83d\"}");
  EXPECT_TRUE(surrogate[0].ends_with("x\uFFFD"));
}

TEST(Documents, PythonJsonLines_AreRead) {
  const Folder folder;
  const auto path = folder
                        .write("x.jsonl",
                               "{\"text\": \"a \\ud83d b\"}\n{\"text\": \"c\", \"score\": NaN, \"n\": 1e999}\n"
                               "{\"text\": \"d\", \"x\": [-Infinity, \"\\udc00\"]}\n")
                        .string();
  EXPECT_THAT(documents({path}, {.strict = true}), ElementsAre("a \xEF\xBF\xBD b", "c", "d"));
}

TEST(Documents, LineWithoutText_IsSkippedAndCounted) {
  const Folder folder;
  const auto path = folder
                        .write("x.jsonl",
                               "{\"text\": null}\n{\"id\": 1}\n{\"text\": \"b\"}\n[1]\n5\n{\"text\": 5}\n"
                               "{\"text\": \"cut")
                        .string();
  DocumentReader reader(find_sources({path}, TextFormat::plain), {});
  RawBatch raw;
  ASSERT_TRUE(reader.next(raw));
  const DocumentBatch batch = extract_documents(std::move(raw), reader.options());
  EXPECT_THAT(batch.documents, ElementsAre("b"));
  EXPECT_EQ(batch.left_out, 6);
  EXPECT_THAT(batch.first_left_out, Names({"x.jsonl:1", "\"text\"", "null"}));
}

TEST(Documents, InvalidUtf8_IsReplacedAndCounted) {
  const Folder folder;
  int64_t replaced = 0;
  folder.write("a.txt", "\xEF\xBB\xBFgood \xFF bad \xC3");
  folder.write("b.jsonl", "{\"text\": \"x\xFEy \xEF\xBF\xBD\"}");
  EXPECT_THAT(documents({folder.path().string()}, {}, &replaced),
              ElementsAre("good \xEF\xBF\xBD bad \xEF\xBF\xBD", "x\xEF\xBF\xBDy \xEF\xBF\xBD"));
  EXPECT_EQ(replaced, 3);
}

TEST(Sources, MissingInput_ErrorNamesIt) {
  const Folder folder;
  EXPECT_THAT(error_of([&] { find_sources({(folder / "none.txt").string()}, TextFormat::plain); }),
              Names({(folder / "none.txt").string()}));
  EXPECT_THAT(error_of([&] { find_sources({folder.path().string()}, TextFormat::plain); }),
              Names({folder.path().string(), ".txt", ".jsonl", ".parquet", "--code"}));
  EXPECT_THAT(error_of([&] { find_sources({"-", "-"}, TextFormat::plain); }), Names({"data", "-"}));
}

TEST(Sources, FileExtension_SelectsFormatIgnoringCase) {
  const Folder folder;
  const auto format = [&](const std::string& name, const std::string& content, std::optional<TextFormat> other = {}) {
    return find_sources({folder.write(name, content).string()}, other).at(0).format;
  };
  EXPECT_EQ(format("A.JSONL", "{}"), TextFormat::json_lines);
  EXPECT_EQ(format("a.ndjson.GZ", gzip("{}")), TextFormat::json_lines);
  EXPECT_EQ(format("a.TXT", "x"), TextFormat::plain);
  EXPECT_EQ(format("a.json", " {\"text\": \"x\"}\n"), TextFormat::json_lines);
  EXPECT_EQ(format("a.unknown", "x", TextFormat::pod), TextFormat::pod);
  EXPECT_THAT(error_of([&] { format("b.json", "[{}]"); }), Names({"b.json", "JSON"}));
  EXPECT_THAT(error_of([&] { format("b.unknown", "x"); }), Names({"b.unknown", "--format"}));
}

TEST(Sources, Folder_SkipsHiddenAndReadmeFiles) {
  const Folder folder;
  for (const char* name :
       {"data/train.jsonl", "README.md", "LICENSE.txt", ".cache/x.txt", "data/._train.jsonl", "info.json", "notes.md"})
    folder.write(name, "x");
  fs::create_directory_symlink(folder.path(), folder / "data/loop");
  folder.write(".elsewhere/linked.txt", "x");
  fs::create_directory_symlink(folder / ".elsewhere", folder / "link");
  std::vector<std::string> names;
  for (const Source& source : find_sources({folder.path().string()}, std::nullopt))
    names.push_back(source.path.filename().string());
  EXPECT_THAT(names, testing::UnorderedElementsAre("train.jsonl", "notes.md", "linked.txt"));
}

TEST(Sources, Folder_IncludesCodeOnRequest) {
  const Folder folder;
  for (const char* name : {"b.py", "a.cc", "c.md", "d.bin"}) folder.write(name, "x");
  const auto names = [&](bool code) {
    std::vector<std::string> out;
    for (const Source& source : find_sources({folder.path().string()}, TextFormat::plain, code))
      out.push_back(source.path.filename().string());
    return out;
  };
  EXPECT_EQ(names(false), std::vector<std::string>{"c.md"});
  EXPECT_EQ(names(true), (std::vector<std::string>{"a.cc", "b.py", "c.md"}));
}

}  // namespace lazy
