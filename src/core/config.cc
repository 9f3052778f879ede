#include "core/config.h"

#include <sstream>

#include "core/config_files.h"
#include "core/error.h"
#include "core/file.h"
#include "core/known_names.h"
#include "core/text.h"
#include "core/toml.h"

namespace lazy {
namespace fs = std::filesystem;

namespace {

std::string at(const std::string& file, const toml::node& node) {
  return fmt::format("{}:{}", file, node.source().begin.line);
}

const char* type_name(const ConfigValue& value) {
  static const char* const names[] = {"a boolean", "an integer",        "a number",
                                      "a string",  "a list of strings", "a list of numbers"};
  return names[value.index()];
}

std::string show(const ConfigValue& value) {
  std::ostringstream out;
  const auto quoted = [](const std::string& text) {
    std::ostringstream q;
    q << toml::value<std::string>(text);
    return q.str();
  };
  const auto number = [](double x) {
    std::ostringstream n;
    n << toml::value<double>(x);
    return n.str();
  };
  const auto list = [&](const auto& items, const auto& each) {
    out << "[";
    for (size_t i = 0; i < items.size(); ++i) out << (i ? ", " : "") << each(items[i]);
    out << "]";
  };
  if (auto* b = std::get_if<bool>(&value))
    out << (*b ? "true" : "false");
  else if (auto* i = std::get_if<int64_t>(&value))
    out << *i;
  else if (auto* d = std::get_if<double>(&value))
    out << number(*d);
  else if (auto* s = std::get_if<std::string>(&value))
    out << quoted(*s);
  else if (auto* v = std::get_if<std::vector<std::string>>(&value))
    list(*v, quoted);
  else if (auto* n = std::get_if<std::vector<double>>(&value))
    list(*n, number);
  return out.str();
}

ConfigValue convert(const toml::node& node, const std::string& where, const std::string& key) {
  if (auto b = node.as_boolean()) return b->get();
  if (auto i = node.as_integer()) return i->get();
  if (auto d = node.as_floating_point()) return d->get();
  if (auto s = node.as_string()) return s->get();
  if (auto array = node.as_array()) {
    std::vector<std::string> strings;
    std::vector<double> numbers;
    for (const auto& item : *array) {
      if (auto s = item.as_string())
        strings.push_back(s->get());
      else if (auto x = item.value<double>())
        numbers.push_back(*x);
      else
        fail("config", "{}: {}: lists may contain only strings or numbers", where, key);
    }
    if (!strings.empty() && !numbers.empty()) fail("config", "{}: {}: a list mixes strings and numbers", where, key);
    if (!numbers.empty()) return numbers;
    return strings;
  }
  fail("config", "{}: {}: expected a boolean, number, string or list", where, key);
}

toml::table parse_toml(const std::string& text, const std::string& name) {
  try {
    return toml::parse(text, name);
  } catch (const toml::parse_error& e) {
    fail("config", "{}:{}: {}", name, e.source().begin.line, std::string(e.description()));
  }
}

}  // namespace

namespace {

// Throws Error if `path` does not exist but an installed configuration has this name. An installed program has the
// folder configs/ of the repository next to it. Relative paths in a configuration are relative to its file, so the user
// copies the folder first; otherwise results would be written into the installation. The message shows the command.
void name_shipped(const fs::path& path) {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error), shipped = program.parent_path() / path;
  if (error || path.is_absolute() || fs::exists(path) || !fs::is_regular_file(shipped, error)) return;
  fail("config", "{} does not exist; to use the configurations that are installed with the program: cp -r {} .",
       path.string(), (program.parent_path() / *path.begin()).string());
}

// The TOML tables that a configuration consists of. Each table is stored with the name of its file.
struct Layers {
  using Table = std::pair<std::string, toml::table>;
  std::vector<Table> merged;                            // later tables override earlier ones
  std::vector<std::pair<std::string, Table>> variants;  // pairs of a variant's name and its table
  std::vector<Table> over_recipe;

