#!/usr/bin/env python3
"""Compares the speed of `lazy serve` with transformers on a GPU, in bf16. By default, the models are a softmax and a
Lazy model with random weights and 340M parameters.

    python benchmarks/generate_gpu.py steps [--lazy build/lazy] [--json FILE]
    python benchmarks/generate_gpu.py server [--clients 256] [--json FILE]
    python benchmarks/generate_gpu.py start [--json FILE]
    python benchmarks/generate_gpu.py steps --models smollm2 runs/lazy/model --text book.txt --work 1x8192,16x32768
    python benchmarks/generate_gpu.py start --device cpu --dtype fp32 --cache-gib 1 \\
        --layers 4 --width 192 --heads 6 --vocab 4096

steps: measures milliseconds per decode step for one sequence of 1k, 4k and 32k tokens, and for 32 sequences of 1k
tokens. For `lazy serve`, this is the time of additional tokens of an HTTP request, divided by their number. For
transformers, it is the median time between tokens of `generate` with a static cache, which transformers compiles with
mode="reduce-overhead".
With --models, model folders with the same tokenizer are used instead of random weights, and prompts are taken from
--text; transformers runs the first folder. For models with Elastic-Softmax the script also prints the fraction of
query-key pairs that are alive (have a nonzero weight), the fraction of keys that are alive for at least one query head
of their group, and the resulting bytes of keys and values that a step reads per token.
server: 256 concurrent clients request 128 tokens each for prompts of 512 tokens. The script prints tokens per second
and the time between tokens. transformers runs without HTTP in two ways: continuous batching (the engine of
`transformers serve --continuous-batching`) of all sequences together, and `generate` for one batch of 32 sequences
after another. The printed ratio compares `lazy serve` with the faster of the two.
start: measures the seconds from the start of `lazy serve` until it listens, and until its first answer of one token.
The options in the last example give the model shape of `make demo`, on a CPU in fp32.
"""

import argparse
import contextlib
import gc
import http.client
import json
import multiprocessing
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

import tokenizers
import torch
import transformers
from llama_shape import add_shape, llama_config
from safetensors.torch import save_file

LAZY_FOLDER = Path(__file__).parent.parent / "tests/compatibility/v0.1/lazy/model"
NAMES = {
    "embed_tokens": "embeddings",
    "self_attn": "attn",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "mlp_norm",
}


def given_folders(a, scratch, length):
    """Copies the folders of --models with max_position_embeddings of at least `length`. Returns the copies, and the
    first model loaded by transformers."""
    folders = {}
    for n, given in enumerate(map(Path, a.models)):
        source = given if (given / "config.json").exists() else given / "model"
        copy = Path(scratch) / f"{n}-{given.name}"
        copy.mkdir()
        for file in source.iterdir():
            (copy / file.name).symlink_to(file.resolve())
        config = json.loads((source / "config.json").read_text())
        config["max_position_embeddings"] = max(config["max_position_embeddings"], length)
        (copy / "config.json").unlink()
        (copy / "config.json").write_text(json.dumps(config, indent=2))
        folders[given.name] = copy
    first = next(iter(folders.values()))
    tokenizer = tokenizers.Tokenizer.from_file(str(first / "tokenizer.json"))
    a.ids = tokenizer.encode(Path(a.text).read_text(), add_special_tokens=False).ids
    model = transformers.AutoModelForCausalLM.from_pretrained(first, dtype=torch.bfloat16).to(a.device).eval()
    return folders, model


