#!/usr/bin/env python3
"""Measures the kernel times of a CUDA program during a normal run with CUPTI, including CUDA graphs and overlapping
kernels.

    python benchmarks/kernel_times.py [--most 30] [--pause 15] [--around KERNEL] COMMAND ...
    python benchmarks/kernel_times.py --around sample python benchmarks/generate_gpu.py server --lazy build/lazy

The script analyzes one period of work for every process of COMMAND that uses a GPU. A period of work is the time
between two pauses in which the GPU is idle for more than --pause ms. The script selects the last period that is at
least half as long as the longest period. It prints one line per kernel and grid, the most expensive first. The columns
are: total ms; number of launches; us per launch in which no earlier kernel was still running; us per launch. Then it
prints the idle times of the GPU, grouped by the preceding and the following kernel. --around KERNEL prints a sequence
of kernels from the middle of the period with start and duration in us, from a kernel whose name contains KERNEL to the
next such kernel.

In contrast to ncu, which flushes the caches and serializes kernels, the program runs almost as usual (lazy serve loses
0.5 to 2 % of its speed). Needs a C compiler and CUPTI 13, which PyTorch's package includes.
"""

import argparse
import collections
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple


class Kernel(NamedTuple):
    start: int  # ns
    duration: int
    name: str  # shortened kernel name and grid


def short(name):
    """Removes types, namespaces and arguments from a kernel name, which may be mangled."""
    if name.startswith("_Z"):
        parts, rest = [], re.sub(r"^_ZN?", "", name)
        while m := re.match(r"(\d+)", rest):
            size, at = int(m[1]), len(m[1])
            parts.append(rest[at : at + size])
            rest = rest[at + size :]
        parts = [part for part in parts if not part.startswith("_GLOBAL_")]
        sizes = re.findall(r"L[ib](\d+)E", rest)
        return (parts[-1] if parts else name[:60]) + (f"<{', '.join(sizes)}>" if sizes else "")
    return re.sub(r"<.*|\(.*", "", name.removeprefix("void ")).split("::")[-1]


def read(path):
    kernels = []
    for line in Path(path).read_text().splitlines():
        fields = line.split(",", 3)
        if len(fields) < 4:
            continue  # incomplete last line of a process that exited
        start, duration, grid, name = fields
        kernels.append(Kernel(int(start), int(duration), f"{short(name)}  {grid}".rstrip()))
    return sorted(kernels)


def last_stretch(kernels, pause):
    """Returns the kernels of the last period of work that is at least half as long as the longest one. `pause` is the
    minimum length, in ns, of a pause between two periods."""
    stretches, end = [], 0
    for k in kernels:
        if not stretches or k.start - end > pause:
            stretches.append([])
        stretches[-1].append(k)
        end = max(end, k.start + k.duration)
    length = [s[-1].start + s[-1].duration - s[0].start for s in stretches]
    return next(s for s, ns in zip(reversed(stretches), reversed(length), strict=True) if 2 * ns >= max(length))


def report(kernels, most, around):
    """Yields the lines of the report."""
    begin = end = kernels[0].start
    new, own, count = (collections.Counter() for _ in range(3))
    idle, idle_count = collections.Counter(), collections.Counter()
    before = None
    for k in kernels:
        if k.start > end:
            idle[before, k.name] += k.start - end
            idle_count[before, k.name] += 1
        new[k.name] += max(0, k.start + k.duration - max(end, k.start))
        own[k.name] += k.duration
        count[k.name] += 1
        end, before = max(end, k.start + k.duration), k.name
    yield f"{len(kernels)} kernels and copies in {(end - begin) / 1e6:.2f} ms, idle {sum(idle.values()) / 1e6:.2f} ms"
    yield "      ms   count   us alone  us total"
    for name, ns in new.most_common(most):
        n = count[name]
        yield f"{ns / 1e6:8.2f} {n:7d} {ns / n / 1e3:10.2f} {own[name] / n / 1e3:9.2f}  {name}"
    yield " idle ms   count   us each"
    for (left, right), ns in idle.most_common(most // 3):
        n = idle_count[left, right]
        yield f"{ns / 1e6:8.2f} {n:7d} {ns / n / 1e3:9.2f}  {left} -> {right}"
    places = [n for n, k in enumerate(kernels) if around and around in k.name.partition("  ")[0]]
    if len(places) > 1:
        first, last = places[len(places) // 2 - 1 : len(places) // 2 + 1]
        yield f"launches from one {around} to the next: start and duration in us"
        for k in kernels[first : last + 1]:
            yield f"{(k.start - kernels[first].start) / 1e3:10.2f} {k.duration / 1e3:9.2f}  {k.name}"


def build(folder):
    """Compiles the library to inject with the headers and libraries of PyTorch's packages. Returns its path."""
    import torch

    cuda = Path(torch.__file__).parent.parent / "nvidia/cu13"
    if not (cuda / "include/cupti.h").is_file():
        raise SystemExit(f"kernel_times.py: expected CUPTI's header in {cuda / 'include'}, found none")
    library = Path(folder) / "kernel_trace.so"
    source = Path(__file__).with_name("kernel_trace.c")
    command = ["cc", "-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-O2", "-fPIC", "-shared"]
    command += [source, "-o", library, f"-I{cuda / 'include'}", f"-L{cuda / 'lib'}", "-l:libcupti.so.13"]
    # The headers of PyTorch's CUDA package include files in crt/, which the package lacks. The CUDA toolkit and Triton
    # have these files.
    triton = importlib.util.find_spec("triton")
    others = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"]
    others += [Path(triton.origin).parent / "backends/nvidia/include"] if triton else []
    command += [f"-idirafter{folder}" for folder in others]
    subprocess.run([*command, f"-Wl,-rpath,{cuda / 'lib'}"], check=True)
    return library


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=30, help="maximum number of lines for kernels")
    parser.add_argument("--pause", type=float, default=15, help="minimum length of a pause, in ms")
    parser.add_argument("--around", default="")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    a = parser.parse_args()
    if not a.command:
        parser.error("expected a command, found none")
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "CUDA_INJECTION64_PATH": str(build(folder)), "KERNEL_TRACE": folder}
        status = subprocess.run(a.command, env=environment).returncode
        traces = {int(path.stem): read(path) for path in Path(folder).glob("*.csv")}
        if not any(traces.values()):
            print("kernel_times.py: expected a process with kernels on a GPU, found none", file=sys.stderr)
            return status or 1
        for process, kernels in sorted(traces.items()):
            if kernels:
                print(f"\nprocess {process}:")
                for line in report(last_stretch(kernels, a.pause * 1e6), a.most, a.around):
                    print(line)
    return status


if __name__ == "__main__":
    sys.exit(main())
