"""Speeds up Triton's autotuning.

The configurations of a kernel are compiled in parallel by forked processes. Then each configuration gets 3 ms of
warm-up and 10 ms of measurement, instead of Triton's default of 25 ms and 100 ms. The kernels of flash-linear-attention
have hundreds of configurations; without this module, tuning takes many minutes before the first step.
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
    """Compiles all configurations into Triton's disk cache. The forked processes must not use CUDA, so the values that
    Triton queries from CUDA are determined before the fork."""
    from triton.runtime import driver

    active = driver.active
    device, target = active.get_current_device(), active.get_current_target()
    kernel = tuner.fn
    while not hasattr(kernel, "device_caches"):
        kernel = kernel.fn
    kernel.device_caches[device]  # creating this entry needs CUDA, so it is done before the fork
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
                except Exception:  # the autotuner handles invalid configurations
                    pass
        finally:
            os._exit(0)
    for child in children:
        os.waitpid(child, 0)
