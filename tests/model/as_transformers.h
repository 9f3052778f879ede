// Test models created by transformers, and the comparison with what transformers computes: logits, hidden states,
// attention weights and gradients.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "model/activation_hooks.h"
#include "model/checkpoint.h"
#include "model/forward_options.h"
#include "model/language_model.h"
#include "model/safetensors.h"

namespace lazy::testing {

// Python code. make(name, configuration, **how) saves a model with random weights as FOLDER/name. It also writes
// FOLDER/name/out.safetensors, which contains the token ids and the results of transformers' "eager" implementation in
// fp32 and in float64. reopened(where) loads the model of a folder.
inline constexpr char kMakeFolders[] = R"(
import json, sys, torch
from pathlib import Path
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
torch.set_num_threads(1)
folder = Path(sys.argv[1])

def reopened(where):
    model = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32, attn_implementation="eager").eval()
    if hasattr(model.config, "num_local_experts"):
        model.set_experts_implementation("eager")  # the grouped product knows no float64
    return model

def observe(model, ids):
    out = model(ids, output_hidden_states=True, output_attentions=True)
    found = {"logits": out.logits}
    found |= {f"hidden.{n}": t for n, t in enumerate(out.hidden_states)}
    found |= {f"attention.{n}": t for n, t in enumerate(out.attentions)}
    torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    found |= {f"gradient.{n}": p.grad for n, p in model.named_parameters()}
    return {n: t.detach().clone().contiguous() for n, t in found.items()}

def record(where, ids):
    single = observe(reopened(where), ids)
    double = observe(reopened(where).double(), ids)
    found = {f"fp32.{n}": t for n, t in single.items()} | {f"fp64.{n}": t for n, t in double.items()}
    save_file({"ids": ids, **found}, where / "out.safetensors")

def make(name, config, dtype="float32", shard="5GB", length=40, seed=0):
    torch.manual_seed(seed)
    ids = torch.randint(0, config.vocab_size, (2, length))
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.3 + p if p.dim() == 1 else torch.randn_like(p) * 0.15)
    where = folder / name
    model.to(getattr(torch, dtype)).save_pretrained(where, max_shard_size=shard)
    assert (where / "model.safetensors.index.json").exists() == (shard != "5GB")
    record(where, ids)
    return where

# The folder's tensors, and its files gone.
def take(where):
    tensors = {}
    for file in where.glob("model*.safetensors"):
        tensors |= load_file(file)
        file.unlink()
    (where / "model.safetensors.index.json").unlink(missing_ok=True)
    return tensors
)";

// Python code. For every model in a subfolder of FOLDER: checks that transformers computes the same logits from the
// folder that our program has saved (FOLDER/NAME/ours) as from FOLDER/NAME.
inline constexpr char kReadBack[] = R"(
for where in (w for w in folder.iterdir() if w.is_dir()):
    out = load_file(where / "out.safetensors")
    kind = json.loads((where / "config.json").read_text())["architectures"]
    with torch.no_grad():
        model = reopened(where / "ours")
        logits = model(out["ids"]).logits
    assert kind == [type(model).__name__], (where, kind)
    assert torch.equal(logits, out["fp32.logits"]), (where, (logits - out["fp32.logits"]).abs().max())
)";

using Observed = std::map<std::string, at::Tensor>;

// Computes the results that out.safetensors contains with our model, under the same names.
inline Observed observed(LanguageModel& model, const at::Tensor& ids) {
  Observed out;
  {
    const at::NoGradGuard guard;
    ActivationHooks probes;
    // Returns N from a name such as "layers.N.residual".
    const auto layer = [](const std::string& name) { return name.substr(7, name.find('.', 7) - 7); };
    probes.read("layers.*.residual",
                [&](const std::string& name, const at::Tensor& t) { out["hidden." + layer(name)] = t; });
    probes.read("layers.*.attention.weights",
                [&](const std::string& name, const at::Tensor& t) { out["attention." + layer(name)] = t; });
    probes.read("final.hidden", [&](const std::string&, const at::Tensor& t) {
      out["hidden." + std::to_string(model.config().num_layers)] = t;
    });
    ForwardOptions options;
    options.activation_hooks = &probes;
    model.forward(ids, options);
    out["logits"] = model.logits(model.forward(ids).hidden);
  }
  const int64_t length = ids.size(1) - 1;
  at::Tensor labels = at::full_like(ids, -100);
  labels.narrow(1, 0, length).copy_(ids.narrow(1, 1, length));
  model.loss(ids, labels).backward();
  NamedTensors gradients;
  for (const auto& [name, p] : model.stored()) {
    gradients.emplace_back(name, p.grad().defined() ? p.grad() : at::zeros_like(p));
    p.mutable_grad() = at::Tensor();
  }
  for (const auto& [name, gradient] : packed(model.config(), gradients)) out["gradient." + name] = gradient.detach();
  return out;
}

inline double rms_distance(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).square().mean().sqrt().item<double>();
}

// Compares with the float64 results of transformers. The distance of our results must be at most twice the distance of
// transformers' fp32 results, plus rounding.
inline void expect_as_close(const at::Tensor& ours, const at::Tensor& single, const at::Tensor& exact,
                            const std::string& name) {
  ASSERT_EQ(ours.sizes(), exact.sizes()) << name;
  const double size = exact.square().mean().sqrt().item<double>(),
               rounding = 2 * std::numeric_limits<float>::epsilon() * size;
  EXPECT_LE(rms_distance(ours, exact), 2 * rms_distance(single, exact) + rounding)
      << name << ": largest difference " << (ours - exact).abs().max().item<double>() << ", size " << size;
}

// Compares all results of the file and returns their number. Gradients accumulate the rounding errors of all layers,
// and the error of a gradient with only a few elements is partly random. Therefore each single gradient has a looser
// limit, and all gradients together have the limit of expect_as_close.
inline int expect_as_transformers(const Observed& ours, const Observed& theirs) {
  int compared = 0;
  std::vector<at::Tensor> gradients[3];
  for (const auto& [name, exact] : theirs) {
    if (name.rfind("fp64.", 0) != 0) continue;
    const std::string what = name.substr(5);
    const auto mine = ours.find(what);
    EXPECT_TRUE(mine != ours.end()) << what;
    if (mine == ours.end()) continue;
    const at::Tensor& single = theirs.at("fp32." + what);
    ++compared;
    if (what.rfind("gradient.", 0) != 0) {
      expect_as_close(mine->second, single, exact, what);
      continue;
    }
    EXPECT_LE(rms_distance(mine->second, exact),
              2 * rms_distance(single, exact) + 1e-5 * exact.square().mean().sqrt().item<double>())
        << what;
    int n = 0;
    for (const at::Tensor& t : {mine->second, single, exact}) gradients[n++].push_back(t.flatten().to(at::kDouble));
  }
  if (!gradients[0].empty())
    expect_as_close(at::cat(gradients[0]), at::cat(gradients[1]), at::cat(gradients[2]), "gradients");
  return compared;
}

}  // namespace lazy::testing
