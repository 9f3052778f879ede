"""Triton's autotuning in a fraction of its time.

A kernel's configurations are compiled by forked processes; each is then timed for 3 + 10 ms instead of 25 + 100. FLA's
models have hundreds of configurations, which otherwise take many minutes before the first step.
"""

import os

WORKERS = 16


def add_argument(parser):
    parser.add_argument(
        "--quick-tuning",
        action="store_true",
        help="compile Triton configurations in parallel and time each one for only 13 ms",
    )


def install():
    import triton.testing
    from triton.runtime.autotuner import Autotuner

    prune_configs, bench = Autotuner.prune_configs, Autotuner._bench

    def compile_and_prune(self, kwargs):
        configs = prune_configs(self, kwargs)
        if len(configs) > 1:
            compile_all(self, configs, kwargs)
        return configs

    def quick_bench(self, *args, config, **meta):
        self._do_bench = lambda call, quantiles: triton.testing.do_bench(call, warmup=3, rep=10, quantiles=quantiles)
        return bench(self, *args, config=config, **meta)

    Autotuner.prune_configs, Autotuner._bench = compile_and_prune, quick_bench


def compile_all(tuner, configs, kwargs):
    """Into Triton's cache on the disk. A fork must not touch CUDA: what Triton asks of it is answered here."""
    from triton.runtime import driver

    active = driver.active
    device, target = active.get_current_device(), active.get_current_target()
    kernel = tuner.fn
    while not hasattr(kernel, "device_caches"):
        kernel = kernel.fn
    kernel.device_caches[device]  # made before the forks, which could not
    arguments = [tuner.nargs[name] for name in tuner.arg_names if name in tuner.nargs]
    options = {key: value for key, value in kwargs.items() if key != "warmup"}
    children = []
    for worker in range(min(WORKERS, len(configs))):
        child = os.fork()
        if child:
            children.append(child)
            continue
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            active.get_current_device = lambda: device
            active.get_current_stream = lambda device=None: 0
            active.get_current_target = lambda: target
            for config in configs[worker::WORKERS]:
                try:
                    tuner.fn.warmup(*arguments, **options, **config.all_kwargs())
                except Exception:  # a configuration that does not fit: the tuner finds out for itself
                    pass
        finally:
            os._exit(0)
    for child in children:
        os.waitpid(child, 0)
