// Progress on stderr: a bar with rate and time left on a terminal, a line every ten seconds elsewhere.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace lazy {

// What one line of progress shows.
struct ProgressState {
  std::string title, unit, note;  // as in Progress
  uint64_t total = 0, done = 0;   // total 0: unknown
  double per_second = 0;
  double seconds = -1;    // left, or elapsed if `finished`; below 0: unknown
  bool finished = false;  // the last line
  bool bar = true;        // draws a bar
};

// The line in at most `columns` columns. In a narrow terminal the bar shrinks, and then bar, amounts and rate are left
// out. The note, for example the loss, is shortened next, at its last parenthesis or comma.
std::string progress_line(const ProgressState& state, size_t columns);

class Progress {
 public:
  // `total` 0 means unknown. `unit` names what is counted ("tokens", "B"); bytes are shown as KiB, MiB.
  Progress(std::string title, uint64_t total, std::string unit, uint64_t start_at = 0);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void set_total(uint64_t total) { total_ = total; }
  // An upper bound of the time left, for work that ends at a given time. Below 0: none.
  void set_max_seconds_left(double seconds) { max_seconds_left_ = seconds; }
  // Cheap: draws at most ten times a second on a terminal, every ten seconds elsewhere.
  void update(uint64_t done, const std::string& note = "");
  void finish(const std::string& note = "");
  double rate() const;  // units a second since the start

 private:
  void draw(bool final_line);
  std::string title_, unit_, note_;
  uint64_t total_, start_at_, done_;
  double max_seconds_left_ = -1;
  bool terminal_, finished_ = false;
  std::chrono::steady_clock::time_point begin_, last_draw_;
};

}  // namespace lazy
