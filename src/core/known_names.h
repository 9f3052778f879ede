// A name out of a list: whether the list has it, and the error that suggests the nearest one where it has not.
#pragma once
#include <string>
#include <vector>

namespace lazy {

class ConfigSection;

bool contains(const std::vector<std::string>& list, const std::string& item);

// The member `name` of each item.
template <class Item>
std::vector<std::string> names_of(const std::vector<Item>& items) {
  std::vector<std::string> names;
  for (const Item& item : items) names.emplace_back(item.name);
  return names;
}

// "; did you mean 'steps'?", the end of a message; "" when none of `known` is near.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

// Error "OPERATION: PLACE: expected one of steps, seed, found 'stesp'; did you mean 'steps'?". With `what`, "a key":
// "expected a key (steps, seed), found".
[[noreturn]] void fail_unknown(const char* operation, const std::string& place, const std::string& word,
                               const std::vector<std::string>& known, const std::string& what = "");

// That error of a configuration unless `known` has `word`: at a place, or as the value of a section's key.
void expect_known(const std::string& place, const std::string& word, const std::vector<std::string>& known,
                  const std::string& what = "");
void expect_known(const ConfigSection& section, const std::string& key, const std::string& word,
                  const std::vector<std::string>& known, const std::string& what = "");

}  // namespace lazy
