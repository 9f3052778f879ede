// Progress on stderr: a bar with rate and time left on a terminal, a line every ten seconds elsewhere.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace lazy {

class Progress {
 public:
  // `total` 0 means unknown. `unit` names what is counted ("tokens", "B"); bytes are shown as KiB, MiB.
  Progress(std::string title, uint64_t total, std::string unit, uint64_t start_at = 0);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void set_total(uint64_t total) { total_ = total; }
  // Cheap: draws at most ten times a second on a terminal, every ten seconds elsewhere.
  void update(uint64_t done, const std::string& note = "");
  void finish(const std::string& note = "");
  double rate() const;  // units a second since the start

 private:
  void draw(bool final_line);
  std::string title_, unit_, note_;
  uint64_t total_, start_at_, done_;
  bool terminal_, finished_ = false;
  std::chrono::steady_clock::time_point begin_, last_draw_;
};

}  // namespace lazy
