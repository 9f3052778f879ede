#include "train/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/checksum.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"

namespace lazy::train {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

constexpr int kFormat = 1;
constexpr const char* kPrefix = "step-";
constexpr const char* kStateFile = "state.json";

std::string hex(uint64_t value) { return fmt::format("{:016x}", value); }

void sync_file(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool ok = fd >= 0 && ::fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (!ok) fail_run("write", "{}: {}", path.string(), std::strerror(error));
}

// Syncs the files of a folder to disk and returns their sizes and checksums: {"model.safetensors": {"bytes": 123,
// "xxh3": "..."}, ...}
Json sync_and_checksum_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  Json out = Json::object();
  for (const auto& file : files) {
    sync_file(file);
    const MappedFile content(file);
    out[file.filename().string()] = {{"bytes", content.size()}, {"xxh3", hex(checksum(content.view()))}};
  }
  return out;
}

std::string state_text(const Json& document) { return document.dump(1) + "\n"; }

// Returns the checksum of the JSON document, which is computed without the key "checksum" that stores it.
std::string own_checksum(Json document) {
  document.erase("checksum");
  return hex(checksum(document.dump()));
}

void write_state(const fs::path& folder, const TrainState& state, const Json& files) {
  Json json = to_json(state);
  json["files"] = files;
  json["checksum"] = own_checksum(json);
  write_file_atomic(folder / kStateFile, state_text(json));
}

template <typename T>
T field(const Json& json, const char* name, const std::string& file) {
  const auto found = json.find(name);
  if (found == json.end()) fail("checkpoint", "{}: missing '{}'", file, name);
  try {
    return found->get<T>();
  } catch (const nlohmann::json::exception&) {
    fail("checkpoint", "{}: {}: unexpected value {}", file, name, found->dump());
  }
}

}  // namespace

Json to_json(const TrainState& state) {
  Json out = {{"format", kFormat},         {"step", state.step},       {"sequences", state.sequences},
              {"tokens", state.tokens},    {"seconds", state.seconds}, {"faults", to_json(state.anomalies)},
              {"settings", state.settings}};
  if (state.offset_shift != 0) out["offset_shift"] = state.offset_shift;
  return out;
}

TrainState state_from_json(const Json& json, const std::string& file) {
  if (!json.is_object()) fail("checkpoint", "{}: expected a JSON object", file);
  const int format = field<int>(json, "format", file);
  if (format != kFormat) fail("checkpoint", "{}: format: expected {}, found {}", file, kFormat, format);
  TrainState state;
  state.step = field<int64_t>(json, "step", file);
  state.sequences = field<int64_t>(json, "sequences", file);
  state.tokens = field<int64_t>(json, "tokens", file);
  state.seconds = field<double>(json, "seconds", file);
  if (json.contains("offset_shift")) state.offset_shift = field<double>(json, "offset_shift", file);
  if (json.contains("faults")) {  // older checkpoints do not have this key
    try {
      state.anomalies = anomaly_state_from_json(json["faults"]);
    } catch (const Json::exception&) {
      fail("checkpoint", "{}: faults: unexpected value {}", file, json["faults"].dump());
    }
  }
  state.settings = field<Json>(json, "settings", file);
  if (state.step < 0 || state.sequences < 0) fail("checkpoint", "{}: step and sequences cannot be negative", file);
  return state;
}

TrainState verify_checkpoint(const fs::path& checkpoint) {
  const fs::path state_path = checkpoint / kStateFile;
  const std::string text = read_file(state_path);
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object())
    fail("checkpoint", "{}: expected a complete JSON object", state_path.string());
  if (text != state_text(json))
    fail("checkpoint", "{}: the file was modified after it was written", state_path.string());
  const auto expected = field<std::string>(json, "checksum", state_path.string());
  if (const auto found = own_checksum(json); found != expected) {
    fail("checkpoint", "{}: expected checksum {}, found {}", state_path.string(), expected, found);
  }
  const auto files = field<Json>(json, "files", state_path.string());
  for (const auto& [name, facts] : files.items()) {
    const fs::path path = checkpoint / name;
    const MappedFile content(path);
    const auto bytes = field<uint64_t>(facts, "bytes", state_path.string());
    if (content.size() != bytes)
      fail("checkpoint", "{}: expected {} bytes, found {}", path.string(), bytes, content.size());
    const auto sum = field<std::string>(facts, "xxh3", state_path.string());
    if (const auto found = hex(checksum(content.view())); found != sum) {
      fail("checkpoint", "{}: expected checksum {}, found {}", path.string(), sum, found);
    }
  }
  return state_from_json(json, state_path.string());
}

CheckpointStore::CheckpointStore(fs::path directory, int64_t keep_last, int64_t keep_every)
    : directory_(std::move(directory)), keep_last_(keep_last), keep_every_(keep_every) {}

fs::path CheckpointStore::path(int64_t step) const { return directory_ / fmt::format("{}{:08d}", kPrefix, step); }

