// The record of a run of `lazy repro evidence`: one JSON file, RECORDS/BLOCK.CELL.seedK.json, complete or absent. It
// holds everything that later statistics need; the model is not kept.
//
//   format, protocol, block, cell, seed, exploratory    what it is
//   overrides, configuration, model, parameters         what was trained
//   tokens, tokens_per_step, steps, corpus, tokenizer   on what
//   device, date, version, seconds, tokens_per_second   where, when and how fast
//   training                                            curves, see training_curves
//   measures, snapshots                                 see measures.h
#pragma once
#include <filesystem>
#include <functional>
#include <string>

#include "repro/evidence/protocol.h"
#include "repro/plan.h"

namespace lazy::repro {

inline constexpr const char* kEvidenceFormat = "lazy.evidence/1";

std::filesystem::path record_path(const std::filesystem::path& records, const EvidenceRun& run);

// The record of a run, null where there is none. Error names file, field, expected and found when the file is damaged
// or belongs to another run, protocol version or corpus (`corpus_fingerprint` empty: not compared).
Json read_record(const std::filesystem::path& records, const Protocol& protocol, const EvidenceRun& run,
                 const std::string& corpus_fingerprint);

// The curves of a run's log.jsonl, which has a line for every step:
//   tokens, loss, gradient_norm, largest_gradient_norm   means (the largest: maxima) over at most `points` stretches
//                                                        of steps; tokens: at the end of each
//   validation {tokens, loss}                            fixed sequences of the validation split
//   attention {tokens, sink_ratio, density, ...}         one batch of them
//   tokens_per_second                                    median over steps, without validation and checkpoints
//   seconds                                              of running, with them
Json training_curves(const std::filesystem::path& log, int64_t points);

// What the records of a block's `condition` say of its other cells.
struct BlockCondition {
  std::string unmet;     // why they are not trained; empty: they are
  bool decided = false;  // it does not wait for more records
};
// find: a run's record, or null.
BlockCondition block_condition(const Protocol& protocol, const EvidenceBlock& block,
                               const std::function<const Json*(const EvidenceRun&)>& find);

// Of the tokens of all shards, independent of their paths.
std::string corpus_fingerprint(const std::filesystem::path& corpus);

}  // namespace lazy::repro
