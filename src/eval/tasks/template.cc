#include "eval/tasks/template.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>

#include "core/text.h"
#include "eval/tasks/filters.h"

namespace lazy::eval {

struct Template::Expression {
  enum class Kind { literal, field, list };
  struct FilterCall {
    const Filter* filter;
    std::vector<Expression> arguments;
  };
  Kind kind = Kind::literal;
  Json literal;
  std::vector<std::string> path;
  std::vector<Expression> members;
  std::vector<FilterCall> steps;
};

namespace {

using Expression = Template::Expression;

class Parser {
 public:
  Parser(const std::string& source, size_t at) : source_(source), at_(at) {}

  // Parses the expression after "{{". *end is set to the position after "}}".
  Expression parse(size_t* end) {
    Expression expression = piped();
    expect("}}");
    *end = at_;
    return expression;
  }

 private:
  [[noreturn]] void refuse(const std::string& expected) const {
    throw DocumentError(fmt::format("template '{}': expected {} at character {}, found {}", source_, expected, at_ + 1,
                                    at_ < source_.size() ? "'" + source_.substr(at_, 10) + "'" : "the end"));
  }

  void skip() {
    while (at_ < source_.size() && (source_[at_] == ' ' || source_[at_] == '\n' || source_[at_] == '\t')) ++at_;
  }

  // Skips the token `mark` and returns true if it is the next token.
  bool take(std::string_view mark) {
    skip();
    if (source_.compare(at_, mark.size(), mark) != 0) return false;
    at_ += mark.size();
    return true;
  }

  void expect(std::string_view mark) {
    if (!take(mark)) refuse(fmt::format("'{}'", mark));
  }

  std::string word() {
    skip();
    const size_t begin = at_;
    while (at_ < source_.size() && (std::isalnum(static_cast<unsigned char>(source_[at_])) || source_[at_] == '_'))
      ++at_;
    if (at_ == begin) refuse("a field, a text, a number or a list");
    return source_.substr(begin, at_ - begin);
  }

  std::string quoted(char mark) {
    std::string text;
    while (at_ < source_.size() && source_[at_] != mark) {
      char c = source_[at_++];
      if (c == '\\' && at_ < source_.size()) {
        c = source_[at_++];
        // In \n, \t, \\ and an escaped quotation mark, the backslash is removed. In other escapes it is kept, because
        // they belong to a regular expression.
        if (c != mark && c != '\\') text += c == 'n' || c == 't' ? "" : "\\";
        c = c == 'n' ? '\n' : c == 't' ? '\t' : c;
      }
      text += c;
    }
    if (at_ == source_.size()) refuse(fmt::format("a closing {}", mark));
    ++at_;
    return text;
  }

  std::vector<Expression> listed(std::string_view end) {
    std::vector<Expression> members;
    if (take(end)) return members;
    do members.push_back(piped());
    while (take(","));
    expect(end);
    return members;
  }

  Expression primary() {
    Expression e;
    skip();
    const char c = at_ < source_.size() ? source_[at_] : '\0';
    if (take("(")) {
      e = piped();
      expect(")");
    } else if (take("[")) {
      e.kind = Expression::Kind::list;
      e.members = listed("]");
    } else if (c == '\'' || c == '"') {
      ++at_;
      e.literal = quoted(c);
    } else if (c == '-' || std::isdigit(static_cast<unsigned char>(c))) {
      int64_t number = 0;
      const auto [end, error] = std::from_chars(source_.data() + at_, source_.data() + source_.size(), number);
      if (error != std::errc()) refuse("a number");
      at_ = static_cast<size_t>(end - source_.data());
      e.literal = number;
    } else {
      e.kind = Expression::Kind::field;
      do e.path.push_back(word());
      while (take("."));
    }
    return e;
  }

  Expression piped() {
    Expression e = primary();
    while (take("|")) {
      const Filter& filter = find_filter(word());
      Expression::FilterCall step{&filter, take("(") ? listed(")") : std::vector<Expression>{}};
      if (step.arguments.size() != filter.arguments) {
        throw DocumentError(fmt::format("template '{}': filter {}: expected {} arguments, found {}", source_,
                                        filter.name, filter.arguments, step.arguments.size()));
      }
      e.steps.push_back(std::move(step));
    }
    return e;
  }

