"""Tests that every `lazy` command in the documentation exists and has the options that the documentation shows."""

import functools
import re
import shlex
import subprocess

import pytest

pytestmark = pytest.mark.slow  # runs `lazy COMMAND --help` for every command
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
LANGUAGES = ("", "sh", "bash", "text")


def commands(text):
    """Yields (line, words) for every `lazy ...` command in the code blocks. A line that ends in a backslash continues
    on the next line."""
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(2)) + 1
        for row in re.findall(r"(?:.*\\\n)*.*\n", block[2] if block[1] in LANGUAGES else ""):
            for part in re.split(r"&&|\|\|?|;|[<(]\(|\$\(", row.replace("\\\n", " ")):
                try:
                    words = shlex.split(part.rstrip(")"), comments=True)
                # a quoted pipe character splits the command at the wrong place, so its quotes are not closed
                except ValueError:
                    continue
                while words and (re.match(r"[A-Z_]+=", words[0]) or words[0] in ("$", "env", "time", "torchrun")):
                    words.pop(0)
                if words and words[0] in ("lazy", "build/lazy"):
                    yield line, words[1:]
            line += row.count("\n")


class Program:
    def __init__(self, path):
        self.path = path

    @functools.lru_cache
    def help(self, *command):
        done = subprocess.run([self.path, *command, "--help"], capture_output=True, text=True, env={"NO_COLOR": "1"})
        return done.stdout if done.returncode == 0 else None

    def subcommands(self, *command):
        text = self.help(*command)  # the help lists subcommands in sections; options begin with a dash
        return re.findall(r"^  ([a-z][\w-]*) {2,}(?=\S)", text, re.M) if " SUBCOMMAND\n" in text else []

    def problems(self, words):
        command = []
        usages = [self.help()]
        while words and (names := self.subcommands(*command)):
            if words[0].startswith("-"):  # a global option of the program
                break
            if words[0] not in names and not re.fullmatch(r"[A-Z_]+|\.\.\.", words[0]):
                yield f"no such command: lazy {' '.join([*command, words[0]])}"
                return
            command.append(words.pop(0))
            if self.help(*command) is None:  # the command is a placeholder such as COMMAND
                return
            usages.append(self.help(*command))
        known = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", "\n".join(usages)))
        for word in words:
            option = re.match(r"--[a-z][\w-]*|-[a-z]$", word)
            if option and option[0] not in known:
                yield f"no such option: lazy {' '.join(command)} {option[0]}"


def check(pages, program):
    """Returns the number of commands and a list of errors "PAGE:LINE: message"."""
    found, errors = 0, []
    for page, text in pages:
        for line, words in commands(text):
            found += 1
            errors += [f"{page}:{line}: {problem}" for problem in program.problems(words)]
    return found, errors


@pytest.fixture(scope="module")
def program(lazy_binary):
    return Program(lazy_binary)


def test_commands_and_options_exist(root, program):
    pages = sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")])
    found, errors = check([(page.relative_to(root), page.read_text(encoding="utf-8")) for page in pages], program)
    assert found and errors == []


def test_wrong_commands_and_options_are_reported(program):
    right = "```\nlazy train x.toml --set a=b # --none\nlazy data prepare a \\\n  --output b\nlazy --version\n```\n"
    assert check([("right", right)], program) == (3, [])
    wrong = "```sh\nlazy none\nlazy train x.toml --none\nlazy data none\nX=1 build/lazy eval m \\\n  --none 3\n```\n"
    assert [error.split(":")[1] for error in check([("wrong", wrong)], program)[1]] == ["2", "3", "4", "5"]
