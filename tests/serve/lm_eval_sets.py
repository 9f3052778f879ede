#!/usr/bin/env python3
"""Compares lm-evaluation-harness 0.4.13, as a client (`local-completions`) of a running `lazy serve`, with `lazy eval`
on the same benchmark rows.

    lm_eval_sets.py LAZY [--model DIR] [--data DIR] [--limit N] [--tasks piqa,...] [--settings ids:1,ids:16,texts:1,...]

Every log-likelihood must agree with `lazy eval` within 1e-3, and the greedy flags must be equal. The texts of a
generate_until task must be equal to the texts of `lazy generate`. A setting consists of the kind of prompts in a
request (token ids, or texts with `tokenized_requests=False`) and the batch size of the harness. The harness may cut a
long text between any two tokens. If the text is sent instead of ids, the server's tokenizer may split the cut text
differently. Such requests have different ids; they are counted and not compared.

Without --model, a tiny model is written. Without --data, the rows of LAZY_TEST_DATA or tests/parity/data are used.
LAZY_SERVE_DOCUMENTS (20) is the default of --limit; 0 selects the whole data sets. The exit code is 77 if neither this
interpreter nor LAZY_LM_EVAL_PYTHON has lm_eval. test_lm_eval_sets.py runs this script.
"""

import argparse
import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PARITY = Path(__file__).resolve().parent.parent / "parity"
sys.path.insert(0, str(PARITY))

import rows  # noqa: E402
from serving import serving  # noqa: E402

STOP, LONGEST = ["\n\n", " the"], 24  # stop strings, and maximum number of tokens of the generated texts


def likelihoods(folder):
    """Reads the samples of all tasks in a folder. Returns {task: {(document number, request number, texts of the
    request): (log-likelihood, greedy flag or None)}}. The greedy flag says whether the continuation is the most likely
    text."""
    found = {}
    for file in sorted(Path(folder).rglob("samples_*.jsonl")):
        of_task = found.setdefault(file.name.removeprefix("samples_").rsplit("_", 1)[0], {})
        with open(file, encoding="utf-8", newline="\n") as lines:
            for sample in map(json.loads, lines):
                for n, response in enumerate(sample["filtered_resps"]):
                    values = response if isinstance(response, list) else [response, None]
                    texts = tuple(sample["arguments"][f"gen_args_{n}"].values())
                    of_task[sample["doc_id"], n, texts] = (float(values[0]), values[1] and str(values[1]))
    return found


def local_completions(**options):
    """Returns a client of the harness that additionally records the requests whose texts the server tokenizes
    differently than the harness."""
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    class Noting(LocalCompletionsAPI):
        changed, rolling = frozenset(), None

        def loglikelihood_rolling(self, requests, disable_tqdm=False):
            values = []
            for request in requests:
                self.rolling = request.args
                values += super().loglikelihood_rolling([request], disable_tqdm=True)
            self.rolling = None
            return values

        def _loglikelihood_tokens(self, requests, **more):
            if not self.tokenized_requests:
                ids = [(context + continuation)[-self.max_length :] for _, context, continuation in requests]
                again = self.tokenizer(self.decode_batch(ids), add_special_tokens=False).input_ids
                self.changed |= {
                    self.rolling or key for (key, _, _), a, b in zip(requests, ids, again, strict=True) if a != b
                }
            return super()._loglikelihood_tokens(requests, **more)

    return Noting(tokenizer_backend="huggingface", **options)


def compare(task, ours, theirs, changed):
    """Compares the log-likelihoods of one task, except for the requests in `changed`. Prints one line. Returns whether
    all results are equal within the tolerance."""
    assert ours.keys() == theirs.keys(), f"{task}: different requests ({len(theirs)} harness, {len(ours)} lazy eval)"
    same = {key for key in ours if key[2] not in changed}
    differences = [abs(ours[key][0] - theirs[key][0]) for key in same]
    beyond = sum(not difference <= 1e-3 for difference in differences)
    flags = sum(ours[key][1] != theirs[key][1] for key in same)
    greedy = sum(ours[key][1] == "True" for key in same)
    print(
        f"  {task:<15} {len(same):>6} requests, {greedy:>4} greedy; largest difference "
        f"{max(differences, default=0):.1e}, {beyond} differences above 1e-3; "
        f"{flags} greedy flags differ; {len(ours) - len(same)} requests tokenized differently",
        flush=True,
    )
    return beyond == 0 and flags == 0


