#include "serve/openai/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace lazy::serve {

void Histogram::add(double seconds) {
  const auto at = std::lower_bound(kSeconds.begin(), kSeconds.end(), seconds) - kSeconds.begin();
  counts_[static_cast<size_t>(at)].fetch_add(1, std::memory_order_relaxed);
  microseconds_.fetch_add(static_cast<int64_t>(seconds * 1e6), std::memory_order_relaxed);
}

void Histogram::write(std::string& out, const std::string& name, const std::string& labels) const {
  int64_t sum = 0;
  for (size_t i = 0; i <= kSeconds.size(); ++i) {
    sum += counts_[i].load(std::memory_order_relaxed);
    const std::string limit = i < kSeconds.size() ? fmt::format("{}", kSeconds[i]) : "+Inf";
    fmt::format_to(std::back_inserter(out), "{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, limit, sum);
  }
  fmt::format_to(std::back_inserter(out), "{}_sum{{{}}} {}\n{}_count{{{}}} {}\n", name, labels,
                 static_cast<double>(microseconds_.load(std::memory_order_relaxed)) / 1e6, name, labels, sum);
}

void ServerMetrics::count(const std::string& endpoint, int status) {
  const std::scoped_lock lock(mutex_);
  ++requests_[{endpoint, status}];
}

void ServerMetrics::write(std::string& out) const {
  const std::scoped_lock lock(mutex_);
  out += "# HELP lazy_http_requests_total Answered requests.\n# TYPE lazy_http_requests_total counter\n";
  for (const auto& [key, count] : requests_) {
    fmt::format_to(std::back_inserter(out), "lazy_http_requests_total{{endpoint=\"{}\",status=\"{}\"}} {}\n", key.first,
                   key.second, count);
  }
}

std::string model_label(const std::string& model) {
  std::string out = "model=\"";
  for (const char letter : model) {
    if (letter == '"' || letter == '\\') out += '\\';
    if (letter == '\n') {
      out += "\\n";
    } else {
      out += letter;
    }
  }
  return out + "\"";
}

std::string prometheus_text(const ServerMetrics& server, const HttpCounters& http,
                            const std::vector<ModelSnapshot>& models) {
  std::string out;
  const auto write = [&](const char* name, const char* type, const char* help, const auto& value_of) {
    fmt::format_to(std::back_inserter(out), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
    for (const ModelSnapshot& model : models) {
      fmt::format_to(std::back_inserter(out), "{}{{{}}} {}\n", name, model_label(model.model), value_of(model.engine));
    }
  };
  const auto write_http = [&](const char* name, const char* type, const char* help, int64_t value) {
    fmt::format_to(std::back_inserter(out), "# HELP {0} {2}\n# TYPE {0} {1}\n{0} {3}\n", name, type, help, value);
  };
  server.write(out);
  write_http("lazy_http_connections", "gauge", "Open connections.", http.open);
  write_http("lazy_http_connections_accepted_total", "counter", "Accepted connections.", http.accepted);
  write_http("lazy_http_connections_refused_total", "counter",
             "Connections that were refused because of the connection limit.", http.refused);
  write_http("lazy_http_malformed_total", "counter", "Requests that are not valid HTTP.", http.malformed);
  write_http("lazy_http_timeouts_total", "counter", "Requests that exceeded a time limit.", http.timeouts);
  write_http("lazy_http_gone_total", "counter", "Clients that disconnected before the end of the response.", http.gone);
  using M = EngineMetrics;
  write("lazy_requests_running", "gauge", "Running sequences.", [](const M& m) { return m.running; });
  write("lazy_requests_waiting", "gauge", "Waiting sequences.", [](const M& m) { return m.waiting; });
  write("lazy_sequences_total", "counter", "Finished sequences.", [](const M& m) { return m.requests; });
  write("lazy_prompt_tokens_total", "counter", "Processed prompt tokens.", [](const M& m) { return m.prompt_tokens; });
  write("lazy_reused_tokens_total", "counter", "Prompt tokens that were reused from shared pages.",
        [](const M& m) { return m.reused_tokens; });
  write("lazy_generated_tokens_total", "counter", "Generated tokens.", [](const M& m) { return m.generated_tokens; });
  write("lazy_preemptions_total", "counter", "Preempted sequences, which are recomputed later.",
        [](const M& m) { return m.preemptions; });
  write("lazy_cache_pages", "gauge", "Total pages of the KV cache.", [](const M& m) { return m.pages; });
  write("lazy_cache_pages_free", "gauge", "Free pages of the KV cache.", [](const M& m) { return m.free_pages; });
  write("lazy_cache_pages_shared", "gauge", "Unused pages that are retained for later prompts.",
        [](const M& m) { return m.shared_pages; });
  out +=
      "# HELP lazy_chat_template_unusable 1 if chats fail because the chat template cannot be used.\n"
      "# TYPE lazy_chat_template_unusable gauge\n";
  for (const ModelSnapshot& model : models) {
    fmt::format_to(std::back_inserter(out), "lazy_chat_template_unusable{{{}}} {}\n", model_label(model.model),
                   model.unusable_chat_template ? 1 : 0);
  }
  const auto histogram = [&](const char* name, const char* help, Histogram ModelMetrics::*member) {
    fmt::format_to(std::back_inserter(out), "# HELP {} {}\n# TYPE {} histogram\n", name, help, name);
    for (const ModelSnapshot& model : models) (model.latencies->*member).write(out, name, model_label(model.model));
  };
  histogram("lazy_time_to_first_token_seconds", "Time from the arrival of a request to the first token of a sequence.",
            &ModelMetrics::first_token);
  histogram("lazy_time_between_tokens_seconds", "Time between two tokens of a sequence.",
            &ModelMetrics::between_tokens);
  return out;
}

}  // namespace lazy::serve
