// `lazy doctor`: describes this installation, its missing parts, and the commands that fix them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "build_info.h"
#include "command.h"
#include "core/error.h"
#include "core/python_child.h"
#include "core/python_service.h"
#include "core/terminal.h"
#include "data/tokenizers/unicode.h"
#include "find_packages.h"
#include "model/device.h"
#include "model/torch_build.h"
#include "ops/load_cuda.h"

namespace lazy::cli {
namespace {
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// broken: something that must work on this machine fails. missing: an optional part is not installed.
enum class CheckState { ok, missing, broken };
const char* name(CheckState state) {
  return state == CheckState::ok ? "ok" : state == CheckState::missing ? "missing" : "broken";
}

struct Check {
  std::string subject;
  CheckState state = CheckState::ok;
  std::string found, mend;  // mend: a command or an instruction that fixes the problem
};

Check check_attention(bool gpu) {
  constexpr double kTolerance = 1e-4;  // maximum accepted error of fp32 results, computed with TF32 disabled
  Check check{fmt::format("attention ({})", gpu ? "GPU" : "CPU")};
  try {
    const double error = attention_error(gpu);
    check.found = fmt::format("the results differ from PyTorch's by at most {:.1g}", error);
    if (!(error <= kTolerance)) {
      check.state = CheckState::broken;
      check.mend = "report this output as an issue; LAZY_KERNEL=plain may work in the meantime";
    }
  } catch (const std::exception& error) {
    const std::string text = error.what();
    check = {check.subject, CheckState::broken, text.substr(0, text.find('\n')), "report this output as an issue"};
  }
  return check;
}

Check check_gpu() {
  const auto devices = gpus();
  const bool device_file = fs::exists("/dev/nvidiactl");
  if (devices.empty() && !device_file) return {"GPU", CheckState::ok, "none: computations run on the CPU", ""};
  if (devices.empty()) {
    return {"GPU", CheckState::broken, "/dev/nvidiactl exists, but the driver library does not find a GPU",
            "nvidia-smi   (tells whether the driver works; in a container, start it with --gpus all; "
            "CUDA_VISIBLE_DEVICES must not be empty)"};
  }
  try {
    ops::load_cuda();
    return {"GPU", CheckState::ok, fmt::format("{}, usable", devices.front().name), ""};
  } catch (const std::exception& error) {
    std::string mend = "nvidia-smi   (tells whether the driver works and is as new as PyTorch's CUDA)";
    if (!torch_has_cuda_libraries()) {
      mend = fmt::format("{} -m pip install --force-reinstall torch=={}   (the installed torch is a CPU build)",
                         python_interpreter(), torch_version());
    } else if (!fs::exists(ops::library_beside("liblazy_ops_cuda.so"))) {
      mend =
          "install a CUDA toolkit (nvcc) with the major CUDA version of this PyTorch, then `rm -r build; make "
          "LAZY_CUDA=on` in the "
          "checkout";
    }
    return {"GPU", CheckState::broken, error.what(), mend};
  }
}

// A feature that runs Python, and the packages that it imports.
struct PythonFeature {
  const char* subject;
  std::vector<std::string> packages;
};

const std::vector<PythonFeature>& python_features() {
  static const std::vector<PythonFeature> features{
      {"chat templates", {"jinja2"}},
      {"other tokenizers", {"tokenizers"}},
      {"GGUF files", {"gguf", "numpy"}},
      {"PyTorch files", {"torch", "safetensors"}},
      {"Parquet files", {"pyarrow"}},
      {"Hub downloads", {"huggingface_hub"}},
      {"lazy report", {"jinja2", "matplotlib"}},
      {"lazy uptrain", {"jinja2", "matplotlib", "scipy"}},
  };
  return features;
}

// Checks the Python interpreter and the packages of all features, and appends the results. The last result names the
// command that installs all missing packages.
void check_python(std::vector<Check>& out) {
  std::vector<std::string> packages;
  for (const PythonFeature& feature : python_features()) {
    for (const std::string& package : feature.packages) {
      if (std::find(packages.begin(), packages.end(), package) == packages.end()) packages.push_back(package);
    }
  }
  const PythonInterpreter python = find_python_interpreter();
  Check check{"Python", CheckState::ok, fmt::format("{} (from {})", python.path, python.origin), ""};
  if (!python.rejected.empty()) check.found += fmt::format("; {}", python.rejected);
  std::vector<std::string> missing = packages;
  std::string install;
  try {
    const Json answer = PythonService("doctor", "Python packages", kFindPackages, {{"packages", packages}}).start();
    missing = answer.at("missing").get<std::vector<std::string>>();
    install = answer.at("install").get<std::string>();
  } catch (const std::exception& error) {
    check = {"Python", CheckState::missing, error.what(),
             fmt::format("{}set LAZY_PYTHON to a Python interpreter",
                         python.origin == "LAZY_PYTHON" ? fmt::format("LAZY_PYTHON is {}: ", python.path)
                                                        : "install Python 3, or ")};
  }
  out.push_back(check);
  for (const PythonFeature& feature : python_features()) {
    std::vector<std::string> lacking;
    for (const std::string& package : feature.packages) {
      if (std::find(missing.begin(), missing.end(), package) != missing.end()) lacking.push_back(package);
    }
    if (lacking.empty()) {
      out.push_back({feature.subject, CheckState::ok, fmt::format("{}", fmt::join(feature.packages, ", ")), ""});
    } else {
      out.push_back(
          {feature.subject, CheckState::missing, fmt::format("not installed: {}", fmt::join(lacking, ", ")), ""});
    }
  }
  if (missing.empty() || install.empty()) return;
  out.push_back({"Python packages", CheckState::missing, fmt::format("{} of {}", missing.size(), packages.size()),
                 fmt::format("{} {}", install, fmt::join(missing, " "))});
}

std::vector<Check> checks() {
  std::vector<Check> out{check_attention(/*gpu=*/false), check_gpu()};
  if (cuda_loaded()) out.push_back(check_attention(/*gpu=*/true));
  check_python(out);
  out.push_back({"gzip and zstd files", CheckState::ok, "support is part of the program", ""});
  out.push_back(
      {"tokenizers", CheckState::ok, "bytes, SentencePiece and tokenizer.json: support is part of the program", ""});
  if (has_nfc()) {
    out.push_back({"Qwen's tokenizers", CheckState::ok, "Unicode normalization (NFC) by utf8proc", ""});
  } else {
    out.push_back({"Qwen's tokenizers", CheckState::missing, "this build has no utf8proc",
                   "apt-get install libutf8proc-dev, then `make` in the checkout"});
  }
  return out;
}

// Runs all checks. Returns whether nothing is broken.
bool run(bool json) {
  Json info = build_info();
  const std::vector<Check> all = checks();
  bool works = true;
  Json list = Json::array();
  for (const Check& check : all) {
    works = works && check.state != CheckState::broken;
    list.push_back({{"subject", check.subject}, {"state", name(check.state)}, {"found", check.found}});
    if (!check.mend.empty()) list.back()["mend"] = check.mend;
  }
  if (json) {
    info["checks"] = list;
    info["works"] = works;
    fmt::print("{}\n", info.dump(2));
    return works;
  }
  fmt::print("{}\nchecks\n", build_text(info));
  for (const Check& check : all) {
    const std::string state = fmt::format("{:8}", name(check.state));
    fmt::print("  {}{:21} {}\n", check.state == CheckState::ok ? state : bold(state, 1), check.subject, check.found);
    if (!check.mend.empty()) fmt::print("          {:21} mend: {}\n", "", check.mend);
  }
  return works;
}

}  // namespace
}  // namespace lazy::cli

LAZY_COMMAND(doctor, "Print versions, devices and kernels, and how to fix missing or broken parts",
             [](CLI::App& command) {
               auto json = std::make_shared<bool>(false);
               command.add_flag("--json", *json, "Print JSON");
               command.footer(
                   "Exit code 1 if something does not work that should work on this machine (\"broken\"). Missing "
                   "optional\n"
                   "parts (\"missing\") do not change the exit code.");
               command.callback([json] {
                 if (!lazy::cli::run(*json)) lazy::fail_run("doctor", "a check has failed, see above");
               });
             });
