"""`python -m lazy_lab.results [--check] [--output DIR] [PAGE...]`: writes or compares the pages of docs/results."""

import argparse
import filecmp
import sys
import tempfile
from pathlib import Path

from ..errors import UserError
from ..records import FOLDER
from . import details, overview, overview_pictures, paper_figures, rivals, table1, text
from .pictures import Picture

PAGES = {  # name -> modules whose names the template uses, and whose pictures the page shows
    "README": (overview_pictures, overview),
    "table1": (table1,),
    "rivals": (rivals,),
    "figures": (paper_figures,),
    "details": (details,),
}


def write_pages(folder, names=PAGES):
    """Writes the pages `names` and their pictures to the folder."""
    for name in names:
        if name not in PAGES:
            raise UserError(f"lab pages: expected a page of {', '.join(PAGES)}; found {name}")
        values = dict(item for module in PAGES[name] for item in vars(module).items())
        for picture in values.values():
            if isinstance(picture, Picture):
                picture.write(folder)
        text.write_page(folder, name, **values)


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
