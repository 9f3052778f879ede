#include "repro/evidence/protocol.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/checksum.h"
#include "core/config.h"
#include "core/error.h"
#include "core/known_names.h"
#include "repro/configs.h"

namespace lazy::repro {

namespace {

constexpr int64_t kFirstSeed = 42;  // value of training.seed for seed 1, the same in all recipes
constexpr const char* kProtocolFile = "evidence.toml";

// Reads a strictly increasing list of integers that are not below `least`.
std::vector<int64_t> increasing(ConfigSection& section, const std::string& key, const std::vector<int64_t>& fallback,
                                int64_t least) {
  std::vector<int64_t> out;
  for (const double value : section.numbers(key, {fallback.begin(), fallback.end()})) {
    if (value != std::floor(value) || value < static_cast<double>(least) ||
        (!out.empty() && value <= static_cast<double>(out.back()))) {
      fail("config", "{}: {}: expected increasing whole numbers of at least {}, found {}", section.where(key), key,
           least, value);
    }
    out.push_back(static_cast<int64_t>(value));
  }
  if (out.empty()) fail("config", "{}: {}: expected at least one number, found none", section.where(key), key);
  return out;
}

MeasureSizes read_sizes(Config& config) {
  ConfigSection s = config.section("measures");
  MeasureSizes z;
  z.dtype = s.choice("dtype", z.dtype, {"auto", "fp32", "bf16"});
  z.heldout_tokens = s.integer("heldout_tokens", z.heldout_tokens, 1);
  z.sink_lengths = increasing(s, "sink_lengths", z.sink_lengths, 2);
  z.sink_tokens = s.integer("sink_tokens", z.sink_tokens, 1);
  z.lengths = increasing(s, "lengths", z.lengths, 2);
  for (const int64_t length : z.lengths) {
    if (z.lengths.back() % length != 0)
      fail("config", "{}: lengths: expected divisors of the longest ({}), found {}", s.where("lengths"),
           z.lengths.back(), length);
  }
  z.length_blocks = s.integer("length_blocks", z.length_blocks, 1);
  z.other_rope_base = s.number("other_rope_base", z.other_rope_base, 1);
  z.probe_samples = s.integer("probe_samples", z.probe_samples, 1);
  z.collapse_samples = s.integer("collapse_samples", z.collapse_samples, 1, z.probe_samples);
  z.snapshot_tokens = s.integer("snapshot_tokens", z.snapshot_tokens, 1);
  return z;
}

EvidenceBlock read_block(Config& config, const std::string& name, const std::vector<std::string>& known_cells) {
  ConfigSection s = config.section(name);
  EvidenceBlock b;
  b.name = name;
  b.question = s.required_string("question");
  b.cells = s.strings("cells", {});
  b.exploratory = s.strings("exploratory", {});
  b.seeds = increasing(s, "seeds", {1}, 1);
  b.tokens = s.integer("tokens", 0, 1);
  b.overrides = read_overrides(s, "overrides");
  b.snapshot_every = s.integer("snapshot_every", 0, 0);
  b.condition = s.string("condition", "");
  b.condition_seeds = s.integer("condition_seeds", 1, 1);
  b.condition_excess = s.number("condition_excess", 0);
  if (b.tokens == 0) fail("config", "{}: [{}] needs 'tokens'", config.name(), name);
  if (b.cells.empty()) fail("config", "{}: [{}] needs 'cells'", config.name(), name);
  for (size_t i = 0; i < b.cells.size(); ++i) {
    const std::string& cell = b.cells[i];
    if (std::find(b.cells.begin(), b.cells.begin() + static_cast<int64_t>(i), cell) !=
        b.cells.begin() + static_cast<int64_t>(i))
      fail("config", "{}: {}.cells: expected each cell once, but '{}' is listed twice", s.where("cells"), name, cell);
    expect_known(s, "cells", cell, known_cells, "cells of [cells]");
  }
  for (const std::string& cell : b.exploratory)
    expect_known(s, "exploratory", cell, b.cells, "one of the block's cells");
  if (!b.condition.empty()) expect_known(s, "condition", b.condition, b.cells, "one of the block's cells");
  return b;
}

}  // namespace

std::string EvidenceRun::name() const { return fmt::format("{}.seed{}", cell, seed); }
std::string EvidenceRun::id() const { return block + "." + name(); }

Protocol read_protocol(const std::string& text, const std::string& name) {
  Config config = Config::parse(text, name);
  ConfigSection s = config.section("protocol");
  Protocol p;
  p.fingerprint = fmt::format("{:016x}", checksum(text));
  p.version = s.integer("version", 0, 1);
  if (p.version == 0) fail("config", "{}: [protocol] needs 'version'", name);
  p.extends = s.required_string("extends");
  p.overrides = read_overrides(s, "overrides");
  const std::vector<std::string> blocks = s.strings("blocks", {});
  if (blocks.empty()) fail("config", "{}: [protocol] needs 'blocks'", name);
  p.curve_points = s.integer("curve_points", p.curve_points, 1);
  p.validation_tokens = s.integer("validation_tokens", p.validation_tokens, 1);
  p.sizes = read_sizes(config);
  ConfigSection cells = config.section("cells");
  const std::vector<std::string> known = cells.keys();
  for (const std::string& block : blocks) {
    for (const EvidenceBlock& other : p.blocks) {
      if (other.name == block)
        fail("config", "{}: blocks: expected each block once, but '{}' is listed twice", name, block);
    }
    p.blocks.push_back(read_block(config, block, known));
    for (const std::string& cell : p.blocks.back().cells) p.cells[cell] = read_overrides(cells, cell);
  }
  config.check_all_used();
  return p;
}

Protocol embedded_protocol() { return read_protocol(embedded_config(kProtocolFile), kProtocolFile); }

std::vector<EvidenceRun> Protocol::runs() const {
  std::vector<EvidenceRun> out, exploratory;
  for (const EvidenceBlock& b : blocks) {
    for (const int64_t seed : b.seeds) {
      for (const std::string& cell : b.cells) {
        EvidenceRun run{b.name, cell, seed, b.tokens, b.snapshot_every, contains(b.exploratory, cell), overrides};
        for (const auto* more : {&b.overrides, &cells.at(cell)})
          run.overrides.insert(run.overrides.end(), more->begin(), more->end());
        run.overrides.push_back(fmt::format("training.seed={}", kFirstSeed + seed - 1));
        (run.exploratory ? exploratory : out).push_back(std::move(run));
      }
    }
  }
  out.insert(out.end(), exploratory.begin(), exploratory.end());
  return out;
}

const EvidenceBlock& Protocol::block(const std::string& name) const {
  for (const EvidenceBlock& b : blocks) {
    if (b.name == name) return b;
  }
  fail_unknown("repro", "--block", name, names_of(blocks));
}

std::vector<EvidenceRun> selected_runs(const Protocol& protocol, const std::vector<std::string>& blocks,
                                       const std::vector<std::string>& only) {
  for (const std::string& block : blocks) protocol.block(block);
  std::vector<EvidenceRun> out;
  std::vector<std::string> names;
  std::vector<bool> used(only.size(), false);
  for (EvidenceRun& run : protocol.runs()) {
    if (!blocks.empty() && !contains(blocks, run.block)) continue;
    names.push_back(run.id());
    bool wanted = only.empty();
    for (size_t i = 0; i < only.size(); ++i) {
      if (only[i] != run.name() && only[i] != run.id()) continue;
      wanted = used[i] = true;
    }
    if (wanted) out.push_back(std::move(run));
  }
  for (size_t i = 0; i < only.size(); ++i) {
    if (!used[i])
      fail("repro", "--only: expected a run{}, as CELL.seedK or BLOCK.CELL.seedK, found '{}'{}",
           blocks.empty() ? "" : fmt::format(" of block {}", fmt::join(blocks, ", ")), only[i],
           did_you_mean(only[i], names));
  }
  return out;
}

}  // namespace lazy::repro
