// Parser of task files (TOML). Error messages contain the file, line and key.
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/text.h"
#include "core/toml.h"
#include "eval/tasks/task.h"

namespace lazy::eval {
namespace {

// Reads one table of a task file. Keys that were never read are reported as unknown.
class Table {
 public:
  Table(const toml::table& table, std::string name, const std::string& file)
      : table_(table), name_(std::move(name)), file_(file) {}

  template <typename... Values>
  [[noreturn]] void refuse(const toml::node& node, fmt::format_string<Values...> format, Values&&... values) const {
    fail("eval", "{}:{}: {}", file_, node.source().begin.line, fmt::format(format, std::forward<Values>(values)...));
  }

  const toml::node* find(const std::string& key) {
    known_.insert(key);
    return table_.get(key);
  }

  std::string label(const std::string& key) const { return name_.empty() ? key : name_ + "." + key; }

  std::string string(const std::string& key, const std::string& fallback = "") {
    const toml::node* node = find(key);
    return node ? as_string(*node, key) : fallback;
  }

  std::string required(const std::string& key) {
    if (!find(key)) fail("eval", "{}: {}: expected a value, found none", file_, label(key));
    return string(key);
  }

  std::vector<std::string> strings(const std::string& key) {
    const toml::node* node = find(key);
    return node ? as_strings(*node, key) : std::vector<std::string>{};
  }

  double number(const std::string& key, double fallback) {
    const toml::node* node = find(key);
    if (!node) return fallback;
    if (!node->is_number()) refuse(*node, "{}: expected a number, found {}", label(key), kind(*node));
    return *node->value<double>();
  }

  bool boolean(const std::string& key, bool fallback) {
    const toml::node* node = find(key);
    if (!node) return fallback;
    if (!node->is_boolean()) refuse(*node, "{}: expected true or false, found {}", label(key), kind(*node));
    return *node->value<bool>();
  }

  Template text(const std::string& key) {
    const toml::node* node = find(key);
    return node ? as_template(*node, key, as_string(*node, key)) : Template();
  }

  TextList list(const std::string& key) {
    TextList out;
    const toml::node* node = find(key);
    if (!node) return out;
    if (!node->is_array()) {
      out.whole = text(key);
    } else {
      for (const std::string& one : as_strings(*node, key)) out.each.push_back(as_template(*node, key, one));
    }
    return out;
  }

  // Returns all keys of the table with their values, in the order of the file.
  std::vector<std::pair<std::string, std::vector<std::string>>> all() {
    std::vector<std::pair<std::string, std::vector<std::string>>> out;
    std::vector<std::pair<const toml::node*, std::string>> nodes;
    for (const auto& [key, node] : table_) nodes.emplace_back(&node, std::string(key.str()));
    std::sort(nodes.begin(), nodes.end(),
              [](const auto& a, const auto& b) { return a.first->source().begin.line < b.first->source().begin.line; });
    for (const auto& [node, key] : nodes) out.emplace_back(key, as_strings(*node, key));
    return out;
  }

  Template as_template(const toml::node& node, const std::string& key, const std::string& source) const {
    try {
      return Template(source);
    } catch (const DocumentError& error) {
      refuse(node, "{}: {}", label(key), error.what());
    }
  }

  const toml::node& at(const std::string& key) const { return *table_.get(key); }

  void check_all_used() const {
    for (const auto& [key, node] : table_) {
      const std::string name(key.str());
      if (known_.contains(name)) continue;
      const std::string close = nearest(name, {known_.begin(), known_.end()});
      refuse(node, "unknown key {}{}", label(name), close.empty() ? "" : "; did you mean '" + label(close) + "'?");
    }
  }

 private:
  static std::string kind(const toml::node& node) {
    std::ostringstream out;
    out << node.type();
    return out.str();
  }

  std::string as_string(const toml::node& node, const std::string& key) const {
    if (!node.is_string()) refuse(node, "{}: expected text, found {}", label(key), kind(node));
    return *node.value<std::string>();
  }

  std::vector<std::string> as_strings(const toml::node& node, const std::string& key) const {
    if (!node.is_array()) return {as_string(node, key)};
    std::vector<std::string> out;
    for (const toml::node& member : *node.as_array()) out.push_back(as_string(member, key));
    return out;
  }

