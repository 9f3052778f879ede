// Usage: run_small_recipe FOLDER. Runs a recipe of small_recipes.h into FOLDER/killed, on the corpus in FOLDER: the
// comparison if FOLDER/data exists, otherwise the probe. The tests of interrupted recipes start it and stop it.
#include <filesystem>

#include "core/error.h"
#include "core/stop.h"
#include "repro/small_recipes.h"

int main(int argc, char** argv) {
  using namespace lazy;
  using namespace lazy::repro;
  if (argc != 2) return 2;
  install_stop_handlers();
  const std::filesystem::path folder = argv[1];
  try {
    if (std::filesystem::exists(folder / "data"))
      run_recipe(comparison(), comparison_options(folder, "killed"));
    else
      run_recipe(small_recipe(kWorkerSteps), small_recipe_options(folder, "killed"));
  } catch (const Error& e) {
    return e.exit_code();
  }
  return 0;
}
