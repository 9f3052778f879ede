// Metrics of the server in the text format of Prometheus.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "serve/generation.h"
#include "serve/http/server.h"

namespace lazy::serve {

// Histogram of durations with fixed bucket limits. Thread-safe.
class Histogram {
 public:
  static constexpr std::array<double, 16> kSeconds = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1,
                                                      0.2,    0.5,   1,     2,     5,    10,   30,   60};
  void add(double seconds);
  // Appends the lines of the histogram, for example "name_bucket{labels,le="0.001"} 3".
  void write(std::string& out, const std::string& name, const std::string& labels) const;

 private:
  std::array<std::atomic<int64_t>, kSeconds.size() + 1> counts_ = {};
  std::atomic<int64_t> microseconds_ = 0;
};

// Latencies of one model, in seconds: the time to the first token and the time between two tokens.
struct ModelMetrics {
  Histogram first_token, between_tokens;
};

class ServerMetrics {
 public:
  void count(const std::string& endpoint, int status);
  void write(std::string& out) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> requests_;
};

// Returns the escaped label "model=\"name\"".
std::string model_label(const std::string& model);
struct ModelSnapshot {
  std::string model;
  EngineMetrics engine;
  const ModelMetrics* latencies;
  bool unusable_chat_template;
};
std::string prometheus_text(const ServerMetrics& server, const HttpCounters& http,
                            const std::vector<ModelSnapshot>& models);

}  // namespace lazy::serve
