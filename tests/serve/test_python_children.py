"""Tests that the Python processes that `lazy` starts do not import modules from the working directory, and that they
work with every locale."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from serving import Server

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("jinja2")

PLANTED = "open(__file__ + '.ran', 'w').close()\nraise SystemExit(9)\n"


def imported_names(root):
    """Returns the names of all modules that the Python scripts of `lazy` import, and of all modules of the standard
    library."""
    names = set(sys.stdlib_module_names) | {
        "jinja2",
        "pyarrow",
        "markupsafe",
        "numpy",
        "sitecustomize",
        "usercustomize",
    }
    for script in [*(root / "src").rglob("*.py"), *(root / "apps").rglob("*.py")]:
        for node in ast.walk(ast.parse(script.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add(node.module.split(".")[0])
    return names


@pytest.fixture
def planted(tmp_path, root):
    """Returns a working directory that contains a module for each of these names. Each module writes a file when it is
    imported."""
    folder = tmp_path / "planted"
    folder.mkdir()
    for name in imported_names(root):
        (folder / f"{name}.py").write_text(PLANTED)
    return folder


def environment(**more):
    return {**os.environ, "LAZY_PYTHON": sys.executable, **more}


def write_parquet(path):
    with open(path, "wb") as file:
        parquet.write_table(pyarrow.table({"text": ["é世", "second"]}), file)


@pytest.mark.parametrize("path", [None, "", ".", f".{os.pathsep}/nowhere"], ids=["unset", "empty", "dot", "list"])
def test_working_directory_is_not_imported(lazy_binary, planted, path):
    env = environment() if path is None else environment(PYTHONPATH=path)
    write_parquet(planted / "rows.parquet")
    command = [lazy_binary, "data", "prepare", "rows.parquet", "--output", "corpus", "--tokenizer", "bytes"]
    done = subprocess.run(command, cwd=planted, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2 documents" in done.stdout + done.stderr
    done = subprocess.run([lazy_binary, "doctor"], cwd=planted, env=env, capture_output=True, text=True)
    assert re.search(r"ok +chat templates", done.stdout) and re.search(r"ok +Parquet", done.stdout), done.stdout
    assert not list(planted.glob("*.ran"))


def test_relative_interpreter_path_is_found(lazy_binary, tmp_path):
    os.symlink(sys.executable, tmp_path / "interpreter")
    env = environment(LAZY_PYTHON="./interpreter", PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run([lazy_binary, "doctor"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert re.search(r"ok +Python +\./interpreter", done.stdout), done.stdout
    assert re.search(r"ok +chat templates", done.stdout), done.stdout


# Locales other than UTF-8 are rarely installed. Instead of changing the locale, the tests run Python with standard
# streams in other encodings, which has the same effect.
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "gbk", "ascii"])
def test_chat_is_independent_of_the_locale(lazy_binary, root, planted, monkeypatch, encoding):
    model = planted / "model"
    subprocess.run(["cp", "-r", root / "tests/compatibility/v0.1/lazy/model", model], check=True)
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}|{{ messages[0].content | tojson }}")
    for name, value in environment(PYTHONIOENCODING=encoding, PYTHONUTF8="0", LC_ALL="C").items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(planted)
    server = Server(lazy_binary, str(model))
    try:
        for text in ("é", "世", "😀", "plain"):
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": 0}
            status, answer = server.post("/v1/chat/completions", body)
            assert status == 200, answer
            plain = {"prompt": f"{text}|{json.dumps(text, ensure_ascii=False)}", "add_special_tokens": False}
            assert answer["usage"]["prompt_tokens"] == server.post("/tokenize", plain)[1]["count"]
    finally:
        server.stop()
    assert not list(planted.glob("*.ran"))


def test_paths_with_arbitrary_bytes_are_readable(lazy_binary, tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xe4"))
    folder.mkdir()
    write_parquet(folder / "rows.parquet")
    command = [lazy_binary, "data", "prepare", folder / "rows.parquet", "--output", "corpus", "--tokenizer", "bytes"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(LC_ALL="C"), capture_output=True)
    assert done.returncode == 0, done.stderr


def doctor(lazy_binary, environment):
    """Runs `lazy doctor` and returns {subject: check}."""
    done = subprocess.run([lazy_binary, "doctor", "--json"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {check["subject"]: check for check in json.loads(done.stdout)["checks"]}


def interpreter(path, packages):
    """Writes a mock Python interpreter: a program that runs the current Python, whose only packages are empty modules
    of the given names."""
    folder = path.parent / "packages"
    folder.mkdir()
    for name in packages:
        (folder / f"{name}.py").write_text("")
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}" exec "{sys.executable}" -S "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_doctor_names_missing_packages_and_one_command(lazy_binary, tmp_path):
    python = interpreter(tmp_path / "python", ["jinja2", "numpy", "scipy"])
    found = doctor(lazy_binary, {"LAZY_PYTHON": python})
    assert python in found["Python"]["found"] and "LAZY_PYTHON" in found["Python"]["found"]
    assert found["chat templates"]["state"] == "ok"
    for subject, missing in {
        "GGUF files": {"gguf"},
        "PyTorch files": {"torch", "safetensors"},
        "Parquet files": {"pyarrow"},
        "Hub downloads": {"huggingface_hub"},
        "lazy uptrain": {"matplotlib"},
    }.items():
        assert found[subject]["state"] == "missing"
        assert set(found[subject]["found"].partition(": ")[2].split(", ")) == missing
    command = found["Python packages"]["mend"]
    assert "jinja2" not in command
    assert {"gguf", "torch", "safetensors", "pyarrow", "huggingface_hub", "matplotlib"} <= set(command.split())


def test_program_finds_interpreter_of_its_build_without_path(lazy_binary):
    """Runs `lazy` in the environment of a system service: LAZY_PYTHON is not set, and the virtual environment is not on
    the PATH."""
    build = Path(lazy_binary).parent
    [python] = re.findall(r"^LAZY_PYTHON:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.M)
    if not os.access(python, os.X_OK):
        pytest.skip("the build does not use a Python environment with a fixed path")
    found = doctor(lazy_binary, {"PATH": "/nonexistent"})
    assert found["Python"]["found"].startswith(python) and found["chat templates"]["state"] == "ok"
