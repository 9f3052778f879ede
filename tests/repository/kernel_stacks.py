"""No CUDA kernel reads or writes local memory without having any: python kernel_stacks.py FILE [--arch sm_90]

nvcc 13.0 made local memory of shared memory's pointers that a kernel kept in structs. The emulator computes such a
kernel as it was written and ptxas counts no spill, so that only a GPU shows it, or the instructions. Needs cuobjdump,
on the PATH, of CUDA_HOME, or of Triton; ends with 77 without it.
"""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path


def cuobjdump():
    places = [shutil.which("cuobjdump"), Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin/cuobjdump"]
    triton = importlib.util.find_spec("triton")
    if triton:
        places.append(Path(triton.origin).parent / "backends/nvidia/bin/cuobjdump")
    return next((str(place) for place in places if place and Path(place).is_file()), None)


def lines(*command):
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        yield from process.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--arch", default="sm_90", help="with its variants, sm_90a")
    a = parser.parse_args()
    program = cuobjdump()
    if not program:
        print("skipped: cuobjdump was not found")
        return 77
    kernels, wrong = 0, {}
    name, without = None, set()
    for line in lines(program, "-res-usage", "-arch", a.arch, a.file):
        if named := re.match(r"\s*Function (\S+):", line):
            name = named[1]
        elif re.search(r"REG:\d+ STACK:0 .*LOCAL:0 ", line):
            without.add(name)
    for line in lines(program, "-sass", "-arch", a.arch, a.file):
        if named := re.match(r"\s*Function : (\S+)", line):
            name = named[1]
            kernels += 1
        elif name in without and re.search(r"\b(LDL|STL)\b", line):
            wrong.setdefault(name, line.strip())
    for name, line in wrong.items():
        print(f"{name}: expected no access to local memory, which it has none of; found {line}")
    print(f"{kernels} kernels of {a.arch}, {len(wrong)} with accesses to local memory that they have not")
    if not kernels:
        print(f"{a.file}: expected kernels of {a.arch}, found none")
    return 1 if wrong or not kernels else 0


if __name__ == "__main__":
    sys.exit(main())