  const std::string& source_;
  size_t at_;
};

std::string joined(const std::vector<std::string>& path) { return fmt::format("{}", fmt::join(path, ".")); }

const Json* find_path(const std::vector<std::string>& path, const Fields& fields) {
  const Json* value = fields.find(path[0]);
  for (size_t i = 1; value && i < path.size(); ++i) {
    const auto found = value->is_object() ? value->find(path[i]) : value->end();
    value = value->is_object() && found != value->end() ? &*found : nullptr;
  }
  return value;
}

Json apply(const Filter& filter, const Json& value, const std::vector<Json>& arguments) {
  if (!filter.of_text || !value.is_array()) return filter.apply(value, arguments);
  Json each = Json::array();
  for (const Json& member : value) each.push_back(filter.apply(member, arguments));
  return each;
}

Json evaluate(const Expression& e, const Fields& fields) {
  Json value;
  if (e.kind == Expression::Kind::literal) {
    value = e.literal;
  } else if (e.kind == Expression::Kind::list) {
    value = Json::array();
    for (const Expression& member : e.members) value.push_back(evaluate(member, fields));
  } else {
    const Json* found = find_path(e.path, fields);
    if (!found) {
      std::string names;
      for (const auto& [name, unused] : fields.document.items()) names += (names.empty() ? "" : ", ") + name;
      throw DocumentError(
          fmt::format("field {}: expected a value, found none (the document has {})", joined(e.path), names));
    }
    value = *found;
  }
  for (const auto& step : e.steps) {
    std::vector<Json> arguments;
    for (const Expression& argument : step.arguments) arguments.push_back(evaluate(argument, fields));
    try {
      value = apply(*step.filter, value, arguments);
    } catch (const DocumentError& error) {
      if (e.kind != Expression::Kind::field || std::string_view(error.what()).starts_with("field ")) throw;
      throw DocumentError(fmt::format("field {}: {}", joined(e.path), error.what()));
    }
  }
  return value;
}

bool has_fields(const Expression& e, const Fields& fields) {
  if (e.kind == Expression::Kind::field && !find_path(e.path, fields)) return false;
  for (const Expression& member : e.members) {
    if (!has_fields(member, fields)) return false;
  }
  for (const auto& step : e.steps) {
    for (const Expression& argument : step.arguments) {
      if (!has_fields(argument, fields)) return false;
    }
  }
  return true;
}

std::string name_of(const Expression& e) {
  return e.kind == Expression::Kind::field ? "field " + joined(e.path) : "value";
}

std::string as_text(const Json& value, const std::string& name) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_integer()) return value.dump();
  throw DocumentError(fmt::format("{}: expected text, found {}", name, shown(value)));
}

}  // namespace

const Json* Fields::find(const std::string& name) const {
  const auto names = columns.find(name);
  if (names != columns.end()) {
    for (const std::string& other : names->second) {
      if (const auto found = document.find(other); found != document.end()) return &*found;
    }
  }
  const auto found = document.find(name);
  return found == document.end() ? nullptr : &*found;
}

Template::Template(std::string source) : source_(std::move(source)) {
  for (size_t at = 0; at < source_.size();) {
    const size_t open = std::min(source_.find("{{", at), source_.size());
    if (open > at) shards_.emplace_back(source_.substr(at, open - at));
    at = open;
    if (open < source_.size())
      shards_.emplace_back(std::make_shared<const Expression>(Parser(source_, open + 2).parse(&at)));
  }
}

bool Template::applies(const Fields& fields) const {
  for (const auto& piece : shards_) {
    const auto* expression = std::get_if<std::shared_ptr<const Expression>>(&piece);
    if (expression && !has_fields(**expression, fields)) return false;
  }
  return true;
}

Json Template::value(const Fields& fields) const {
  if (shards_.size() == 1) {
    if (const auto* expression = std::get_if<std::shared_ptr<const Expression>>(&shards_[0]))
      return evaluate(**expression, fields);
  }
  return text(fields);
}

std::string Template::text(const Fields& fields) const {
  std::string out;
  for (const auto& piece : shards_) {
    if (const auto* literal = std::get_if<std::string>(&piece)) {
      out += *literal;
    } else {
      const Expression& expression = *std::get<std::shared_ptr<const Expression>>(piece);
      out += as_text(evaluate(expression, fields), name_of(expression));
    }
  }
  return out;
}

std::vector<std::string> Template::texts(const Fields& fields) const {
  const Json list = value(fields);
  if (!list.is_array())
    throw DocumentError(fmt::format("'{}': expected a list of texts, found {}", source_, shown(list)));
  std::vector<std::string> out;
  for (size_t i = 0; i < list.size(); ++i)
    out.push_back(as_text(list[i], fmt::format("'{}', member {}", source_, i + 1)));
  return out;
}

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() <= 60) return text;
  text.resize(complete_utf8_prefix(std::string_view(text).substr(0, 57)));
  return text + "...";
}

}  // namespace lazy::eval
