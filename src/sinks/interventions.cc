#include "sinks/interventions.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "core/error.h"
#include "core/known_names.h"
#include "core/text.h"
#include "model/checkpoint.h"
#include "model/safetensors.h"
#include "sinks/effective_positions.h"
#include "sinks/scoped_interventions.h"

namespace lazy::sinks {

void ScopedWeightEdits::write(const at::Tensor& weight, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  before_.emplace_back(weight, weight.detach().clone());
  weight.copy_(value);
}

ScopedWeightEdits::~ScopedWeightEdits() {
  const at::NoGradGuard no_grad;
  for (auto edit = before_.rbegin(); edit != before_.rend(); ++edit) edit->first.copy_(edit->second);
}

namespace {

std::optional<double> as_number(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Removes the prefix "model." or "transformer." of a weight name: "transformer.h.0.attn" -> "h.0.attn". Some
// checkpoints have names with this prefix, others have names without it.
std::string without_prefix(const std::string& name) {
  for (const char* prefix : {"model.", "transformer."}) {
    if (name.starts_with(prefix)) return name.substr(std::string(prefix).size());
  }
  return name;
}

// An index of an activation does not count the batch dimension, which is the first dimension.
constexpr int64_t kAfterBatch = 1;

bool is_matrix(const std::string& activation) {
  return activation.ends_with(".scores") || activation.ends_with(".weights");
}

}  // namespace

Interventions& Interventions::set_zero(const std::string& text) {
  changes_.push_back(parse(Kind::replace, "--set-zero", text + "=0"));
  return *this;
}
Interventions& Interventions::replace(const std::string& text) {
  changes_.push_back(parse(Kind::replace, "--replace", text));
  return *this;
}
Interventions& Interventions::add(const std::string& text) {
  changes_.push_back(parse(Kind::add, "--add", text));
  return *this;
}
Interventions& Interventions::swap_positions(const std::string& text) {
  changes_.push_back(parse(Kind::swap, "--swap-positions", text));
  return *this;
}

Interventions::Change Interventions::parse(Kind kind, const char* option, const std::string& text) {
  Change change{kind, fmt::format("{} '{}'", option, text), {}, {}};
  const size_t equals = text.find('=');
  if (equals == 0 || equals == std::string::npos || equals + 1 == text.size()) {
    fail("sinks", "{}: expected {}", change.text, kind == Kind::swap ? "NAME=I,J" : "NAME[INDEX]=VALUE");
  }
  change.target = parse_part(text.substr(0, equals), change.text);
  const std::string value = text.substr(equals + 1);
  if (kind == Kind::swap) {
    const auto places = split(value, ',');
    const auto number = [&](size_t n) { return n < places.size() ? as_number(places[n]) : std::nullopt; };
    if (places.size() != 2 || !number(0) || !number(1) || change.target.name != text.substr(0, equals)) {
      fail("sinks", "{}: expected NAME=I,J", change.text);
    }
    change.first = static_cast<int64_t>(*number(0));
    change.second = static_cast<int64_t>(*number(1));
    return change;
  }
  double sign = 1;
  bool expects_term = true;
  for (const std::string& piece : split(value, ' ')) {
    if (piece.empty()) continue;
    if (piece == "+" || piece == "-") {
      sign = piece == "-" ? -sign : sign;
      expects_term = true;
      continue;
    }
    if (!expects_term) fail("sinks", "{}: expected + or - before '{}'", change.text, piece);
    Term term{sign, "", {}};
    std::string name = piece;
    if (const size_t star = piece.find('*'); star != std::string::npos && as_number(piece.substr(0, star))) {
      term.factor *= *as_number(piece.substr(0, star));
      name = piece.substr(star + 1);
    } else if (piece.size() > 1 && piece[0] == '-' && !as_number(piece)) {
      term.factor = -term.factor;
      name = piece.substr(1);
    }
    if (const auto number = as_number(name)) {
      term.factor *= *number;
    } else {
      const NamedPart part = parse_part(name, change.text);
      term.name = part.name;
      term.index = part.index;
    }
    change.value.push_back(term);
    sign = 1;
    expects_term = false;
  }
  if (expects_term) fail("sinks", "{}: expected a value after the last + or -", change.text);
  return change;
}

ScopedInterventions::ScopedInterventions(LanguageModel& model, const Interventions& interventions) : model_(model) {
  const at::NoGradGuard no_grad;
  const auto names = hook_point_names(model.config());
  std::vector<std::string> known = names;
  for (const StoredTensor& stored : stored_tensors(model.config())) known.push_back(stored.name);
  for (const Change& change : interventions.changes_) {
    const std::string& glob = change.target.name;
    if (std::any_of(names.begin(), names.end(), [&](const std::string& name) { return glob_matches(glob, name); })) {
      change_activations(change, names);
      continue;
    }
    const auto weights = weights_like(glob);
    if (weights.empty())
      fail("sinks", "{}: the model has no tensor or probe point '{}'{}", change.text, glob, did_you_mean(glob, known));
    require_resident_weights(change);
    for (const EditedWeight& weight : weights) {
      const auto parts = unpacked(weight.stored, changed(change, weight.value(), 0));
      for (size_t n = 0; n < parts.size(); ++n) edits_.write(weight.parts[n], parts[n]);
    }
  }
  // Register the hooks that read activations last. At each probe point, they then read the activation after all
  // changes.
  for (const auto& [name, tensor] : seen_) {
    probes_.read(name, [this](const std::string& place, const at::Tensor& t) { seen_[place] = t; });
  }
}

std::vector<ScopedInterventions::EditedWeight> ScopedInterventions::weights_like(const std::string& glob) const {
  const auto named = [&](const std::string& name) {
    return glob_matches(glob, name) || glob_matches(glob, without_prefix(name));
  };
  const std::map<std::string, at::Tensor> by_name(model_.stored().begin(), model_.stored().end());
  std::vector<EditedWeight> out;
  for (const StoredTensor& stored : stored_tensors(model_.config())) {
    if (!named(stored.name)) continue;
    out.push_back({stored, {}});
    for (const std::string& part : stored.parts) out.back().parts.push_back(by_name.at(part).detach());
  }
  if (!out.empty()) return out;
  for (const auto& [name, tensor] : by_name) {
    if (named(name)) out.push_back({{name, tensor.sizes().vec(), {name}}, {tensor.detach()}});
  }
  return out;
}

void ScopedInterventions::require_resident_weights(const Change& change) const {
  if (model_.offloaded())
    fail("sinks",
         "{}: expected only activations: a model whose layers are loaded one at a time has no resident weights",
         change.text);
}

at::Tensor ScopedInterventions::EditedWeight::value() const { return packed(stored, parts); }

void ScopedInterventions::change_activations(const Change& change, const std::vector<std::string>& names) {
  for (const Term& term : change.value) {
    const auto source = std::find(names.begin(), names.end(), term.name);
    if (source == names.end()) {
      // The term is not an activation. look_up() throws an Error here, before any forward pass, if it is not a weight
      // either.
      if (!term.name.empty() && term.name != "@") look_up(term.name, change);
      continue;
    }
    for (auto target = names.begin(); target != names.end(); ++target) {
      if (glob_matches(change.target.name, *target) && target <= source)
        fail("sinks", "{}: expected an activation that is computed before {}, found {}", change.text, *target, *source);
    }
    seen_[term.name] = at::Tensor();
  }
  probes_.replace(change.target.name, [this, change](const std::string& name, const at::Tensor& tensor) {
    if (change.kind == Interventions::Kind::swap && is_matrix(name))
      fail("sinks", "{}: {} has one axis for queries and one for keys; use --replace", change.text, name);
    return changed(change, tensor, kAfterBatch);
  });
}

at::Tensor ScopedInterventions::changed(const Change& change, const at::Tensor& tensor, int64_t skip) {
  at::Tensor out = tensor.clone();
  if (change.kind == Interventions::Kind::swap) {
    const int64_t size = tensor.size(skip);
    for (int64_t place : {change.first, change.second}) {
      if (place < 0 || place >= size)
        fail("sinks", "{}: expected positions below {}, found {}", change.text, size, place);
    }
    out.select(skip, change.first).copy_(tensor.select(skip, change.second));
    out.select(skip, change.second).copy_(tensor.select(skip, change.first));
    return out;
  }
  const at::Tensor part = change.target.index.of(tensor, skip, change.text);
  at::Tensor value = change.kind == Interventions::Kind::add ? part : at::zeros({}, tensor.options());
  for (const Term& term : change.value) value = value + value_of(term, change, tensor, skip).to(tensor.options());
  change.target.index.put(out, value, skip, change.text);
  return out;
}

at::Tensor ScopedInterventions::value_of(const Term& term, const Change& change, const at::Tensor& own, int64_t skip) {
  if (term.name.empty()) return at::full({}, term.factor);
  if (term.name == "@") return term.factor * term.index.of(own, skip, change.text);
  if (const auto seen = seen_.find(term.name); seen != seen_.end()) {
    return term.factor * term.index.of(seen->second, kAfterBatch, change.text);
  }
  return term.factor * term.index.of(look_up(term.name, change), 0, change.text);
}

at::Tensor ScopedInterventions::look_up(const std::string& name, const Change& change) {
  if (const auto known = constants_.find(name); known != constants_.end()) return known->second;
  if (name == "epe") return constants_[name] = effective_positions(model_);
  if (const size_t colon = name.find(".safetensors:"); colon != std::string::npos) {
    const std::string path = name.substr(0, colon + 12), tensor = name.substr(colon + 13);
    const SafetensorsFile file(path);
    if (!file.has(tensor)) fail("sinks", "{}: {} has no tensor '{}'", change.text, path, tensor);
    return constants_[name] = file.tensor(tensor);
  }
  const auto weights = weights_like(name);
  if (weights.size() != 1)
    fail("sinks", "{}: expected a number, a weight, an earlier activation, FILE.safetensors:NAME, epe or @, found '{}'",
         change.text, name);
  require_resident_weights(change);
  return weights.front().value();
}

}  // namespace lazy::sinks
