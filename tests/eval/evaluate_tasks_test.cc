// Tests the evaluation of a benchmark, from its file to the results and the record of each sample.
#include "eval/evaluate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "eval/requests.h"
#include "eval/results.h"
#include "eval/score.h"
#include "folder.h"
#include "model/config.h"
#include "model/language_model.h"
#include "small_model.h"
#include "support/error_of.h"

namespace lazy::eval {
namespace fs = std::filesystem;
using testing::EndsWith;

LanguageModel small_model() { return LanguageModel(small_config(), 7); }

const std::string kRows = R"({"goal": "dry a cup", "sol1": "wipe it", "sol2": "wet it at once", "label": 0}
{"goal": "boil an egg", "sol1": "in water", "sol2": "in é", "label": 1}
{"goal": "see", "sol1": "look", "sol2": "", "label": 0}
)";

TaskOptions quiet(PromptOptions prepare = {}) { return {prepare, {.batch_size = 4}, true, false}; }

TEST(RunTasks, MultipleChoice_WritesRecords) {
  LanguageModel model = small_model();
  const auto tokenizer = load_tokenizer("bytes");
  const Folder folder;
  folder.write("piqa.jsonl", kRows);
  const Task task = find_task("piqa");
  const TaskResult result = evaluate_tasks(model, *tokenizer, {task}, folder.path, quiet())[0];
  // Compute the expected scores by a separate call of score() for each question.
  double acc = 0, acc_norm = 0;
  std::istringstream lines(result.samples);
  TextEncoder encoder(*tokenizer, false);
  int64_t number = 0;
  for (const TaskDocument& row : read_rows(task, folder.path)) {
    const Question q = make_question(task, row, "");
    std::vector<Request> requests;
    for (const TextPair& pair : q.pairs) requests.push_back(encoder.encode_pair(pair.context, pair.continuation));
    const auto scores = score(model, requests, 64, {1, ""});
    const auto values = document_metrics(task, q, scores);
    acc += values[0] / 3;
    acc_norm += values[1] / 3;
    std::string line;
    ASSERT_TRUE(std::getline(lines, line));
    const Json record = Json::parse(line);
    std::vector<std::string> keys;
    for (const auto& [key, unused] : record.items()) keys.push_back(key);
    EXPECT_EQ(keys,
              (std::vector<std::string>{"doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter",
                                        "metrics", "doc_hash", "prompt_hash", "target_hash", "acc", "acc_norm"}));
    EXPECT_EQ(record["doc_id"], number++);
    EXPECT_EQ(record["doc"], row.document);
    EXPECT_EQ(record["target"], std::to_string(q.label));
    EXPECT_EQ(record["arguments"]["gen_args_1"]["arg_1"], q.pairs[1].continuation);
    for (size_t c = 0; c < 2; ++c) {
      EXPECT_NEAR(std::stod(record["filtered_resps"][c][0].get<std::string>()), scores[c].log_likelihood, 1e-3);
      EXPECT_EQ(record["filtered_resps"][c][1], scores[c].greedy ? "True" : "False");
      EXPECT_EQ(record["resps"][c][0], record["filtered_resps"][c]);
    }
    EXPECT_EQ(record["acc"], values[0]);
  }
  EXPECT_EQ(number, 3);
  EXPECT_NEAR(result.metrics[0].value, acc, 1e-12);
  EXPECT_NEAR(result.metrics[1].value, acc_norm, 1e-12);
  EXPECT_TRUE(result.metrics[0].standard_error.has_value());
  EXPECT_EQ(result.original, 3);
  EXPECT_EQ(result.effective, 3);
  EXPECT_DOUBLE_EQ(result.chance->majority, 2.0 / 3);
  EXPECT_EQ(result.task_hash.size(), 64u);
}

TEST(RunTasks, LikelihoodAndRolling_WriteRecords) {
  LanguageModel model = small_model();
  const auto tokenizer = load_tokenizer("bytes");
  const Folder folder;
  folder.write("lambada_openai.jsonl", "{\"text\": \"a cup of tea\"}\n{\"text\": \"word\"}\n");
  folder.write("wiki.test.raw", " = A = \n " + std::string(200, 'x') + " \n");
  const auto results =
      evaluate_tasks(model, *tokenizer, {find_task("lambada_openai"), find_task("wikitext")}, folder.path, quiet());
  ASSERT_EQ(results.size(), 2u);
  const Json last = Json::parse(results[0].samples.substr(0, results[0].samples.find('\n')));
  EXPECT_EQ(last["target"], " tea");
  EXPECT_TRUE(last["acc"].is_number_integer());
  EXPECT_NEAR(std::stod(last["filtered_resps"][0][0].get<std::string>()), last["perplexity"].get<double>(), 1e-9);
  EXPECT_TRUE(results[0].metrics[0].standard_error.has_value());
  const Json page = Json::parse(results[1].samples);
  EXPECT_EQ(page["word_perplexity"][1], 6);  // the six words are "", =, A, =, x..., ""
  EXPECT_TRUE(page["filtered_resps"][0].is_string());
  EXPECT_EQ(page["arguments"]["gen_args_0"].size(), 1u);
  EXPECT_FALSE(results[1].metrics[0].standard_error.has_value());
  EXPECT_NEAR(results[1].metrics[0].value, std::exp(-page["word_perplexity"][0].get<double>() / 6),
              1e-6 * results[1].metrics[0].value);
}

