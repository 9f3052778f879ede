#include "data/prepare.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/text.h"
#include "data/corpus/pipeline.h"
#include "data/inspect.h"
#include "data/sequences.h"
#include "data/tokenizer.h"
#include "support.h"

namespace lazy {
using namespace testing_support;
using testing::HasSubstr;

namespace {

void write_inputs(const Folder& folder) {
  Random random(8);
  std::string lines;
  for (int i = 0; i < 3000; ++i) {
    std::string text = "Document " + std::to_string(i) + ": ";
    for (int w = 0; w < 120; ++w) text += w % 9 ? "the words of a text " : "in\\nlines ";
    lines += "{\"text\": \"" + text + "\"}\n";
  }
  folder.write("in/lines.jsonl", lines);
  for (int i = 0; i < 20; ++i) folder.write("in/" + std::to_string(i) + ".txt", random_text(random, 300));
}

std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files[fs::relative(entry.path(), folder).string()] = read_file(entry.path());
  }
  return files;
}

PrepareOptions options_for(const Folder& folder) {
  PrepareOptions options;
  options.inputs = {(folder / "in").string()};
  options.output = folder / "out" / "corpus";
  fs::create_directories(folder / "out");
  options.tokenizer = "bytes";
  return options;
}

}  // namespace

TEST(Prepare, Result_DoesNotDependOnThreadCount) {
  const Folder folder;
  write_inputs(folder);
  PrepareOptions options = options_for(folder);
  options.tokenizer.clear();
  options.train_pieces = 400;
  options.train_bytes = 1 << 20;
  options.shard_bytes = 100000;
  options.output = folder / "one";
  const CorpusInfo info = prepare_corpus(options);
  options.output = folder / "many";
  options.threads = 7;
  prepare_corpus(options);
  EXPECT_TRUE(contents(folder / "one") == contents(folder / "many"));
  EXPECT_GT(info.splits.at("train").shards.size(), 3u);
  EXPECT_EQ(info.splits.at("train").documents + info.splits.at("validation").documents, 3020);
  EXPECT_NEAR(info.splits.at("validation").documents / 3020.0, 0.05, 0.015);  // tolerance of four standard deviations
}

// A document of at least 16 MiB is encoded in parts. The ids must be the same as for the whole text.
TEST(Prepare, LongDocument_HasTheIdsOfTheWholeText) {
  const Folder folder;
  Random random(3);
  std::string text;
  while (text.size() < (17 << 20)) text += random_text(random, 2000) + (random.below(3) ? "\n" : "  ");
  text = to_valid_utf8(text);
  folder.write("a.jsonl", nlohmann::json{{"text", text}}.dump() + "\n{\"text\": \"short\"}\n");
  for (const char* name : {"bytes", "trained"}) {
    PrepareOptions options;
    options.inputs = {(folder / "a.jsonl").string()};
    options.output = folder / name;
    options.validation = 0;
    options.threads = 2;
    if (std::string(name) == "bytes") {
      options.tokenizer = "bytes";
    } else {
      options.train_pieces = 400;
    }
    prepare_corpus(options);
    const auto tokenizer = load_tokenizer((folder / name / "tokenizer").string());
    EXPECT_LT(tokenizer->cut(text, 1 << 20), text.size());
    const Shard shard(folder / name / "train-00000.bin");
    ASSERT_EQ(shard.documents(), 2);
    EXPECT_TRUE(shard.document(0) == tokenizer->encode(text)) << name;
    EXPECT_EQ(shard.document(1), tokenizer->encode("short"));
    EXPECT_EQ(shard.header().source_bytes, text.size() + 5);
  }
}

