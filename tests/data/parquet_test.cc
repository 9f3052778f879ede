// Tests Parquet files with pyarrow: all kinds of columns, null values, and all ways in which the reader process can
// fail.
#include "data/corpus/source.h"

#include <dirent.h>
#include <fmt/ranges.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "data/prepare.h"
#include "support.h"

namespace lazy {
using namespace testing_support;
using testing::ElementsAre;
using testing::HasSubstr;

namespace {

class ParquetSlow : public testing::Test {
 protected:
  void SetUp() override {
    static const bool have = python_has("pyarrow");
    if (!have) GTEST_SKIP() << LAZY_TEST_PYTHON << " has no pyarrow";
    ::setenv("LAZY_PYTHON", LAZY_TEST_PYTHON, 1);
  }
  void TearDown() override { ::unsetenv("LAZY_PYTHON"); }

  // Runs a Python program with pyarrow as `pa`, pyarrow.parquet as `pq` and the folder of the test as `folder`.
  void python(const std::string& program) {
    const fs::path script = folder_.write("make.py", "import pyarrow as pa, pyarrow.parquet as pq\nfolder = '" +
                                                         folder_.path().string() + "/'\n" + program);
    ASSERT_EQ(std::system(fmt::format("{} {}", LAZY_TEST_PYTHON, script.string()).c_str()), 0);
  }
  std::string read_all(const std::string& name, const std::string& column, uint64_t* skipped = nullptr) {
    const auto stream = open_parquet(folder_ / name, column);
    std::string out;
    while (stream->read(out)) {
    }
    EXPECT_EQ(stream->consumed(), fs::file_size(folder_ / name));
    if (skipped) *skipped = stream->skipped();
    return out;
  }
  std::string error(const std::string& name, const std::string& column = "text") {
    return error_of([&] {
      const auto stream = open_parquet(folder_ / name, column);
      std::string out;
      while (stream->read(out)) {
      }
    });
  }
  Folder folder_;
};

constexpr const char* kColumns = R"(
t = pa.table({
  'text': pa.array(['a\n"b', 'é', None, 'x' * 10]),
  'large': pa.array(['l'] * 4, pa.large_string()),
  'dictionary': pa.array(['u', 'v', 'u', None]).dictionary_encode(),
  'bytes': pa.array([b'ok', b'\xff\xfeZ', None, b'']),
  'doc': pa.array([{'text': 'n1', 'more': {'body': 'd'}}, None, {'text': None, 'more': None},
                   {'text': 'n4', 'more': {'body': 'e'}}]),
  'a.b': pa.array(['dot'] * 4),
  'list': pa.array([['a'], ['b'], [], None]),
  'number': [1, 2, 3, 4]})
pq.write_table(t, folder + 'all.parquet', row_group_size=3)
)";

TEST_F(ParquetSlow, ColumnsOfEveryType_AreRead) {
  python(kColumns);
  uint64_t skipped = 0;
  EXPECT_EQ(read_all("all.parquet", "text", &skipped),
            "{\"text\": \"a\\n\\\"b\"}\n{\"text\": \"é\"}\n{\"text\": \"xxxxxxxxxx\"}\n");
  EXPECT_EQ(skipped, 1u);
  EXPECT_EQ(read_all("all.parquet", "large", &skipped),
            "{\"large\": \"l\"}\n{\"large\": \"l\"}\n{\"large\": \"l\"}\n{\"large\": \"l\"}\n");
  EXPECT_EQ(skipped, 0u);
  EXPECT_EQ(read_all("all.parquet", "dictionary", &skipped),
            "{\"dictionary\": \"u\"}\n{\"dictionary\": \"v\"}\n{\"dictionary\": \"u\"}\n");
  EXPECT_EQ(read_all("all.parquet", "bytes"), "{\"bytes\": \"ok\"}\n{\"bytes\": \"\xFF\xFEZ\"}\n{\"bytes\": \"\"}\n");
  EXPECT_EQ(read_all("all.parquet", "doc.text", &skipped), "{\"doc.text\": \"n1\"}\n{\"doc.text\": \"n4\"}\n");
  EXPECT_EQ(skipped, 2u);
  EXPECT_EQ(read_all("all.parquet", "doc.more.body"), "{\"doc.more.body\": \"d\"}\n{\"doc.more.body\": \"e\"}\n");
  EXPECT_THAT(read_all("all.parquet", "a.b"), HasSubstr("{\"a.b\": \"dot\"}\n"));
}

TEST_F(ParquetSlow, UnreadableFile_ErrorNamesReason) {
  python(std::string(kColumns) + R"(
import os
whole = open(folder + 'all.parquet', 'rb').read()
open(folder + 'short.parquet', 'wb').write(whole[:len(whole) // 2])
open(folder + 'empty.parquet', 'wb')
damaged = ['word ' * 50] * 5000 + [os.urandom(40).hex() for _ in range(20000)]
pq.write_table(pa.table({'text': damaged}), folder + 'damaged.parquet',
               write_page_checksum=True, row_group_size=5000)
bytes = bytearray(open(folder + 'damaged.parquet', 'rb').read())
bytes[len(bytes) // 2] ^= 0x10
open(folder + 'damaged.parquet', 'wb').write(bytes)
)");
  EXPECT_THAT(error("all.parquet", "body"), Names({(folder_ / "all.parquet").string(), "body", "text", "large",
                                                   "dictionary", "bytes", "doc", "a.b", "list", "number"}));
  EXPECT_THAT(error("all.parquet", "doc.nothing"), Names({"doc.nothing", "text", "number"}));
  EXPECT_THAT(error("all.parquet", "number"), Names({"\"number\"", "int64"}));
  EXPECT_THAT(error("all.parquet", "list"), Names({"\"list\"", "list<"}));
  EXPECT_THAT(error("short.parquet"), Names({"short.parquet", "Parquet"}));
  EXPECT_THAT(error("empty.parquet"), Names({"empty.parquet", "Parquet"}));
  EXPECT_THAT(error("damaged.parquet"), Names({"damaged.parquet", "Parquet"}));
  EXPECT_EQ(error("damaged.parquet").find('\n'), std::string::npos);
}

TEST(ParquetReader, MissingPythonOrPyarrow_IsReported) {
  const Folder folder;
  folder.write("x.parquet", "PAR1");
  const auto error = [&] {
    return error_of([&] {
      std::string out;
      const auto stream = open_parquet(folder / "x.parquet", "text");
      while (stream->read(out)) {
      }
    });
  };
  ::setenv("LAZY_PYTHON", "/nonexistent/python", 1);
  EXPECT_THAT(error(), Names({"x.parquet", "pyarrow", "/nonexistent/python", "LAZY_PYTHON"}));
  ::setenv("LAZY_PYTHON", "/bin/false", 1);
  EXPECT_THAT(error(), testing::AllOf(Names({"x.parquet"}), testing::Not(Names({"pyarrow"}))));
  const fs::path bare =
      // an interpreter that cannot import any package
      folder.write("bare", "#!/bin/sh\nexec '" LAZY_TEST_PYTHON "' -S -E \"$@\"\n");
  fs::permissions(bare, fs::perms::owner_all);
  ::setenv("LAZY_PYTHON", bare.c_str(), 1);
  EXPECT_THAT(error(), Names({"x.parquet", bare.string(), "pyarrow", "pip", "LAZY_PYTHON"}));
  ::unsetenv("LAZY_PYTHON");
}

// Returns the number of child processes of this process.
int children() {
  int count = 0;
  DIR* proc = ::opendir("/proc");
  while (const dirent* entry = ::readdir(proc)) {
    std::ifstream status(fmt::format("/proc/{}/status", entry->d_name));
    std::string word;
    while (status >> word) {
      int parent = 0;
      if (word == "PPid:" && status >> parent && parent == ::getpid()) ++count;
    }
  }
  ::closedir(proc);
  return count;
}

TEST_F(ParquetSlow, DestroyedStream_TerminatesReaderProcess) {
  python(
      "pq.write_table(pa.table({'text': ['word ' * 2000] * 20000}), folder + 'long.parquet', row_group_size=1000)\n");
  const int before = children();
  {
    const auto stream = open_parquet(folder_ / "long.parquet", "text");
    std::string out;
    stream->read(out);
    EXPECT_EQ(children(), before + 1);
    EXPECT_LT(stream->consumed(), fs::file_size(folder_ / "long.parquet"));
  }
  EXPECT_EQ(children(), before);
}

TEST_F(ParquetSlow, ParquetFolder_IsPreparedAsCorpus) {
  python(R"(
import json, os
for name, first in (('b', 100), ('a', 0), ('sub/c', 200)):
  os.makedirs(folder + 'in/sub', exist_ok=True)
  texts = [f'document {first + i} ' + 'ä' * (i % 7) for i in range(100)]
  pq.write_table(pa.table({'body': texts + [None] * 3}), folder + 'in/' + name + '.parquet', row_group_size=30)
with open(folder + 'lines.jsonl', 'w') as out:
  for first in (0, 100, 200):
    for i in range(100): out.write(json.dumps({'body': f'document {first + i} ' + 'ä' * (i % 7)}) + '\n')
)");
  const auto prepare = [&](const std::string& input, const std::string& output, int threads) {
    PrepareOptions options;
    options.inputs = {(folder_ / input).string()};
    options.output = folder_ / output;
    options.tokenizer = "bytes";
    options.documents.text_field = "body";
    options.threads = threads;
    return prepare_corpus(options);
  };
  const CorpusInfo parquet = prepare("in", "from_parquet", 3), lines = prepare("lines.jsonl", "from_lines", 1);
  EXPECT_EQ(parquet.splits.at("train").documents + parquet.splits.at("validation").documents, 300);
  for (const char* name : {"train-00000.bin", "validation-00000.bin"}) {
    EXPECT_EQ(read_file(folder_ / fmt::format("from_parquet/{}", name)),
              read_file(folder_ / fmt::format("from_lines/{}", name)));
  }
}

}  // namespace
}  // namespace lazy