def alive_rows(a, folder, length):
    """Returns what a decode step after `length` tokens reads, according to `lazy sinks --measures decode`: the fraction
    of alive pairs, the fraction of keys that are alive for at least one query head of a group, and the bytes of K and V
    if all rows of V are read and if rows of V with zero weight are skipped."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "sinks.json"
        command = [
            a.lazy,
            "sinks",
            str(folder),
            "--text",
            a.text,
            "--length",
            str(length),
            "--samples",
            "1",
            "--no-bos",
        ]
        command += ["--maps", "none", "--measures", "decode", "--device", a.device, "--dtype", a.dtype]
        subprocess.run([*command, "--json", str(file)], check=True, capture_output=True)
        decode = json.loads(file.read_text())["further"]["decode"]
    alive, union = (statistics.fmean(decode[name]) for name in ("alive", "alive_in_group"))
    return {
        "alive": alive,
        "alive_in_group": union,
        "bytes_softmax": decode["visible_bytes"],
        "bytes": decode["alive_bytes"],
    }


def write_folders(a, scratch, length):
    """Writes two model folders with the same random weights, one with softmax and one with Lazy Attention. Returns the
    folders and the softmax model of transformers."""
    config = llama_config(a, length, tie_word_embeddings=False)
    config.use_cache = True
    torch.manual_seed(1)
    with torch.device(a.device):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    folders = {kind: Path(scratch) / kind for kind in ("softmax", "lazy")}
    model.save_pretrained(folders["softmax"])
    folders["lazy"].mkdir()
    weights = {}
    for name, x in model.state_dict().items():
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        weights[name] = x.cpu().contiguous()
    for layer in range(a.layers):
        place = f"model.layers.{layer}.attn."
        weights[place + "learnable_bias_diagonals"] = torch.randn(a.heads, 512) * 1e-3
        weights[place + "softmax_offset"] = torch.full((a.heads,), -1.0)
    save_file(weights, folders["lazy"] / "model.safetensors")
    lazy = json.loads((LAZY_FOLDER / "config.json").read_text())
    del lazy["tokenizer_fingerprint"]
    theirs = json.loads((folders["softmax"] / "config.json").read_text())
    lazy.update({key: theirs[key] for key in lazy if key in theirs and key not in ("architectures", "model_type")})
    lazy.update(distance_bias_window=512, head_dim=a.width // a.heads, torch_dtype="bfloat16")
    (folders["lazy"] / "config.json").write_text(json.dumps(lazy, indent=2))
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    # Every token of this vocabulary produces one event of the stream.
    words = letters + [f"Ġw{n}" for n in range(a.vocab - len(letters))]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({word: n for n, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    for folder in folders.values():
        tokenizer.save(str(folder / "tokenizer.json"))
    return folders, model


@contextlib.contextmanager
def serve(a, folder):
    command = [a.lazy, "serve", str(folder), "--port", "0", "--device", a.device]
    command += ["--dtype", a.dtype, "--cache-gib", str(a.cache_gib)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        if not line:
            raise SystemExit("lazy serve exited before it was ready")
        yield line.split()[-1]
    finally:
        process.terminate()
        process.wait()


def post(url, body):
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def prompts(a, count, length):
    if a.models:
        starts = [random.randrange(len(a.ids) - length + 1) for _ in range(count)]
        return [a.ids[start : start + length] for start in starts]
    return [[random.randrange(5, a.vocab) for _ in range(length)] for _ in range(count)]


def our_step(a, url, count, length):
    """Returns the milliseconds per token of `lazy serve`. The server processes the prompts once and caches them."""
    texts = prompts(a, count, length)

    def seconds(tokens):
        begin = time.perf_counter()
        body = {"prompt": texts, "max_tokens": tokens, "temperature": a.temperature, "ignore_eos": True}
        usage = post(url, body)["usage"]
        if usage["completion_tokens"] != count * tokens:
            raise SystemExit(f"expected {count * tokens} tokens, found {usage}")
        return time.perf_counter() - begin

    few = 8
    for _ in range(2):
        seconds(few + a.tokens)  # two warm-up runs: each batch shape runs once and is then captured as a CUDA graph
    runs = [(seconds(few + a.tokens) - seconds(few)) / a.tokens * 1e3 for _ in range(a.repeat)]
    return statistics.median(runs)


class Stamps:
    """A streamer for `generate` that records the time of each token."""

    def __init__(self):
        self.times = []

    def put(self, value):
        torch.cuda.synchronize() if torch.cuda.is_available() else None
        self.times.append(time.perf_counter())

    def end(self):
        pass


def their_times(a, model, count, length, tokens):
    ids = torch.tensor(prompts(a, count, length), device=a.device)
    stamps = Stamps()
    begin = time.perf_counter()
    more = {"cache_implementation": "static", "do_sample": False, "pad_token_id": 0}
    vars(model).pop("_previous_max_cache_length", None)  # otherwise the cache keeps the maximum length of earlier calls
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, streamer=stamps, **more)
    if out.shape != (count, length + tokens):
        raise SystemExit(f"transformers: expected {tokens} tokens, found {tuple(out.shape)}")
    steps = [b - c for b, c in zip(stamps.times[2:], stamps.times[1:-1], strict=True)]
    return time.perf_counter() - begin, statistics.median(steps) * 1e3


def run_steps(a, folders, model, results):
    work = [tuple(map(int, item.split("x"))) for item in a.work.split(",")]
    for kind, folder in folders.items() if a.models else ():
        if json.loads((folder / "config.json").read_text()).get("normalizer") != "elastic":
            continue
        for length in sorted({length for _, length in work}):
            results[f"{kind} alive rows {length}"] = found = alive_rows(a, folder, length)
            print(f"{kind}, {length} tokens:", {name: round(x, 4) for name, x in found.items()}, flush=True)
    for kind, folder in folders.items():
        with serve(a, folder) as url:
            for count, length in work:
                results[f"{kind} {count} x {length}"] = our_step(a, url, count, length)
                print(
                    f"lazy serve, {kind}, {count} x {length}: {results[f'{kind} {count} x {length}']:.3f} ms",
                    flush=True,
                )
    for count, length in () if a.ours_only else work:
        their_times(a, model, count, length, a.tokens)  # warm-up: compiles the model
        results[f"transformers {count} x {length}"] = their_times(a, model, count, length, a.tokens)[1]
        print(f"transformers {count} x {length}: {results[f'transformers {count} x {length}']:.3f} ms", flush=True)


def client(url, prompt, tokens, times):
    """Sends one streaming request and appends the arrival times of its events to `times`."""
    body = json.dumps({"prompt": prompt, "max_tokens": tokens, "temperature": 1, "stream": True, "ignore_eos": True})
    connection = http.client.HTTPConnection(urllib.parse.urlparse(url).netloc)
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    stamps = []
    while line := answer.readline():
        if line.startswith(b"data: {"):
            stamps.append(time.perf_counter())
    times.append(stamps)


def clients(url, texts, tokens, start, results):
    times = []
    threads = [threading.Thread(target=client, args=(url, text, tokens, times)) for text in texts]
    start.wait()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put(times)


def load(a, url, count, length, tokens):
    """Runs `count` clients. Returns the seconds until all streams have finished, and the sorted times between
    events."""
    texts = prompts(a, count, length)
    share = -(-count // a.processes)
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(a.processes + 1), context.Queue()
    shares = [texts[n * share : (n + 1) * share] for n in range(a.processes)]
    processes = [context.Process(target=clients, args=(url, some, tokens, start, results)) for some in shares]
    for process in processes:
        process.start()
    start.wait()
    begin = time.perf_counter()
    streams = [stamps for _ in processes for stamps in results.get()]
    seconds = time.perf_counter() - begin
    for process in processes:
        process.join()
    if empty := sum(not stamps for stamps in streams):
        raise SystemExit(f"lazy serve: expected {count} streams of text, found {empty} empty streams")
    return seconds, sorted(b - c for s in streams for b, c in zip(s[1:], s[:-1], strict=True))


def their_load(a, model, length, tokens):
    """Measures transformers' continuous batching. Returns one result per run, in the form of load()."""
    from transformers.generation.continuous_batching.utils import WorkloadHints

    config = transformers.GenerationConfig(max_new_tokens=tokens, do_sample=False, pad_token_id=0, eos_token_id=-1)
    hints = WorkloadHints(max_prompt_length=length, max_generated_length=tokens, num_requests=a.clients)
    gc.collect()
    if a.device == "cuda":
        torch.cuda.empty_cache()  # transformers sizes its KV cache by the free memory
    runs = []
    with model.continuous_batching_context_manager(generation_config=config, workload_hints=hints) as manager:
        for _ in range(2 + a.repeat):  # two warm-up runs, as for lazy serve
            texts = prompts(a, a.clients, length)
            begin = time.perf_counter()
            manager.add_requests(texts, max_new_tokens=tokens, record_timestamps=True)
            done = []
            while len(done) < len(texts):
                result = manager.get_result(timeout=300)
                if result is None or result.error:
                    raise SystemExit(f"transformers: {result.error if result else 'no answer within 300 s'}")
                if result.is_finished():
                    done.append(result)
            seconds = time.perf_counter() - begin
            if any(len(result.generated_tokens) != tokens for result in done):
                raise SystemExit(f"transformers: expected {tokens} tokens of each text")
            stamps = [result.timestamps for result in done]
            runs.append((seconds, sorted(b - c for s in stamps for b, c in zip(s[1:], s[:-1], strict=True))))
    return runs[2:]