  std::vector<std::string> variant_names() const {
    std::set<std::string> names;
    for (const auto& [name, table] : variants) names.insert(name);
    return {names.begin(), names.end()};
  }
};

// Moves the tables [variants.NAME] and [over_recipe] from `root` to `layers`, because they are merged only under
// certain conditions.
void take_conditional(toml::table& root, const std::string& file, Layers& layers) {
  const auto as_table = [&](const toml::node& node, const std::string& key) -> const toml::table& {
    const auto* table = node.as_table();
    if (!table) fail("config", "{}: {}: expected tables [{}.SECTION]", at(file, node), key, key);
    return *table;
  };
  if (const toml::node* variants = root.get("variants")) {
    for (const auto& [key, node] : as_table(*variants, "variants")) {
      const std::string name(key.str());
      layers.variants.emplace_back(name, Layers::Table{file, as_table(node, "variants." + name)});
    }
    root.erase("variants");
  }
  if (const toml::node* over_recipe = root.get("over_recipe")) {
    layers.over_recipe.emplace_back(file, as_table(*over_recipe, "over_recipe"));
    root.erase("over_recipe");
  }
}

void add_variant(const std::string& variant, const std::string& files, Layers& layers) {
  const std::vector<std::string> known = layers.variant_names();
  if (known.empty()) fail("config", "{}: the configuration has no variants, found '+{}'", files, variant);
  expect_known(files, variant, known, "a variant");
  for (const auto& [name, table] : layers.variants) {
    if (name == variant) layers.merged.push_back(table);
  }
}

void collect_file(const fs::path& path, Layers& layers, int depth);

// Reads the parts of a composed configuration (FILE+FILE+VARIANT...) and appends their tables to `layers`. Paths are
// relative to `folder`.
void collect(const fs::path& folder, const std::string& composed, Layers& layers, int depth) {
  std::string before;
  bool recipe = false;
  for (const std::string& part : config_parts(composed)) {
    if (before.empty() || is_config_file(part)) {
      collect_file(folder / part, layers, depth);
      if (recipe) layers.merged.insert(layers.merged.end(), layers.over_recipe.begin(), layers.over_recipe.end());
      recipe = true;
    } else {
      add_variant(part, before, layers);
    }
    before += (before.empty() ? "" : "+") + part;
  }
}

// Reads `path` and the files that it names in `extends`, and appends their tables to `layers`. The tables of the
// extended files come first, so that `path` overrides them.
void collect_file(const fs::path& path, Layers& layers, int depth) {
  if (depth > 16) fail("config", "{}: `extends` forms a cycle or is nested more than 16 levels deep", path.string());
  if (!fs::exists(path)) {
    const std::string use = replacement_of(path, depth > 0);
    if (!use.empty()) fail("config", "{} was removed: {}", path.string(), use);
    if (depth == 0) name_shipped(path);
  }
  toml::table root = parse_toml(read_file(path), path.string());
  if (const auto* extends = root.get("extends")) {
    const auto base = [&](const toml::node& node) {
      const auto* name = node.as_string();
      if (!name)
        fail("config", "{}: extends: expected a file name or a list of file names", at(path.string(), *extends));
      collect(path.parent_path(), name->get(), layers, depth + 1);
    };
    if (const auto* list = extends->as_array()) {
      for (const toml::node& node : *list) base(node);
    } else {
      base(*extends);
    }
    root.erase("extends");
  }
  take_conditional(root, path.string(), layers);
  layers.merged.emplace_back(path.string(), std::move(root));
}

}  // namespace

std::vector<std::string> variants_of(const fs::path& file) {
  Layers layers;
  collect_file(file, layers, 0);
  return layers.variant_names();
}

void Config::merge_section(const void* table, const std::string& section, const std::string& name, const char* where) {
  for (const auto& [key, value] : *static_cast<const toml::table*>(table)) {
    const std::string full = section + "." + std::string(key.str());
    if (const auto* nested = value.as_table()) {  // key = { inner = 1 } is read as "key.inner"
      merge_section(nested, full, name, where);
      continue;
    }
    const std::string value_place = where ? where : at(name, value);
    entries_[full] = {convert(value, value_place, full), value_place};
  }
}

void Config::merge(const void* table, const std::string& name, const char* where) {
  for (const auto& [section, node] : *static_cast<const toml::table*>(table)) {
    const std::string title(section.str());
    const auto* entries = node.as_table();
    if (!entries) {
      fail("config", "{}: {}: expected a [section]; only `extends` may be outside of a section",
           where ? where : at(name, node), title);
    }
    merge_section(entries, title, name, where);
  }
}

