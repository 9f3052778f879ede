// Checks a page in a real browser at the widths of a desktop, a phone and a small phone, in both color schemes. The
// checks are: no element overflows; all pictures are visible and their text is legible; each position of a slider shows
// a different picture; the page fetches nothing and logs nothing. Pages and screenshots are kept in the build folder
// (tests/report_pages/). The tests are skipped with a message if Chromium is not installed.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "core/file.h"

namespace lazy {

namespace browsing {
namespace fs = std::filesystem;

inline std::string browser() {
  const char* path = std::getenv("PATH");
  const std::string folders = path ? path : "";
  for (const char* name : {"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"}) {
    for (size_t begin = 0; begin <= folders.size();) {
      const size_t end = std::min(folders.find(':', begin), folders.size());
      const fs::path candidate = fs::path(folders.substr(begin, end - begin)) / name;
      if (::access(candidate.c_str(), X_OK) == 0) return candidate.string();
      begin = end + 1;
    }
  }
  return "";
}

struct Output {
  std::string text;
  int status;
};

inline Output run_command(const std::string& command) {
  Output output{"", -1};
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return output;
  std::array<char, 65536> buffer;
  for (size_t n; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) output.text.append(buffer.data(), n);
  output.status = pclose(pipe);
  return output;
}

// Runs in the page after layout and sends its results, a JSON object, to the surrounding frame.
inline constexpr const char* kProbe = R"(
<script>addEventListener('load', () => {
  const width = document.documentElement.clientWidth, found = {width: width, )"
                                      R"(scroll: document.documentElement.scrollWidth,
    overflow: [], small: [], empty: [], pictures: 0, )"
                                      R"(fetched: performance.getEntriesByType('resource').map(e => e.name)};
  const shown = e => e.getClientRects().length > 0;
  const boxed = e => e.closest('.scroll') || e.closest('svg svg');
  const name = e => e.tagName + '.' + (e.getAttribute('class') || '') + ' ' + (e.textContent || '').slice(0, 30);
  for (const e of document.body.querySelectorAll('*')) {
    if (!shown(e) || boxed(e) || e.tagName == 'SCRIPT') continue;
    const box = e.getBoundingClientRect();
    if (box.right > width + 0.5 || box.left < -0.5) found.overflow.push(name(e) + ' ' + box.left + '..' + box.right);
  }
  for (const e of document.querySelectorAll('svg[role=img]')) {
    if (!shown(e)) continue;
    const box = e.getBoundingClientRect();
    ++found.pictures;
    if (box.width < 5 || box.height < 5) found.empty.push(name(e));
    const scale = box.width / e.viewBox.baseVal.width;
    for (const t of e.querySelectorAll('text')) {
      const size = parseFloat(getComputedStyle(t).fontSize) * scale;
      if (size < 13.99) found.small.push(t.textContent + ' ' + size);
      const inside = t.getBoundingClientRect();
      if (inside.right > box.right + 2 || inside.left < box.left - 2) found.overflow.push('text ' + t.textContent);
    }
  }
  for (const e of document.querySelectorAll('figure')) {
    const box = e.getBoundingClientRect();
    if (box.width < 50 || box.height < 20) found.empty.push(name(e));
  }
  for (const e of document.querySelectorAll('p,td,th,figcaption,h1,h2,h3,h4,summary,code,small,span,b')) {
    if (shown(e) && e.textContent.trim() && parseFloat(getComputedStyle(e).fontSize) < 13.99) found.small.push(name(e));
  }
  // Every place of every slider shows another picture, one at a time, and the others are gone.
  found.sliders = 0, found.stuck = [];
  for (const browser of document.querySelectorAll('.browser')) {
    const visible = () => [...browser.querySelectorAll('svg[role=img]')].filter(shown);
    for (const input of browser.querySelectorAll('input[type=radio]')) {
      const before = visible();
      const was = input.checked;
      browser.querySelector('label[for="' + input.id + '"]').click();
      const after = visible();
      ++found.sliders;
      if (!input.checked || after.length == 0 || after.length != before.length || (!was && after[0] === before[0])) )"
                                      R"(found.stuck.push(input.id);
      for (const e of after) {
        const box = e.getBoundingClientRect();
        if (box.width < 5 || box.right > width + 0.5) found.overflow.push(input.id + ' ' + box.right);
      }
    }
  }
  found.dark = matchMedia('(prefers-color-scheme: dark)').matches;
  parent.postMessage(JSON.stringify(found), '*');
});</script>)";

