#include "unknown_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "core/known_names.h"
#include "core/text.h"

namespace lazy::cli {

namespace {

// Options of vLLM, SGLang, llama.cpp or transformers that have the same meaning, and what to use instead in `lazy`.
struct PeerOption {
  std::vector<std::string_view> names;
  std::string_view needed;       // the advice is only given for commands that have this option
  std::string_view advice = "";  // "": the advice is to use the option `needed`
};

const std::vector<PeerOption>& peer_options() {
  static const std::vector<PeerOption> all{
      {{"-c", "--ctx-size", "--n-ctx", "--context-length", "--max-seq-len"}, "--max-model-len"},
      {{"-ngl", "--n-gpu-layers", "--gpu-layers"}, "--device", "use --device cuda, which places the whole model"},
      {{"--gpu-memory-utilization", "--mem-fraction-static", "--kv-cache-memory-bytes"},
       "--cache-gib",
       "use --cache-gib, the size of the KV cache in GiB"},
      {{"-tp", "--tensor-parallel-size", "-pp", "--pipeline-parallel-size", "-dp", "--data-parallel-size", "-ts",
        "--tensor-split", "-mg", "--main-gpu"},
       "--cache-gib",
       "a model runs on one device; CUDA_VISIBLE_DEVICES selects the GPU"},
      {{"--served-model-name", "-a", "--alias"}, "--max-running", "write the model as NAME=FOLDER"},
      {{"-m", "--model", "--model-path", "--model-name-or-path", "--pretrained"},
       "--download",
       "write the model folder without an option"},
      {{"-hf", "-hfr", "--hf-repo"}, "--download", "write the model as org/name and add --download"},
      {{"-np", "--parallel", "--max-num-seqs", "--max-running-requests", "--max-concurrent-requests"}, "--max-running"},
      {{"--api-key"}, "--api-key-file", "use --api-key-file, so that the key is not visible in the list of processes"},
      {{"--cors-allow-origins", "--cors-origins"}, "--allowed-origins"},
      {{"-to", "--timeout"}, "--request-seconds"},
      {{"--log-requests", "--enable-log-requests", "--log-http"}, "--access-log"},
      {{"--threads-http", "--api-server-count"}, "--io-threads"},
      {{"--metrics", "--enable-metrics"}, "--max-running", "metrics are always available at /metrics"},
      {{"--ssl-keyfile", "--ssl-certfile", "--ssl-key-file", "--ssl-cert-file"},
       "--max-running",
       "run a proxy such as nginx for TLS"},
      {{"--max-num-batched-tokens", "--enable-chunked-prefill", "--chunked-prefill-size", "-b", "-ub", "--ubatch-size",
        "-cb", "--cont-batching", "--enable-prefix-caching", "--cache-reuse"},
       "--max-running",
       "not needed: continuous batching, chunked prefill and prefix caching are always used"},
      {{"-fa", "--flash-attn", "--attention-backend"}, "--cache-gib", "not needed: fused attention is always used"},
      {{"--jinja", "--chat-template", "--chat-template-file"},
       "--cache-gib",
       "the chat template of the model folder is used, rendered by Jinja2"},
      {{"--enable-auto-tool-choice", "--tool-call-parser"}, "--max-running", "tool calls are not supported"},
      {{"--log-level", "--uvicorn-log-level", "-lv", "--verbosity", "--log-verbosity"},
       "--cache-gib",
       "`lazy --verbose COMMAND` also prints debugging messages"},
      {{"--trust-remote-code"}, "--download", "not needed: code of model folders is never run"},
      {{"-ctk", "--cache-type-k", "-ctv", "--cache-type-v", "--kv-cache-dtype"},
       "--cache-gib",
       "the KV cache has the precision of --dtype"},
      {{"-q", "--quantization"}, "--weights", "use --weights int8"},
      {{"-n", "--predict", "--n-predict", "--max-new-tokens"}, "--max-tokens"},
      {{"--temp"}, "--temperature"},
      {{"--repeat-penalty"}, "--repetition-penalty"},
      {{"-p"}, "--prompt"},
      {{"-f", "--file"}, "--prompt-file"},
      {{"-s"}, "--seed"},
      {{"-sys", "--system-prompt"}, "--system"},
      {{"-t", "--num-threads"}, "--threads"},
      {{"--lr", "--learning-rate", "--batch-size", "--per-device-train-batch-size", "--max-steps", "--num-train-epochs",
        "--seq-length"},
       "--set",
       "use --set section.key=value to change a key of the configuration"},
      {{"--model-args"}, "--num-fewshot", "write the model folder without an option"},
      {{"--output-path"}, "--output"},
  };
  return all;
}

bool is_option(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && (word[1] == '-' ? word.size() > 2 : std::isalpha(word[1]) != 0);
}

// Returns the advice what to use instead of an unknown option, or "" if the option is not in the list.
std::string advice_for(const std::string& option, const std::vector<std::string>& known) {
  for (const PeerOption& peer : peer_options()) {
    const std::string needed(peer.needed);
    if (std::ranges::find(peer.names, option) == peer.names.end() || !contains(known, needed)) continue;
    return peer.advice.empty() ? "use " + needed : std::string(peer.advice);
  }
  if (!option.starts_with("--")) return "";
  std::vector<std::string> names;  // names without the leading dashes, which nearest() would count as equal letters
  for (const std::string& name : known) {
    if (name.starts_with("--")) names.push_back(name.substr(2));
  }
  const std::string near = nearest(option.substr(2), names);
  return near.empty() ? "" : "did you mean --" + near + "?";
}

}  // namespace

std::string describe_unknown_options(const std::vector<std::string>& words, const std::vector<std::string>& known) {
  std::vector<std::string> found;
  for (const std::string& word : words) {
    if (!is_option(word)) continue;
    const std::string given = word.substr(0, word.find('='));
    std::string name = given;
    std::ranges::replace(name, '_', '-');
    const std::string advice =
        contains(known, name) && name == given ? "write it after the command" : advice_for(name, known);
    found.push_back(advice.empty() ? given : fmt::format("{} ({})", given, advice));
  }
  if (found.empty()) return "";
  return fmt::format("unknown option{} {}", found.size() > 1 ? "s" : "", fmt::join(found, ", "));
}

}  // namespace lazy::cli