TEST(Prepare, EveryDocument_IsStoredAndDecodes) {
  const Folder folder;
  write_inputs(folder);
  PrepareOptions options = options_for(folder);
  options.validation = 0.2;
  prepare_corpus(options);
  const auto tokenizer = load_tokenizer((options.output / "tokenizer").string());
  std::multiset<std::string> found, expected;
  for (const char* split : {"train", "validation"}) {
    for (const Shard& shard : open_shards(options.output, split)) {
      shard.verify();
      EXPECT_EQ(shard.header().tokenizer_fingerprint, tokenizer->fingerprint());
      for (int64_t d = 0; d < shard.documents(); ++d) found.insert(tokenizer->decode(shard.document(d)));
    }
  }
  EXPECT_EQ(found.size(), 3020u);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(found.contains(read_file(folder / ("in/" + std::to_string(i) + ".txt"))));
}

TEST(Prepare, Failure_LeavesNoOutput) {
  const Folder folder;
  write_inputs(folder);
  folder.write("in/z.jsonl", "{\"text\": \"fine\"}\nnot json\n");
  PrepareOptions options = options_for(folder);
  options.threads = 4;
  options.documents.strict = true;
  EXPECT_THAT(error_of([&] { prepare_corpus(options); }), Names({"z.jsonl:2", "JSON"}));
  EXPECT_TRUE(fs::is_empty(folder / "out"));
}

TEST(Prepare, InputWithoutText_ErrorNamesReason) {
  const Folder folder;
  folder.write("in/a.jsonl", "{\"body\": \"x\"}\n{\"body\": \"y\"}\n");
  const PrepareOptions options = options_for(folder);
  EXPECT_THAT(error_of([&] { prepare_corpus(options); }), Names({"a.jsonl:1", "\"text\"", "body", 2}));
  EXPECT_TRUE(fs::is_empty(folder / "out"));
}

TEST(Prepare, FullDisk_LeavesNoOutput) {
  const Folder folder;
  write_inputs(folder);
  const PrepareOptions options = options_for(folder);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit former{};
  getrlimit(RLIMIT_FSIZE, &former);
  const rlimit small{1 << 16, former.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);  // simulates a full disk: writes beyond 64 KiB fail
  EXPECT_THROW(prepare_corpus(options), RunError);
  setrlimit(RLIMIT_FSIZE, &former);
  EXPECT_TRUE(fs::is_empty(folder / "out"));
}

TEST(Prepare, Leftovers_OnlyMarkedAndUnlockedAreRemoved) {
  const Folder folder;
  write_inputs(folder);
  const PrepareOptions options = options_for(folder);
  const auto leftover = [&](const std::string& name) { return fs::path(options.output.string() + ".tmp-" + name); };
  for (const char* name : {"999999999", "1", "words", "killed", "running"}) fs::create_directories(leftover(name));
  std::ofstream(leftover("killed") / ".lazy-unfinished");
  std::ofstream(leftover("running") / ".lazy-unfinished");
  const int held = ::open((leftover("running") / ".lazy-unfinished").c_str(), O_RDWR);
  ASSERT_EQ(::flock(held, LOCK_EX), 0);
  prepare_corpus(options);
  ::close(held);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder / "out")) names.push_back(entry.path().filename().string());
  EXPECT_THAT(names, testing::UnorderedElementsAre("corpus", "corpus.tmp-1", "corpus.tmp-999999999", "corpus.tmp-words",
                                                   "corpus.tmp-running"));
}

TEST(Prepare, ExistingFolder_IsReplacedOnlyOnRequest) {
  const Folder folder;
  write_inputs(folder);
  PrepareOptions options = options_for(folder);
  prepare_corpus(options);
  EXPECT_THAT(error_of([&] { prepare_corpus(options); }), Names({options.output.string(), "--force"}));
  options.replace = true;
  options.seed = 7;
  EXPECT_EQ(prepare_corpus(options).seed, 7u);
  EXPECT_EQ(read_corpus_info(options.output).seed, 7u);
  options.output = folder / "in";
  EXPECT_THAT(error_of([&] { prepare_corpus(options); }), Names({options.output.string()}));
}

TEST(Prepare, EmptyCorpus_IsAnError) {
  const Folder folder;
  folder.write("in/a.txt", "");
  folder.write("in/b.jsonl", "\n\n");
  PrepareOptions options = options_for(folder);
  EXPECT_THAT(error_of([&] { prepare_corpus(options); }), Names({options.inputs[0]}));
  options.tokenizer.clear();
  options.train_pieces = 300;
  EXPECT_THAT(error_of([&] { prepare_corpus(options); }), Names({options.inputs[0]}));
  EXPECT_TRUE(fs::is_empty(folder / "out"));
}

