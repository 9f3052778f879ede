"""Starts a command of the package lazy_lab, such as `lazy uptrain`, with its arguments as one JSON object.

The key "package_folders" lists folders of the program's installation or source tree that may contain lazy_lab. They are
used if the interpreter does not have the package. The key "module" names the Python module if it differs from the name
of the command.
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
