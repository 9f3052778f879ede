#include "seeds.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/config.h"
#include "core/file.h"
#include "data/bpe_files.h"
#include "data/compressed.h"
#include "data/shards/corpus.h"
#include "data/support.h"
#include "model/config.h"
#include "model/mixers/registry.h"
#include "model/safetensors_format.h"
#include "target.h"
#include "train/tiny_run.h"

namespace lazy::fuzz {
namespace fs = std::filesystem;

namespace {

std::string in_parts(const std::vector<std::string>& files) { return fmt::format("{}", fmt::join(files, kPart)); }

std::string safetensors_file(const std::map<std::string, std::string>& metadata,
                             const std::vector<SafetensorsEntry>& entries) {
  return format_safetensors_header(metadata, entries) + std::string(entries.empty() ? 0 : entries.back().end, 'x');
}

std::string shard_file(int64_t vocabulary, int32_t bos, const std::vector<std::vector<int32_t>>& documents) {
  const fs::path path = scratch() / "seed.bin";
  ShardWriter writer(path, {0x1234, vocabulary, bos, bos < 0 ? -1 : bos + 1});
  for (const auto& document : documents) writer.add(document, document.size());
  writer.close();
  return read_file(path);
}

std::string corpus_json(const std::vector<std::string>& train, int64_t documents, int64_t tokens) {
  CorpusInfo info;
  info.splits["train"] = {train, documents, tokens, 5 * documents};
  info.splits["validation"] = {{"validation-00000.bin"}, 3, 9, 15};
  info.tokenizer_kind = "bpe";
  info.tokenizer = {0x1234, 300, 1, 2};
  info.inputs = {"a.txt", "b.jsonl"};
  info.seed = 42;
  info.validation = 0.1;
  write_corpus_info(scratch(), info);
  return read_file(scratch() / "corpus.json");
}

void add_tokenizers(Seeds& seeds) {
  Random random(5);
  const std::string text = testing_support::random_text(random, 30);
  const std::string special = R"({"bos_token": "<|endoftext|>", "eos_token": {"content": "<|pad|>"}})";
  auto json = testing_support::small_tokenizer_json();
  seeds["tokenizer_json"]["plain"] = in_parts({json.dump(), "", text});
  seeds["tokenizer_json"]["config"] = in_parts({json.dump(), special, text});
  auto pairs = json;
  for (auto& merge : pairs["model"]["merges"]) {
    const std::string both = merge;
    const size_t space = both.find(' ');
    merge = {both.substr(0, space), both.substr(space + 1)};
  }
  pairs["model"]["ignore_merges"] = true;
  pairs["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}};
  seeds["tokenizer_json"]["pairs"] = in_parts({pairs.dump(), "", text});
  pairs["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}};
  pairs["pre_tokenizer"] = {{"type", "Sequence"},
                            {"pretokenizers",
                             {{{"type", "Digits"}, {"individual_digits", true}},
                              {{"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "Isolated"}},
                              {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  // its normalizer needs utf8proc; without this library, the file is rejected
  seeds["tokenizer_json"]["nfc"] = in_parts({pairs.dump(), special, text});

  const auto bpe = testing_support::small_bpe();
  std::string merges = "#version: 0.2\n";
  for (const std::string& merge : bpe.merges) merges += merge + "\n";
  auto vocab = bpe.vocab;
  vocab["<|endoftext|>"] = vocab.size();
  const std::string config = R"({"model_type": "gpt2", "eos_token_id": [3, 4]})";
  const std::string map = R"({"pad_token": "<pad>", "additional_special_tokens": ["<x>"]})";
  const std::string pattern =
      testing_support::small_tokenizer_json()["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"];
  seeds["token_table"]["map"] =
      in_parts({R"({"bos_token": "<s>", "eos_token": null})", map, R"({"<y>": 30})", config, pattern});
  seeds["token_table"]["decoder"] =
      in_parts({R"({"added_tokens_decoder": {"27": {"content": "<z>", "special": true}}, "image_token": "<im>"})", map,
                "", config, R"((?i:'s|'t)|[^\r\n\p{L}]?\p{L}++|\p{N}{1,3})"});
  seeds["token_table"]["other-id"] =
      in_parts({R"({"added_tokens_decoder": {"3": {"content": "<z>"}}})", "", "", "", "a"});
  seeds["weight_map"]["two"] =
      R"({"metadata": {"total_size": 8},
          "weight_map": {"a": "m-00001-of-00002.safetensors", "b": "m-00002-of-00002.safetensors"}})";
  seeds["weight_map"]["bad-outside"] = R"({"weight_map": {"a": "../secret"}})";
  seeds["vocab_merges"]["plain"] = in_parts({bpe.vocab.dump(), merges, "", text});
  seeds["vocab_merges"]["config"] = in_parts({vocab.dump(), merges, R"({"eos_token": "<|endoftext|>"})", text});
}

void add_configurations(Seeds& seeds) {
  const train::ScratchFolder folder;
  const auto tiny = [&](const std::string& kind, const std::string& more = "") {
    return read_file(train::write_tiny_config(folder.path(), kind, more));
  };
  seeds["configuration"]["lazy"] = in_parts({tiny("lazy"), "", ""});
  seeds["configuration"]["transformer"] =
      in_parts({tiny("transformer", "peak_tflops = 1.5\n"), "", "training.steps=7\noptimizer.lr=3e-3"});
  seeds["configuration"]["extends"] =
      in_parts({"extends = \"base.toml\"\n[model]\nhidden_size = 128\n", tiny("lazy"), "training.name=try"});
  for (const auto& entry : fs::directory_iterator(fs::path(LAZY_SOURCE_DIR) / "configs")) {
    if (entry.path().extension() != ".toml") continue;
    seeds["configuration"]["other-" + entry.path().stem().string()] = in_parts({read_file(entry.path()), "", ""});
  }
  for (const MixerKind* kind : mixer_kinds()) {
    Config text = Config::parse(std::string("[model]\nkind = \"") + name(kind->type) +
                                "\"\nhidden_size = 384\nattention_every = 2\nnum_hidden_layers = 4\n");
    seeds["config_json"][name(kind->type)] = ModelConfig::from_toml(text).to_json().dump(2);
  }
  Config gpt2 = Config::parse("[model]\nkind = \"gpt2\"\n");
  ModelConfig config = ModelConfig::from_toml(gpt2);
  config.vocab_size = 300;
  seeds["config_json"]["gpt2"] = config.to_json().dump(2);
  seeds["config_json"]["bloom"] =
      R"({"model_type": "bloom", "vocab_size": 9, "n_embed": 64, "n_layer": 2, "num_attention_heads": 4,
    "seq_length": 32})";
  seeds["config_json"]["transfo-xl"] =
      R"({"model_type": "transfo-xl", "n_token": 99, "cutoffs": [10, 40], "d_model": 16, "d_embed": 16, "div_val": 2,
    "n_head": 2, "d_head": 8, "d_inner": 24, "n_layer": 2, "mem_len": 12, "tgt_len": 6, "clamp_len": 9,
    "same_length": false, "pre_lnorm": true, "untie_r": false})";
  seeds["config_json"]["gpt_oss"] =
      R"({"model_type": "gpt_oss", "vocab_size": 9, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8,
    "intermediate_size": 96, "num_local_experts": 8, "sliding_window": 7,
    "quantization_config": {"quant_method": "mxfp4"}})";
  config = {};
  seeds["config_json"]["llama"] = config.to_json().dump(2);
  config.attention.normalizer = Normalizer::elastic;
  config.attention.distance_bias_window = 512;
  config.tokenizer_fingerprint = 0x0123456789abcdef;
  seeds["config_json"]["lazy"] = config.to_json().dump(2);
  seeds["config_json"]["fla"] =
      R"({"model_type": "lazy_attention", "vocab_size": 9, "hidden_size": 64, "num_hidden_layers": 2,
    "num_heads": 2, "num_kv_heads": 1, "norm_eps": 1e-6, "hidden_ratio": 4, "window_size": 32,
    "eos_token_id": [1, 2], "bos_token_id": null})";
}

