"""Checks rules of the repository: the order of modules, the symbols that libraries import from LibTorch, and the labels
of the C++ tests."""

import itertools
import re
import subprocess

import pytest

# --- The order of modules ---
#
# A source file may only include files of the same module and of modules on earlier lines of the list in
# docs/dev/architecture.md (the block marked `modules`; commas separate the modules of a line). A module is a path
# prefix relative to src/; `apps` is apps/, and `lazy` is include/lazy/. A file belongs to the module with the longest
# matching prefix.

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
TORCH_INCLUDE = re.compile(r'^\s*#\s*include\s+[<"](?:torch|ATen|c10)/', re.MULTILINE)
NATIVE = {".h", ".cc", ".cu", ".cuh"}
WITHOUT_TORCH = ("attention", "lazy")  # modules of the kernel library, which does not use LibTorch
MAY_CALL_KERNELS = ("attention", "lazy", "ops")


def read_levels(document):
    """Returns {module: number of its line in the list of modules}. A module may only include modules with smaller
    numbers."""
    block = re.search(r"^```modules\n(.*?)^```", document, re.MULTILINE | re.DOTALL)
    assert block, "docs/dev/architecture.md has no block marked `modules`"
    lines = [line for line in block[1].splitlines() if line.strip()]
    return {module.strip(): level for level, line in enumerate(lines) for module in line.split(",")}


def module_of(path, levels):
    """Returns the longest listed prefix of `path` (relative to src/) that ends before a `/`, a `.` or a `_`, or
    None."""
    ends = [
        len(module) for module in levels if path == module or (path.startswith(module) and path[len(module)] in "/._")
    ]
    return path[: max(ends)] if ends else None


def native_files(root):
    """Yields (path, name in #include directives) of every C++ and CUDA file."""
    for top, prefix in (("src", ""), ("include", ""), ("apps", "apps/")):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in NATIVE:
                yield path, prefix + path.relative_to(root / top).as_posix()


def include_errors(root, levels):
    errors = []
    files = list(native_files(root))
    known = {name for _, name in files}
    for path, name in files:
        module = module_of(name, levels)
        if module is None:
            errors.append(f"{path.relative_to(root)}: its directory is not in the list of modules")
            continue
        top = module.split("/")[0]
        text = path.read_text(encoding="utf-8")
        if top in WITHOUT_TORCH and TORCH_INCLUDE.search(text):
            errors.append(f"{path.relative_to(root)}: the kernel library includes a Torch header")
        for included in INCLUDE.findall(text):
            if included not in known:
                continue  # a file that the build generates, or a file of another project
            other = module_of(included, levels)
            if other in WITHOUT_TORCH and top not in MAY_CALL_KERNELS:
                errors.append(f"{path.relative_to(root)}: only ops calls the kernels ({included})")
            elif other is not None and other != module and levels[other] >= levels[module]:
                errors.append(f"{path.relative_to(root)}: {module} must not include {other} ({included})")
    return errors


@pytest.fixture(scope="module")
def levels(root):
    return read_levels((root / "docs/dev/architecture.md").read_text(encoding="utf-8"))


def test_modules_include_only_earlier_modules(root, levels):
    assert include_errors(root, levels) == []


def write_source(folder, module, text):
    """Writes a file of the module and returns the name that includes it."""
    name = module if module.endswith(".h") else f"{module}/there.h"
    path = folder / name if module == "apps" else folder / "src" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return name


def test_an_include_of_a_later_module_is_reported(levels, tmp_path):
    """Checks that an include is reported for all pairs of modules on different lines."""
    pairs = [pair for pair in itertools.permutations(levels, 2) if levels[pair[0]] < levels[pair[1]]]
    for number, (earlier, later) in enumerate(pairs):
        folder = tmp_path / str(number)
        included = write_source(folder, later, "")
        write_source(folder, earlier, f'#include "{included}"\n')
        assert len(include_errors(folder, levels)) == 1, f"{earlier} includes {later}"


def test_other_wrong_includes_are_reported(levels, tmp_path):
    cases = {
        "torch": {"attention/a.cc": "#include <ATen/ATen.h>\n"},
        "kernels": {"train/a.cc": '#include "attention/b.h"\n', "attention/b.h": ""},
        "unlisted": {"new_module/a.cc": ""},
        "right": {"ops/a.cc": '#include <ATen/ATen.h>\n#include "attention/b.h"\n', "attention/b.h": ""},
    }
    for name, files in cases.items():
        for file, text in files.items():
            path = tmp_path / name / "src" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert len(include_errors(tmp_path / name, levels)) == (name != "right"), name


# --- Symbols that libraries take from LibTorch ---


def undefined_symbols(library, *options):
    command = ["nm", "-C", "--undefined-only", *options, library]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def torch_symbols(symbols):
    """Returns the symbols that belong to the C++ interface of LibTorch."""
    return [line for line in symbols if re.search(r" (at|c10|torch)::", line)]


