#include "core/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "core/clock.h"
#include "core/terminal.h"
#include "core/text.h"

namespace lazy {

Progress::Progress(std::string title, uint64_t total, std::string unit, uint64_t start_at)
    : title_(std::move(title)),
      unit_(std::move(unit)),
      total_(total),
      start_at_(start_at),
      done_(start_at),
      terminal_(is_terminal(STDERR_FILENO)),
      begin_(Clock::now()),
      last_draw_(terminal_ ? Clock::time_point{} : begin_) {}

Progress::~Progress() {
  if (!finished_ && terminal_) std::fputc('\n', stderr);
}

double Progress::rate() const {
  const double seconds = seconds_since(begin_);
  return seconds > 0 ? static_cast<double>(done_ - std::min(done_, start_at_)) / seconds : 0;
}

void Progress::update(uint64_t done, const std::string& note) {
  done_ = done;
  note_ = note;
  const auto interval = terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(10000);
  if (Clock::now() - last_draw_ >= interval) draw(false);
}

void Progress::finish(const std::string& note) {
  if (finished_) return;
  if (!note.empty()) note_ = note;
  draw(true);
  finished_ = true;
}

void Progress::draw(bool final_line) {
  last_draw_ = Clock::now();
  const bool bytes = unit_ == "B";
  const auto amount = [&](double n) { return bytes ? human_bytes(n) : human_count(n); };
  const double per_second = rate();
  std::string line = title_ + " ";
  if (total_ > 0) {
    const double share = std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
    if (terminal_) {
      constexpr int kWidth = 24;
      const int filled = static_cast<int>(share * kWidth);
      line += "[" + std::string(filled, '#') + std::string(kWidth - filled, '.') + "] ";
    }
    line += fmt::format("{:3.0f} % {}/{}", 100 * share, amount(static_cast<double>(done_)),
                        amount(static_cast<double>(total_)));
  } else {
    line += amount(static_cast<double>(done_));
  }
  line += fmt::format("{} {}{}/s", bytes ? "" : " " + unit_, amount(per_second), bytes ? "" : " " + unit_);
  const double elapsed = std::chrono::duration<double>(last_draw_ - begin_).count();
  if (final_line) {
    line += " in " + human_seconds(elapsed);
  } else if (total_ > done_ && per_second > 0) {
    line += ", " + human_seconds(static_cast<double>(total_ - done_) / per_second) + " left";
  }
  if (!note_.empty()) line += "  " + note_;
  if (terminal_) {
    line.resize(std::min<size_t>(line.size(), terminal_width(STDERR_FILENO, 100) - 1));
    fmt::print(stderr, "\r\033[K{}{}", line, final_line ? "\n" : "");
  } else {
    fmt::print(stderr, "{}\n", line);
  }
  std::fflush(stderr);
}

}  // namespace lazy
