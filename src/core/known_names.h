// Names from a list: membership tests, and errors that suggest the closest name for an unknown name.
#pragma once
#include <string>
#include <vector>

namespace lazy {

class ConfigSection;

bool contains(const std::vector<std::string>& list, const std::string& item);

// Returns the member `name` of each item.
template <class Item>
std::vector<std::string> names_of(const std::vector<Item>& items) {
  std::vector<std::string> names;
  for (const Item& item : items) names.emplace_back(item.name);
  return names;
}

// Returns "; did you mean 'steps'?" as the end of a message, or "" if no name in `known` is similar.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

// Throws an Error for an unknown name `word`. Example: "OPERATION: PLACE: expected one of steps, seed, found 'stesp';
// did you mean 'steps'?". If `what` is "a key", the message contains "expected a key (steps, seed), found" instead.
[[noreturn]] void fail_unknown(const char* operation, const std::string& place, const std::string& word,
                               const std::vector<std::string>& known, const std::string& what = "");

// Throws the error of fail_unknown() with the operation "config" unless `known` contains `word`. The location in the
// message is `place` or, in the second function, the file, line, section and key of the value.
void expect_known(const std::string& place, const std::string& word, const std::vector<std::string>& known,
                  const std::string& what = "");
void expect_known(const ConfigSection& section, const std::string& key, const std::string& word,
                  const std::vector<std::string>& known, const std::string& what = "");

}  // namespace lazy