void add_texts(Seeds& seeds) {
  Random random(6);
  const std::string words = testing_support::random_text(random, 60);
  const std::string lines =
      nlohmann::json{{"text", words}}.dump() + "\n\n" + R"({"id": 3, "text": "\u00e9 \ud83e\udd99"})" + "\r\n";
  const std::string pod =
      "=head1 NAME\n\nlazy - B<bold> C<< a > b >> L<text|page/\"section\"> E<eacute> E<0x41>\n\n=over 4\n\n=item "
      "*\n\nOne\n\n=back\n\n  code\n\n=cut\n";
  auto& all = seeds["corpus_text"];
  all["lines"] = std::string("\x00\x00", 2) + lines;
  all["plain"] = std::string("\x05\x00", 2) + words + "\n\n\n" + words;
  all["cut"] = std::string("\x01\x14", 2) + words;
  all["pod"] = std::string("\x02\x00", 2) + pod;
  all["pod-code"] = std::string("\x12\x00", 2) + pod;
  all["gzip"] = std::string("\x00\x00", 2) + testing_support::gzip(lines) + testing_support::gzip(lines);
  all["zstd"] = std::string("\x00\x00", 2) + testing_support::zstd(lines);
}

void add_requests(Seeds& seeds) {
  auto& all = seeds["completion_json"];
  all["text"] = R"({"model": "m", "prompt": "Once", "max_tokens": 20, "temperature": 0.7, "top_p": 0.9, "top_k": 40,
    "min_p": 0.05, "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1, "seed": -3,
    "stop": ["\n\n", "END"], "stream": true, "stream_options": {"include_usage": true}, "n": 2, "best_of": 2,
    "logit_bias": {"50256": -100, "3": 1.5}, "user": "u", "stop_token_ids": [3], "ignore_eos": false})";
  all["ids"] = R"({"prompt": [[1, 2, 3], [4]], "max_tokens": 1, "logprobs": 1, "echo": true, "temperature": 0})";
  all["texts"] =
      R"({"prompt": ["a", "b"], "stop": "x", "suffix": "", "add_special_tokens": false, "other": {"a": []}})";
  all["chat"] = R"({"messages": [{"role": "system", "content": "a"}, {"role": "user", "content":
    [{"type": "text", "text": "b"}]}], "logprobs": true, "top_logprobs": 3, "max_completion_tokens": 5,
    "response_format": {"type": "text"}, "tools": []})";
  all["attention"] = R"({"model": "m", "tokens": [1, 2, 3], "first": 1, "rows": [[0, 1], [2, null], [null, null]]})";
  all["bad-type"] = R"({"prompt": 3})";
  all["bad-body"] = "[]";
}