def unstable_symbols(symbols):
    """Returns the LibTorch symbols that are not part of its stable interface (the C functions aoti_torch_* and
    torch_*). This includes functions of any namespace whose arguments have C++ types of LibTorch."""
    return [line for line in symbols if re.search(r"\b(at|c10|caffe2|torch)::", line) and "lazy::ops::" not in line]


def calls_dispatcher(symbols):
    """Returns whether the library calls torch_call_dispatcher, as every library of the Python package does."""
    return any(line.endswith(" U torch_call_dispatcher") for line in symbols)


def test_the_kernel_library_refers_to_no_torch_symbol(built_file):
    symbols = undefined_symbols(built_file("LAZY_KERNEL_LIBRARY"))
    assert symbols and torch_symbols(symbols) == []


@pytest.mark.parametrize("variable", ["LAZY_OPS_LIBRARY", "LAZY_OPS_CUDA_LIBRARY"])
def test_libraries_of_the_package_only_use_the_stable_interface(built_file, variable):
    """Libraries that only use LibTorch's stable interface work with every PyTorch version since 2.11."""
    symbols = undefined_symbols(built_file(variable), "-D")
    assert unstable_symbols(symbols) == [] and calls_dispatcher(symbols)


def test_library_with_the_cpp_interface_of_torch_is_detected(built_file):
    symbols = undefined_symbols(built_file("LAZY_TORCH_OPS_LIBRARY"), "-D")
    assert torch_symbols(symbols) and unstable_symbols(symbols) and not calls_dispatcher(symbols)


def test_symbols_are_classified():
    stable = ["                 U aoti_torch_empty_strided", "                 U torch_call_dispatcher"]
    assert unstable_symbols(stable) == torch_symbols(stable) == [] and calls_dispatcher(stable)
    for line in (
        "                 U at::_ops::add_Tensor::call(at::Tensor const&)",
        "                 U c10::Error::what() const",
        "                 U torch::Library::~Library()",
    ):
        assert torch_symbols([line]) == unstable_symbols([line]) == [line]
    assert unstable_symbols(["                 U other::function(c10::Device)"])
    assert not calls_dispatcher(["                 U torch_call_dispatcher_other"])


# --- Labels of the C++ tests ---
#
# lazy_tests() (cmake/LazyTargets.cmake) selects the tests of a ctest entry by the suffixes of the test suites' names.
# Tests whose label is missing in the call of lazy_tests() would never run.

SUITE = re.compile(r"^\s*(?:TYPED_)?TEST(?:_F|_P|_SUITE)?\(\s*(\w+)|^\s*INSTANTIATE_T\w+\(\s*(\w+)", re.MULTILINE)
CALL = re.compile(r"^\s*lazy_tests\(([^)]*)\)", re.MULTILINE)
SUITE_LABELS = ("Slow", "Data", "Real", "Alone")


def sources_of(folder):
    """Returns the C++ files of the folder and of its subfolders that have no CMakeLists.txt."""
    for path in folder.iterdir():
        if path.suffix == ".cc":
            yield path
        elif path.is_dir() and not (path / "CMakeLists.txt").exists():
            yield from sources_of(path)


def label_errors(folder, text):
    """Returns errors for labels that are missing or superfluous in the calls of lazy_tests(). text: contents of the
    folder's CMakeLists.txt."""
    errors = []
    given = CALL.search(text)[1].split()
    found = [match for file in sources_of(folder) for match in SUITE.findall(file.read_text(encoding="utf-8"))]
    names = {name for match in found for name in match}
    for label in SUITE_LABELS:
        used = sorted(name for name in names if name.endswith(label))
        if used and label.upper() not in given:
            errors.append(f"{folder}: lazy_tests() lacks {label.upper()}, the label of {', '.join(used)}")
        elif not used and label.upper() in given and "UNIT" not in given:
            errors.append(f"{folder}: lazy_tests() has {label.upper()}, which no test suite has")
    return errors


def test_every_label_of_cpp_tests_runs(root):
    files = [file for file in (root / "tests").rglob("CMakeLists.txt") if CALL.search(file.read_text(encoding="utf-8"))]
    assert files
    errors = [error for file in files for error in label_errors(file.parent, file.read_text(encoding="utf-8"))]
    assert errors == []


def test_missing_label_is_reported(tmp_path):
    tests = "TEST(ThingSlow, Works) {}\nINSTANTIATE_TEST_SUITE_P(RealData, X, Values(1));\n"
    (tmp_path / "a_test.cc").write_text(tests)
    assert label_errors(tmp_path, "lazy_tests(a_tests TORCH SLOW 2 DATA DEPS lazy_core)\n") == []
    assert len(label_errors(tmp_path, "lazy_tests(a_tests DEPS lazy_core)\n")) == 2
    assert len(label_errors(tmp_path, "lazy_tests(a_tests SLOW 1 DATA ALONE DEPS lazy_core)\n")) == 1
