#!/usr/bin/env python3
"""The order of the rooms: a source file includes only files of its own room and of rooms above it in the list.

Usage: rooms.py SOURCE             checks the tree below SOURCE
       rooms.py SOURCE --turned    checks the check: turns each arrow of the list in a copy, and expects a failure

The list is the block marked `rooms` in docs/architecture.md: a line is a level, its rooms are separated by commas. A
room is a path prefix below src/; `apps` is apps/, `lazy` is include/lazy/. The longest prefix that fits names a file's
room.
"""

import pathlib
import re
import sys
import tempfile

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
TORCH = re.compile(r'^\s*#\s*include\s+[<"](?:torch|ATen|c10)/', re.MULTILINE)
NATIVE = {".h", ".cc", ".cu", ".cuh"}
WITHOUT_TORCH = ("attention", "lazy")  # the kernel library
MAY_CALL_KERNELS = ("attention", "lazy", "ops")


def read_levels(document):
    block = re.search(r"^```rooms\n(.*?)^```", document.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    if not block:
        sys.exit(f"{document}: no block marked ```rooms")
    levels = {}
    for level, line in enumerate(line for line in block[1].splitlines() if line.strip()):
        for room in line.split(","):
            levels[room.strip()] = level
    return levels


def room_of(path, levels):
    """The longest listed prefix of `path` (relative to src/), which ends at a `/`, a `.` or a `_`, or nothing."""
    fitting = [room for room in levels if path == room or (path.startswith(room) and path[len(room)] in "/._")]
    return max(fitting, key=len, default=None)


def sources(root):
    for top, prefix in (("src", ""), ("include", ""), ("apps", "apps/")):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in NATIVE:
                yield path, prefix + path.relative_to(root / top).as_posix()


def check(root, levels):
    errors = []
    known = {name for _, name in sources(root)}
    for path, name in sources(root):
        room = room_of(name, levels)
        if room is None:
            errors.append(f"{path.relative_to(root)}: its folder is not in the list of rooms")
            continue
        text = path.read_text(encoding="utf-8")
        if room.split("/")[0] in WITHOUT_TORCH and TORCH.search(text):
            errors.append(f"{path.relative_to(root)}: the kernel library includes a Torch header")
        for included in INCLUDE.findall(text):
            if included not in known:
                continue  # made by the build, or of a library
            other = room_of(included, levels)
            if other in WITHOUT_TORCH and room.split("/")[0] not in MAY_CALL_KERNELS:
                errors.append(f"{path.relative_to(root)}: only ops calls the kernels ({included})")
            elif other is not None and other != room and levels[other] >= levels[room]:
                errors.append(f"{path.relative_to(root)}: {room} must not include {other} ({included})")
    return errors


def check_turned(root, levels):
    """An include of every room in every room below it must be reported."""

    def write(folder, room, text):
        """A file of the room; returns the name that includes it."""
        name = room if room.endswith(".h") else f"{room}/there.h"
        path = folder / name if room == "apps" else folder / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return name

    for lower in levels:
        for upper in levels:
            if levels[upper] <= levels[lower]:
                continue
            with tempfile.TemporaryDirectory() as name:
                folder = pathlib.Path(name)
                included = write(folder, upper, "")
                write(folder, lower, f'#include "{included}"\n')
                if upper == "apps":
                    (folder / "apps" / included).parent.mkdir(parents=True, exist_ok=True)
                    (folder / "apps" / included).write_text("")
                if not check(folder, levels):
                    sys.exit(f"an include of {upper} in {lower} was not reported")


def main():
    root = pathlib.Path(sys.argv[1])
    levels = read_levels(root / "docs/architecture.md")
    if "--turned" in sys.argv:
        check_turned(root, levels)
        return
    errors = check(root, levels)
    print("\n".join(errors))
    sys.exit(1 if errors else 0)


main()