  const toml::table& table_;
  std::string name_;
  const std::string& file_;
  std::set<std::string> known_;
};

OutputType output_type_of(Table& top) {
  const std::string name = top.required("output_type");
  for (const OutputType type :
       {OutputType::multiple_choice, OutputType::loglikelihood, OutputType::loglikelihood_rolling}) {
    if (name == lazy::eval::name(type)) return type;
  }
  top.refuse(top.at("output_type"),
             "output_type: expected multiple_choice, loglikelihood or loglikelihood_rolling, found '{}'", name);
}

const std::vector<std::string>& metrics_of(OutputType type) {
  static const std::vector<std::string> choice = {"acc", "acc_norm", "acc_bytes"}, likelihood = {"perplexity", "acc"},
                                        rolling = {"word_perplexity", "byte_perplexity", "bits_per_byte"};
  return type == OutputType::multiple_choice ? choice : type == OutputType::loglikelihood ? likelihood : rolling;
}

void read_metrics(Task& task, Table& top) {
  task.metrics = top.strings("metrics");
  const auto& known = metrics_of(task.output_type);
  if (task.metrics.empty())
    fail("eval", "{}: metrics: expected at least one of {}, found none", task.origin, fmt::join(known, ", "));
  for (const std::string& metric : task.metrics) {
    if (std::find(known.begin(), known.end(), metric) != known.end()) continue;
    top.refuse(top.at("metrics"), "metrics: expected only {} (for {}), found '{}'", fmt::join(known, ", "),
               name(task.output_type), metric);
  }
  task.headline = top.string("headline");
  if (!task.headline.empty() &&
      std::find(task.metrics.begin(), task.metrics.end(), task.headline) == task.metrics.end()) {
    top.refuse(top.at("headline"), "headline: expected one of metrics, found '{}'", task.headline);
  }
}

void read_data(TaskData& data, Table table) {
  data.files = table.strings("files");
  data.hub = table.strings("hub");
  data.split = table.string("split", "validation");
  data.fewshot_files = table.strings("fewshot_files");
  data.fewshot_split = table.string("fewshot_split", "train");
  data.plain_text = table.string("plain_text");
  if (!data.plain_text.empty() && data.plain_text != "wikitext_pages" && data.plain_text != "lines") {
    table.refuse(table.at("plain_text"), "data.plain_text: expected wikitext_pages or lines, found '{}'",
                 data.plain_text);
  }
  table.check_all_used();
}

void read_prompt(Task& task, Table table) {
  task.context = table.text("context");
  task.contexts = table.list("contexts");
  task.choices = table.list("choices");
  task.continuation = table.text("continuation");
  task.label = table.text("label");
  task.text = table.text("text");
  task.counted = table.text("counted");
  task.target_delimiter = table.string("target_delimiter", task.target_delimiter);
  table.check_all_used();
  const auto need = [&](bool there, const char* what) {
    if (!there) fail("eval", "{}: [prompt]: {} needs {}", task.origin, name(task.output_type), what);
  };
  const bool choices = task.context.empty() == false && !task.choices.empty(),
             contexts = !task.contexts.empty() && !task.continuation.empty();
  switch (task.output_type) {
    case OutputType::multiple_choice:
      need(choices != contexts && !task.label.empty(),
           "label, and either context and choices or contexts and continuation");
      break;
    case OutputType::loglikelihood:
      need(!task.context.empty() && !task.continuation.empty(), "context and continuation");
      break;
    case OutputType::loglikelihood_rolling:
      need(!task.text.empty(), "text");
      break;
  }
}

}  // namespace

Task parse_task(std::string_view source, const std::string& origin) {
  toml::table root;
  try {
    root = toml::parse(source);
  } catch (const toml::parse_error& error) {
    fail("eval", "{}:{}: {}", origin, error.source().begin.line, error.description());
  }
  Task task;
  task.origin = origin;
  Table top(root, "", task.origin);
  static const toml::table nothing;
  const auto table = [&](const char* key) {
    const toml::node* node = top.find(key);
    if (node && !node->is_table())
      top.refuse(*node, "{}: expected a table [{}], found a value of another type", key, key);
    return Table(node ? *node->as_table() : nothing, key, task.origin);
  };
  task.name = top.required("name");
  if (task.name.find_first_of("/ \n") != std::string::npos)
    top.refuse(top.at("name"), "name: expected no space and no slash, found '{}'", task.name);
  task.description = top.string("description");
  task.version = top.number("version", 0);
  task.tags = top.strings("tags");
  task.output_type = output_type_of(top);
  read_metrics(task, top);
  read_data(task.data, table("data"));
  for (auto& [column, names] : table("columns").all()) task.columns[column] = names;
  Table computed = table("computed");
  for (const auto& [field, sources] : computed.all()) {
    auto& templates = task.computed.emplace_back(field, std::vector<Template>{}).second;
    for (const std::string& one : sources) templates.push_back(computed.as_template(computed.at(field), field, one));
  }
  read_prompt(task, table("prompt"));
  Table fewshot = table("fewshot");
  task.fewshot_delimiter = fewshot.string("delimiter", task.fewshot_delimiter);
  task.prefix = fewshot.string("description");
  task.exclude_document = fewshot.boolean("exclude_document", false);
  fewshot.check_all_used();
  top.check_all_used();
  return task;
}

}  // namespace lazy::eval
