#include "common_options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "core/text.h"
#include "model/context_length.h"
#include "model/device.h"

namespace lazy::cli {

void add_model_options(CLI::App& command, ModelOptions& options) {
  command.add_option(
      "--positions", options.positions,
      "RoPE scaling with its factor, such as yarn:4, linear:4 or dynamic:4; none disables the model's own scaling");
  command.add_option("--rope-base", options.rope_base, "Base of RoPE (default: the base of the model)");
  command.add_option("--cache", options.cache,
                     "streaming:4+508 keeps the first 4 and the last 508 tokens (StreamingLLM); heaviest:64+448 keeps "
                     "the 64 tokens with the most attention weight and the last 448 tokens");
  command.add_option(
      "--quantize", options.quantize,
      "Simulate quantization: round weights and inputs of linear layers (w8a8, w4a4) and the cache (kv8, kv4), such as "
      "w4a4:tensor,kv4:channel");
  command
      .add_option("--weights", options.weights,
                  "int8: quantize linear layers and the head to 8 bits with one scale per row. Decoding on a CPU is "
                  "faster, but needs more memory; --dtype bf16 needs less memory")
      ->check(one_of({"int8"}));
}

void add_placement_options(CLI::App& command, std::string& device, std::string& dtype) {
  command.add_option("--device", device, "Device to compute on")
      ->check(one_of({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command.add_option("--dtype", dtype, "Computing precision; auto: bf16 on a GPU and on a CPU with AMX")
      ->check(one_of({"auto", "fp32", "bf16"}))
      ->capture_default_str();
}

void add_sampling_options(CLI::App& command, SamplingOptions& sampling, const std::string& seeds) {
  command.add_option("--temperature", sampling.temperature, "0: greedy")->capture_default_str();
  command.add_option("--top-k", sampling.top_k, "Sample from the k most likely tokens; 0: all")->capture_default_str();
  command
      .add_option("--top-p", sampling.top_p, "Sample from the most likely tokens that together have this probability")
      ->capture_default_str();
  command
      .add_option("--repetition-penalty", sampling.repetition_penalty,
                  "Values above 1 penalize tokens that already occur in the text")
      ->capture_default_str();
  command.add_option("--seed", sampling.seed, "Equal seeds give equal texts; " + seeds)->capture_default_str();
}

void place_model(LanguageModel& model, const std::string& device, const std::string& dtype) {
  set_placement(model, device, dtype);
  if (dtype != "fp32") model.hold_compute_dtype();
}

namespace {

// Returns the size of the GPU's memory for device "cuda", otherwise the memory of this machine or of its container.
double memory_bytes(const std::string& device) {
  if (device == "cuda") {
    const std::vector<Gpu> found = gpus();
    return found.empty() ? std::numeric_limits<double>::infinity() : static_cast<double>(found.front().memory);
  }
  const double machine = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  double limit = machine;  // unchanged if the file does not exist; 0 if it contains "max" (no limit)
  std::ifstream("/sys/fs/cgroup/memory.max") >> limit;
  return limit > 0 ? std::min(machine, limit) : machine;
}

}  // namespace

void check_cache_size(const char* operation, double gib, const std::string& device) {
  const double bytes = gib * (1 << 30), memory = memory_bytes(device);
  if (bytes <= memory) return;
  fail(operation, "--cache-gib: expected less than the memory of this {}, {}, found {}",
       device == "cuda" ? "GPU" : "machine", human_bytes(memory), human_bytes(bytes));
}

void warn_beyond_training(const char* operation, const std::string& model, const ModelConfig& config, int64_t length) {
  if (length <= context_length(config)) return;
  log::warn(
      "{}: {} tokens exceed the context length of {}, {} tokens (max_position_embeddings); the model was not trained "
      "for later positions",
      operation, length, model, context_length(config));
}

void add_interventions(CLI::App& command) {
  for (const auto& [option, help] :
       {std::pair{"--set-zero", "NAME[INDEX]: set part of a weight or an activation to zero"},
        {"--replace", "NAME[INDEX]=VALUE: replace part of a weight or an activation by VALUE"},
        {"--add", "NAME[INDEX]=VALUE: add VALUE to part of a weight or an activation"},
        {"--swap-positions", "NAME=I,J: swap two positions of an activation or two rows of a weight"}}) {
    command.add_option(option, help)
        ->type_name("TEXT")
        ->expected(1)
        ->take_all()
        ->allow_extra_args(false)
        ->group("Interventions");
  }
}

sinks::Interventions given_interventions(const CLI::App& command) {
  using sinks::Interventions;
  const std::map<std::string, Interventions& (Interventions::*)(const std::string&)> kinds{
      {"--set-zero", &Interventions::set_zero},
      {"--replace", &Interventions::replace},
      {"--add", &Interventions::add},
      {"--swap-positions", &Interventions::swap_positions}};
  Interventions given;
  for (const auto& [option, value] : values_in_order(command)) {
    const auto kind = kinds.find(option);
    if (kind != kinds.end()) (given.*kind->second)(value);
  }
  return given;
}

}  // namespace lazy::cli
