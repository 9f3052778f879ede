// Helpers that the tests in this directory share.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "core/file.h"
#include "core/random.h"
#include "support/environment_variable.h"
#include "support/error_of.h"
#include "support/test_data.h"

namespace lazy::testing_support {

namespace fs = std::filesystem;

// A separate folder for each test, which is removed at the end.
class Folder {
 public:
  Folder() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = fs::path(testing::TempDir()) / fmt::format("{}_{}_{}", test->test_suite_name(), test->name(), ::getpid());
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  fs::path operator/(const std::string& name) const { return path_ / name; }
  const fs::path& path() const { return path_; }
  fs::path write(const std::string& name, std::string_view content) const {
    fs::create_directories((path_ / name).parent_path());
    write_file_atomic(path_ / name, content);
    return path_ / name;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(path_)) found.push_back(entry.path().filename().string());
    return found;
  }

 private:
  fs::path path_;
};

inline bool python_has(const std::string& modules) {
  return std::system((std::string(LAZY_TEST_PYTHON) + " -c 'import " + modules + "' >/dev/null 2>&1").c_str()) == 0;
}

// Returns random text: words, runs of spaces, several scripts, combining marks, emoji and control characters.
inline std::string random_text(Random& random, size_t pieces) {
  static const std::vector<std::string> kParts = {" ",
                                                  " ",
                                                  " ",
                                                  "  ",
                                                  "\n",
                                                  "\n\n",
                                                  "\t",
                                                  "\r\n",
                                                  "    ",
                                                  "the",
                                                  "The",
                                                  " of",
                                                  "ing",
                                                  "er",
                                                  "a",
                                                  "b",
                                                  "z",
                                                  "Q",
                                                  "'s",
                                                  "'S",
                                                  "'ll",
                                                  "'re",
                                                  "don't",
                                                  "1",
                                                  "23",
                                                  "4567",
                                                  "3.14",
                                                  "!",
                                                  "?!",
                                                  "...",
                                                  "--",
                                                  "(",
                                                  ")",
                                                  "\"",
                                                  "#",
                                                  "_",
                                                  "é",
                                                  "e\xCC\x81",
                                                  "ß",
                                                  "ü",
                                                  "Ж",
                                                  "нещо",
                                                  "中",
                                                  "文字",
                                                  "日本",
                                                  "한",
                                                  "ไทย",
                                                  "ع",
                                                  "नि",
                                                  "🦙",
                                                  "👩‍🚀",
                                                  "½",
                                                  "²",
                                                  "\xC2\xA0",
                                                  "\xE2\x80\xAF",
                                                  "\xE3\x80\x80",
                                                  "\xE2\x80\x8B",
                                                  "\x01",
                                                  "\xEF\xBF\xBD",
                                                  "ſ",
                                                  "K",
                                                  "<|endoftext|>",
                                                  "<s>",
                                                  "<0x0A>"};
  std::string text;
  for (size_t i = 0; i < pieces; ++i) text += kParts[random.below(kParts.size())];
  return text;
}

}  // namespace lazy::testing_support
