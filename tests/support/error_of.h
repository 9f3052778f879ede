// Helpers for tests of error messages: the type of the error and the items that its message names.
//
// A test checks the items that the user needs in a message (the field, the file, the values), but not the wording:
//   EXPECT_THAT(error_of([&] { config.validate(); }), Names({"config.json", "hidden_size", 65}));
// For each class of messages, one test compares the complete line:
//   EXPECT_THAT(error_of([&] { read(path); }), IsMessage("safetensors: m.safetensors: expected 8 bytes, found 4"));
#pragma once
#include <gmock/gmock.h>

#include <cctype>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.h"

namespace lazy {

// Returns the message of the error that `action` throws, or "" if it throws nothing. By default the error must be an
// Error, which is a mistake of the user (exit code 2). error_of<RunError> expects a RunError (exit code 1). An error of
// the other type fails the test.
template <class Expected = Error>
std::string error_of(const auto& action) {
  try {
    action();
  } catch (const RunError& e) {
    if (!std::is_same_v<Expected, RunError>) ADD_FAILURE() << "expected exit code 2, found a RunError: " << e.what();
    return e.what();
  } catch (const Error& e) {
    if (std::is_same_v<Expected, RunError>) ADD_FAILURE() << "expected a RunError, found exit code 2: " << e.what();
    return e.what();
  }
  return "";
}

// One item that a message must contain. A literal must be one word (an identifier, a value, a path, an option). A
// literal with a space does not compile, because it would check the wording.
class Token {
 public:
  template <size_t size>
  consteval Token(const char (&literal)[size]) : text_(literal, size - 1) {
    if (text_.empty() || text_.find(' ') != std::string_view::npos)
      throw "a token must not be empty or contain a space";
  }
  Token(const std::string& text) : text_(text) {}
  template <std::integral Integer>
  constexpr Token(Integer value) : is_number_(true), number_(static_cast<int64_t>(value)) {}

  std::string text() const { return is_number_ ? std::to_string(number_) : std::string(text_); }

 private:
  std::string_view text_;
  bool is_number_ = false;
  int64_t number_ = 0;
};

// Returns whether `message` contains `token` with no letter, digit or underscore directly before or after it: "head" is
// not found in "head_dim", and 4 is not found in 14.
inline bool names_token(std::string_view message, std::string_view token) {
  const auto word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  for (size_t at = message.find(token); at != std::string_view::npos; at = message.find(token, at + 1)) {
    const size_t end = at + token.size();
    const bool begins = at == 0 || !word(token.front()) || !word(message[at - 1]);
    const bool ends = end == message.size() || !word(token.back()) || !word(message[end]);
    if (begins && ends) return true;
  }
  return false;
}

// Matches a message of one line that names every token, in any order.
class NamesMatcher {
 public:
  using is_gtest_matcher = void;
  explicit NamesMatcher(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {}
  bool MatchAndExplain(std::string_view message, std::ostream* out) const {
    for (const std::string& token : tokens_) {
      if (names_token(message, token)) continue;
      if (out) *out << "does not name " << token;
      return false;
    }
    return true;
  }
  void DescribeTo(std::ostream* out) const {
    *out << "names";
    for (const std::string& token : tokens_) *out << " " << token;
  }
  void DescribeNegationTo(std::ostream* out) const {
    *out << "does not name all of " << ::testing::PrintToString(tokens_);
  }

 private:
  std::vector<std::string> tokens_;
};

// Names({"config.json", "hidden_size", 65}) matches a message that names each of these.
inline NamesMatcher Names(std::initializer_list<Token> tokens) {
  std::vector<std::string> texts;
  for (const Token& token : tokens) texts.push_back(token.text());
  return NamesMatcher(std::move(texts));
}

// Matches the complete text of a message. One test for each class of messages uses it.
inline auto IsMessage(const std::string& text) { return ::testing::Eq(text); }

}  // namespace lazy
