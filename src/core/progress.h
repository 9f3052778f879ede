// Displays the progress of long-running work on stderr. On a terminal this is a bar with the rate and the remaining
// time, otherwise one line every ten seconds.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace lazy {

// The content of one progress line.
struct ProgressState {
  std::string title, unit, note;  // title and unit: arguments of Progress(); note: argument of update()
  uint64_t total = 0, done = 0;   // total 0: unknown
  double per_second = 0;
  double seconds = -1;    // remaining seconds, or elapsed seconds if `finished`; negative: unknown
  bool finished = false;  // whether this is the last line
  bool bar = true;        // whether to draw a bar
};

// Formats the line for at most `columns` columns. In a narrow terminal the bar shrinks first; then the bar, the amounts
// and the rate are omitted. After that the note, for example the loss, is shortened at its last parenthesis or comma.
std::string progress_line(const ProgressState& state, size_t columns);

class Progress {
 public:
  // `total` 0: unknown. `unit` is the unit of the counts ("tokens", "B"); bytes are displayed as KiB or MiB.
  Progress(std::string title, uint64_t total, std::string unit, uint64_t start_at = 0);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void set_total(uint64_t total) { total_ = total; }
  // Sets an upper limit of the remaining time, for work that ends at a given time. Negative: no limit.
  void set_max_seconds_left(double seconds) { max_seconds_left_ = seconds; }
  // Cheap to call: redraws at most ten times per second on a terminal, otherwise every ten seconds.
  void update(uint64_t done, const std::string& note = "");
  void finish(const std::string& note = "");
  double rate() const;  // number of units (such as tokens) per second since the start

 private:
  void draw(bool final_line);
  std::string title_, unit_, note_;
  uint64_t total_, start_at_, done_;
  double max_seconds_left_ = -1;
  bool terminal_, finished_ = false;
  std::chrono::steady_clock::time_point begin_, last_draw_;
};

}  // namespace lazy
