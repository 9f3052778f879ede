"""Starts a command of the package lazy_lab, such as `lazy uptrain`, with its arguments as one JSON object.

"package_folders" are the folders of the program's installation or source tree that may contain the package. They are
used if the interpreter does not have the package. "module" is the module of a command that has another name.
"""

import importlib
import importlib.util
import json
import sys

arguments = json.loads(sys.argv[1])
folders = arguments.pop("package_folders")
command = arguments.pop("command")
sys.path += folders
if importlib.util.find_spec("lazy_lab") is None:
    print(
        f"lazy {command}: the Python package lazy_lab is missing: expected it in {' or '.join(folders)}, "
        f"or importable by {sys.executable} (LAZY_PYTHON selects another interpreter)",
        file=sys.stderr,
    )
    sys.exit(2)
sys.exit(importlib.import_module(f"lazy_lab.{arguments.pop('module', command)}").main(arguments))
