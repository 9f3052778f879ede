// Configuration files: TOML with `extends = "other.toml"` (or a list; later files override earlier ones), command-line
// overrides, and errors for unknown keys.
//
//   Config config = Config::load("train.toml", {"training.steps=100"});
//   auto model = config.section("model");
//   int64_t layers = model.integer("num_layers", 24);
//   config.check_all_used();   // throws Error for an unknown key or section and suggests the closest known name
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace lazy {

using ConfigValue = std::variant<bool, int64_t, double, std::string, std::vector<std::string>, std::vector<double>>;

class Config;

// One [section] of a configuration. A key of a nested table is named "table.key". If a value has a wrong type or is out
// of range, the getters throw Error with file, line, key, what was expected and what was found.
class ConfigSection {
 public:
  bool has(const std::string& key) const;
  std::vector<std::string> keys() const;  // keys in the file and in the overrides, in alphabetical order
  bool boolean(const std::string& key, bool fallback);
  int64_t integer(const std::string& key, int64_t fallback, int64_t minimum = INT64_MIN, int64_t maximum = INT64_MAX);
  double number(const std::string& key, double fallback, double minimum = -1e300, double maximum = 1e300);
  std::string string(const std::string& key, const std::string& fallback);
  std::string choice(const std::string& key, const std::string& fallback, const std::vector<std::string>& allowed);
  // Returns an enumeration value whose name is listed in `table` (core/enum_table.h).
  template <class Table>
  typename Table::Value choice(const std::string& key, typename Table::Value fallback, const Table& table) {
    return *table.find(choice(key, table.name(fallback), table.names()));
  }
  // Returns the value of a key that may be a list of strings or a single string.
  std::vector<std::string> strings(const std::string& key, const std::vector<std::string>& fallback);
  // Returns the value of a key that may be a list of numbers or a single number.
  std::vector<double> numbers(const std::string& key, const std::vector<double>& fallback);
  // Returns where the key was set, "train.toml:12" or "--set", for error messages of the caller.
  std::string where(const std::string& key) const;
  // Resolves `value` of the key as a path. In a file it is relative to that file; in an override it is relative to the
  // working directory.
  std::filesystem::path resolved(const std::string& key, const std::string& value) const;
  const std::string& name() const { return name_; }

 private:
  friend class Config;
  ConfigSection(Config* config, std::string name) : config_(config), name_(std::move(name)) {}
  const ConfigValue* find(const std::string& key);
  Config* config_;
  std::string name_;
};

class Config {
 public:
  static Config load(const std::filesystem::path& path, const std::vector<std::string>& overrides = {});
  static Config parse(const std::string& text, const std::string& name = "configuration");
  ConfigSection section(const std::string& name);
  void check_all_used() const;
  // Returns the merged configuration as TOML text that loads to the same values.
  std::string to_toml() const;
  const std::string& name() const { return name_; }
  // Returns the folder of the configuration file. Relative paths in the file are relative to this folder. Returns an
  // empty path if the configuration was parsed from a text.
  const std::filesystem::path& directory() const { return directory_; }

 private:
  friend class ConfigSection;
  struct Entry {
    ConfigValue value;
    std::string where;
  };
  void merge(const void* toml_table, const std::string& name, const char* where);
  std::string name_;
  std::filesystem::path directory_;
  void merge_section(const void* toml_table, const std::string& section, const std::string& name, const char* where);
  std::map<std::string, Entry> entries_;                // keys have the form "section.key"
  std::map<std::string, std::set<std::string>> known_;  // maps each section to the keys that have been read so far
};

}  // namespace lazy
