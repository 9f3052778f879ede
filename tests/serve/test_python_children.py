"""The Python processes that `lazy` starts must not import from the working directory. They work with every locale."""

import ast
import json
import os
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
    """Names of all modules that scripts in src/ import, and of the standard library's modules, which they import."""
    names = set(sys.stdlib_module_names) | {
        "jinja2",
        "pyarrow",
        "markupsafe",
        "numpy",
        "sitecustomize",
        "usercustomize",
    }
    for script in (root / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(script.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add(node.module.split(".")[0])
    return names


@pytest.fixture
def planted(tmp_path, root):
    """A working directory with a module for every such name. Each module writes a file when it is executed."""
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
    assert "pyarrow of" in done.stdout and "jinja2 of" in done.stdout, done.stdout
    assert not list(planted.glob("*.ran"))


def test_relative_interpreter_path_is_found(lazy_binary, tmp_path):
    os.symlink(sys.executable, tmp_path / "interpreter")
    env = environment(LAZY_PYTHON="./interpreter", PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run([lazy_binary, "doctor"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert "jinja2 of ./interpreter" in done.stdout, done.stdout


# Locales other than UTF-8 are rarely installed. A Python whose streams use Latin-1 or GBK has the same effect.
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
