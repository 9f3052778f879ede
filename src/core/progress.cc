#include "core/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

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

std::string progress_line(const ProgressState& state, size_t columns) {
  const bool bytes = state.unit == "B";
  const auto amount = [&](double n) { return bytes ? human_bytes(n) : human_count(n); };
  const std::string unit = bytes ? "" : " " + state.unit;
  const double share =
      state.total > 0 ? std::min(1.0, static_cast<double>(state.done) / static_cast<double>(state.total)) : 0;
  const std::string percent = state.total > 0 ? fmt::format("{:3.0f} %", 100 * share) : "";
  const auto bar = [&](int width) {
    if (state.total == 0 || !state.bar) return std::string();
    const int filled = static_cast<int>(share * width);
    return "[" + std::string(filled, '#') + std::string(width - filled, '.') + "] ";
  };
  const std::string amounts = amount(static_cast<double>(state.done)) +
                              (state.total > 0 ? "/" + amount(static_cast<double>(state.total)) : "") + unit;
  const std::string rate = amount(state.per_second) + unit + "/s";
  const std::string time = state.seconds < 0 ? ""
                           : state.finished  ? " in " + human_seconds(state.seconds)
                                             : ", " + human_seconds(state.seconds) + " left";
  const std::string note = state.note.empty() ? "" : "  " + state.note;
  const std::string before_amounts = state.title + " ", after_percent = percent.empty() ? "" : percent + " ";
  std::vector<std::string> candidates;  // forms of the line, from the most to the least detailed
  for (const int width : {24, 12}) {
    candidates.push_back(before_amounts + bar(width) + after_percent + amounts + " " + rate + time + note);
  }
  candidates.push_back(before_amounts + after_percent + amounts + " " + rate + time + note);
  candidates.push_back(before_amounts + after_percent + rate + time + note);
  candidates.push_back(before_amounts + (percent.empty() ? amounts : percent) + time + note);
  // Shorten the note: first remove the end from " (", such as "(1.05 bits/byte)", then the part after the last comma.
  for (const char* end : {" (", ", "}) {
    candidates.push_back(before_amounts + (percent.empty() ? amounts : percent) + time +
                         note.substr(0, note.rfind(end)));
  }
  for (std::string& line : candidates) {
    if (line.size() <= columns) return std::move(line);
  }
  // No form fits: print the note directly after the title, because the end of the line is cut off.
  return (state.note.empty() ? candidates.back() : before_amounts + state.note).substr(0, columns);
}

void Progress::draw(bool final_line) {
  last_draw_ = Clock::now();
  ProgressState state{.title = title_, .unit = unit_, .note = note_, .total = total_, .done = done_};
  state.per_second = rate();
  state.finished = final_line;
  state.bar = terminal_;
  if (final_line) {
    state.seconds = std::chrono::duration<double>(last_draw_ - begin_).count();
  } else if (total_ > done_ && state.per_second > 0) {
    state.seconds = static_cast<double>(total_ - done_) / state.per_second;
    if (max_seconds_left_ >= 0) state.seconds = std::min(state.seconds, max_seconds_left_);
  }
  if (terminal_) {
    const auto columns = static_cast<size_t>(std::max(1, terminal_width(STDERR_FILENO, 100) - 1));
    fmt::print(stderr, "\r\033[K{}{}", progress_line(state, columns), final_line ? "\n" : "");
  } else {
    fmt::print(stderr, "{}\n", progress_line(state, std::string::npos));
  }
  std::fflush(stderr);
}

}  // namespace lazy