void add_command_lines(Seeds& seeds) {  // the command lines of the examples in --help
  const char* const lines[] = {
      "train --model lazy-340m --recipe 15b --set data.corpus=corpora/fineweb --resume --threads 2",
      "data prepare book.txt --output corpus --train-tokenizer 4096 --max-document 64kb --validation 0.1",
      "data prepare - --format jsonl -o corpus --tokenizer gpt2/ --text-field body --split-blank 2 --seed 1 "
      "--shard-size 1gb --force",
      "data inspect corpus --documents 2 --split validation --json --verify",
      "tokenize --tokenizer tokenizer.model --decode",
      "report runs/lazy runs/softmax --output lazy.html",
      "bench attention --length 64 --head-dim 64 128 --dtype fp32 --json out.json",
      "bench decode --keys 1024 --score-scale 1.35",
      "--help",
      "-v train --help"};
  int number = 0;
  for (std::string line : lines) {
    std::replace(line.begin(), line.end(), ' ', '\n');
    seeds["command_line"][fmt::format("example-{}", number++)] = line;
  }
}

}  // namespace

Seeds make_seeds() {
  Seeds seeds;
  seeds["safetensors"]["two"] =
      safetensors_file({{"format", "pt"}}, {{"a", "F32", {2, 3}, 0, 24}, {"b", "BF16", {}, 24, 26}});
  seeds["safetensors"]["none"] = safetensors_file({}, {});
  seeds["safetensors"]["odd"] =
      safetensors_file({{"k", "é\n"}}, {{"x \"quoted\"", "I64", {0, 4}, 0, 0}, {"y", "F4", {5, 2}, 0, 5}});
  const std::vector<std::vector<int32_t>> documents = {{1, 2, 3, 4, 5}, {6}, {}, {7, 8, 9, 10, 11, 12, 13}, {0, 299}};
  const std::string narrow = shard_file(300, 1, documents), wide = shard_file(70000, 69998, documents),
                    bare = shard_file(300, -1, documents);
  seeds["shard"]["narrow"] = "\x3F" + narrow;
  seeds["shard"]["wide"] = "\x13" + wide;
  seeds["shard"]["bare"] = "\x49" + bare;
  seeds["shard"]["as-written"] = "\x12" + narrow;
  seeds["shard"]["bad-length"] = "\x1F" + narrow.substr(0, narrow.size() - 8);
  seeds["corpus_json"]["two"] = corpus_json({"train-00000.bin"}, 3, 9);
  seeds["corpus_json"]["bad-count"] = corpus_json({"train-00000.bin"}, 4, 9);
  seeds["corpus_json"]["empty"] = corpus_json({}, 0, 0);
  add_tokenizers(seeds);
  add_configurations(seeds);
  add_texts(seeds);
  add_requests(seeds);
  add_command_lines(seeds);
  return seeds;
}

