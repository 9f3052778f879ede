"""Starts a `lazy serve` process for tests and sends plain HTTP requests to it."""

import contextlib
import http.client
import json
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

CHAT_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "


class Server:
    def __init__(self, lazy, models, *options, port=0, log=None):
        """Starts the server. models: {name: folder}, or one folder, which gets the name "tiny"."""
        models = models if isinstance(models, dict) else {"tiny": models}
        folders = [f"{name}={folder}" for name, folder in models.items()]
        command = [lazy, "serve", *folders, "--port", str(port), "--device", "cpu", *options]
        if "--max-model-len" not in options:  # allow texts beyond the 32 tokens with which the test models were trained
            command += ["--max-model-len", "65536"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        line = self.process.stdout.readline()
        assert line.startswith("listening at "), line
        self.address = line.split()[-1]
        self.port = int(self.address.rsplit(":", 1)[1])

    def stop(self):
        """Sends SIGTERM; the server must end with exit code 0."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, f"exit code {self.process.returncode}"

    def connection(self, timeout=120):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def get(self, path):
        connection = self.connection()
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def post(self, path, body):
        """Returns the status and the parsed response."""
        connection = self.connection()
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def complete(self, **body):
        status, answer = self.post("/v1/completions", body)
        assert status == 200, (status, answer)
        return answer

    def metrics(self):
        """Returns {name: value}; values with different labels are summed."""
        out = {}
        for line in self.get("/metrics")[1].splitlines():
            if not line.startswith("#"):
                name, value = line.split("{")[0].split(" ")[0], float(line.rsplit(" ", 1)[1])
                out[name] = out.get(name, 0) + value
        return out

    def idle_metrics(self):
        """Waits until no request runs or waits in the queue, and returns metrics(). The engine updates the counts of a
        finished request only in its next step."""
        for _ in range(600):
            metrics = self.metrics()
            if metrics["lazy_requests_running"] + metrics["lazy_requests_waiting"] == 0:
                return metrics
            time.sleep(0.1)
        raise AssertionError(metrics)

    def resident_mib(self):
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("no VmRSS")


@contextlib.contextmanager
def serving(lazy, models, *options, **more):
    """Context manager that runs a Server until the `with` block ends."""
    server = Server(lazy, models, *options, **more)
    try:
        yield server
        server.stop()
    finally:
        server.process.kill()
        server.process.wait()


def copy_of_model(folder, target):
    """Copies the model folder and adds a chat template."""
    shutil.copytree(folder, target)
    file = Path(target) / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(config | {"chat_template": CHAT_TEMPLATE}), encoding="utf-8")


@contextlib.contextmanager
def file_limit(wanted):
    """Context manager that raises the limit of open files to `wanted` within its `with` block. Yields False if the
    system does not allow this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        yield True
    elif hard != resource.RLIM_INFINITY and hard < wanted:
        yield False
    else:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        try:
            yield True
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