TEST(RunTasks, BosEveryWindow_AppliesPageTarget) {
  LanguageModel model = small_model();
  const auto tokenizer = load_tokenizer("bytes");
  const Folder folder;
  folder.write("wiki.test.raw", " = A = \n " + std::string(150, 'x') + " \n");
  const Task task = find_task("wikitext");
  const auto value = [&](const PromptOptions& prompt) {
    const TaskResult result = evaluate_tasks(model, *tokenizer, {task}, folder.path, quiet(prompt))[0];
    return Json::parse(result.samples)["word_perplexity"][0].get<double>();  // returns the log-likelihood of the page
  };
  const TaskDocument row = read_rows(task, folder.path).at(0);
  const auto ids = tokenizer->encode(make_question(task, row, "").text);
  double expected = 0;
  for (const Window& w : rolling_windows_with_bos(ids, *tokenizer->bos_id(), 32))
    expected += plain_score(model, w).log_likelihood;
  const double every = value({.max_length = 32, .bos_every_window = true});
  EXPECT_NEAR(every, expected, 1e-4 * std::abs(expected));
  EXPECT_GT(std::abs(every - value({.max_length = 32})), 1e-3);
  EXPECT_GT(std::abs(every - value({.max_length = 32, .bos = true})), 1e-3);
}

TEST(RunTasks, LimitAndFewShot_SelectDocuments) {
  EXPECT_EQ(apply_limit(1838, 0.1), 184);
  EXPECT_EQ(apply_limit(1838, 10), 10);
  EXPECT_EQ(apply_limit(5, 10), 5);
  EXPECT_EQ(apply_limit(5, std::nullopt), 5);
  const auto tokenizer = load_tokenizer("bytes");
  const Folder folder;
  std::string rows;
  for (int i = 0; i < 9000; ++i)
    rows += Json({{"goal", std::to_string(i)}, {"sol1", "a"}, {"sol2", "b"}, {"label", 0}}).dump() + "\n";
  folder.write("piqa.jsonl", rows);
  folder.write("piqa-train.jsonl", kRows);
  RequestPrefetcher preparation({find_task("piqa")}, folder.path, *tokenizer,
                                {.max_length = 512, .num_fewshot = 1, .limit = 0.5});
  RequestChunk chunk;
  int64_t documents = 0, chunks = 0;
  bool last = false;
  while (preparation.next(chunk)) {
    EXPECT_EQ(chunk.first, documents);
    EXPECT_EQ(chunk.ends.back(), chunk.requests.size());
    EXPECT_THAT(chunk.questions[0].pairs[0].context, EndsWith(fmt::format("\n\nQuestion: {}\nAnswer:", documents)));
    documents += static_cast<int64_t>(chunk.questions.size());
    last = chunk.last;
    ++chunks;
  }
  EXPECT_EQ(documents, 4500);
  EXPECT_EQ(chunks, 2);
  EXPECT_TRUE(last);
  RequestPrefetcher left_early({find_task("piqa")}, folder.path, *tokenizer,
                               // the prefetcher is destroyed before its last chunk; its destructor ends the prefetch
                               // thread
                               {.max_length = 512});
  EXPECT_TRUE(left_early.next(chunk));
}

std::string preparation_error(const std::string& task, const std::string& row, PromptOptions options) {
  const auto tokenizer = load_tokenizer("bytes");
  const Folder folder;
  folder.write(task + ".jsonl", row);
  return error_of([&] {
    RequestPrefetcher preparation({find_task(task)}, folder.path, *tokenizer, options);
    RequestChunk chunk;
    while (preparation.next(chunk)) {
    }
  });
}

TEST(RunTasks, InvalidInput_IsNamed) {
  EXPECT_THAT(preparation_error("piqa", kRows, {.max_length = 10}), Names({"piqa.jsonl:1", 2, 10, 15}));
  EXPECT_EQ(preparation_error("piqa", kRows, {.max_length = 15}),
            "");  // a context that exceeds the model's length is truncated at its start
  EXPECT_THAT(preparation_error("piqa", kRows, {.max_length = 64, .num_fewshot = 2}),
              Names({"piqa", "piqa-train.jsonl", "baber/piqa"}));
  EXPECT_THAT(preparation_error("lambada_openai", "{\"text\": \"  x\"}", {.max_length = 64}),
              Names({"lambada_openai.jsonl:1", "continuation"}));
  EXPECT_THAT(preparation_error("lambada_openai", "{\"text\": \"a b\"}", {.max_length = 64, .num_fewshot = 2}),
              Names({"--num-fewshot", "lambada_openai", 2, 1}));
  EXPECT_THAT(preparation_error("piqa", "{\"goal\": \"g\xff\"}", {.max_length = 64}), Names({"piqa.jsonl:1", "JSON"}));
}

