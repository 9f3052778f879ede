#!/usr/bin/env python3
"""Sends a mixed load to `lazy serve`: streams, texts, scores and chats, and clients that disconnect, read slowly or
send malformed data.

Usage: mixed_load.py LAZY FOLDER [MINUTES]

Every well-formed request must be answered correctly, resident memory must not grow, and no KV-cache page may leak.
test_mixed_load.py runs it for 15 seconds.
"""

import collections
import contextlib
import json
import random
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

from serving import copy_of_model, serving

WORDS = "the a of time water house and runs every little is to light .".split()
GROWTH_MIB = 8  # maximum growth of resident memory in the second half of the run
WARM = 800  # minimum number of requests in the first half, so that all caches are filled


class Load:
    def __init__(self, server):
        self.server, self.over = server, threading.Event()
        self.counts, self.errors, self.lock = collections.Counter(), [], threading.Lock()

    def run(self, seed):
        """Runs one client, which performs random actions until the end of the test."""
        rng = random.Random(seed)
        kinds = [self.text, self.stream, self.score, self.chat, self.refused, self.leave, self.garbage, self.look]
        while not self.over.is_set():
            kind = self.dawdle if rng.random() < 0.005 else rng.choice(kinds)
            try:
                kind(rng)
                error = None
            except Exception as exception:  # catches every exception, to count it as a failure
                error = f"{kind.__name__}: {type(exception).__name__}: {exception}"
            with self.lock:
                self.counts[kind.__name__] += 1
                if error:
                    self.errors.append(error)

    def prompt(self, rng):
        return " ".join(rng.choices(WORDS, k=rng.randint(1, 200)))

    def expect(self, condition, *what):
        if not condition:
            raise AssertionError(str(what)[:300])

    def text(self, rng):
        n, count = rng.randint(1, 4), rng.randint(0, 60)
        body = {"prompt": self.prompt(rng), "n": n, "max_tokens": count, "ignore_eos": True, "seed": rng.randint(0, 9)}
        answer = self.server.complete(**body, temperature=rng.choice([0, 0.7, 1]), top_p=rng.choice([0.9, 1]))
        self.expect(answer["usage"]["completion_tokens"] == n * count, answer["usage"], n, count)

    def stream(self, rng, path="/v1/completions", **prompt):
        count = rng.randint(1, 80)
        body = prompt or {"prompt": self.prompt(rng)}
        body |= {"max_tokens": count, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        with contextlib.closing(self.server.connection()) as connection:
            connection.request("POST", path, json.dumps(body))
            answer = connection.getresponse()
            events = [line[6:].strip() for line in answer.read().split(b"\n\n") if line]
            self.expect(answer.status == 200 and events[-1] == b"[DONE]", answer.status, events[-2:])
            used = json.loads(events[-2])["usage"]["completion_tokens"]
            self.expect(used == count, used, count)

    def score(self, rng):
        prompts = [self.prompt(rng) for _ in range(rng.randint(1, 4))]
        answer = self.server.complete(prompt=prompts, echo=True, logprobs=rng.randint(0, 5), max_tokens=1)
        for choice in answer["choices"]:
            arrays = choice["logprobs"]
            length = len(arrays["tokens"])
            self.expect(arrays["token_logprobs"][0] is None and length == len(arrays["text_offset"]), arrays)
        self.expect(len(answer["choices"]) == len(prompts), answer)

    def chat(self, rng):
        messages = [{"role": "user", "content": self.prompt(rng)}]
        self.stream(rng, "/v1/chat/completions", messages=messages)

    def refused(self, rng):
        body, code = rng.choice(
            [
                ({"prompt": 5}, 400),
                ({"prompt": "a", "max_tokens": 10**9}, 400),
                ({"prompt": "a", "temperature": "hot"}, 400),
                ({"prompt": [[10**6]]}, 400),
                ({"prompt": "a", "model": "other"}, 404),
                ([1, 2], 400),
            ]
        )
        status, answer = self.server.post("/v1/completions", body)
        self.expect(status == code and "error" in answer, status, answer)

    def leave(self, rng):
        """Disconnects in the middle of a stream."""
        with contextlib.closing(self.server.connection()) as connection:
            body = {"prompt": self.prompt(rng), "max_tokens": 3000, "ignore_eos": True, "stream": True, "n": 2}
            connection.request("POST", "/v1/completions", json.dumps(body))
            answer = connection.getresponse()
            for _ in range(rng.randint(0, 20)):
                answer.readline()

    def garbage(self, rng):
        """Sends a request with some changed bytes. Any response is allowed, and the connection must end."""
        body = json.dumps({"prompt": self.prompt(rng), "max_tokens": 4, "echo": True, "logprobs": 2}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        sent = bytearray(head + body)
        for _ in range(rng.randint(1, 6)):
            sent[rng.randrange(len(sent))] = rng.randrange(256)
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=120) as client:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                while client.recv(65536):
                    pass

    def look(self, rng):
        for path in ("/health", "/metrics", "/v1/models", "/version", "/tokenizer_info"):
            self.expect(self.server.get(path)[0] == 200, path)
        status, answer = self.server.post("/tokenize", {"prompt": self.prompt(rng)})
        self.expect(status == 200 and answer["count"] == len(answer["tokens"]), status, answer)

    def dawdle(self, rng):
        """Requests a long stream with a small receive buffer and does not read for some time."""
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(120)
            client.connect(("127.0.0.1", self.server.port))
            body = b'{"prompt": "a", "max_tokens": 6000, "ignore_eos": true, "stream": true, "logprobs": 5}'
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            self.over.wait(rng.uniform(0, 45))


def watch(load, minutes, least=0):
    """Waits for half of the run time, and longer if fewer than `least` requests were answered. Returns the resident
    memory of the server in MiB."""
    for step in range(1000):
        time.sleep(6 * minutes)
        resident, done = load.server.resident_mib(), sum(load.counts.values())
        print(f"{resident:.1f} MiB, {done} requests", flush=True)
        if step >= 4 and done >= least:
            return resident
    raise AssertionError(f"{done} requests finished in {100 * minutes:.0f} minutes, expected at least {least}")


def check(lazy, folder, minutes):
    """Runs the load. Raises AssertionError if a request failed, memory grew or a KV-cache page leaked. Prints the
    number of requests by kind."""
    with tempfile.TemporaryDirectory() as temporary:
        model = Path(temporary) / "model"
        copy_of_model(folder, model)
        log = open(Path(temporary) / "log", "w")  # noqa: SIM115 - log of the server
        with log, serving(lazy, model, "--cache-gib", "0.01", log=log) as server:
            load = Load(server)
            threads = [threading.Thread(target=load.run, args=(seed,)) for seed in range(12)]
            for thread in threads:
                thread.start()
            try:
                half = watch(load, minutes, least=WARM)
                resident = watch(load, minutes)
            finally:
                load.over.set()
                for thread in threads:
                    thread.join()
            # this also checks that requests of disconnected clients have been cancelled
            metrics = server.idle_metrics()
            print(" ".join(f"{kind} {count}" for kind, count in sorted(load.counts.items())))
            print(
                f"{metrics['lazy_generated_tokens_total']:.0f} tokens generated, "
                f"{metrics['lazy_prompt_tokens_total']:.0f} of prompts; {metrics['lazy_http_malformed_total']:.0f} "
                f"requests malformed, {metrics['lazy_http_gone_total']:.0f} clients gone; {len(load.errors)} errors"
            )
            print("\n".join(load.errors[:20]))
            assert not load.errors
            free, kept = metrics["lazy_cache_pages_free"], metrics["lazy_cache_pages_shared"]
            print(f"pages: {metrics['lazy_cache_pages']:.0f}, {free:.0f} free, {kept:.0f} retained for later prompts")
            assert free + kept == metrics["lazy_cache_pages"], metrics
            assert resident < half + GROWTH_MIB, (half, resident)


if __name__ == "__main__":
    check(sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 0.25)
    print("ok")
