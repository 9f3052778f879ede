"""Tests of `import lazy_attention`: which libraries and modules it loads, and its errors if a part is missing or
PyTorch is too old."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import lazy_attention
import pytest
import torch
from lazy_attention import _library
from naming import naming

PACKAGE = Path(lazy_attention.__file__).parent


def python(code: str, *path) -> str:
    """Runs code in a new interpreter, with the folders `path` first in sys.path. Returns its output."""
    code = f"import sys; sys.path[:0] = {[str(folder) for folder in path]}\n" + code
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_import_does_not_load_transformers():
    code = "import lazy_attention; print(sorted({'transformers', 'lazy_attention.hf'} & set(sys.modules)))"
    assert python(code, PACKAGE.parent) == "[]\n"


@pytest.mark.slow
def test_operators_pass_the_checks_of_pytorch():
    script = Path(__file__).parents[1] / "ops" / "check_operators.py"
    python(f"import runpy; sys.argv = ['', 'lazy_attention']; runpy.run_path({str(script)!r})", PACKAGE.parent)


def test_older_pytorch_gives_a_one_line_error():
    _library.check_version(torch.__version__)
    _library.check_version("2.11.0+cpu")
    _library.check_version("3.0.0a0+git1234")
    with pytest.raises(ImportError, match=naming("lazy_attention", "2.11", "2.10.0+cu128")):
        _library.check_version("2.10.0+cu128")


ON_THE_CPU = """
import torch, lazy_attention
q = torch.randn(1, 5, 2, 16, requires_grad=True)
lazy_attention.attention(q, q, q, normalizer="softmax").sum().backward()
assert q.grad.isfinite().all()
cuda = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
try:
    torch.ops.lazy.swiglu.default.redispatch(cuda, q, q)
except RuntimeError as error:
    print(error)
"""


def copy_installed_package(folder: Path) -> None:
    """Copies the package to `folder` in the layout of the wheel, which contains the operator library. The CUDA library
    is not copied."""
    shutil.copytree(PACKAGE, folder / "lazy_attention", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(lazy_attention.LIBRARY, folder / "lazy_attention" / _library.NAME)
    brought = PACKAGE.with_name("lazy_attention.libs")  # third-party libraries in the wheel
    if brought.is_dir():
        shutil.copytree(brought, folder / brought.name)


@pytest.mark.slow
def test_variable_has_priority_over_the_library_of_an_installed_package(tmp_path, monkeypatch):
    copy_installed_package(tmp_path)
    other = Path(shutil.copy(lazy_attention.LIBRARY, tmp_path / "other.so"))
    monkeypatch.setenv("LAZY_OPS_LIBRARY", str(other))
    assert python("import lazy_attention; print(lazy_attention.LIBRARY)", tmp_path) == f"{other}\n"


@pytest.mark.slow
@pytest.mark.parametrize("content", [None, "no library"])
def test_cpu_operators_work_without_the_cuda_library(content, tmp_path, monkeypatch):
    copy_installed_package(tmp_path)
    monkeypatch.delenv("LAZY_OPS_LIBRARY", raising=False)
    library = tmp_path / "lazy_attention" / _library.CUDA_NAME
    if content:
        library.write_text(content)
    said = python(ON_THE_CPU, tmp_path)
    assert re.search(naming("lazy::swiglu", "CPU", "CUDA"), said), said
    assert said.count("\n") == 1
    if torch.version.cuda:
        assert str(library) in said


@pytest.mark.parametrize("in_tree", [True, False])
def test_failed_import_of_pytorch_gives_a_one_line_error(tmp_path, in_tree):
    """Tests the error if PyTorch cannot be imported. In the source tree, the error names `make python`, which installs
    the missing packages."""
    shutil.copytree(PACKAGE, tmp_path / "python" / "lazy_attention", ignore=shutil.ignore_patterns("*.so"))
    if in_tree:
        (tmp_path / "src" / "ops").mkdir(parents=True)
    (tmp_path / "python" / "torch.py").write_text("import typing_extension_that_is_missing\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'python')!r})\nimport lazy_attention\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert message.startswith("ImportError: lazy_attention: ") and "typing_extension_that_is_missing" in message
    assert ("`make python`" in message and ".venv/bin/python" in message) == in_tree
    assert "During handling" not in done.stderr
