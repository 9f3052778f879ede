"""Checks that no CUDA kernel accesses local memory if ptxas has allocated no local memory for it.

nvcc 13.0 generated such accesses in kernels that store pointers to shared memory in structs. ptxas reports no spill,
and the project's CPU emulator of CUDA executes such a kernel correctly. The fault is only visible on a GPU or in the
machine instructions. The test needs cuobjdump from PATH, CUDA_HOME or Triton.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ARCHITECTURE = "sm_90"  # also matches variants such as sm_90a


def cuobjdump():
    places = [shutil.which("cuobjdump"), Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin/cuobjdump"]
    triton = importlib.util.find_spec("triton")
    if triton:
        places.append(Path(triton.origin).parent / "backends/nvidia/bin/cuobjdump")
    return next((str(place) for place in places if place and Path(place).is_file()), None)


def lines(*command):
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        yield from process.stdout


def unexpected_accesses(usage, instructions):
    """Returns a pair: the number of kernels, and {kernel without local memory: its first access to local memory}.

    usage and instructions: the output of cuobjdump -res-usage and -sass.
    """
    kernels, wrong = 0, {}
    name, without = None, set()
    for line in usage:
        if named := re.match(r"\s*Function (\S+):", line):
            name = named[1]
        elif re.search(r"REG:\d+ STACK:0 .*LOCAL:0 ", line):
            without.add(name)
    for line in instructions:
        if named := re.match(r"\s*Function : (\S+)", line):
            name = named[1]
            kernels += 1
        elif name in without and re.search(r"\b(LDL|STL)\b", line):
            wrong.setdefault(name, line.strip())
    return kernels, wrong


@pytest.mark.slow  # cuobjdump disassembles every kernel
def test_kernels_without_local_memory_do_not_access_it(built_file):
    library, program = built_file("LAZY_TORCH_OPS_CUDA_LIBRARY"), cuobjdump()
    if not program:
        pytest.skip("cuobjdump was not found")
    options = ["-arch", ARCHITECTURE, library]
    kernels, wrong = unexpected_accesses(lines(program, "-res-usage", *options), lines(program, "-sass", *options))
    assert kernels and wrong == {}


USAGE = """
 Function first:
  REG:24 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:380 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function second:
  REG:24 STACK:16 SHARED:0 LOCAL:0 CONSTANT[0]:380 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
INSTRUCTIONS = """
\t\tFunction : first
        /*0000*/                   LDC R1, c[0x0][0x28] ;
\t\tFunction : second
        /*0010*/                   STL.64 [R1+0x8], R4 ;
"""


def test_an_access_to_absent_local_memory_is_reported():
    assert unexpected_accesses(USAGE.splitlines(), INSTRUCTIONS.splitlines()) == (2, {})
    wrong = INSTRUCTIONS.replace("LDC R1, c[0x0][0x28]", "LDL R1, [R2]")
    assert list(unexpected_accesses(USAGE.splitlines(), wrong.splitlines())[1]) == ["first"]
