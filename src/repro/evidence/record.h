// The record of a run of `lazy repro evidence` is one JSON file, RECORDS/BLOCK.CELL.seedK.json, which is either
// complete or absent. It contains everything that later statistics need; the trained model is deleted.
//
//   format, protocol, block, cell, seed, exploratory    identification
//   overrides, configuration, model, parameters         what was trained
//   tokens, tokens_per_step, steps, corpus, tokenizer   the training data
//   device, date, version, seconds, tokens_per_second   where, when and how fast the run was trained
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

// Returns the record of a run, or null if the run has no record. If the file is damaged or belongs to a different run,
// protocol version or corpus, throws an Error that names the file, the field, the expected value and the value found.
// With an empty `corpus_fingerprint`, the corpus is not compared.
Json read_record(const std::filesystem::path& records, const Protocol& protocol, const EvidenceRun& run,
                 const std::string& corpus_fingerprint);

// Extracts training curves from log.jsonl, which has one line per training step:
//   tokens, loss, gradient_norm, largest_gradient_norm   means (the last: maxima) over at most `points` ranges of
//                                                        steps; tokens: the number at the end of each range
//   validation {tokens, loss}                            loss on fixed sequences of the validation split
//   attention {tokens, sink_ratio, density, ...}         attention statistics on one batch of these sequences
//   tokens_per_second                                    median over steps, without validation and checkpoints
//   seconds                                              run time, with validation and checkpoints
Json training_curves(const std::filesystem::path& log, int64_t points);

// The state of the condition of a block, according to the records.
struct BlockCondition {
  std::string unmet;     // the reason why the remaining cells are not trained; empty if they are trained
  bool decided = false;  // further records cannot change the outcome
};
// `find` returns the record of a run, or null.
BlockCondition block_condition(const Protocol& protocol, const EvidenceBlock& block,
                               const std::function<const Json*(const EvidenceRun&)>& find);

// Fingerprint of the tokens of all shards. It does not depend on the paths of the files.
std::string corpus_fingerprint(const std::filesystem::path& corpus);

}  // namespace lazy::repro
