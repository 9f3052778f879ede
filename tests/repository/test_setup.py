"""Tests of scripts/setup.sh, of the package lists that it installs, and of scripts/build.sh."""

import os
import shutil
import subprocess

import pytest

DPKG_QUERY = "#!/bin/sh\nprintf installed\n"
DF = "#!/bin/sh\necho 'Filesystem 1048576-blocks Used Available Capacity Mounted'\necho \"/dev/a 1 1 $FREE 1% /\"\n"
DU = '#!/bin/sh\necho "$PRESENT\t.venv/"\n'
# A mock `python3`. `python3 -m venv .venv` writes an interpreter that logs its arguments and its TMPDIR.
PYTHON = """#!/bin/sh
mkdir -p .venv/bin
printf '%s\\n' '#!/bin/sh' 'echo "$TMPDIR|$*" >> pip.log; test -d "$TMPDIR"' > .venv/bin/python
chmod +x .venv/bin/python
"""
NAMES = {"": "requirements", "python": "requirements-python", "test": "requirements-test"}


@pytest.fixture
def setup(root, tmp_path):
    """Returns a function that runs setup.sh in a copy of scripts/ with mock programs, and returns the finished process
    and the calls of pip."""
    tree = tmp_path / "tree"
    shutil.copytree(root / "scripts", tree / "scripts")
    (tree / ".deps/sentencepiece-0.2.0/sentencepiece").mkdir(parents=True)
    (tree / ".deps/sentencepiece-0.2.0/sentencepiece/CMakeLists.txt").touch()
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in {"dpkg-query": DPKG_QUERY, "df": DF, "du": DU, "python3": PYTHON}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)

    def run(argument, present, free):
        environment = {k: v for k, v in os.environ.items() if k not in ("LAZY_PYTHON", "TMPDIR")}
        environment |= {"PATH": f"{programs}:{os.environ['PATH']}", "FREE": str(free), "PRESENT": str(present)}
        command = ["bash", tree / "scripts/setup.sh", *([argument] if argument else [])]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        log = tree / "pip.log"
        calls = [line.split("|") for line in log.read_text().splitlines()] if log.exists() else []
        log.unlink(missing_ok=True)
        return done, calls

    run.tree = tree
    return run


def test_too_little_space_is_reported_before_anything_is_installed(setup):
    for argument, needed in {"python": "7.5 GiB", "test": "7.5 GiB"}.items():
        done, calls = setup(argument, present=26, free=7000)
        assert done.returncode == 1 and not calls
        line = done.stderr.splitlines()[-1]
        assert f"{setup.tree}/.venv" in line and needed in line and "6.8 GiB" in line, line


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="with a GPU, make also installs the CUDA libraries")
def test_make_alone_needs_less_space(setup):
    done, calls = setup("", present=26, free=1500)
    assert done.returncode == 1 and not calls and "2.2 GiB" in done.stderr
    done, calls = setup("", present=26, free=2300)
    assert done.returncode == 0 and len(calls) == 1, done.stderr


@pytest.mark.parametrize("argument", ["python", "test"])
def test_downloads_are_stored_in_the_environment_and_not_cached(setup, argument):
    done, calls = setup(argument, present=26, free=8000)
    assert done.returncode == 0, done.stderr
    names = [NAMES[""], NAMES[argument], *(["requirements-torchtitan"] if argument == "test" else [])]
    for (folder, options), name in zip(calls, names, strict=True):
        assert folder == str(setup.tree / ".venv/tmp") and "--no-cache-dir" in options
        assert options.endswith(f"scripts/{name}.txt")
    assert not (setup.tree / ".venv/tmp").exists()
    assert setup(argument, present=26, free=0)[1] == []  # pip is not called, because everything is installed


def test_space_of_installed_packages_is_not_needed_again(setup):
    assert setup("python", present=26, free=8000)[0].returncode == 0
    done, calls = setup("test", present=5371, free=500)
    assert done.returncode == 0 and len(calls) == 2, done.stderr


def pins(path):
    lines = (line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return {line.split("==")[0]: line for line in lines if line}


def test_packages_of_the_tests_include_packages_of_make_python(root):
    """If the packages for the tests are installed, scripts/setup.sh must not install further packages for `make
    python`. Therefore the list of test packages must contain all packages of `make python`."""
    python, tests = (pins(root / "scripts" / f"requirements-{name}.txt") for name in ("python", "test"))
    assert python and python.items() <= tests.items()


def test_all_lists_require_the_same_pytorch(root):
    found = [pins(root / "scripts" / f"requirements{name}.txt")["torch"] for name in ("", "-python", "-test")]
    assert len(set(found)) == 1


# A mock `cmake`. `cmake --preset ...` logs its arguments and writes the files of a configured build folder.
CMAKE = """#!/bin/sh
[ "$1" = --preset ] || exit 0
echo "$*" >> cmake.log
mkdir -p "$4"
touch "$4/build.ninja"
echo "$5" | sed 's/^-DLAZY_CUDA=/LAZY_CUDA:STRING=/' > "$4/CMakeCache.txt"
"""


def test_build_folder_keeps_cuda_setting(root, tmp_path):
    (tmp_path / "scripts").mkdir()
    for name in ("build.sh", "say.sh"):
        shutil.copy(root / "scripts" / name, tmp_path / "scripts")
    (tmp_path / "cmake").write_text(CMAKE)
    (tmp_path / "cmake").chmod(0o755)

    def configured(cuda, preset="release"):
        """Runs build.sh. Returns the value of LAZY_CUDA with which CMake was started, or None if it was not started."""
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LAZY_CUDA": cuda}
        command = ["bash", tmp_path / "scripts/build.sh", preset, "build", "lazy"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        log = tmp_path / "cmake.log"
        calls = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return calls[0].rpartition("-DLAZY_CUDA=")[2] if calls else None

    assert configured("") == "AUTO"
    assert configured("auto") is None
    assert configured("off") == "OFF"
    assert configured("") is None and configured("OFF") is None
    assert configured("", preset="debug") == "OFF"
    assert configured("on", preset="debug") == "ON"

    environment = {"PATH": os.environ["PATH"], "LAZY_CUDA": "no"}
    command = ["bash", tmp_path / "scripts/build.sh", "release", "build"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and "LAZY_CUDA" in done.stderr and "found no" in done.stderr
