"""Tests of benchmarks/kernel_times.py: the report about a recorded trace, and the compilation of its C source."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
X, Y = "_ZN4lazy5scope1xILi64ELb1EEEvNS_6ParamsE", "void at::native::y<int>(int)"


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import kernel_times

    return kernel_times


def trace(folder, *lines):
    path = folder / "1.csv"
    path.write_text("".join(f"{start},{duration},2 x 1 x 1,{name}\n" for start, duration, name in lines) + "7,1")
    return path


def test_kernel_names_are_shortened(tool):
    assert tool.short(X) == "x<64, 1>"
    assert tool.short(Y) == "y"
    assert tool.short("copy of 12 bytes") == "copy of 12 bytes"


def test_last_period_of_work_is_reported(tool, tmp_path):
    second = 20_000_000
    path = trace(
        tmp_path,
        (0, 9_000, Y),
        (second, 3_000_000, X),
        (second + 2_000_000, 6_000_000, Y),  # begins 1 ms before kernel X ends
        (second + 10_000_000, 1_000_000, X),
        (3 * second, 100, X),  # a separate period of work, which is too short to be reported
    )
    stretch = tool.last_stretch(tool.read(path), 15e6)
    assert [k.start for k in stretch] == [second, second + 2_000_000, second + 10_000_000]
    lines = list(tool.report(stretch, 30, "x"))
    assert lines[0] == "3 kernels and copies in 11.00 ms, idle 2.00 ms"
    assert [line.split() for line in lines[2:4]] == [
        ["5.00", "1", "5000.00", "6000.00", "y", "2", "x", "1", "x", "1"],
        ["4.00", "2", "2000.00", "2000.00", "x<64,", "1>", "2", "x", "1", "x", "1"],
    ]
    assert lines[5].split()[:3] == ["2.00", "1", "2000.00"]
    assert [line.split()[:2] for line in lines[7:]] == [
        ["0.00", "3000.00"],
        ["2000.00", "6000.00"],
        ["10000.00", "1000.00"],
    ]


@pytest.mark.slow  # starts a compiler
def test_injected_library_can_be_built(tool, tmp_path):
    torch = pytest.importorskip("torch")
    if not (Path(torch.__file__).parent.parent / "nvidia/cu13/include/cupti.h").is_file():
        pytest.skip("needs CUPTI's header")
    assert tool.build(tmp_path).is_file()
