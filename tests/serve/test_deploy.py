"""Tests of the systemd unit file and the Dockerfile in docs/guides/deploy.md."""

import configparser
import os
import re
import shlex
import shutil
import signal
import subprocess
import time

import pytest
from serving import copy_of_model
from test_signals import events, started, stream


def block(root, language):
    return re.search(rf"^```{language}\n(.*?)^```", (root / "docs/guides/deploy.md").read_text(), re.M | re.S)[1]


@pytest.fixture
def service(root):
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str
    parser.read_string(block(root, "ini"))
    return parser["Service"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(root, lazy_binary, tmp_path):
    unit = tmp_path / "lazy-serve.service"
    unit.write_text(block(root, "ini").replace("/opt/lazy/bin/lazy", lazy_binary).replace("User=lazy", "User=root"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert done.returncode == 0 and "lazy-serve" not in done.stderr, done.stderr


def test_stop_timeout_is_longer_than_a_drain(root, service, lazy_binary):
    help_text = subprocess.run([lazy_binary, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    drain = int(re.search(r"--request-seconds .*=(\d+)", help_text)[1])
    page = (root / "docs/guides/deploy.md").read_text()
    assert int(service["TimeoutStopSec"]) > drain
    assert all(int(seconds) > drain for seconds in re.findall(r"--stop-timeout (\d+)", page))


def test_unit_serves_chats_and_drains_in_an_empty_environment(service, root, lazy_binary, model_folder, tmp_path):
    copy = tmp_path / "model"
    copy_of_model(model_folder, copy)
    words = shlex.split(service["ExecStart"])
    options = words[words.index("serve") + 2 :]
    assert words[:2] == ["/opt/lazy/bin/lazy", "serve"] and words[2].startswith("lazy=")
    port = options.index("--port")
    del options[port : port + 2]  # omit the port of the unit file, because the test uses a free port
    log = tmp_path / "log"
    saved = dict(os.environ)
    os.environ.clear()  # simulates a service, which is started without the variable PATH
    try:
        with open(log, "w") as file, started(lazy_binary, {"lazy": str(copy)}, *options, log=file) as server:
            os.environ.update(saved)
            chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
            status, answer = server.post("/v1/chat/completions", chat)
            assert status == 200, answer
            with stream(server, max_tokens=500) as running:
                server.process.send_signal(signal.Signals[service["KillSignal"]])
                assert events(running)[-1]["choices"][0]["finish_reason"] == "length"
                assert server.process.wait(60) == 0
    finally:
        os.environ.update(saved)
    assert re.search(r"POST /v1/chat/completions 200", log.read_text())


def test_start_waits_for_health_and_ends_with_the_process(service, lazy_binary, model_folder):
    wait = shlex.split(service["ExecStartPost"])
    assert wait[:2] == ["/bin/sh", "-c"] and "http://127.0.0.1:8080/health" in wait[2]
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    with started(lazy_binary, model_folder) as server:
        script = wait[2].replace("127.0.0.1:8080", f"127.0.0.1:{server.port}")
        environment = {"MAINPID": str(server.process.pid), "PATH": os.environ["PATH"]}
        assert subprocess.run(["/bin/sh", "-c", script], env=environment, timeout=60).returncode == 0
        server.stop()
        begin = time.monotonic()
        assert subprocess.run(["/bin/sh", "-c", script], env=environment, timeout=60).returncode == 1
        assert time.monotonic() - begin < 10


def test_wrong_model_folder_prevents_a_restart(service, lazy_binary, tmp_path):
    done = subprocess.run([lazy_binary, "serve", f"lazy={tmp_path}/model", "--port", "0"], capture_output=True)
    assert done.returncode == int(service["RestartPreventExitStatus"])


def test_dockerfile_uses_targets_and_options_that_exist(root, lazy_binary):
    text = block(root, "dockerfile")
    targets = re.findall(r"^([a-z-]+):.*##", (root / "Makefile").read_text(), re.M)
    for line in re.findall(r"^RUN make (.*)$", text, re.M):
        words = [word for word in line.split() if "=" not in word]
        assert words and set(words) <= set(targets)
    help_text = subprocess.run([lazy_binary, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    options = re.findall(r'"(--[a-z-]+)"', re.search(r"^CMD (.*)$", text, re.M)[1])
    assert options and all(option in help_text for option in options)
