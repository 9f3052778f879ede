// A temporary folder with the tiny corpus, a few lines of WikiText and LAMBADA, and a protocol whose runs have ten
// steps.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "repro/evidence/evidence.h"
#include "support/tiny_corpus.h"

namespace lazy::repro {

inline constexpr const char* kTinyProtocol = R"(
[protocol]
version = 3
extends = "repro-tiny.toml"
overrides = [
  "model.kind=transformer", "model.hidden_size=32", "model.num_hidden_layers=2", "model.num_heads=2",
  "model.intermediate_size=64", "model.max_position_embeddings=32", "model.distance_bias_init_apart=true",
  "training.seq_len=32", "training.batch_size=4", "lr_scheduler.warmup_steps=2", "checkpoint.every=5",
  "validation.batches=1",
]
blocks = ["A", "S"]
curve_points = 4
validation_tokens = 512

[measures]
dtype = "fp32"
heldout_tokens = 1000
sink_lengths = [16, 32]
sink_tokens = 128
lengths = [32, 64]
length_blocks = 3
other_rope_base = 150_000
probe_samples = 3
collapse_samples = 2
snapshot_tokens = 300

[cells]
softmax = []
lazy = ["model.normalizer=elastic", "model.distance_bias_window=20", "model.rope_theta=150000"]

[A]
question = "the first"
cells = ["softmax", "lazy"]
seeds = [1, 2]
tokens = 1280

[S]
question = "within training"
cells = ["lazy"]
seeds = [1]
tokens = 1280
snapshot_every = 640
)";

class EvidenceFolder {
 public:
  EvidenceFolder() {
    write_tiny_corpus(path);
    std::filesystem::create_directories(data());
    std::ofstream(data() / "wikitext-2-raw-test.txt")
        << " = First = \n\n the lazy dog sleeps under a tree . \n\n = Second = \n\n a quick fox jumps over the dog \n";
    std::ofstream lambada(data() / "lambada_openai.jsonl");
    lambada << R"({"text": "the quick brown fox jumps over the lazy dog"})"
            << "\n"
            << R"({"text": "a dog sleeps under the tree"})"
            << "\n";
  }
  ~EvidenceFolder() { std::filesystem::remove_all(path); }
  EvidenceFolder(const EvidenceFolder&) = delete;
  EvidenceFolder& operator=(const EvidenceFolder&) = delete;

  std::filesystem::path data() const { return path / "data"; }
  EvidenceOptions options() const {
    EvidenceOptions options;
    options.corpus = path / "corpus";
    options.data = data();
    options.records = path / "records";
    options.output = path / "out";
    options.progress = false;
    return options;
  }

  const std::filesystem::path path =
      std::filesystem::path(testing::TempDir()) /
      ("evidence_" + std::to_string(::getpid()) + testing::UnitTest::GetInstance()->current_test_info()->name());
};

}  // namespace lazy::repro