TEST(Prepare, ValidationSplit_DependsOnlyOnSeed) {
  const Folder folder;
  write_inputs(folder);
  PrepareOptions options = options_for(folder);
  const CorpusInfo a = prepare_corpus(options);
  options.output = folder / "out" / "b";
  options.threads = 3;
  const CorpusInfo b = prepare_corpus(options);
  EXPECT_EQ(a.splits.at("validation").tokens, b.splits.at("validation").tokens);
  options.output = folder / "out" / "c";
  options.seed = 43;
  EXPECT_NE(prepare_corpus(options).splits.at("validation").tokens, a.splits.at("validation").tokens);
}

TEST(Inspect, Inspect_ShowsDocumentsAndVerifiesChecksums) {
  const Folder folder;
  folder.write("in/a.txt", "Hello <world> 中");
  PrepareOptions options = options_for(folder);
  options.validation = 0;
  prepare_corpus(options);
  const std::string text = inspect_text({.path = options.output, .documents = 5, .verify = true});
  EXPECT_THAT(text, Names({"train", 0, 17}));
  EXPECT_THAT(text, HasSubstr("Hello <world> 中"));
  EXPECT_THAT(text, Names({"checksums"}));
  EXPECT_THAT(inspect_json({.path = options.output, .documents = 1}), HasSubstr("\"text\": \"Hello <world> 中\""));
  std::string shard = read_file(options.output / "train-00000.bin");
  shard[130] ^= 1;
  write_file_atomic(options.output / "train-00000.bin", shard);
  EXPECT_THAT(error_of([&] { inspect_text({.path = options.output, .verify = true}); }),
              Names({"train-00000.bin", "checksum", "tokens"}));
  write_file_atomic(options.output / "tokenizer" / "vocab.json", "{}");
  fs::remove(options.output / "tokenizer" / "tokenizer_config.json");
  EXPECT_THAT(error_of([&] { inspect_text({.path = options.output, .documents = 1}); }),
              Names({(options.output / "tokenizer").string()}));
}

TEST(Pipeline, OrderedPipeline_KeepsOrderAndThrowsFirstError) {
  const auto run = [](int threads, int items, int bad, int limit) {
    int next = 0;
    std::vector<int> seen;
    ordered_pipeline<int, int>(
        [&](int& item) {
          item = next++;
          if (item == limit) fail("test", "reader");
          return item < items;
        },
        [](const int&) { return uint64_t{100} << 20; },
        [&](int&& item) {
          if (item >= bad) fail("test", "item {}", item);
          std::this_thread::sleep_for(std::chrono::microseconds((item * 7919) % 300));
          return item * item;
        },
        [&](int&& out) { seen.push_back(out); }, [] {}, threads);
    return seen;
  };
  for (const int threads : {1, 2, 8}) {
    const auto seen = run(threads, 200, 1000, 1000);
    ASSERT_EQ(seen.size(), 200u);
    for (int i = 0; i < 200; ++i) EXPECT_EQ(seen[i], i * i);
    EXPECT_THAT(error_of([&] { run(threads, 200, 37, 1000); }), Names({"item", 37}));
    EXPECT_THAT(error_of([&] { run(threads, 200, 1000, 50); }), Names({"reader"}));
    EXPECT_TRUE(run(threads, 0, 0, 1000).empty());
  }
}

TEST(Pipeline, OrderedPipeline_StopsOnRequest) {
  int asked = 0;
  const std::string message = error_of([&] {
    ordered_pipeline<int, int>([](int&) { return true; }, [](const int&) { return uint64_t{1}; },
                               [](int&& item) { return item; },
                               [&](int&&) {
                                 if (++asked > 100) fail("test", "stopped");
                               },
                               [] {}, 3);
  });
  EXPECT_THAT(message, Names({"stopped"}));
}

}  // namespace lazy
