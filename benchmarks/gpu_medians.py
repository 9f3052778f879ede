"""Measures the median time of several GPU workloads with CUDA events. Every round runs all workloads in turn."""

import statistics

import torch


def medians(works: dict, rounds: int) -> dict:
    times = {name: [] for name in works}
    for n in range(-3, rounds):
        for name, work in works.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            work()  # not timed: keeps the GPU busy while the host enqueues the timed run
            begin.record()
            work()
            end.record()
            end.synchronize()
            if n >= 0:
                times[name].append(begin.elapsed_time(end))
    return {name: statistics.median(values) for name, values in times.items()}
