// Tests, under ThreadSanitizer, all code of this project that uses several threads and does not need LibTorch: the
// preparation of a corpus, failures in its pipeline, a tokenizer and a corpus that many threads share, the reading and
// writing threads of training (see also tests/core/read_ahead_test.cc and tests/train/checkpoint_writer_test.cc), and
// the stop flag. The kernels are not included, because they use OpenMP. With GCC, ThreadSanitizer does not support the
// OpenMP runtime. Instead, tests/attention compares the kernels' results bit for bit for different numbers of threads.
#include <atomic>
#include <csignal>
#include <thread>

#include "core/stop.h"
#include "data/bpe_files.h"
#include "data/corpus/pipeline.h"
#include "data/prepare.h"
#include "data/sequences.h"
#include "data/support.h"
#include "data/tokenizer.h"
#include "train/batches.h"

namespace lazy {

namespace {

using testing_support::Folder;

void on_threads(int count, const std::function<void(int)>& work) {
  std::vector<std::thread> team;
  for (int t = 0; t < count; ++t) team.emplace_back(work, t);
  for (std::thread& member : team) member.join();
}

// Prepares a corpus of many small files, so that many batches are in progress at the same time.
CorpusInfo prepare(const Folder& folder, const std::string& name, const std::string& tokenizer, int threads) {
  PrepareOptions options;
  options.inputs = {(folder / "text").string()};
  options.output = folder / name;
  options.tokenizer = tokenizer;
  options.validation = 0.1;
  options.threads = threads;
  return prepare_corpus(options);
}

void write_text(const Folder& folder) {
  Random random(3);
  for (int n = 0; n < 60; ++n) {
    std::string lines;
    for (int line = 0; line < 4; ++line)
      lines += nlohmann::json{{"text", testing_support::random_text(random, 40)}}.dump() + "\n";
    folder.write(fmt::format("text/{:02}.jsonl", n), lines);
  }
}

TEST(Threads, PreparedCorpus_IsIndependentOfThreads) {
  const Folder folder;
  write_text(folder);
  const std::string tokenizer = folder.write("tokenizer.json", testing_support::small_tokenizer_json().dump()).string();
  prepare(folder, "one", tokenizer, 1);
  prepare(folder, "four", tokenizer, 4);
  for (const char* name : {"train-00000.bin", "validation-00000.bin"}) {
    EXPECT_TRUE(read_file(folder / "one" / name) == read_file(folder / "four" / name)) << name;
  }
}

TEST(Threads, Pipeline_EndsAfterAnyFailure) {
  const std::string where[] = {"produce", "work", "consume", "stop", "nothing"};
  for (const std::string& failing : where) {
    const auto fail_in = [&](const char* place, int at, int now) {
      if (failing == place && at == now) fail("test", "{}", place);
    };
    int produced = 0, asked = 0;
    std::vector<int> consumed;
    const std::string error = error_of([&] {
      ordered_pipeline<int, int>(
          [&](int& item) {
            fail_in("produce", 50, produced);
            item = produced++;
            return item < 200;
          },
          [](const int&) { return uint64_t{1}; },
          [&](int&& item) {
            fail_in("work", 70, item);
            std::this_thread::sleep_for(std::chrono::microseconds(item % 7 * 50));
            return item;
          },
          [&](int&& item) {
            fail_in("consume", 90, item);
            consumed.push_back(item);
          },
          [&] { fail_in("stop", 0, asked++); }, 4);
    });
    for (size_t n = 0; n < consumed.size(); ++n) EXPECT_EQ(consumed[n], static_cast<int>(n));
    // If only stop() fails, both outcomes are correct, because the pipeline may end before it calls stop().
    if (failing == "nothing") {
      EXPECT_EQ(consumed.size(), 200u);
      EXPECT_EQ(error, "");
    } else if (failing != "stop") {
      EXPECT_THAT(error, Names({failing}));
    }
  }
}

TEST(Threads, Tokenizer_IsSharedByThreads) {
  const Folder folder;
  const auto tokenizer =
      load_tokenizer(folder.write("tokenizer.json", testing_support::small_tokenizer_json().dump()).string());
  Random random(4);
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> expected;
  for (int n = 0; n < 40; ++n) texts.push_back(testing_support::random_text(random, 100));
  for (const std::string& text : texts) expected.push_back(tokenizer->encode(text));
  std::atomic<int> wrong = 0;
  on_threads(4, [&](int t) {
    for (size_t n = 0; n < texts.size(); ++n) {
      const size_t which = (n + 10 * static_cast<size_t>(t)) % texts.size();
      wrong += tokenizer->encode(texts[which]) != expected[which];
      wrong += tokenizer->decode(expected[which]).empty();
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST(Threads, Sequences_AreReadByManyThreads) {
  const Folder folder;
  write_text(folder);
  prepare(folder, "corpus", "bytes", 2);
  const Sequences sequences(folder / "corpus", "train", {.length = 64});
  const int64_t count = 3 * sequences.size();  // three epochs, each in a different order
  std::vector<std::vector<int64_t>> expected(static_cast<size_t>(count), std::vector<int64_t>(64));
  for (int64_t n = 0; n < count; ++n) sequences.read(n, expected[static_cast<size_t>(n)].data());
  std::atomic<int> wrong = 0;
  on_threads(4, [&](int t) {
    std::vector<int64_t> ids(64);
    for (int64_t n = t; n < count; n += 3) {
      sequences.read(n, ids.data());
      wrong += ids != expected[static_cast<size_t>(n)];
    }
  });
  EXPECT_EQ(wrong, 0);

  // The loader of training reads ahead in a separate thread. Here it is destroyed before it has read all batches.
  for (const int64_t ahead : {1, 4}) {
    train::Batches batches(sequences, 0, 2, 64, ahead);
    for (size_t n = 0; n < 30; n += 2) {
      const train::Batch batch = batches.next();
      EXPECT_TRUE(std::equal(expected[n].begin(), expected[n].end(), batch.ids.values().begin()));
    }
  }
}

TEST(Threads, StopFlag_IsSeenByThreads) {  // must be the last test, because the flag stays set
  install_stop_handlers();
  std::atomic<bool> waiting = false;
  std::thread worker([&] {
    waiting = true;
    while (!stop_requested()) std::this_thread::yield();
  });
  while (!waiting) std::this_thread::yield();
  std::raise(SIGTERM);
  worker.join();
  EXPECT_EQ(stop_signal(), SIGTERM);
}

}  // namespace

}  // namespace lazy
