"""Runs functions of a test in several processes that communicate through gloo."""

import datetime
import os
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing


def process(rank, count, function, kinds, folder):
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), count)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=datetime.timedelta(seconds=60))
    try:
        for name, arguments in kinds.items():
            (folder / name).mkdir(exist_ok=True)
            function(*arguments, folder / name)
            if rank == 0:
                print(f"{function.__name__} {name}: done", flush=True)
        dist.barrier()  # a process must not exit while another one communicates
    finally:
        dist.destroy_process_group()
    # Exit without the interpreter's shutdown, in which threads of PyTorch sometimes abort a process with the message
    # "terminate called without an active exception".
    sys.stdout.flush()
    os._exit(0)


def in_processes(count, folder, function, kinds):
    """Calls function(*arguments, folder / name) in `count` processes, for every entry {name: arguments} of `kinds`."""
    # The processes import the test module by its name, such as tests.python.test_fsdp, from the source tree.
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).resolve().parents[2]))
        torch.multiprocessing.spawn(process, (count, function, kinds, folder), nprocs=count)
