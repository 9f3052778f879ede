"""Tests of the package lists that scripts/setup.sh installs."""


def pins(path):
    lines = (line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return {line.split("==")[0]: line for line in lines if line}


def test_packages_of_the_tests_include_packages_of_make_python(root):
    """scripts/setup.sh installs nothing for `make python` if the packages of the tests are already installed."""
    python, tests = (pins(root / "scripts" / f"requirements-{name}.txt") for name in ("python", "test"))
    assert python and python.items() <= tests.items()


def test_all_lists_require_the_same_pytorch(root):
    found = [pins(root / "scripts" / f"requirements{name}.txt")["torch"] for name in ("", "-python", "-test")]
    assert len(set(found)) == 1
