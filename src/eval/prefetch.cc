#include "eval/prefetch.h"

#include "core/read_ahead.h"

namespace lazy::eval {
namespace {

// A chunk ends as soon as it has kRequests requests or kWindowTokens tokens in its windows. The queue contains up to
// kAhead chunks.
constexpr size_t kRequests = 8192, kWindowTokens = 1 << 20, kAhead = 3;

}  // namespace

struct RequestPrefetcher::Impl {
  using HandOver = ReadAhead<RequestChunk>::HandOver;
  std::vector<Task> tasks;
  std::filesystem::path data;
  const Tokenizer& tokenizer;
  PromptOptions options;
  ReadAhead<RequestChunk> chunks;

  Impl(std::vector<Task> t, std::filesystem::path d, const Tokenizer& k, PromptOptions o)
      : tasks(std::move(t)),
        data(std::move(d)),
        tokenizer(k),
        options(o),
        chunks(kAhead, [this](const HandOver& hand_over) {
          for (size_t task = 0; task < tasks.size(); ++task) produce(task, hand_over);
        }) {}

  std::vector<TaskDocument> fewshot_pool(const Task& task, const std::vector<TaskDocument>& rows) const {
    if (options.num_fewshot == 0 || task.output_type == OutputType::loglikelihood_rolling) return {};
    return task.data.fewshot_split == task.data.split ? rows : read_rows(task, data, true);
  }

  // Reads one task and passes its chunks to the queue.
  void produce(size_t number, const HandOver& hand_over) const {
    const Task& task = tasks[number];
    std::vector<TaskDocument> rows = read_rows(task, data);
    const bool rolling = task.output_type == OutputType::loglikelihood_rolling;
    const int64_t shots = rolling ? 0 : options.num_fewshot;
    FewshotSampler sampler(task, fewshot_pool(task, rows), shots, options.fewshot_seed);
    const bool every = options.bos_every_window && rolling;
    if (options.bos_every_window) require_bos(tokenizer);
    TextEncoder encoder(tokenizer, (options.bos || options.bos_every_window) && !every);
    const auto original = static_cast<int64_t>(rows.size()), planned = apply_limit(original, options.limit);
    RequestChunk chunk;
    const auto start = [&](int64_t first) {
      chunk = RequestChunk();
      chunk.task = number;
      chunk.original = original;
      chunk.planned = planned;
      chunk.first = first;
    };
    start(0);
    for (int64_t i = 0; i < planned; ++i) {
      TaskDocument& row = rows[static_cast<size_t>(i)];
      Question question = make_question(task, row, sampler.next(row));
      if (rolling) {
        const std::vector<int32_t> ids = encoder.encode(question.text);
        chunk.tokens += static_cast<int64_t>(ids.size());
        auto windows = every ? rolling_windows_with_bos(ids, encoder.prefix(), options.max_length)
                             : rolling_windows(ids, encoder.prefix(), options.max_length);
        for (Window& window : windows) chunk.windows.push_back(std::move(window));
      } else {
        add_requests(task, row, question, encoder, chunk);
      }
      chunk.ends.push_back(chunk.requests.size() + chunk.windows.size());
      chunk.rows.push_back(std::move(row));
      chunk.questions.push_back(std::move(question));
      chunk.last = i + 1 == planned;
      if (!chunk.last && chunk.requests.size() < kRequests && chunk.tokens < static_cast<int64_t>(kWindowTokens))
        continue;
      hand_over(std::move(chunk));
      start(i + 1);
    }
  }

  void add_requests(const Task& task, const TaskDocument& row, const Question& question, TextEncoder& encoder,
                    RequestChunk& chunk) const {
    for (size_t c = 0; c < question.pairs.size(); ++c) {
      Request request = encoder.encode_pair(question.pairs[c].context, question.pairs[c].continuation);
      const auto count = static_cast<int64_t>(request.continuation.size());
      const std::string which =
          task.output_type == OutputType::multiple_choice ? fmt::format("choice {}", c + 1) : "continuation";
      if (count < 1 || count > options.max_length) {
        fail("eval", "{}: {}: expected 1 to {} tokens (the maximum length), found {}", row.where, which,
             options.max_length, count);
      }
      if (request.context.empty())
        fail("eval", "{}: {}: expected a context that is not only white space, found none", row.where, which);
      chunk.requests.push_back(std::move(request));
    }
  }
};

RequestPrefetcher::RequestPrefetcher(std::vector<Task> tasks, std::filesystem::path data, const Tokenizer& tokenizer,
                                     PromptOptions options)
    : impl_(std::make_unique<Impl>(std::move(tasks), std::move(data), tokenizer, options)) {}

RequestPrefetcher::~RequestPrefetcher() = default;

bool RequestPrefetcher::next(RequestChunk& chunk) {
  std::optional<RequestChunk> next = impl_->chunks.next();
  if (next) chunk = std::move(*next);
  return next.has_value();
}

}  // namespace lazy::eval
