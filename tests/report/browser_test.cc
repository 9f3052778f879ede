// Renders the pages of `lazy report` in a real browser (support/browser.h).
#include "support/browser.h"

#include "report/report.h"
#include "synthetic_run.h"

namespace lazy::report {
namespace {

class Browser : public BrowserTest {
 protected:
  RunData run(const SyntheticRun& what) {
    RunData result = load_run(write_synthetic_run(folder_ / "runs", what));
    result.learned = synthetic_learned(what);
    return result;
  }
  void check(const std::string& name, const std::vector<RunData>& runs, int pictures_at_least) {
    check_page(name, render(runs, {"lazy report runs/lazy runs/softmax", "2026-01-02"}), pictures_at_least);
  }
};

TEST_F(Browser, LazyAndSoftmax) {
  check("pair", {run({}), run({.name = "softmax", .lazy = false, .seed = 2})}, 3 * 2 + 3 + 2 + 4 + 4);
  shoot("pair", 1280, 7400, "-desk");
  shoot("pair", 390, 12800, "-phone");
}

TEST_F(Browser, OneRun) { check("one", {run({})}, 3 + 3 + 2 + 4 + 2); }

TEST_F(Browser, ThreeRunsWithLongNames) {
  check("three",
        {run({.name = "lazy-large-rope-base-and-a-long-name"}), run({.name = "softmax", .lazy = false, .seed = 2}),
         run({.name = "lazy_without_distance_bias", .layers = 4, .seed = 5})},
        3 * 3 + 3);
}

TEST_F(Browser, DeepModelsAndLongMaps) {
  check("deep",
        {run({.name = "lazy-340m", .layers = 24, .heads = 16, .window = 512, .map_tokens = 64}),
         run({.name = "softmax-340m", .lazy = false, .layers = 24, .heads = 16, .map_tokens = 64, .seed = 2})},
        3 * 2 + 3);
}

}  // namespace
}  // namespace lazy::report
