"""Runs lm-evaluation-harness 0.4.13 offline on local rows, with its own task definitions and its `hf` model.

Needs an interpreter with lm_eval, torch and transformers."""

import functools
import hashlib
import json
import logging
import os
import shutil
from pathlib import Path

import rows as local

VERSION = "0.4.13"


def offline():
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        os.environ.setdefault(name, "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # The harness logs one warning per truncated request, which would be thousands of lines.
    os.environ.setdefault("LOGLEVEL", "ERROR")


def serve_rows(data):
    """Replaces datasets.load_dataset, so that the harness's task definitions use the rows of the folder instead of the
    Hub."""
    import datasets

    def load_dataset(path, name=None, **_):
        for task, (wanted, configuration, split, _) in local.SETS.items():
            if (path, name) == (wanted, configuration):
                table = datasets.Dataset.from_list(local.rows(task, data))
                # The definitions also need a training split, for few-shot examples in the prompt.
                train = local.rows(task, data, train=True)
                return datasets.DatasetDict(
                    {split: table, "train": datasets.Dataset.from_list(train) if train else table}
                )
        raise FileNotFoundError(f"data set {path} {name}: not one of the nine benchmarks")

    datasets.load_dataset = load_dataset


@functools.cache
def definitions():
    """Returns the harness's task definitions of the nine benchmarks, without indexing its thousands of other tasks."""
    import lm_eval.tasks

    folder = Path(lm_eval.tasks.__file__).parent
    names = ("wikitext", "lambada", "piqa", "hellaswag", "winogrande", "arc", "siqa", "super_glue/boolq")
    return lm_eval.tasks.TaskManager(include_path=[str(folder / name) for name in names], include_defaults=False)


def load(model, *, bos=None, batch_size=16, max_length=None, dtype="float32", device="cpu"):
    """Loads the harness's `hf` model."""
    offline()
    import lm_eval
    import torch
    from lm_eval.models.huggingface import HFLM

    if lm_eval.__version__ != VERSION:
        raise SystemExit(f"lm_eval: expected {VERSION}, found {lm_eval.__version__}")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    torch.backends.cuda.matmul.allow_tf32 = False
    if dtype == "float32":
        torch.backends.cuda.enable_mem_efficient_sdp(False)  # this backend computes fp32 products in TF32
    return HFLM(str(model), dtype=dtype, add_bos_token=bos, batch_size=batch_size, max_length=max_length, device=device)


def evaluate(lm, data, tasks, output=None, *, limit=None, num_fewshot=None, bootstrap_iters=100000):
    """Calls simple_evaluate for the tasks. Writes results and samples to `output` in the same form as the harness's
    command."""
    offline()
    import lm_eval
    from lm_eval.loggers import EvaluationTracker

    serve_rows(data)
    tracker = EvaluationTracker(output_path=str(output)) if output else None
    results = lm_eval.simple_evaluate(
        lm,
        tasks=list(tasks),
        num_fewshot=num_fewshot,
        limit=limit,
        log_samples=True,
        bootstrap_iters=bootstrap_iters,
        task_manager=definitions(),
        evaluation_tracker=tracker,
    )
    if tracker:
        samples = results.pop("samples")
        tracker.save_results_aggregated(results, samples)
        for task, of_task in samples.items():
            tracker.save_results_samples(task, of_task)
    return results


def _digest(paths, words):
    digest = hashlib.sha256(json.dumps(words).encode())
    for path in paths:
        digest.update(path.name.encode())
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:16]


def cached(
    model, data, tasks, cache, *, bos=None, limit=None, num_fewshot=None, max_length=None, batch_size=16, device="cpu"
):
    """Returns folders with the results of the tasks. A task is only evaluated if no cached results exist for the
    same model, rows and options."""
    files = sorted(p for p in Path(model).iterdir() if p.is_file())
    lm, folders = None, []
    for task in tasks:
        words = [VERSION, task, bos, limit, num_fewshot or 0, max_length, *([] if device == "cpu" else [device])]
        sets = [local.find(task, data), *filter(None, [local.find(task, data, train=True)])]
        folder = Path(cache) / f"{task}-{_digest([*files, *sets], words)}"
        folders.append(folder)
        if folder.exists():
            continue
        lm = lm or load(model, bos=bos, batch_size=batch_size, max_length=max_length, device=device)
        partial = folder.with_name(folder.name + f".{os.getpid()}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        evaluate(lm, data, [task], partial, limit=limit, num_fewshot=num_fewshot)
        if not any(partial.rglob(f"samples_{task}_*.jsonl")):
            raise SystemExit(f"lm_eval wrote no samples of {task}")  # the harness only logs a warning if writing fails
        partial.rename(folder)
    return folders
