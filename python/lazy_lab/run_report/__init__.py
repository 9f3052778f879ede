"""`lazy report`: writes one HTML page about runs, or about results of `lazy eval --lengths` or `lazy sinks`.

The page contains its styles and pictures, needs no network and no script, and is readable on phones, on paper, and in
light and dark mode. docs/reference/report.md describes its contents.
"""

import datetime
import importlib.util
import os
import sys
from pathlib import Path

from ..errors import UserError
from ..steps import write_atomic

PACKAGES = ("jinja2", "matplotlib")


def check_packages():
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        install = f"{sys.executable} -m pip install {' '.join(missing)}"
        raise UserError(f"expected the Python packages {', '.join(PACKAGES)}, found no {missing[0]}: `{install}`")
    if sys.version_info < (3, 11):
        raise UserError(f"expected Python 3.11 or later, found {sys.executable} {sys.version.split()[0]}")


def page_about(paths, command, version):
    """Returns the HTML text of the page about run folders, or about one result file."""
    from . import lengths, page, runs
    from .fields import Field

    date = datetime.date.today().isoformat()
    found = []
    for path in map(Path, paths):
        if path.is_dir():
            found.append(runs.load_run(path))
            continue
        if not path.is_file():
            raise UserError(f"{path}: expected the folder of a run or a file of results, found no such path")
        content = Field.read(path)
        if "schema" in content:
            if len(paths) > 1:
                raise UserError(f"{path}: expected this file of `lazy eval --lengths` alone, found {len(paths)} inputs")
            return lengths.render(content, command, date, version)
        found.append(runs.load_result(content, path))
    for run in found:
        if run.status:
            print(f"lazy report: {run.name}: {run.status}", file=sys.stderr)
    return page.render(found, command, date, version)


def main(arguments):
    """Runs `lazy report`. `arguments` is the JSON object that apps/lazy/report.cc passes: "inputs" and "output" are
    paths relative to "directory". Returns the exit code."""
    output = Path(arguments["output"])
    try:
        # A module in the working directory, such as json.py next to the user's data, must not be imported.
        sys.path[:] = filter(os.path.isabs, sys.path)
        os.chdir(arguments["directory"])
        if output.is_dir():
            raise UserError(f"--output {output}: expected a file's name, found a folder")
        if not output.absolute().parent.is_dir():
            raise UserError(f"--output {output}: expected a file in an existing folder, found no such folder")
        check_packages()
        write_atomic(output, page_about(arguments["inputs"], arguments["line"], arguments["version"]))
    except UserError as error:
        print(f"lazy report: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:  # for example, a file that cannot be read or a full disk
        print(f"lazy report: {error.filename or output}: {error.strerror or error}", file=sys.stderr)
        return 1
    print(output)
    return 0
