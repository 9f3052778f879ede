"""Runs one forward and one backward, for ncu: once.py LIBRARY KERNEL HEAD_SIZE [LENGTH]"""

import sys

import torch

sys.argv, rest = sys.argv[:2], sys.argv[2:]
import importlib.util
import os

os.environ["LAZY_TIME_NOTHING"] = "1"
spec = importlib.util.spec_from_file_location("time_kernels", os.path.join(os.path.dirname(__file__), "time.py"))
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
case = module.Case(8, int(rest[2]) if len(rest) > 2 else 4096, int(rest[1]))
for _ in range(2):
    case.call(False, rest[0])
    case.call(True, rest[0])
torch.cuda.synchronize()
