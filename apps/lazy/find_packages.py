"""Reports which Python packages can be imported (`lazy doctor`).

The first line of standard input is {"packages": [names]}. The script answers {"ready": true, "missing": [names that
cannot be imported], "install": shell command that installs packages, without their names; the caller appends them}.
"""

import contextlib
import importlib
import importlib.util
import json
import os
import shlex
import sys
import sysconfig


def can_import(name):
    try:
        with contextlib.redirect_stdout(sys.stderr):  # standard output is reserved for the answer
            importlib.import_module(name)
    except Exception:  # an incomplete installation can raise any exception
        return False
    return True


def install_command():
    # If Python was started without a PATH, sys.executable is empty.
    python = shlex.quote(sys.executable or os.path.realpath("/proc/self/exe"))
    managed = os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    # pip refuses to install into an externally managed Python (PEP 668)
    if sys.prefix == sys.base_prefix and os.path.exists(managed):
        folder = "~/.lazy-python"
        return f"{python} -m venv {folder} && export LAZY_PYTHON={folder}/bin/python && $LAZY_PYTHON -m pip install"
    if importlib.util.find_spec("pip") is None:
        return f"uv pip install --python {python}"
    return f"{python} -m pip install"


def main():
    packages = json.loads(sys.stdin.buffer.readline())["packages"]
    missing = [name for name in packages if not can_import(name)]
    answer = {"ready": True, "missing": missing, "install": install_command()}
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()


main()
