// Fuzz targets. Each target gives arbitrary bytes to a reader. The reader must either return a value or throw
// lazy::Error with a message of one line.
#pragma once
#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace lazy::fuzz {

struct Target {
  const char* name;
  void (*run)(std::string_view input);
};
inline std::vector<Target>& targets() {
  static std::vector<Target> all;
  return all;
}

// Reports a defect and ends the program if the condition is false. libFuzzer then stores the input that causes the
// defect.
inline void require(bool condition, const std::string& what) {
  if (condition) return;
  fmt::print(stderr, "fuzz: {}\n", what);
  std::abort();
}

// Runs a target. Returns "" if the target accepted the input, otherwise the message of the error. Other exceptions
// propagate.
inline std::string outcome(void (*run)(std::string_view), std::string_view input) {
  try {
    run(input);
  } catch (const Error& e) {
    const std::string text = e.what();
    require(!text.empty() && text.find('\n') == std::string::npos,
            "expected an error message of one line, found: " + text);
    return text;
  }
  return "";
}

// Splits an input into `count` files, which are separated by lines of "%%". Files that are missing are empty.
inline constexpr std::string_view kPart = "\n%%\n";
inline std::vector<std::string> parts(std::string_view input, size_t count) {
  std::vector<std::string> out;
  while (out.size() + 1 < count) {
    const size_t at = input.find(kPart);
    out.emplace_back(input.substr(0, at));
    input = at == std::string_view::npos ? std::string_view() : input.substr(at + kPart.size());
  }
  out.emplace_back(input);
  return out;
}

// Returns a folder for readers that take a path. Every process has a separate one. scripts/fuzz.sh places it in memory.
inline const std::filesystem::path& scratch() {
  struct Folder {
    std::filesystem::path path = std::filesystem::temp_directory_path() / fmt::format("lazy-fuzz-{}", ::getpid());
    Folder() { std::filesystem::create_directories(path); }
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  };
  static const Folder folder;
  return folder.path;
}
inline std::filesystem::path put(const std::string& name, std::string_view content) {
  const std::filesystem::path path = scratch() / name;
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(content.data(), static_cast<std::streamsize>(content.size()));
  return path;
}

}  // namespace lazy::fuzz

#ifdef LAZY_LIBFUZZER
#define LAZY_FUZZ_TARGET(name)                                                      \
  static void run_##name(std::string_view input);                                   \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {         \
    ::lazy::fuzz::outcome(run_##name, {reinterpret_cast<const char*>(data), size}); \
    return 0;                                                                       \
  }                                                                                 \
  static void run_##name(std::string_view input)
#else
#define LAZY_FUZZ_TARGET(name)                              \
  static void run_##name(std::string_view input);           \
  static const bool registered_##name = [] {                \
    ::lazy::fuzz::targets().push_back({#name, run_##name}); \
    return true;                                            \
  }();                                                      \
  static void run_##name(std::string_view input)
#endif
