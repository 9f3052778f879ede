// The names of the values of an enumeration, in one table for parsing, printing and error messages.
//
//   inline constexpr auto kColors = enum_table<Color>({{Color::red, "red"}, {Color::green, "green"}});
//   kColors.name(Color::red);    // "red"
//   kColors.find("green");       // Color::green, or nullopt for a name that is not in the table
//   section.choice("color", Color::red, kColors);  // a key of a configuration file (core/config.h)
#pragma once
#include <array>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace lazy {

template <class E>
struct EnumName {
  E value;
  const char* name;
};

template <class E, size_t N>
class EnumTable {
 public:
  using Value = E;

  constexpr explicit EnumTable(const std::array<EnumName<E>, N>& entries) : entries_(entries) {}

  // Throws std::logic_error for a value that is not in the table.
  constexpr const char* name(E value) const {
    for (const EnumName<E>& entry : entries_) {
      if (entry.value == value) return entry.name;
    }
    throw std::logic_error("a value of an enumeration has no name");
  }

  constexpr std::optional<E> find(std::string_view name) const {
    for (const EnumName<E>& entry : entries_) {
      if (name == entry.name) return entry.value;
    }
    return std::nullopt;
  }

  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const EnumName<E>& entry : entries_) out.emplace_back(entry.name);
    return out;
  }

 private:
  std::array<EnumName<E>, N> entries_;
};

template <class E, size_t N>
constexpr EnumTable<E, N> enum_table(const EnumName<E> (&entries)[N]) {
  return EnumTable<E, N>(std::to_array(entries));
}

}  // namespace lazy
