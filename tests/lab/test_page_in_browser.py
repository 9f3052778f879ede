"""Tests of the page of `lazy report` in headless Chromium: no element overflows, and no text is too small."""

import json
import shutil
import subprocess

import pytest
from synthetic_run import write_run

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from lazy_lab.run_report import page  # noqa: E402
from lazy_lab.run_report.runs import load_run  # noqa: E402

pytestmark = pytest.mark.slow
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Loads the page in frames of several widths. Prints the elements outside of a frame and the smallest font of a drawing.
MEASURE = """<body><pre id="out"></pre><script>
(async () => {
  const found = {};
  for (const width of [320, 390, 700, 1280]) {
    const frame = document.createElement("iframe");
    frame.style = `width:${width}px;height:900px;border:0`;
    document.body.append(frame);
    await new Promise(done => { frame.onload = done; frame.src = "page.html"; });
    const page = frame.contentDocument, wide = [], sizes = [];
    for (const part of page.querySelectorAll("main *, header *"))
      if (part.getBoundingClientRect().right > width + 1 && !part.closest(".scroll, svg, input"))
        wide.push(part.outerHTML.slice(0, 80));
    for (const text of page.querySelectorAll("svg text"))
      if (text.getBoundingClientRect().width) sizes.push(text.getScreenCTM().a * 14);
    found[width] = {wide, pictures: sizes.length, smallest: Math.min(...sizes)};
    frame.remove();
  }
  document.getElementById("out").textContent = "FOUND" + JSON.stringify(found) + "END";
})();
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_page_fits_every_width(tmp_path):
    lazy = write_run(tmp_path, "lazy-large-rope-base-and-a-long-name", layers=6, heads=16, tokens=64)
    runs = [load_run(lazy), load_run(write_run(tmp_path, "softmax", lazy=False, seed=2))]
    (tmp_path / "page.html").write_text(page.render(runs, "lazy report " + "runs/lazy " * 20, "2026-01-02", "0.1.0"))
    (tmp_path / "measure.html").write_text(MEASURE)
    options = "--headless --no-sandbox --disable-gpu --allow-file-access-from-files --disable-web-security".split()
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=60000", "--dump-dom"]
    command = [CHROMIUM, *options, f"file://{tmp_path / 'measure.html'}"]
    out = subprocess.run(command, capture_output=True, text=True, timeout=300).stdout
    found = json.loads(out.split(">FOUND")[1].split("END<")[0].replace("&lt;", "<").replace("&gt;", ">"))
    for width, measured in found.items():
        assert measured["wide"] == [], f"outside of {width} pixels"
        assert measured["pictures"] > 50 and measured["smallest"] > 12.5