def figures_of(tokens, runs):
    seconds, gaps = sorted(runs, key=lambda run: run[0])[len(runs) // 2]
    return {
        "tokens_per_second": tokens / seconds,
        "median_gap_ms": gaps[len(gaps) // 2] * 1e3,
        "p99_gap_ms": gaps[len(gaps) * 99 // 100] * 1e3,
    }


def run_server(a, folders, model, results):
    length, tokens = 512, 128
    for kind, folder in folders.items():
        with serve(a, folder) as url:
            for _ in range(2):
                load(a, url, a.clients, length, tokens)  # two warm-up runs: each batch shape runs, then is captured
            runs = [load(a, url, a.clients, length, tokens) for _ in range(a.repeat)]
        results[kind] = figures = figures_of(a.clients * tokens, runs)
        print(f"lazy serve, {kind}:", {key: round(x, 2) for key, x in figures.items()}, flush=True)
    batch = min(32, a.clients)
    their_times(a, model, batch, length, tokens)
    seconds = statistics.median(their_times(a, model, batch, length, tokens)[0] for _ in range(a.repeat))
    theirs = {f"generate in batches of {batch}": {"tokens_per_second": batch * tokens / seconds}}
    theirs["continuous batching"] = figures_of(a.clients * tokens, their_load(a, model, length, tokens))
    for name, figures in theirs.items():
        results[f"transformers, {name}"] = figures
        print(f"transformers, {name}:", {key: round(x, 2) for key, x in figures.items()}, flush=True)
    fastest = max(figures["tokens_per_second"] for figures in theirs.values())
    for kind in folders:
        print(f"{kind}: lazy / transformers = {results[kind]['tokens_per_second'] / fastest:.2f}", flush=True)


def run_start(a, folders, model, results):
    for kind, folder in folders.items():
        runs = []
        for _ in range(a.repeat + 1):  # one more run, which is not counted: it reads files and libraries from the disk
            begin = time.perf_counter()
            with serve(a, folder) as url:
                listens = time.perf_counter() - begin
                post(url, {"prompt": prompts(a, 1, 32)[0], "max_tokens": 1})
                runs.append((time.perf_counter() - begin, listens))
        answer, listens = sorted(runs[1:])[a.repeat // 2]
        results[kind] = {"listens": listens, "first_answer": answer, "slowest": max(runs)[0]}
        print(f"lazy serve, {kind}, seconds:", {key: round(x, 3) for key, x in results[kind].items()}, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("steps", "server", "start"))
    parser.add_argument("--lazy", default="build/lazy")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "fp32"), help="data type of lazy serve")
    parser.add_argument("--cache-gib", type=float, default=30)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0)
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--models", nargs="+", help="model folders, the softmax model first")
    parser.add_argument("--text", help="file with the text of the prompts, for --models")
    parser.add_argument(
        "--work", default="1x1000,1x4000,1x32000,32x1000", help="sizes for `steps`: SEQUENCESxPROMPT_TOKENS,..."
    )
    parser.add_argument("--ours-only", action="store_true", help="do not run transformers")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--keep", help="write the model folders to this empty folder and keep them")
    parser.add_argument("--json")
    add_shape(parser)
    a = parser.parse_args()
    random.seed(1)
    results = {}
    if a.device == "cuda":
        results["device"] = torch.cuda.get_device_name()
        print(results["device"], "transformers", transformers.__version__, "torch", torch.__version__, flush=True)
    with contextlib.nullcontext(a.keep) if a.keep else tempfile.TemporaryDirectory() as scratch:
        folders, model = (given_folders if a.models else write_folders)(a, scratch, 40960)
        {"steps": run_steps, "server": run_server, "start": run_start}[a.what](a, folders, model, results)
    if a.json:
        Path(a.json).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