// Checks that each seed is accepted or rejected as its name says. Also writes the seeds to the folder fuzz-seeds/ next
// to the program, where scripts/fuzz.sh reads them.
TEST(Fuzz, Seeds_AreAcceptedOrRejectedAsNamed) {
  const fs::path folder = fs::path(LAZY_BINARY).parent_path() / "fuzz-seeds";
  const Seeds seeds = make_seeds();
  fs::remove_all(folder);
  for (const auto& [target, inputs] : seeds) {
    fs::create_directories(folder / target);
    for (const auto& [name, input] : inputs) write_file_atomic(folder / target / name, input);
  }
  for (const Target& target : targets()) {
    ASSERT_TRUE(seeds.contains(target.name)) << target.name << " has no seeds";
    for (const auto& [name, input] : seeds.at(target.name)) {
      const std::string error = outcome(target.run, input);
      if (name == "nfc" && error.find("libutf8proc") != std::string::npos) continue;
      if (name.starts_with("other")) continue;
      EXPECT_EQ(name.starts_with("bad"), !error.empty()) << target.name << " " << name << ": " << error;
    }
  }
}

// Damages the seeds in a deterministic way and runs the targets on them. This replaces a short run of libFuzzer on
// machines without clang.
TEST(Fuzz, DamagedSeed_IsAcceptedOrRejected) {
  const Seeds seeds = make_seeds();
  Random random(1);
  for (const Target& target : targets()) {
    int refused = 0, rounds = 0;
    for (const auto& [name, input] : seeds.at(target.name)) {
      for (int n = 0; n < 100; ++n, ++rounds) {
        std::string damaged = input;
        for (uint64_t changes = 1 + random.below(3); changes > 0; --changes) {
          const size_t at = random.below(damaged.size() + 1),
                       size = std::min<size_t>(1 + random.below(8), damaged.size() - at);
          switch (random.below(4)) {
            case 0:
              damaged.erase(at, size);
              break;
            case 1:
              damaged.insert(at, damaged.substr(random.below(damaged.size() + 1), size));
              break;
            case 2:
              damaged.insert(at, 1, static_cast<char>(random.below(256)));
              break;
            default:
              if (size > 0) damaged[at] = static_cast<char>(damaged[at] ^ (1 << random.below(8)));
          }
        }
        refused += !outcome(target.run, damaged).empty();
      }
    }
    EXPECT_GT(refused, rounds / 20) << target.name;
  }
}

}  // namespace lazy::fuzz
