// TensorBoard event files: scalars over steps, written as TFRecord-framed `tensorflow.Event` messages by hand, because
// no packaged C++ library does it. Format: tensorflow/core/util/event.proto and lib/io/record_writer.h.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "train/append_file.h"

namespace lazy::train {

class EventWriter {
 public:
  // Opens a new events.out.tfevents.* file in `directory`, which it creates. With `purge_from` > 0 the file begins with
  // a restart mark: TensorBoard then drops what earlier files say of that step and later ones (a resumed run).
  EventWriter(const std::filesystem::path& directory, double wall_time, int64_t purge_from = 0);
  // One event with all scalars of a step. wall_time: seconds since 1970.
  void scalars(int64_t step, double wall_time, const std::vector<std::pair<std::string, double>>& values);
  void sync() { file_.sync(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  void record(const std::string& event);
  std::filesystem::path path_;
  AppendFile file_;
};

}  // namespace lazy::train
