"""Runs torchtitan's trainer on CPUs with gloo, for the tests of lazy_attention.torchtitan.

    run_cases.py CASES.json FOLDER

CASES.json is a list of {"name", "ranks", "arguments"}. The cases run one after the other. All ranks are forked from
this process, so that torchtitan is imported once. Rank R of a case writes its metrics to FOLDER/NAME/metrics.R.jsonl
and its output to FOLDER/NAME/output.R.txt. The program stops at the first case that fails."""

import json
import os
import socket
import sys
import time
import traceback
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
import torchtitan.components.metrics as metrics
import torchtitan.distributed.utils as distributed_utils
import torchtitan.models.llama3.infra.parallelize as llama
import torchtitan.tools.utils as utils
import torchtitan.train as train
from lazy_attention.torchtitan import model  # imported before the processes are forked
from torch.distributed.fsdp import FSDPModule


def use_cpu():
    """torchtitan expects a GPU. Selects the CPU in each module that stores the device."""
    for module in list(sys.modules.values()):
        if module.__name__.startswith("torchtitan") and hasattr(module, "device_type"):
            module.device_type, module.device_module = "cpu", torch.cpu
    utils.device_type, utils.device_module = "cpu", torch.cpu
    distributed_utils.set_pg_timeouts = lambda *arguments, **options: None

    class NoMemoryMonitor:
        device_name = "cpu"

        def get_peak_stats(self):
            return metrics.DeviceMemStats(0, 0, 0, 0, 0, 0)

        def reset_peak_stats(self):
            pass

    metrics.build_device_memory_monitor = NoMemoryMonitor
    disable_division = llama.disable_fsdp_gradient_division

    def disable_division_of_gloo(model):
        disable_division(model)
        for module in model.modules():
            if isinstance(module, FSDPModule):  # gloo has no PREMUL_SUM
                module.set_force_sum_reduction_for_comms(True)

    llama.disable_fsdp_gradient_division = disable_division_of_gloo


def expect_fp32_parameters():
    attention = model.attention

    def checked(q, k, v, *per_head, **options):
        types = {tensor.dtype for tensor in per_head if tensor is not None}
        assert types <= {torch.float32}, f"expected fp32 per-head parameters, found {types}"
        return attention(q, k, v, *per_head, **options)

    model.attention = checked


def record_metrics(path):
    log = metrics.MetricsProcessor.log

    def recording(self, step, global_avg_loss, global_max_loss, grad_norm, extra_metrics=None):
        with path.open("a") as file:
            file.write(json.dumps({"step": step, "loss": global_avg_loss, "grad_norm": grad_norm}) + "\n")
        log(self, step, global_avg_loss, global_max_loss, grad_norm, extra_metrics)

    metrics.MetricsProcessor.log = recording


def run_rank(case, rank, port, folder):
    """Runs in a forked process. Returns the exit status."""
    output = os.open(folder / f"output.{rank}.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(case["ranks"]),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    torch.set_num_threads(1)
    record_metrics(folder / f"metrics.{rank}.jsonl")
    # The default of parse_args is a copy of sys.argv that was made when the module was imported.
    train.ConfigManager.parse_args.__defaults__ = (case["arguments"],)
    try:
        train.main(train.Trainer)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run(case, folder):
    folder.mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(case["ranks"]):
        child = os.fork()
        if child == 0:
            os._exit(run_rank(case, rank, port, folder))
        children.append(child)
    failed = False
    while children:
        child, status = os.wait()
        children.remove(child)
        if status and not failed:
            failed = True
            for other in children:  # the other ranks would wait for the failed rank
                os.kill(other, 15)
    return not failed


def main():
    cases, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    use_cpu()
    expect_fp32_parameters()
    for case in cases:
        start = time.monotonic()
        succeeded = run(case, folder / case["name"])
        print(f"{case['name']}: {time.monotonic() - start:.1f} s", flush=True)
        if not succeeded:
            for path in sorted((folder / case["name"]).glob("output.*.txt")):
                print(f"--- {path.name}\n{path.read_text()[-4000:]}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
