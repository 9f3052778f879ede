// Tests of model folders written by transformers: the results must match transformers, both for a full pass and with a
// cache, and transformers must read the saved model as the same model.
#pragma once
#include <nlohmann/json.hpp>

#include "as_transformers.h"
#include "core/error.h"
#include "model/families/families.h"
#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "temporary_folder.h"

namespace lazy::testing {

// Converts a configuration to the format of transformers 4: rope_theta at the top level, and rope_scaling with the key
// "type".
inline nlohmann::json in_older_words(nlohmann::json config) {
  nlohmann::json rope = config["rope_parameters"];
  config.erase("rope_parameters");
  config["rope_theta"] = rope["rope_theta"];
  rope.erase("rope_theta");
  rope["type"] = rope["rope_type"];
  rope.erase("rope_type");
  config["rope_scaling"] = rope["type"] == "default" ? nlohmann::json() : rope;
  return config;
}

// A model converted to Lazy Attention must compute the same function, also after saving and loading. When tau is set to
// -1, the results must change.
inline void expect_conversion(const std::filesystem::path& where, const LanguageModel& model, const at::Tensor& ids,
                              const Observed& theirs) {
  const auto families = convertible_families();
  if (std::find(families.begin(), families.end(), name(model.config().family)) == families.end()) {
    EXPECT_THROW(to_lazy(model.config(), 8), Error);
    return;
  }
  const at::NoGradGuard guard;
  const std::filesystem::path folder = where / "lazy";
  std::filesystem::create_directory(folder);
  model.converted(to_lazy(model.config(), 8)).save(folder);
  LanguageModel lazy = LanguageModel::load(folder);
  EXPECT_EQ(lazy.config().to_json(), ModelConfig::from_directory(folder).to_json());
  EXPECT_EQ(without_conversion(lazy.config()).to_json(), model.config().to_json());
  EXPECT_EQ(lazy.config().to_json()["model_type"], std::string("lazy_") + name(model.config().family));
  const auto logits = [&] { return lazy.logits(lazy.forward(ids).hidden); };
  expect_as_close(logits(), theirs.at("fp32.logits"), theirs.at("fp64.logits"), "logits of the converted model");
  for (int64_t layer = 0; layer < lazy.config().num_layers; ++layer) {
    EXPECT_TRUE(at::equal(lazy.distance_bias(layer), at::zeros({lazy.config().attention.num_heads, 8})));
    lazy.tau(layer).fill_(-1);
  }
  EXPECT_GT(rms_distance(logits(), theirs.at("fp64.logits")),
            0.01 * theirs.at("fp64.logits").square().mean().sqrt().item<double>());
}

inline void expect_folder(const std::filesystem::path& where) {
  LanguageModel model = LanguageModel::load(where);
  const auto theirs = read_safetensors(where / "out.safetensors");
  const at::Tensor& ids = theirs.at("ids");
  EXPECT_GT(expect_as_transformers(observed(model, ids), theirs), 2 * model.config().num_layers + 2);

  // Computes the prompt in parts and then token by token, with a cache. This is not possible if the RoPE frequencies
  // depend on the sequence length, because cached keys keep the rotation of a shorter sequence.
  const at::NoGradGuard guard;
  const int64_t length = ids.size(1);
  if (!rope_varies(model.config(), length)) {
    KVCache cache;
    std::vector<at::Tensor> parts;
    int64_t begin = 0;
    for (const int64_t count : {2 * length / 5, length - 2 * length / 5 - 3, int64_t{1}, int64_t{2}}) {
      parts.push_back(model.logits(model.forward(ids.narrow(1, begin, count), {.cache = &cache}).hidden));
      begin += count;
    }
    expect_as_close(at::cat(parts, 1), theirs.at("fp32.logits"), theirs.at("fp64.logits"), "logits with a cache");
  }
  const auto config = nlohmann::json::parse(read_text(where / "config.json"));
  if (!family_of(model.config())) {
    EXPECT_EQ(ModelConfig::from_json(in_older_words(config), "older").to_json(), model.config().to_json());
  }
  expect_conversion(where, model, ids, theirs);
  std::filesystem::create_directory(where / "ours");
  model.save(where / "ours");
  EXPECT_EQ(ModelConfig::from_directory(where / "ours").to_json(), model.config().to_json());
}

// Checks every folder that `script` creates; `script` is appended to kMakeFolders. `folders` is the expected number of
// folders.
inline void expect_folders(const std::string& script, int folders) {
  const std::string missing = missing_python_modules("torch, transformers, safetensors");
  if (!missing.empty()) GTEST_SKIP() << missing;
  const TemporaryFolder folder;
  const std::string arguments = fmt::format("'{}'", folder.path().string());
  const auto [made, said] = run_python(folder, kMakeFolders + script, arguments);
  ASSERT_EQ(made, 0) << said;
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (!entry.is_directory()) continue;
    ++found;
    SCOPED_TRACE(entry.path().filename().string());
    expect_folder(entry.path());
  }
  EXPECT_EQ(found, folders);
  const auto [status, out] = run_python(folder, std::string(kMakeFolders) + kReadBack, arguments);
  EXPECT_EQ(status, 0) << out;
}

}  // namespace lazy::testing