fs::path CheckpointStore::temporary_path(int64_t step) const {
  return directory_ / fmt::format(".tmp-{}", path(step).filename().string());
}

void CheckpointStore::rewrite_state(const TrainState& state) {
  const fs::path folder = path(state.step);
  const Json former = Json::parse(read_file(folder / kStateFile));
  write_state(folder, state, field<Json>(former, "files", (folder / kStateFile).string()));
}

std::vector<int64_t> CheckpointStore::steps() const {
  std::vector<int64_t> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory_, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    int64_t step = 0;
    const char* end = name.data() + name.size();
    const auto [stop, code] = std::from_chars(name.data() + std::strlen(kPrefix), end, step);
    if (code == std::errc() && stop == end && path(step) == entry.path()) out.push_back(step);
  }
  std::sort(out.begin(), out.end());
  return out;
}

fs::path CheckpointStore::save(const TrainState& state, const std::function<void(const fs::path&)>& write_files) {
  const fs::path final_name = path(state.step);
  const fs::path unfinished = temporary_path(state.step);
  try {
    fs::remove_all(unfinished);
    fs::create_directories(unfinished);
    write_files(unfinished);
    write_state(unfinished, state, sync_and_checksum_files(unfinished));
    publish_directory(unfinished, final_name);
  } catch (const std::exception& e) {
    std::error_code ignored;
    fs::remove_all(unfinished, ignored);
    throw RunError(fmt::format("checkpoint of step {} not saved: {}", state.step, e.what()));
  }
  prune();
  return final_name;
}

void CheckpointStore::prune() {
  if (keep_last_ == 0) return;
  auto all = steps();
  for (size_t i = 0; i + static_cast<size_t>(keep_last_) < all.size(); ++i) {
    if (keep_every_ > 0 && all[i] % keep_every_ == 0) continue;
    // The folder is renamed before it is removed. If the process is killed in between, no incomplete folder has the
    // name of a checkpoint.
    const fs::path removed = directory_ / fmt::format(".tmp-old-{}", all[i]);
    std::error_code error;
    fs::rename(path(all[i]), removed, error);
    if (!error) fs::remove_all(removed, error);
    if (error) log::warn("cannot remove the old checkpoint {}: {}", path(all[i]).string(), error.message());
  }
}

void CheckpointStore::remove_unfinished() {
  std::error_code error;
  std::vector<fs::path> unfinished;
  for (const auto& entry : fs::directory_iterator(directory_, error)) {
    const std::string name = entry.path().filename().string();
    for (const char* ours : {".tmp-step-", ".tmp-old-", ".tmp-seen-"}) {
      if (name.starts_with(ours)) unfinished.push_back(entry.path());
    }
  }
  for (const auto& folder : unfinished) fs::remove_all(folder, error);
}

void CheckpointStore::mark_damaged(int64_t step, const std::string& why) {
  const fs::path aside = directory_ / ("damaged-" + path(step).filename().string());
  log::warn("renamed a damaged checkpoint to {}: {}", aside.filename().string(), why);
  std::error_code error;
  fs::remove_all(aside, error);
  fs::rename(path(step), aside, error);
  if (error) fail("checkpoint", "{}: cannot rename the damaged folder: {}", path(step).string(), error.message());
}

std::optional<CheckpointStore::Checkpoint> CheckpointStore::newest_valid() {
  auto all = steps();
  if (all.empty()) return std::nullopt;
  std::string last_problem;
  for (auto step = all.rbegin(); step != all.rend(); ++step) {
    try {
      TrainState state = verify_checkpoint(path(*step));
      if (state.step != *step)
        fail("checkpoint", "{}: step: expected {}, found {}", path(*step).string(), *step, state.step);
      return Checkpoint{path(*step), std::move(state)};
    } catch (const Error& e) {
      last_problem = e.what();
      mark_damaged(*step, last_problem);
    }
  }
  fail("checkpoint", "{}: no usable checkpoint is left ({}); omit --resume to start a new run", directory_.string(),
       last_problem);
}

void CheckpointWriter::start(int64_t step, bool background, std::function<void()> write) {
  wait();
  started_ = step;
  const auto timed = [write = std::move(write)] {
    const auto begin = Clock::now();
    write();
    return seconds_since(begin);
  };
  in_flight_ = std::async(background ? std::launch::async : std::launch::deferred, timed);
  if (!background) finish();
}

double CheckpointWriter::wait() {
  const auto begin = Clock::now();
  if (in_flight_.valid()) finish();
  return seconds_since(begin);
}

void CheckpointWriter::check() {
  if (in_flight_.valid() && in_flight_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) finish();
}

void CheckpointWriter::finish() {
  write_seconds_ = in_flight_.get();
  saved_ = started_;
}

std::optional<double> CheckpointWriter::take_write_seconds() { return std::exchange(write_seconds_, std::nullopt); }

}  // namespace lazy::train