Config Config::parse(const std::string& text, const std::string& name) {
  Config config;
  config.name_ = name;
  toml::table root = parse_toml(text, name);
  Layers conditional;  // ignored: only configurations that are composed of several parts use them
  take_conditional(root, name, conditional);
  config.merge(&root, name, nullptr);
  return config;
}

Config Config::load(const fs::path& path, const std::vector<std::string>& overrides) {
  Config config;
  config.name_ = path.string();
  config.directory_ = fs::path(config_parts(path.string())[0]).parent_path();
  Layers layers;
  collect("", path.string(), layers, 0);
  for (const auto& [name, root] : layers.merged) config.merge(&root, name, nullptr);
  for (const auto& item : overrides) {
    const size_t equals = item.find('=');
    const size_t dot = item.find('.');
    if (equals == std::string::npos || dot == std::string::npos || dot > equals) {
      fail("config", "--set {}: expected section.key=value", item);
    }
    if (to_valid_utf8(item) != item) fail("config", "--set {}: expected UTF-8", to_valid_utf8(item));
    toml::table root;
    try {
      root = toml::parse(item);
    } catch (const toml::parse_error&) {  // a value that is not valid TOML, such as a bare word, is used as a string
      const auto part = [&](size_t begin, size_t end) {
        return std::string(strip(std::string_view(item).substr(begin, end - begin)));
      };
      root = toml::table{{part(0, dot), toml::table{{part(dot + 1, equals), part(equals + 1, item.size())}}}};
    }
    config.merge(&root, "--set", "--set");
  }
  return config;
}

ConfigSection Config::section(const std::string& name) {
  known_.try_emplace(name);
  return ConfigSection(this, name);
}

// Returns the end of the error message for an unknown key: the suggestion of a similar key of this section or of
// another section, or "" if no known key is similar.
static std::string suggestion(const std::map<std::string, std::set<std::string>>& known, const std::string& section,
                              const std::string& key) {
  std::map<std::string, std::string> elsewhere;  // maps a key to its section
  for (const auto& [name, keys] : known) {
    if (name != section) {
      for (const auto& k : keys) elsewhere.emplace(k, name);
    }
  }
  if (const auto same = elsewhere.find(key); same != elsewhere.end())
    return fmt::format("; it belongs to [{}]", same->second);
  const auto& here = known.at(section);
  if (const std::string near = did_you_mean(key, {here.begin(), here.end()}); !near.empty()) return near;
  std::vector<std::string> others;
  for (const auto& [k, name] : elsewhere) others.push_back(k);
  const std::string shared = with_shared_word(key, others);
  return shared.empty() ? "" : fmt::format("; did you mean {} of [{}]?", shared, elsewhere.at(shared));
}

void Config::check_all_used() const {
  for (const auto& [full, entry] : entries_) {
    const size_t dot = full.find('.');
    const std::string section = full.substr(0, dot), key = full.substr(dot + 1);
    const auto found = known_.find(section);
    if (found == known_.end()) {
      std::vector<std::string> names;
      for (const auto& [name, keys] : known_) {
        if (!name.empty()) names.push_back(name);
      }
      const std::string guess = nearest(section, names);
      fail("config", "{}: unknown section [{}]{}", entry.where, section,
           guess.empty() ? "" : fmt::format("; did you mean [{}]?", guess));
    }
    if (!found->second.count(key)) {
      fail("config", "{}: unknown key '{}' in [{}]{}", entry.where, key, section, suggestion(known_, section, key));
    }
  }
}

std::string Config::to_toml() const {
  std::string out, current;
  for (const auto& [full, entry] : entries_) {
    const size_t dot = full.find('.');
    const std::string section = full.substr(0, dot);
    if (section != current) {
      out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
      current = section;
    }
    out += fmt::format("{} = {}\n", full.substr(dot + 1), show(entry.value));
  }
  return out;
}

const ConfigValue* ConfigSection::find(const std::string& key) {
  config_->known_[name_].insert(key);
  const auto found = config_->entries_.find(name_ + "." + key);
  return found == config_->entries_.end() ? nullptr : &found->second.value;
}

bool ConfigSection::has(const std::string& key) const { return config_->entries_.count(name_ + "." + key) > 0; }

