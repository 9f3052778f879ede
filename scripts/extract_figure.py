#!/usr/bin/env python3
"""Copies drawings from an HTML report into one standalone SVG file.

Usage: extract_figure.py REPORT.html FIGURE.svg LABEL... [--columns N] [--legend NAME,NAME] [--no-titles]
       extract_figure.py REPORT.html --list

A LABEL selects every drawing whose accessible name (aria-label) contains it. Drawings keep the report's light colors.
--legend adds a legend of the named runs above the drawings.
"""

import argparse
import html
import re
import sys
from pathlib import Path

SIZES = ("at-middle", "small", "heat", "bar", "at-square")  # each drawing has several sizes; use these
GAP, TITLE, LEGEND = 24, 22, 28


def drawings(page):
    """Yields (label, class, width, height, markup) for every top-level <svg> element."""
    depth, start = 0, 0
    for tag in re.finditer(r"<svg\b[^>]*>|</svg>", page):
        if tag[0] != "</svg>":
            if depth == 0:
                start = tag
            depth += 1
            continue
        depth -= 1
        if depth == 0:
            head = start[0]
            kind = (re.search(r'class="([^"]*)"', head) or ["", ""])[1]
            label = html.unescape((re.search(r'aria-label="([^"]*)"', head) or ["", ""])[1])
            box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', head)
            if box:
                yield label, kind, float(box[1]), float(box[2]), page[start.end() : tag.start()]


def light_style(page, body):
    css = page[page.index("<style>") + 7 : page.index("</style>")]
    css = re.sub(r"/\*.*?\*/", "", css, flags=re.S)
    css = css[: css.index("@media")] + css[css.index("*{box-sizing") :]
    colours = dict(re.findall(r"--([\w-]+):(#[0-9a-f]+)", css[: css.index(".q0")]))
    rules = []
    for selectors, text in re.findall(r"([^{}@]+)\{([^{}]*)\}", css):
        selectors = selectors.strip()
        level = re.fullmatch(r"\.q(\d+)", selectors)
        series = re.fullmatch(r"\.s(\d+)", selectors)
        if level:
            if re.search(rf'class="(?:[^"]* )?q{level[1]}[ "]', body):
                rules.append(f"{selectors}{{{text.split(';')[0]}}}")
        elif series:
            colour = text.split(":")[1]
            rules.append(
                f"{selectors} .stroke{{stroke:{colour}}}{selectors} .mark{{stroke:{colour}}}"
                f"{selectors}.dots .mark,.dots {selectors} .mark{{fill:{colour};stroke:none}}"
            )
        elif re.match(
            r"(svg text|svg \.|\.axis|\.reference|\.curve|\.faint|\.thin|\.dots|\.visible|\.on-|\.swatch)", selectors
        ):
            text = re.sub(r"(stroke|fill):var\(--s\);?", "", text)
            text = re.sub(r"var\(--([\w-]+)\)", lambda name: colours[name[1]], text)
            rules.append(f"{selectors.replace('svg.', '.')}{{{text}}}")
    return "\n".join(dict.fromkeys(rules)), colours["page"]


def legend(page, names, width):
    """Draws a legend with the marks and names of the runs, wrapped at `width`. Returns the markup and its height."""
    found = dict()
    for mark, name in re.findall(r'<svg class="swatch"[^>]*>(.*?)</svg>([^<]+)', page):
        found.setdefault(html.unescape(name).strip(), mark)
    out, x, y = [], 0, 0
    for name in names:
        if name not in found:
            sys.exit(f"unknown run {name}; the runs are {', '.join(found)}")
        step = 40 + 8 * len(name)
        if x and x + step > width:
            x, y = 0, y + LEGEND
        out.append(f'<g class="swatch" transform="translate({x} {y})">{found[name]}</g>')
        out.append(f'<text x="{x + 32}" y="{y + 11}">{html.escape(name)}</text>')
        x += step
    return "".join(out), y + LEGEND


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("figure", type=Path, nargs="?")
    parser.add_argument("labels", nargs="*")
    parser.add_argument("--columns", type=int, default=1)
    parser.add_argument("--legend", default="")
    parser.add_argument("--no-titles", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    page = options.report.read_text(encoding="utf-8")
    found = [d for d in drawings(page) if any(size in d[1].split() for size in SIZES)]
    if options.list:
        print("\n".join(f"{kind:12} {label}" for label, kind, *_ in found))
        return
    chosen = [d for label in options.labels for d in found if label in d[0]]
    if not chosen:
        sys.exit(f"{options.report}: no drawing has one of the labels {options.labels}; --list prints all labels")

    columns = [0.0] * min(options.columns, len(chosen))
    for n, (_, _, width, _, _) in enumerate(chosen):
        columns[n % len(columns)] = max(columns[n % len(columns)], width)
    total = sum(columns) + GAP * (len(columns) - 1)
    body, top = legend(page, options.legend.split(","), total) if options.legend else ("", 0)
    title = 0 if options.no_titles else TITLE
    for row in range(0, len(chosen), len(columns)):
        cells = chosen[row : row + len(columns)]
        for n, (label, _, width, height, markup) in enumerate(cells):
            x = sum(columns[:n]) + GAP * n
            if title and not label.startswith("Colour bar"):
                name = re.split(r"[;:]|, one line|, against", label)[0]
                body += f'<text class="name" x="{x}" y="{top + 14}">{html.escape(name)}</text>'
            body += f'<svg x="{x}" y="{top + title}" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            body += f'overflow="visible">{markup}</svg>'
        top += title + max(cell[3] for cell in cells) + GAP
    style, paper = light_style(page, body)
    label = html.escape("; ".join(options.labels), quote=True)
    margin = 16
    full = f"{total + 2 * margin:g} {top + 2 * margin - GAP:g}"
    options.figure.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-margin} {-margin} {full}" role="img" aria-label="{label}" '
        f'width="{full.split()[0]}" height="{full.split()[1]}" '
        'font-family="system-ui,-apple-system,Segoe UI,Roboto,Arial,sans-serif" font-size="14">\n'
        f"<style>\n{style}\n</style>\n"
        f'<rect x="{-margin}" y="{-margin}" width="100%" height="100%" fill="{paper}"/>\n{body}\n</svg>\n',
        encoding="utf-8",
    )


main()