def check_texts(lazy, model, data, lm, limit):
    """Compares generate_until of the harness with `lazy generate` on the beginnings of LAMBADA documents."""
    import datasets
    import harness
    import lm_eval

    prompts = [" ".join(row["text"].split(" ")[:12]) for row in rows.rows("lambada_openai", data)][:limit]
    task = {
        "task": "continue",
        "custom_dataset": lambda **_: {"test": datasets.Dataset.from_dict({"prompt": prompts})},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "",
        "generation_kwargs": {"until": STOP, "max_gen_toks": LONGEST, "do_sample": False, "temperature": 0},
        "metric_list": [{"metric": "bypass"}],
    }
    samples = lm_eval.simple_evaluate(lm, tasks=[task], log_samples=True, task_manager=harness.definitions())["samples"]
    theirs = {sample["doc"]["prompt"]: sample["resps"][0][0] for sample in samples["continue"]}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "texts.json"
        command = [lazy, "generate", model, "--temperature", "0", "--max-tokens", str(LONGEST), "--device", "cpu"]
        command += ["--dtype", "fp32", "--json", output, *(f"--prompt={prompt}" for prompt in prompts)]
        if lm.tokenized_requests:
            command.append("--no-bos")  # the server adds BOS to texts only, and the harness sends ids without BOS
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        ours = {text["prompt"]: text["text"] for text in json.loads(output.read_text(encoding="utf-8"))}
    stopped = 0
    for prompt, text in ours.items():
        cut = min((text.index(stop) for stop in STOP if stop in text), default=len(text))
        stopped += cut < len(text)
        ours[prompt] = text[:cut]
    different = sum(theirs[prompt] != text for prompt, text in ours.items())
    print(f"  generate_until  {len(ours):>6} texts, {stopped} with a stop string; {different} differ", flush=True)
    assert theirs.keys() == ours.keys()
    return different == 0


def main():
    real = os.environ.get("LAZY_TEST_DATA")
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("lazy", help="the lazy program")
    p.add_argument("--model", help="model folder; transformers must be able to load its tokenizer")
    p.add_argument("--data", default=real or PARITY / "data")
    p.add_argument("--limit", type=int, default=int(os.environ.get("LAZY_SERVE_DOCUMENTS", "20")), help="documents")
    p.add_argument("--tasks", default=",".join(rows.TASKS), help="default: %(default)s")
    p.add_argument("--settings", default="ids:1,ids:16,texts:1,texts:16", help="default: %(default)s")
    a = p.parse_args()
    if importlib.util.find_spec("lm_eval") is None:
        if python := os.environ.pop("LAZY_LM_EVAL_PYTHON", None):
            os.execv(python, [python, *sys.argv])
        print("SKIPPED: Python's lm_eval is missing")
        return 77
    import harness
    import tiny_model

    os.environ["TQDM_DISABLE"] = "1"
    harness.offline()
    import lm_eval

    assert lm_eval.__version__ == harness.VERSION, lm_eval.__version__
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # suppresses a warning for every truncated request
    limit, good = a.limit or None, True
    with tempfile.TemporaryDirectory() as folder:
        model = a.model or f"{folder}/model"
        if not a.model:
            # The answer choices of the real data sets have several hundred tokens with this tokenizer, whose tokens are
            # short.
            tiny_model.write(model, tiny_model.LENGTH if Path(a.data) == PARITY / "data" else 1024)
        command = [a.lazy, "eval", model, "--tasks", a.tasks, "--data", a.data, "--log-samples", "--device", "cpu"]
        command += [
            "--no-bos",
            "--dtype",
            "fp32",
            "--output",
            f"{folder}/ours",
            *(["--limit", str(limit)] if limit else []),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ours = likelihoods(f"{folder}/ours")
        length = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))["max_position_embeddings"]
        with serving(a.lazy, model, "--cache-gib", "0.1") as server:
            for setting in a.settings.split(","):
                kind, batch = setting.split(":")
                options = {
                    "model": "tiny",
                    "base_url": f"{server.address}/v1/completions",
                    "tokenizer": model,
                    "tokenized_requests": kind == "ids",
                    "batch_size": int(batch),
                    "max_length": length + 2,  # with this value, the harness forms the same windows as `lazy eval`
                }
                begin = time.monotonic()
                lm = local_completions(**options)
                output = f"{folder}/{kind}{batch}"
                harness.evaluate(lm, a.data, a.tasks.split(","), output, limit=limit, bootstrap_iters=0)
                theirs = likelihoods(output)
                print(f"{kind}, batch_size {batch}: {time.monotonic() - begin:.0f} s", flush=True)
                assert theirs.keys() == set(a.tasks.split(",")), theirs.keys()
                for task, of_task in theirs.items():
                    good &= compare(task, ours[task], of_task, lm.changed)
                good &= check_texts(a.lazy, model, a.data, lm, limit or 100)
    print("equal" if good else "DIFFERENT")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