// A browser window has a minimum width, but a frame does not. Therefore the page is checked in a frame.
inline std::string frame(const std::string& file, int width, int height) {
  return fmt::format(
      "<!DOCTYPE html><html><body style=\"margin:0;background:#9aa0a5\"><iframe src=\"{}\" style=\"border:0;width:{}px;"
      "height:{}px\"></iframe><pre></pre><script>addEventListener('message', e => document.querySelector('pre')."
      "textContent = 'PROBE' + e.data + 'END');</script></body></html>",
      file, width, height);
}

}  // namespace browsing

class BrowserTest : public testing::Test {
 protected:
  std::string browser_ = browsing::browser();
  // Each test has its own folder, because tests run in parallel and a browser locks its profile.
  std::filesystem::path folder_ =
      std::filesystem::path(LAZY_PAGES_DIR) / testing::UnitTest::GetInstance()->current_test_info()->name();
  void SetUp() override {
    if (browser_.empty()) GTEST_SKIP() << "no Chromium or Chrome on PATH: the page was not checked in a browser";
    std::filesystem::create_directories(folder_);
  }
  std::string start() const {
    return fmt::format(
        "'{}' --headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --disable-dev-shm-usage "
        "--user-data-dir='{}' --host-resolver-rules='MAP * ~NOTFOUND' ",
        browser_, (folder_ / "profile").string());
  }
  // Checks the page at four widths and in both color schemes. `sliders_at_least` is the minimum total number of slider
  // positions. Each of them is selected.
  void check_page(const std::string& name, const std::string& page, int pictures_at_least, int sliders_at_least = 0) {
    write_file_atomic(folder_ / (name + ".html"), page);
    // The probe is a script, which the policy of the page forbids. The copy under test allows it.
    std::string probed = page;
    const std::string policy = "default-src 'none'; style-src 'unsafe-inline'";
    ASSERT_NE(probed.find(policy), std::string::npos);
    probed.replace(probed.find(policy), policy.size(), policy + "; script-src 'unsafe-inline'");
    probed.insert(probed.rfind("</body>"), browsing::kProbe);
    const std::filesystem::path file = folder_ / (name + ".probe.html");
    write_file_atomic(file, probed);
    for (int width : {1280, 820, 390, 320}) {
      for (bool dark : {false, true}) {
        if (dark && width != 390) continue;
        const std::filesystem::path outer = folder_ / (name + ".frame.html");
        write_file_atomic(outer, browsing::frame(file.filename().string(), width, 900));
        const browsing::Output dom = browsing::run_command(
            start() + (dark ? "--blink-settings=preferredColorScheme=0 " : "") +
            fmt::format("--enable-logging=stderr --window-size=1400,1000 --dump-dom 'file://{}' 2>'{}'", outer.string(),
                        (folder_ / "log.txt").string()));
        ASSERT_EQ(dom.status, 0) << read_file(folder_ / "log.txt");
        const std::string log = read_file(folder_ / "log.txt");
        EXPECT_EQ(log.find("CONSOLE"), std::string::npos) << log;
        const size_t begin = dom.text.find(">PROBE{"), end = dom.text.find("}END");
        ASSERT_TRUE(begin != std::string::npos && end != std::string::npos) << "the probe did not run";
        const auto found = nlohmann::json::parse(dom.text.substr(begin + 6, end - begin - 5));
        EXPECT_EQ(found["width"], width);
        EXPECT_EQ(found["dark"], dark);
        EXPECT_LE(found["scroll"].get<int>(), width) << found.dump(1);
        EXPECT_TRUE(found["overflow"].empty()) << width << found["overflow"].dump(1);
        EXPECT_TRUE(found["small"].empty()) << width << found["small"].dump(1);
        EXPECT_TRUE(found["empty"].empty()) << width << found["empty"].dump(1);
        EXPECT_TRUE(found["fetched"].empty()) << width << found["fetched"].dump(1);
        EXPECT_GE(found["pictures"].get<int>(), pictures_at_least) << width;
        EXPECT_GE(found["sliders"].get<int>(), sliders_at_least) << width;
        EXPECT_TRUE(found["stuck"].empty()) << width << found["stuck"].dump(1);
      }
    }
  }
  // Takes screenshots for manual inspection. The test only requires that the files exist.
  void shoot(const std::string& name, int width, int height, const std::string& suffix, const std::string& flags = "") {
    const std::filesystem::path picture = folder_ / (name + suffix + ".png"),
                                outer = folder_ / (name + suffix + ".frame.html");
    std::filesystem::remove(picture);
    write_file_atomic(outer, browsing::frame(name + ".html", width, height));
    const browsing::Output output =
        browsing::run_command(start() + flags +
                              fmt::format(" --screenshot='{}' --window-size={},{} 'file://{}' 2>&1", picture.string(),
                                          width, height, outer.string()));
    ASSERT_TRUE(std::filesystem::exists(picture) && std::filesystem::file_size(picture) > 10000) << output.text;
  }
};

}  // namespace lazy
