// Formats the result of make_plan() (`lazy train CONFIG --dry-run`) as text.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/text.h"
#include "train/plan.h"

namespace lazy::train {
using Json = nlohmann::ordered_json;

namespace {

// A warning is printed for a corpus that is read more than this number of times, because further epochs improve a model
// little (arXiv:2305.16264).
constexpr double kMaxUsefulEpochs = 4;

std::string bytes(const Json& value) { return human_bytes(value.get<double>()); }

// Formats one group of memory parts as rows with a column for each sharding mode. Some parts exist in one mode only.
std::string rows(const Json& memory, const char* group) {
  std::string text;
  std::vector<std::string> names;
  for (const auto& [mode, plan] : memory.items()) {
    for (const auto& [name, value] : plan[group].items()) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  for (const std::string& name : names) {
    text += fmt::format("  {:<28}", name);
    for (const auto& [mode, plan] : memory.items()) {
      text += fmt::format("{:>13}", plan[group].contains(name) ? bytes(plan[group][name]) : "-");
    }
    text += "\n";
  }
  return text;
}

std::string memory_text(const Json& memory, double capacity) {
  std::string text = fmt::format("{:<30}", "memory of each GPU");
  for (const auto& [mode, plan] : memory.items()) text += fmt::format("{:>13}", mode);
  text += "\n" + rows(memory, "state") + rows(memory, "activations");
  text += "  plus the larger of the following parts\n" + rows(memory, "passing");
  text += fmt::format("  {:<28}", "peak");
  for (const auto& [mode, plan] : memory.items()) text += fmt::format("{:>13}", bytes(plan["peak_bytes"]));
  text += fmt::format("\n  {:<28}", fmt::format("fits into {:g} GiB", capacity));
  for (const auto& [mode, plan] : memory.items())
    text += fmt::format("{:>13}", plan["fits"].get<bool>() ? "yes" : "no");
  text += "\n";
  for (const auto& [mode, plan] : memory.items()) {
    if (plan["fits"].get<bool>()) continue;
    text += fmt::format("  {}: first part that does not fit: {}; {}\n", mode, plan["does_not_fit"].get<std::string>(),
                        plan["advice"].get<std::string>());
  }
  return text;
}

std::string data_text(const Json& data) {
  std::string text = fmt::format("data        {} tokens", human_count(data["tokens"].get<double>()));
  if (data.contains("missing")) {
    for (const Json& path : data["missing"]) text += fmt::format("; {}: does not exist yet", path.get<std::string>());
    return text + "\n";
  }
  text += "\n";
  for (const Json& part : data["corpora"]) {
    text += fmt::format("  {:<20} {:>8} tokens, share {:.2f} %, {:.3f} epochs\n", part["name"].get<std::string>(),
                        human_count(part["tokens"].get<double>()), 100 * part["share"].get<double>(),
                        part["epochs"].get<double>());
  }
  for (const Json& part : data["corpora"]) {
    if (part["epochs"].get<double>() <= kMaxUsefulEpochs) continue;
    text += fmt::format("  warning: the run reads {} {:.0f} times; a model gains little after {:g} epochs\n",
                        part["name"].get<std::string>(), part["epochs"].get<double>(), kMaxUsefulEpochs);
  }
  return text;
}

}  // namespace

std::string plan_text(const Json& plan) {
  const auto integer = [&](const char* key) { return plan[key].get<int64_t>(); };
  std::string text = fmt::format(
      "{}: {}, {} parameters, {} on {} {}{}\n", plan["name"].get<std::string>(), plan["kind"].get<std::string>(),
      human_count(plan["parameters"].get<double>()),
      plan[plan["precision"] == "fp8" ? "precision" : "dtype"].get<std::string>(), integer("gpus"),
      plan["gpu"].get<std::string>(),
      plan["activation_checkpointing"] == "none"
          ? ""
          : fmt::format(", activation checkpointing {}", plan["activation_checkpointing"].get<std::string>()));
  text += fmt::format("step        {} tokens = GPUs {} x micro-batches {} x batch {} x length {}; {} steps\n",
                      integer("tokens_per_step"), integer("gpus"), integer("gradient_accumulation_steps"),
                      integer("batch_size"), integer("seq_len"), integer("steps"));
  if (plan["batch_size"] != plan["configured_batch_size"]) {
    text +=
        fmt::format("  set training.batch_size = {}, because {} GPUs x {} sequences do not divide the global batch\n",
                    integer("batch_size"), integer("gpus"), integer("configured_batch_size"));
  }
  if (const double minutes = plan["minutes"].get<double>(); minutes > 0) {
    text += fmt::format("  training.minutes = {:g} ends the run earlier if the steps take longer\n", minutes);
  }
  text += memory_text(plan["memory"], plan["gpu_memory_gib"].get<double>());
  text += "  these sizes exclude the CUDA context and the rounding of the allocator\n";
  if (plan.contains("speed")) {
    const Json& speed = plan["speed"];
    text += fmt::format(
        "speed       {} tokens/s, {} per GPU, {:.1f} % of {:g} TFLOP/s, {:.3f} s per step, {:.1f} hours\n",
        human_count(speed["tokens_per_second"].get<double>()),
        human_count(speed["tokens_per_second_per_gpu"].get<double>()), 100 * speed["mfu"].get<double>(),
        speed["peak_tflops"].get<double>(), speed["seconds_per_step"].get<double>(), speed["hours"].get<double>());
    text += fmt::format("  from {}; scaling efficiency {:g}\n", speed["source"].get<std::string>(),
                        speed["scaling"].get<double>());
    if (speed.contains("measured_peak_memory_bytes")) {
      text +=
          fmt::format("  peak memory of the measurement on one GPU: {}\n", bytes(speed["measured_peak_memory_bytes"]));
    }
  } else {
    text += "speed       unknown: add --measured FILE (written by `lazy bench train --json`) or --mfu SHARE\n";
  }
  if (integer("gpus") > 1) {
    text += "sent        by each GPU per step:";
    for (const auto& [mode, sent] : plan["bytes_sent_per_step"].items())
      text += fmt::format(" {} {}", mode, bytes(sent));
    text += "\n";
  }
  text += data_text(plan["data"]);
  const Json& checkpoint = plan["checkpoint"];
  text += fmt::format(
      "checkpoint  {} each; kept: {} ({}); exported model: {}\n", bytes(checkpoint["bytes"]),
      checkpoint["kept"].get<int64_t>() > 0 ? std::to_string(checkpoint["kept"].get<int64_t>()) : "all",
      checkpoint["kept"].get<int64_t>() > 0 ? bytes(checkpoint["kept_bytes"]) : "size depends on their number",
      bytes(checkpoint["model_bytes"]));
  return text;
}

}  // namespace lazy::train
