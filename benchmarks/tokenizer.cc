#include "benchmarks/benchmarks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "data/tokenizer.h"

namespace lazy::benchmarks {

namespace {

namespace fs = std::filesystem;

// Python script that encodes the same lines with the Python package `tokenizers` or `sentencepiece`. It writes the ids
// to a file, and prints the name of the package and the seconds of the fastest pass.
constexpr const char* kPeer = R"(
import sys, time, array
path, text, out, repeats = sys.argv[1:]
lines = open(text, encoding="utf-8", newline="\n").read().split("\n")
if path.endswith(".model"):
    import sentencepiece
    processor = sentencepiece.SentencePieceProcessor(model_file=path)
    encode, name = (lambda s: processor.encode(s)), "sentencepiece " + sentencepiece.__version__
else:
    import tokenizers
    if path.endswith(".json"):
        tokenizer = tokenizers.Tokenizer.from_file(path)
    else:
        tokenizer = tokenizers.ByteLevelBPETokenizer(path + "/vocab.json", path + "/merges.txt")
    encode, name = (lambda s: tokenizer.encode(s, add_special_tokens=False).ids), "tokenizers " + tokenizers.__version__
best = 1e30
for _ in range(int(repeats)):
    begin = time.perf_counter()
    ids = [encode(line) for line in lines]
    best = min(best, time.perf_counter() - begin)
flat = array.array("i", [i for line in ids for i in line])
open(out, "wb").write(flat.tobytes())
print(name, "|", best)
)";

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

struct Peer {
  std::string name;
  double seconds = 0;
  std::vector<int32_t> ids;
};

Peer run_peer(const TokenizerBenchmark& o, const std::string& file) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("lazy-bench-{}", static_cast<long>(::getpid()));
  fs::create_directories(folder);
  const fs::path script = folder / "peer.py", out = folder / "ids", log = folder / "log";
  write_file_atomic(script, kPeer);
  const std::string command =
      fmt::format("TOKENIZERS_PARALLELISM=false RAYON_NUM_THREADS=1 {} {} {} {} {} {} > {} 2>&1", quoted(o.python),
                  quoted(script), quoted(file), quoted(o.text), quoted(out), o.repeats, quoted(log));
  const int status = std::system(command.c_str());
  const std::string said = read_file(log);
  Peer peer;
  if (status == 0) {
    const size_t bar = said.rfind(" | ");
    if (bar != std::string::npos) {
      peer.name = said.substr(0, bar);
      peer.seconds = std::stod(said.substr(bar + 3));
      const std::string bytes = read_file(out);
      peer.ids.resize(bytes.size() / sizeof(int32_t));
      std::memcpy(peer.ids.data(), bytes.data(), peer.ids.size() * sizeof(int32_t));
    }
  } else {
    std::string last = said.substr(0, said.find_last_not_of('\n') + 1);
    last = last.substr(last.rfind('\n') + 1);
    fmt::print(stderr, "the peer could not be run: {}: {}\n", o.python, last);
  }
  fs::remove_all(folder);
  return peer;
}

}  // namespace

nlohmann::json run_tokenizer(const TokenizerBenchmark& o) {
  const auto tokenizer = load_tokenizer(o.tokenizer);
  const std::string text = to_valid_utf8(read_file(o.text));
  const std::vector<std::string> lines = split(text, '\n');
  std::vector<int32_t> ids;
  double best = 1e30;
  for (int n = 0; n < o.repeats; ++n) {
    ids.clear();
    const auto begin = std::chrono::steady_clock::now();
    for (const std::string& line : lines) {
      const auto more = tokenizer->encode(line);
      ids.insert(ids.end(), more.begin(), more.end());
    }
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  fmt::print("Encoding {} ({} lines, {} ids) on one thread, fastest of {} runs.\n{:24} {:>9} {:>8} {:>7}\n", o.text,
             lines.size(), ids.size(), o.repeats, "", "time", "MB/s", "ratio");
  nlohmann::json result = {
      {"tokenizer", o.tokenizer}, {"text", o.text}, {"bytes", text.size()}, {"ids", ids.size()}, {"seconds", best}};
  std::string file = o.tokenizer;
  if (fs::is_directory(file)) {
    for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
      if (fs::exists(fs::path(o.tokenizer) / name)) file = fs::path(o.tokenizer) / name;
    }
  }
  const Peer peer = run_peer(o, file);
  if (peer.seconds > 0) {
    fmt::print("{:24} {:6.1f} ms {:8.1f} {:7.2f}\n", peer.name, 1e3 * peer.seconds, megabytes / peer.seconds, 1.0);
    result["peer"] = {{"name", peer.name}, {"seconds", peer.seconds}};
    result["ratio"] = peer.seconds / best;
  }
  fmt::print("{:24} {:6.1f} ms {:8.1f} {:>7}\n", "lazy", 1e3 * best, megabytes / best,
             peer.seconds > 0 ? fmt::format("{:.2f}", peer.seconds / best) : "-");
  if (peer.seconds > 0 && peer.ids != ids) {
    size_t at = 0;
    while (at < std::min(ids.size(), peer.ids.size()) && ids[at] == peer.ids[at]) ++at;
    fail_run("bench tokenizer", "{}: ids differ from {}'s at position {} of {} (theirs: {} ids)", o.tokenizer,
             peer.name, at, ids.size(), peer.ids.size());
  }
  return result;
}

}  // namespace lazy::benchmarks