std::vector<std::string> ConfigSection::keys() const {
  std::vector<std::string> out;
  const std::string prefix = name_ + ".";
  for (auto entry = config_->entries_.lower_bound(prefix);
       entry != config_->entries_.end() && entry->first.starts_with(prefix); ++entry) {
    out.push_back(entry->first.substr(prefix.size()));
  }
  return out;
}

std::string ConfigSection::where(const std::string& key) const {
  const auto found = config_->entries_.find(name_ + "." + key);
  return found == config_->entries_.end() ? config_->name_ : found->second.where;
}

fs::path ConfigSection::resolved(const std::string& key, const std::string& value) const {
  const std::string place = where(key);
  const size_t colon = place.rfind(':');
  const fs::path base =
      place == "--set" || colon == std::string::npos ? fs::path() : fs::path(place.substr(0, colon)).parent_path();
  return fs::absolute(base / value).lexically_normal();
}

namespace {

[[noreturn]] void wrong_type(const std::string& where, const std::string& key, const char* expected,
                             const ConfigValue& found) {
  fail("config", "{}: {}: expected {}, found {} ({})", where, key, expected, type_name(found), show(found));
}

}  // namespace

bool ConfigSection::boolean(const std::string& key, bool fallback) {
  const auto* value = find(key);
  if (!value) return fallback;
  if (auto* b = std::get_if<bool>(value)) return *b;
  wrong_type(where(key), name_ + "." + key, "true or false", *value);
}

int64_t ConfigSection::integer(const std::string& key, int64_t fallback, int64_t minimum, int64_t maximum) {
  const auto* value = find(key);
  if (!value) return fallback;
  auto* i = std::get_if<int64_t>(value);
  if (!i) wrong_type(where(key), name_ + "." + key, "an integer", *value);
  if (*i < minimum || *i > maximum) {
    fail("config", "{}: {}.{}: expected {}, found {}", where(key), name_, key,
         maximum == INT64_MAX ? fmt::format("at least {}", minimum) : fmt::format("{} to {}", minimum, maximum), *i);
  }
  return *i;
}

double ConfigSection::number(const std::string& key, double fallback, double minimum, double maximum) {
  const auto* value = find(key);
  if (!value) return fallback;
  double x = 0;
  if (auto* d = std::get_if<double>(value))
    x = *d;
  else if (auto* i = std::get_if<int64_t>(value))
    x = static_cast<double>(*i);
  else
    wrong_type(where(key), name_ + "." + key, "a number", *value);
  if (!(x >= minimum && x <= maximum)) {
    fail("config", "{}: {}.{}: expected {}, found {}", where(key), name_, key,
         maximum >= 1e300 ? fmt::format("at least {}", minimum) : fmt::format("{} to {}", minimum, maximum), x);
  }
  return x;
}

std::string ConfigSection::string(const std::string& key, const std::string& fallback) {
  const auto* value = find(key);
  if (!value) return fallback;
  if (auto* s = std::get_if<std::string>(value)) return *s;
  wrong_type(where(key), name_ + "." + key, "a string", *value);
}

std::string ConfigSection::choice(const std::string& key, const std::string& fallback,
                                  const std::vector<std::string>& allowed) {
  const std::string value = string(key, fallback);
  expect_known(*this, key, value, allowed);
  return value;
}

std::vector<std::string> ConfigSection::strings(const std::string& key, const std::vector<std::string>& fallback) {
  const auto* value = find(key);
  if (!value) return fallback;
  if (auto* list = std::get_if<std::vector<std::string>>(value)) return *list;
  if (auto* one = std::get_if<std::string>(value)) return {*one};
  wrong_type(where(key), name_ + "." + key, "a string or a list of strings", *value);
}

std::vector<double> ConfigSection::numbers(const std::string& key, const std::vector<double>& fallback) {
  const auto* value = find(key);
  if (!value) return fallback;
  if (auto* list = std::get_if<std::vector<double>>(value)) return *list;
  if (auto* one = std::get_if<double>(value)) return {*one};
  if (auto* one = std::get_if<int64_t>(value)) return {static_cast<double>(*one)};
  if (auto* none = std::get_if<std::vector<std::string>>(value); none && none->empty()) return {};
  wrong_type(where(key), name_ + "." + key, "a number or a list of numbers", *value);
}

}  // namespace lazy
