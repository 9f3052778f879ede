"""MkDocs hooks (see mkdocs.yml) that add pages to the site that are not files in docs/.

- Pages in the root directory of the repository: README.md becomes the home page, docs/README.md the list of guides.
- reference/: the output of `lazy COMMAND --help`, and the docstrings of the Python package.
- repository/: the files and folders outside docs/ that a page links to, so that no link leaves the site.

Links in the Markdown files are relative paths in the repository; on_page_markdown converts them to paths in the site.
"""

import ast
import os
import posixpath
import re
import subprocess
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
# Maps pages of the repository to pages of the site. All other pages of docs/ keep their paths.
MOVED = {
    "README.md": "index.md",
    "docs/README.md": "guides.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "THIRD_PARTY_NOTICES.md": "repository/third-party-notices.md",
}
SOURCES = {site: source for source, site in MOVED.items()}
CODE = re.compile(r"^(```|~~~).*?^\1", re.M | re.S)
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
LANGUAGES = {".cc": "cpp", ".h": "cpp", ".cu": "cuda", ".py": "python", ".sh": "sh", ".toml": "toml", ".yml": "yaml"}


def site_path(source):
    """Returns the path in the site for a path in the repository."""
    if source in MOVED:
        return MOVED[source]
    if source.startswith("docs/") and not source.startswith("docs/results/records"):
        return source.removeprefix("docs/")
    return f"repository/{source}.md" if (ROOT / source).is_file() else posixpath.join("repository", source, "index.md")


def links(markdown, change):
    """Replaces the target of every link outside of code blocks by change(target). Returns the new text."""
    parts, last = [], 0
    for block in [*CODE.finditer(markdown), None]:
        prose = markdown[last : block.start() if block else None]
        parts.append(LINK.sub(lambda link: link[1] + change(link[2]) + link[3], prose))
        if block:
            parts.append(block[0])
            last = block.end()
    return "".join(parts)


def target_of(source, target):
    """Resolves a link in the page `source`. Returns (path in the repository, anchor), or None for an external URL."""
    if re.match(r"\w+:", target):
        return None
    path, _, anchor = target.partition("#")
    return (posixpath.normpath(posixpath.join(posixpath.dirname(source), path)) if path else source), anchor


def repository_page(source):
    """Returns the Markdown text of a page that shows a file of the repository or lists a folder."""
    place = ROOT / source
    head = f"---\nsearch: {{exclude: true}}\n---\n# {source}\n\n"
    if place.is_dir():
        tracked = subprocess.run(
            ["git", "ls-files", "--", source], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        names = sorted({Path(name).relative_to(source).parts[0] for name in tracked})
        return head + "".join(f"- [{name}]({name if source == '.' else f'{place.name}/{name}'})\n" for name in names)
    return head + f"````{LANGUAGES.get(place.suffix, 'text')}\n{place.read_text(encoding='utf-8')}````\n"


def usage(program, *command):
    """Returns the output of `lazy COMMAND --help` and the names of the command's subcommands."""
    text = subprocess.run(
        [program, *command, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"NO_COLOR": "1", "COLUMNS": "100"},
    ).stdout
    return text, re.findall(r"^  ([a-z][\w-]*) {2,}(?=\S)", text, re.M) if " SUBCOMMAND\n" in text else []


def command_pages():
    """Yields (path, text) of the page of each `lazy` command."""
    program = ROOT / "build" / "lazy"
    if not program.is_file():
        raise PluginError(f"expected the program {program}, found none: run `make` first")
    for name in usage(program)[1]:
        text, subcommands = usage(program, name)
        page = f"# lazy {name}\n\n```text\n{text.strip()}\n```\n"
        for subcommand in subcommands:
            page += f"\n## lazy {name} {subcommand}\n\n```text\n{usage(program, name, subcommand)[0].strip()}\n```\n"
        yield f"reference/commands/{name}.md", page


def public_names(package):
    """Returns __all__ of a package without importing the package."""
    tree = ast.parse((ROOT / "python" / package.replace(".", "/") / "__init__.py").read_text(encoding="utf-8"))
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return ast.literal_eval(statement.value)
    raise PluginError(f"expected __all__ in {package}, found none")


def python_page(title, package):
    names = [name for name in public_names(package) if not name.isupper()]  # omit constants
    return f"# {title}\n\n" + "\n".join(f"::: {package}.{name}\n" for name in names)


def on_files(files, config):
    for file in list(files):
        if file.src_uri == "README.md" or file.src_uri.startswith("results/records/"):
            files.remove(file)
    pages = {site: (ROOT / source).read_text(encoding="utf-8") for source, site in MOVED.items()}
    pages["reference/python.md"] = python_page("lazy_attention", "lazy_attention")
    pages["reference/huggingface.md"] = python_page("lazy_attention.hf", "lazy_attention.hf")
    commands = dict(command_pages())
    pages |= commands

    # Add a page for every file or folder of the repository that a page links to, directly or indirectly. The page of a
    # folder links to all files in the folder.
    documents = {SOURCES.get(file.src_uri, f"docs/{file.src_uri}") for file in files if file.is_documentation_page()}
    queue = sorted(documents | MOVED.keys())
    while queue:
        source = queue.pop()
        site = site_path(source)
        if site.startswith("repository/") and site not in pages:
            pages[site] = repository_page(source)
        if source.endswith(".md") or (ROOT / source).is_dir():
            text = pages[site] if site in pages else (ROOT / source).read_text(encoding="utf-8")
            targets = []
            links(text, lambda target: targets.append(target) or target)
            for path in {found[0] for found in (target_of(source, target) for target in targets) if found}:
                if not (ROOT / path).exists():
                    raise PluginError(f"{source}: expected a file of the repository as a link's target, found {path}")
                if site_path(path).startswith("repository/") and site_path(path) not in pages:
                    queue.append(path)
    for site, text in pages.items():
        files.append(File.generated(config, site, content=text))

    small = sorted(file.src_uri for file in files if re.match(r"results/.*\.md$", file.src_uri))
    small.remove("results/README.md")
    expanded = {"reference/commands": sorted(commands), "results": ["results/README.md", *small]}
    for section in config.nav:
        for name, entry in section.items():
            if isinstance(entry, str) and entry in expanded:
                section[name] = expanded[entry]
            elif isinstance(entry, list):
                for item in entry:
                    for title, place in item.items() if isinstance(item, dict) else ():
                        item[title] = expanded.get(place, place)
    return files


def source_of(page):
    """Returns the path in the repository for a page of the site, or None for generated reference pages."""
    site = page.file.src_uri
    if site in SOURCES:
        return SOURCES[site]
    if site.startswith("repository/"):
        return site.removeprefix("repository/").removesuffix("/index.md").removesuffix(".md")
    return f"docs/{site}" if (ROOT / "docs" / site).is_file() else None


def on_page_markdown(markdown, page, config, files):
    source = source_of(page)
    if source is None:
        return markdown
    if source == "README.md":
        page.meta["hide"] = ["navigation"]  # hide the navigation, because it would only list this page

    def change(target):
        found = target_of(source, target)
        if found is None:
            return target
        to = posixpath.relpath(site_path(found[0]), posixpath.dirname(page.file.src_uri) or ".")
        return f"{to}#{found[1]}" if found[1] else to

    return links(markdown, change)