TEST(Encode, EncodePair_HandlesBorderBosAndEmptyContext) {
  const auto tokenizer = load_tokenizer("bytes");
  TextEncoder plain(*tokenizer, false);
  const auto ids = [&](const std::string& text) { return tokenizer->encode(text); };
  EXPECT_EQ(plain.encode_pair("ab", " c"), (Request{ids("ab"), ids(" c")}));
  EXPECT_EQ(plain.encode_pair("ab \n", "c"), (Request{ids("ab"), ids(" \nc")}));
  EXPECT_EQ(plain.encode_pair("", " c"), (Request{{plain.prefix()}, ids(" c")}));
  EXPECT_EQ(plain.encode_pair(" ", "c"), (Request{{}, ids(" c")}));
  if (!tokenizer->bos_id()) {
    EXPECT_THAT(error_of([&] { TextEncoder(*tokenizer, true); }), Names({"--bos", "bytes"}));
    return;
  }
  TextEncoder with_bos(*tokenizer, true);
  auto context = ids("ab");
  context.insert(context.begin(), *tokenizer->bos_id());
  EXPECT_EQ(with_bos.encode_pair("ab", " c"), (Request{context, ids(" c")}));
  EXPECT_EQ(with_bos.encode_pair("", " c"), (Request{{*tokenizer->bos_id()}, ids(" c")}));
}

// The file of the second task is damaged. The error must not discard the results of the first task.
TEST(RunTasks, Error_KeepsFinishedTasks) {
  const Folder folder;
  LanguageModel model = small_model();
  const auto tokenizer = load_tokenizer("bytes");
  const std::string row = R"({"goal": "a", "sol1": "b", "sol2": "c", "label": 1})";
  folder.write("piqa.jsonl", row + "\n" + row + "\n");
  folder.write("winogrande.jsonl", "damaged\n");
  std::vector<std::string> finished;
  TaskOptions options = quiet();
  options.on_result = [&](const TaskResult& result) { finished.push_back(result.name); };
  const auto evaluate = [&](std::vector<Task> tasks) {
    return evaluate_tasks(model, *tokenizer, tasks, folder.path, options);
  };
  EXPECT_THAT(error_of([&] {
                evaluate({find_task("piqa"), find_task("winogrande")});
              }),
              Names({"winogrande.jsonl", 1}));
  EXPECT_EQ(finished, std::vector<std::string>{"piqa"});
  finished.clear();
  EXPECT_EQ(evaluate({find_task("piqa")}).size(), 1u);
  EXPECT_EQ(finished, std::vector<std::string>{"piqa"});
}

TEST(ResultFiles, ResultFiles_HaveFoldersAndNames) {
  const Folder folder;
  const TaskResult result = {.name = "piqa", .samples = "{}\n"};
  const ResultFiles file(folder.path / "deep/run.json"), dated(folder.path / "out");
  for (const ResultFiles* files : {&file, &dated}) {
    files->write_samples(result);
    files->write_partial("{}");
    files->write_partial("{\"a\": 0}");
    EXPECT_EQ(read_file(files->partial_path()), "{\"a\": 0}");
    EXPECT_FALSE(fs::exists(files->path()));
    files->write("{\"a\": 1}");
    EXPECT_EQ(read_file(files->path()), "{\"a\": 1}");
  }
  std::vector<std::string> names;
  for (const char* sub : {"deep", "out"}) {
    for (const auto& entry : fs::directory_iterator(folder.path / sub))
      names.push_back(entry.path().filename().string());
  }
  const auto date = "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}-[0-9]{2}-[0-9]{2}\\.[0-9]{6}";
  EXPECT_THAT(names, testing::UnorderedElementsAre(
                         "run.json", testing::ContainsRegex(fmt::format("^samples_piqa_{}\\.jsonl$", date)),
                         testing::ContainsRegex(fmt::format("^samples_piqa_{}\\.jsonl$", date)),
                         testing::ContainsRegex(fmt::format("^results_{}\\.json$", date))));
  fs::create_directories(folder.path / "x.json");
  EXPECT_THAT(error_of([&] { ResultFiles(folder.path / "x.json"); }),
              Names({"--output", (folder.path / "x.json").string()}));
  folder.write("plain", "");
  EXPECT_THAT(error_of([&] { ResultFiles(folder.path / "plain"); }),
              Names({"--output", (folder.path / "plain").string(), ".json"}));
}

}  // namespace lazy::eval
