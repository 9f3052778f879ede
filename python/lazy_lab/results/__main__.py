"""`python -m lazy_lab.results [--check] [--output DIR] [PAGE...]`: writes or compares the pages of docs/results."""

import argparse
import filecmp
import sys
import tempfile
from pathlib import Path

from ..errors import UserError
from ..records import FOLDER
from . import details, overview, paper_figures, rivals, table1

PAGES = {
    "README": overview.write,
    "table1": table1.write,
    "rivals": rivals.write,
    "figures": paper_figures.write,
    "details": details.write,
}


def write_pages(folder, names=PAGES):
    """Writes the pages `names` and their pictures to the folder."""
    for name in names:
        if name not in PAGES:
            raise UserError(f"lab pages: expected a page of {', '.join(PAGES)}; found {name}")
        PAGES[name](folder)


def differing(folder, names=PAGES):
    """Returns the names of the files in the folder that differ from freshly written pages and pictures."""
    with tempfile.TemporaryDirectory() as made:
        write_pages(Path(made), names)
        files = sorted(path.name for path in Path(made).iterdir())
        _, different, missing = filecmp.cmpfiles(made, folder, files, shallow=False)
    return sorted(different + missing)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="lazy_lab.results", description="Writes the pages of docs/results.")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"pages to write (default: {', '.join(PAGES)})")
    parser.add_argument("--output", type=Path, default=FOLDER.parent, help="folder of the pages")
    parser.add_argument("--check", action="store_true", help="compare the pages with the records; write nothing")
    options = parser.parse_args(arguments)
    names = options.pages or PAGES
    if not options.check:
        options.output.mkdir(parents=True, exist_ok=True)
        write_pages(options.output, names)
        return 0
    stale = differing(options.output, names)
    for name in stale:
        print(f"{options.output / name}: differs from the page that the records yield", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
