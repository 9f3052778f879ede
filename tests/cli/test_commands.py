"""Tests the error messages for wrong models, files and devices that new users often pass to `lazy`."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy
import pytest


@pytest.fixture
def model(root):
    return root / "tests/compatibility/v0.1/lazy/model"


def refused(lazy_binary, *arguments, **environment):
    """Returns the message of a user error, which must be one line."""
    done = subprocess.run(
        [lazy_binary, *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=os.environ | environment,
    )
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    [line] = done.stderr.strip().splitlines()
    return line


@pytest.mark.parametrize(
    "command", ["generate", "chat", "serve", "eval", "sinks", "probe", "info", "export", "tokenize", "uptrain"]
)
def test_gguf_file_error_names_the_convert_command(lazy_binary, tmp_path, command):
    file = tmp_path / "a model.gguf"
    file.write_bytes(b"GGUF\x03\x00\x00\x00" + bytes(64))
    more = {"sinks": ["--text", "x"], "probe": ["--text", "x"], "export": [tmp_path / "out"], "serve": ["--port", "0"]}
    arguments = ["--tokenizer", file] if command == "tokenize" else [file, *more.get(command, [])]
    line = refused(lazy_binary, command, *arguments)
    assert f"lazy convert '{file}'" in line, line


def test_other_file_gets_no_convert_hint(lazy_binary, tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"GGU")
    assert "convert" not in refused(lazy_binary, "generate", file)


def test_pytorch_checkpoint_error_names_the_convert_command(lazy_binary, model, tmp_path):
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    for command in (["generate", "--prompt", "a"], ["eval", "--text", __file__], ["export", str(tmp_path / "out")]):
        line = refused(lazy_binary, command[0], tmp_path, *command[1:])
        assert "pytorch_model.bin" in line and "--from-torch" in line, line


def test_missing_option_error_names_the_command(lazy_binary):
    for command, named in ((["tokenize"], "--tokenizer"), (["data", "prepare"], "input"), (["export"], "model")):
        done = subprocess.run([lazy_binary, *command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        line, usage = done.stderr.strip().splitlines()
        path = " ".join(command)
        assert done.returncode == 2 and line.startswith(f"lazy: {path}: ") and named in line, line
        assert f"`lazy {path} --help`" in usage, usage


def test_missing_files_are_reported_before_the_model_is_loaded(lazy_binary, model, tmp_path):
    folder = tmp_path / "without-weights"
    folder.mkdir()
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    for command, named in (
        (["eval", folder, "--tasks", "hellaswag", "--data", tmp_path], "hellaswag"),
        (["eval", folder, "--text", tmp_path / "none.txt"], "none.txt"),
        (["eval", folder, "--corpus", tmp_path / "none"], "none"),
        (["sinks", folder, "--text", tmp_path / "none.txt"], "none.txt"),
        (["convert", folder, "--to", "lazy", "--output", tmp_path / "out"], "elastic"),
    ):
        line = refused(lazy_binary, *command)
        assert named in line and "safetensors" not in line, line


def test_export_of_an_unfinished_run_warns_with_its_step(lazy_binary, model, tmp_path):
    shutil.copytree(model.parent / "checkpoints", tmp_path / "run" / "checkpoints")
    command = [lazy_binary, "export", tmp_path / "run", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [step] = (tmp_path / "run" / "checkpoints").iterdir()
    total = json.loads((step / "state.json").read_text())["settings"]["training.steps"]
    assert f"step 3 of {total}" in done.stderr and "warn" in done.stderr, done.stderr
    assert "bf16" in done.stdout and "--dtype fp32" in done.stdout, done.stdout


def test_missing_gpu_error_names_option_or_key(lazy_binary, model, tmp_path):
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    line = refused(lazy_binary, "generate", model, "--prompt", "a", "--device", "cuda", **hidden)
    assert "--device" in line and "training" not in line, line
    config = tmp_path / "config.toml"
    config.write_text('[model]\nkind = "lazy"\n[data]\ncorpus = "corpus"\n[training]\nsteps = 1\ndevice = "cuda"\n')
    line = refused(lazy_binary, "train", config, **hidden)
    assert "training.device" in line and "--device" not in line, line


def gemma(layers, full, **more):
    kinds = ["full_attention" if n in full else "sliding_attention" for n in range(layers)]
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 300,
        "max_position_embeddings": 512,
        "sliding_window": 48,
        "layer_types": kinds,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "query_pre_attn_scalar": 16,
    } | more


def test_info_shows_every_kind_of_attention_layer(lazy_binary, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(gemma(6, [2, 5])))
    text = subprocess.run([lazy_binary, "info", tmp_path], check=True, capture_output=True, text=True).stdout
    lines = [line for line in text.splitlines() if " layers: " in line]
    assert len(lines) == 2, text
    for line, parts in zip(
        lines, (["4 layers", "48", "10000", "0, 1, 3, 4"], ["2 layers", "1e+06", "2, 5"]), strict=True
    ):
        assert all(part in line for part in parts), line
    (tmp_path / "config.json").write_text(json.dumps(gemma(2, [0, 1])))
    text = subprocess.run([lazy_binary, "info", tmp_path], check=True, capture_output=True, text=True).stdout
    assert " layers: " not in text and "1e+06" in text, text


def test_info_shows_the_stored_tau(lazy_binary, model, tmp_path):
    """`lazy info` must show the trained values of tau from the weights, not only the initial value -1 in
    config.json."""
    safetensors = pytest.importorskip("safetensors.numpy")
    tensors = safetensors.load_file(model / "model.safetensors")
    taus = numpy.concatenate([value for name, value in tensors.items() if name.endswith("softmax_offset")])
    read = subprocess.run([lazy_binary, "info", model, "--json"], check=True, capture_output=True, text=True).stdout
    found = json.loads(read)["tau"]
    for key, value in (("mean", taus.mean()), ("min", taus.min()), ("max", taus.max())):
        assert found[key] == pytest.approx(value, abs=1e-6)
    text = subprocess.run([lazy_binary, "info", model], check=True, capture_output=True, text=True).stdout
    (line,) = [line for line in text.splitlines() if line.startswith("tau")]
    numbers = [float(number) for number in re.findall(r"-?[0-9.]+", line.replace(",", ""))]
    assert numbers == pytest.approx([taus.min(), taus.max(), taus.mean(), -1], abs=1e-3), line
    (tmp_path / "config.json").write_bytes((model / "config.json").read_bytes())  # a second folder, without weights
    done = subprocess.run([lazy_binary, "info", tmp_path], check=True, capture_output=True, text=True)
    assert "\ntau" not in done.stdout and "tau" in done.stderr


def test_folder_without_tokenizer_is_refused_with_advice(lazy_binary, model, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((model / name).read_bytes())
    assert "save_pretrained" in refused(lazy_binary, "generate", tmp_path, "--prompt", "a")


def test_sinks_logs_the_measurement_first(lazy_binary, model, tmp_path):
    (tmp_path / "text").write_text("Near a mat sat the cat, under the tree.\n" * 100)
    command = [lazy_binary, "sinks", model, "--text", tmp_path / "text", "--samples", "3"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    lines = done.stderr.splitlines()
    assert str(model) in lines[0], lines  # a message names the model before loading, which may take minutes
    (line,) = [line for line in lines if "3 samples of 32 tokens" in line]
    assert "2 attention layers of 2 heads" in line and "samples of 64 tokens" in line, line


def test_sinks_can_omit_sink_1(lazy_binary, model, tmp_path):
    (tmp_path / "text").write_text("Near a mat sat the cat, under the tree.\n" * 2)
    command = [lazy_binary, "sinks", model, "--text", tmp_path / "text", "--length", "16", "--samples", "2"]
    command += ["--sink-samples", "0", "--report", tmp_path / "sinks.html"]
    done = subprocess.run([*command, "--json", tmp_path / "out.json"], check=True, capture_output=True, text=True)
    assert "Sink_1" not in done.stdout + done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert "sink_1_0.3" not in found["overall"] and found["overall"]["sink_ratio"] > 0
    done = subprocess.run([*command, "--measures", "weights"], capture_output=True, text=True)
    assert done.returncode == 2 and "--sink-samples" in done.stderr.splitlines()[-1]


def test_interrupted_data_prepare_writes_nothing(lazy_binary, tmp_path):
    out = tmp_path / "corpus"
    command = [lazy_binary, "data", "prepare", "-", "--output", out, "--tokenizer", "bytes"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdin.write(b"some text\n" * 1000000)  # write() blocks until the program reads its standard input
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGINT
        assert b"SIGINT" in process.stderr.read().splitlines()[-1]
    assert not out.exists()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_convert_leaves_nothing(lazy_binary, tmp_path, stop):
    """The signal arrives while `lazy convert` waits for its Python interpreter. The test uses an interpreter that never
    answers."""
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(100))
    silent = tmp_path / "python"
    silent.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexec cat > /dev/null\n")
    silent.chmod(0o755)
    command = [lazy_binary, "convert", tmp_path / "model.gguf", tmp_path / "out"]
    environment = {**os.environ, "LAZY_PYTHON": str(silent)}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, env=environment, text=True, start_new_session=True
    ) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert list(tmp_path.glob("out.tmp-*"))
        os.killpg(process.pid, stop)
        [line] = process.stderr.read().splitlines()
        assert process.wait(60) == 128 + stop
    assert stop.name in line, line
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("python", ["/nonexistent/python", "/bin/false"])
def test_doctor_names_an_unusable_python(lazy_binary, python):
    environment = {**os.environ, "LAZY_PYTHON": python}
    done = subprocess.run([lazy_binary, "doctor", "--json"], capture_output=True, text=True, env=environment)
    [check] = [check for check in json.loads(done.stdout)["checks"] if check["subject"] == "Python"]
    assert check["state"] == "missing" and python in check["found"] and python in check["mend"], check


def test_doctor_without_a_path_names_the_interpreter(lazy_binary, tmp_path):
    """Without the variable PATH, Python cannot determine its own path if it is started by name."""
    environment = {name: value for name, value in os.environ.items() if name != "PATH"}
    environment |= {"LAZY_PYTHON": "python3"}
    done = subprocess.run([lazy_binary, "doctor", "--json"], capture_output=True, text=True, env=environment)
    checks = {check["subject"]: check for check in json.loads(done.stdout)["checks"]}
    if "Python packages" not in checks:
        pytest.skip("the system's python3 has all packages, or there is none")
    words = checks["Python packages"]["mend"].split()
    assert any(Path(word).name.startswith("python") and Path(word).is_file() for word in words), words


def test_repro_is_an_alias_of_lab(lazy_binary, tmp_path):
    pytest.importorskip("matplotlib", reason="the package matplotlib is not installed")

    def run(*arguments):
        return subprocess.run([lazy_binary, *arguments], capture_output=True, text=True, cwd=tmp_path)

    repro = run("repro", "list", "--json")
    assert repro.returncode == 0 and {"fig10", "gpt2"} <= {row["recipe"] for row in json.loads(repro.stdout)}
    [line] = repro.stderr.strip().splitlines()
    assert "`lazy repro` is now `lazy lab`" in line
    # `lazy repro` passes its arguments on, so unsupported options and recipes give the errors of `lazy lab`.
    for arguments, names in (
        (["evidence"], ["'evidence'", "lazy lab list"]),
        (["list", "--records", "x"], ["--records"]),
    ):
        done = run("repro", *arguments)
        warning, line = done.stderr.strip().splitlines()[:2]
        assert done.returncode == 2 and "lazy lab" in warning and all(name in line for name in names), done.stderr
    options = re.compile(r"^ +(--[a-z-]+)", re.MULTILINE)
    assert options.findall(run("repro", "--help").stdout) == options.findall(run("lab", "--help").stdout) != []
