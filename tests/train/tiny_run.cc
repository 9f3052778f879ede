#include "tiny_run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "core/file.h"
#include "core/text.h"
#include "support/tiny_corpus.h"

namespace lazy::train {
namespace fs = std::filesystem;

const fs::path& tiny_corpus() {
  static const ScratchFolder scratch;
  static const fs::path corpus = write_tiny_corpus(scratch.path());
  return corpus;
}

fs::path write_tiny_config(const fs::path& folder, const std::string& kind, const std::string& more) {
  const fs::path path = folder / "tiny.toml";
  std::ofstream(path) << fmt::format(R"([model]
kind = "{}"
hidden_size = 64
num_hidden_layers = 2
num_heads = 2
tie_word_embeddings = true
[data]
corpus = "{}"
documents_per_group = 64
[optimizer]
lr = 1e-2
[lr_scheduler]
warmup_steps = 4
[training]
steps = 40
seq_len = 64
batch_size = 4
gradient_accumulation_steps = 2
output = "run"
[validation]
every = 10
batches = 2
[checkpoint]
every = 10
[metrics]
log_every = 1
{})",
                                     kind, tiny_corpus().string(), more);
  return path;
}

std::vector<nlohmann::ordered_json> log_without_times(const fs::path& run) {
  std::vector<nlohmann::ordered_json> out;
  for (const auto& line : split(read_file(run / "log.jsonl"), '\n')) {
    if (line.empty()) continue;
    auto json = nlohmann::ordered_json::parse(line);
    for (const char* key :
         {"time", "throughput(tps)", "tflops", "time_metrics/end_to_end(s)", "time_metrics/data_loading(s)",
          "time_metrics/data_loading(%)", "memory/max_reserved(GiB)", "memory/max_reserved(%)"}) {
      EXPECT_EQ(json.erase(key), 1u) << key;
    }
    for (const char* key : {"checkpoint/blocked(s)", "checkpoint/write(s)"})
      json.erase(key);  // removed because only the line after a checkpoint has these keys
    out.push_back(std::move(json));
  }
  return out;
}

std::vector<double> losses(const fs::path& run) {
  std::vector<double> out;
  for (const auto& line : log_without_times(run)) out.push_back(line.at("loss_metrics/global_avg_loss").get<double>());
  return out;
}

::testing::AssertionResult same_files(const fs::path& a, const fs::path& b, const std::vector<std::string>& names) {
  for (const auto& name : names) {
    const std::string x = read_file(a / name), y = read_file(b / name);
    if (x == y) continue;
    size_t at = 0;
    while (at < std::min(x.size(), y.size()) && x[at] == y[at]) ++at;
    return ::testing::AssertionFailure() << name << ": " << x.size() << " and " << y.size()
                                         << " bytes, first difference at " << at;
  }
  return ::testing::AssertionSuccess();
}

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of('\n');
  return end == std::string::npos ? "" : text.substr(text.rfind('\n', end) + 1, end - text.rfind('\n', end));
}

Child::Child(const std::vector<std::string>& arguments, const fs::path& scratch, int64_t max_file_bytes,
             const Environment& environment, const std::string& command)
    : output_(scratch / "stdout"), errors_(scratch / "stderr") {
  std::vector<std::string> words{LAZY_BINARY, command};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  // The files are created before the fork, so that they exist even if the child is killed immediately.
  const int output = ::open(output_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const int errors = ::open(errors_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  pid_ = ::fork();
  if (pid_ != 0) {
    ::close(output);
    ::close(errors);
    return;
  }
  ::dup2(output, STDOUT_FILENO);
  ::dup2(errors, STDERR_FILENO);
  if (max_file_bytes > 0) {
    std::signal(SIGXFSZ, SIG_IGN);  // beyond the limit, a write fails instead of raising a signal
    const rlimit limit{static_cast<rlim_t>(max_file_bytes), static_cast<rlim_t>(max_file_bytes)};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  // Waiting OpenMP threads should not spin. Tests run in parallel, and a spinning thread would take CPU time from the
  // thread for which it waits.
  ::setenv("OMP_WAIT_POLICY", "passive", 0);
  // c10d looks up the host name of every address, which can take seconds if no name server answers.
  ::setenv("RES_OPTIONS", "timeout:1 attempts:1", 0);
  for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

Child::~Child() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Child::send(int signal) const { ::kill(pid_, signal); }

Ended Child::wait() {
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  Ended ended;
  if (WIFEXITED(status)) ended.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) ended.signal = WTERMSIG(status);
  ended.output = read_file(output_);
  ended.errors = read_file(errors_);
  return ended;
}

bool Child::wait_for_step(const fs::path& run, int64_t step) {
  const std::string wanted = fmt::format("{{\"step\":{},", step);
  while (true) {
    siginfo_t info{};
    const bool ended =
        ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid_;
    if (fs::exists(run / "log.jsonl") && read_file(run / "log.jsonl").find(wanted) != std::string::npos) return true;
    if (ended) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace lazy::train
