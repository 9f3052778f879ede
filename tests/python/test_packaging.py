"""Tests of the packages lazy-attention and lazy-attention-cli: contents of pyproject.toml, and the start of the
program."""

import os
import re
import sys
from pathlib import Path

import pytest
from naming import naming
from packaging.requirements import Requirement

tomllib = pytest.importorskip("tomllib")
ROOT = Path(__file__).parents[2]
CLI = ROOT / "packaging" / "cli"


def read(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text())


def torch_of(requirements):
    return next(found for text in requirements if (found := Requirement(text)).name == "torch")


def test_both_packages_have_the_version_of_the_project():
    for folder in (ROOT, CLI):
        source = read(folder)["tool"]["scikit-build"]["metadata"]["version"]
        project = (folder / source["input"]).resolve()
        assert project == ROOT / "CMakeLists.txt"
        assert re.search(source["regex"], project.read_text())["value"]
        assert read(folder)["project"]["requires-python"] == read(ROOT)["project"]["requires-python"]


def test_program_requires_the_pytorch_version_of_its_build():
    cli, operator = read(CLI), read(ROOT)
    wanted = torch_of(cli["project"]["dependencies"])
    least = re.search(r"find_package\(LibTorch ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    # the program needs exactly this minor version, because LibTorch's C++ ABI changes in each one
    assert str(wanted.specifier) == f"=={least}.*"
    assert torch_of(cli["build-system"]["requires"]) == wanted
    # The wheel of the operator is built with the oldest PyTorch version that the package supports.
    assert torch_of(operator["build-system"]["requires"]) == wanted
    assert torch_of(operator["project"]["dependencies"]).specifier.contains(f"{least}.0")


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Returns the package lazy_attention_cli, installed in a temporary site-packages folder next to a mock PyTorch."""
    monkeypatch.syspath_prepend(str(CLI))
    import lazy_attention_cli

    package, torch = tmp_path / "site" / "lazy_attention_cli", tmp_path / "site" / "torch"
    for folder in (package, torch):
        folder.mkdir(parents=True)
    (package / "built_with.txt").write_text("2.11.0\n")
    (torch / "version.py").write_text("__version__ = '2.11.1+cpu'\n")
    monkeypatch.setattr(lazy_attention_cli, "HERE", package)
    monkeypatch.setattr(lazy_attention_cli, "torch_folder", lambda: torch)
    monkeypatch.setattr(sys, "argv", ["/somewhere/lazy", "info", "a b"])
    return lazy_attention_cli


def test_program_uses_the_current_python_interpreter(program, monkeypatch):
    started = []
    monkeypatch.setattr(os, "execve", lambda *arguments: started.append(arguments))
    monkeypatch.setenv("LAZY_PYTHON", "")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")
    program.main()
    path, arguments, environment = started[0]
    assert path == program.HERE / "lazy" and arguments == ["lazy", "info", "a b"]
    assert environment["LAZY_PYTHON"] == sys.executable and environment["LD_LIBRARY_PATH"] == "/opt/lib"


def test_library_path_includes_pytorch_of_another_folder(program, tmp_path, monkeypatch):
    torch = tmp_path / "other" / "torch"
    torch.mkdir(parents=True)
    (torch / "version.py").write_text("__version__ = '2.11.0'\n")
    monkeypatch.setattr(program, "torch_folder", lambda: torch)
    started = []
    monkeypatch.setattr(os, "execve", lambda *arguments: started.append(arguments))
    monkeypatch.setenv("LAZY_PYTHON", "/usr/bin/python3")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")
    program.main()
    environment = started[0][2]
    assert environment["LD_LIBRARY_PATH"] == f"{torch}/lib:/opt/lib"
    assert environment["LAZY_PYTHON"] == "/usr/bin/python3"


def test_other_pytorch_version_gives_a_one_line_error(program, monkeypatch):
    torch = program.torch_folder()
    (torch / "version.py").write_text("__version__ = '2.13.0'\n")
    with pytest.raises(SystemExit) as stop:
        program.main()
    assert str(stop.value) == (
        f"lazy: expected PyTorch 2.11, found 2.13.0 in {torch}: `{sys.executable} -m pip install 'torch==2.11.*'`"
    )
    monkeypatch.setattr(program, "torch_folder", lambda: None)
    with pytest.raises(SystemExit, match=naming("lazy", "2.11", sys.executable)):
        program.main()
