"""The architecture as a test: allowed imports between packages, packages without torch, and more.

Imports are read from the source with `ast`. Late imports (inside functions) only serve speed: they
follow the same rules.
"""

import ast
import functools
import graphlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "groundup"
REPOSITORY = PACKAGE.parent.parent

ROWS = [
    ["lazy_exports", "disk", "errors", "files", "config", "runtime", "_native", "text_files"],
    ["tokenizer", "nn"],
    ["model", "optim"],
    ["data", "checkpoint", "distributed", "planner", "runs"],
    ["training", "generation"],
    ["serving", "experiments", "interop"],
    ["cli", "__main__"],
]
ROW_OF = {package: row for row, packages in enumerate(ROWS) for package in packages}

# Row 0 is ordered: its parts may only import those to their left.
ROW_0 = ROWS[0]

NO_TORCH = "tokenizer planner runs lazy_exports disk errors files config text_files _native".split()
NO_TORCH += ["nn/limits.py", "model/config.py", "optim/config.py", "optim/schedules.py"]
TORCH_LATE = ["cli", "runtime", "__init__.py", "__main__.py"]
TORCH_LATE += [f"{name}/__init__.py" for name in ("data", "model", "nn", "optim")]

SOURCES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def package_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports_of(path: Path, *, late: bool = True) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute dotted name) of all imports; `from a import b` gives a.b.

    late: include imports in functions and under TYPE_CHECKING.
    """
    package = ["groundup", *path.relative_to(PACKAGE).parts[:-1]]
    nodes: list[ast.AST] = [parse(path)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *(node.module.split(".") if node.module else [])]
            yield from ((node.lineno, ".".join([*base, alias.name])) for alias in node.names)
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        is_checking = isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        if late or not (is_function or is_checking):
            nodes.extend(ast.iter_child_nodes(node))


def violation_of(importer: str, imported: str) -> str | None:
    """Return why a package may not import another, or None."""
    if importer == imported:
        return None
    if imported not in ROW_OF:
        return "is in no row of the table"
    if ROW_OF[importer] > ROW_OF[imported]:
        return None
    if importer in ROW_0 and imported in ROW_0:
        follows = ROW_0.index(importer) > ROW_0.index(imported)
        return None if follows else "is after it in row 0"
    if importer == "__main__" and imported == "cli":
        return None
    return "is in the same row" if ROW_OF[importer] == ROW_OF[imported] else "is above it"


def test_imports_point_down() -> None:
    for path in SOURCES:
        importer = package_of(path)
        if importer == "__init__":
            continue
        assert importer in ROW_OF, f"{importer} is in no row of the table"
        for line, imported in imports_of(path):
            parts = imported.split(".")
            if parts[0] != "groundup" or imported == "groundup.__version__":
                continue
            where = f"{name_of(path)} line {line}"
            assert len(parts) > 1, f"{where} imports from groundup; name the module instead"
            reason = violation_of(importer, parts[1])
            assert reason is None, f"{where}: {importer} may not import {parts[1]}, which {reason}"


@pytest.mark.parametrize(
    ("places", "late", "module"),
    [
        (NO_TORCH, True, "torch"),
        (TORCH_LATE, False, "torch"),
        (["nn", "model"], True, "torch.distributed"),
    ],
)
def test_torch_is_absent_or_imported_late(places: list[str], late: bool, module: str) -> None:
    for path in SOURCES:
        if name_of(path) in places or package_of(path) in places:
            for line, name in imports_of(path, late=late):
                assert not f"{name}.".startswith(f"{module}."), f"{name_of(path)} line {line}"
            is_named = "torch.distributed" in path.read_text("utf-8")
            assert not is_named or module == "torch", name_of(path)


def module_of(path: Path) -> str:
    parts = ("groundup", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


def test_there_are_no_import_cycles_within_packages() -> None:
    """Includes late imports and those for type checkers. The lazy exports of an __init__ are
    exempt."""
    modules = {module_of(path): path for path in SOURCES}
    imports: dict[str, set[str]] = {}
    for module, path in modules.items():
        is_front = path.name == "__init__.py"
        names = [name for _, name in imports_of(path, late=not is_front)]
        found = {name if name in modules else name.rpartition(".")[0] for name in names}
        imports[module] = {name for name in found & modules.keys() if name != module}
    order = graphlib.TopologicalSorter(imports)
    try:
        order.prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


WITHOUT_TORCH = """
import sys
from groundup import Tokenizer, train_bpe, GroundupError
import groundup.planner, groundup.nn.limits, groundup.optim.config
import groundup.data.batches.order, groundup.data.prepare, groundup.data.shards
from groundup.text_files import read_document_batches
list(read_document_batches([sys.argv[1]]))
print(*{"torch", "pyarrow", "zstandard"} & set(sys.modules))
"""


def test_names_without_torch_do_not_import_torch_or_extras() -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, str(REPOSITORY / "README.md")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("\n", "")


# Calls that change files, by their names; `str.replace` has two arguments.
WRITING = set(
    """
    write_text write_bytes unlink touch mkdir makedirs rmdir removedirs rmtree rename renames
    symlink symlink_to hardlink_to link truncate ftruncate fsync fdatasync pwrite copyfile
    copytree move tofile save_file FileHandler HuggingFaceStorageWriter GGUFWriter
    TemporaryDirectory NamedTemporaryFile mkstemp mkdtemp
""".split()
)
# Libraries that write to a path from `files.atomic_path` or `atomic_folder`, temporary files, and
# /dev/null.
WRITE_ELSEWHERE = {
    "checkpoint/weights.py: save_file",
    "checkpoint/sharded.py: HuggingFaceStorageWriter",
    "interop/gguf.py: GGUFWriter",
    "cli/tokenizer.py: numpy.save",
    "checkpoint/single_file.py: tempfile.TemporaryDirectory",
    "checkpoint/single_file.py: tempfile.NamedTemporaryFile",
    "training/verify.py: tempfile.TemporaryDirectory",
    "cli/new.py: tempfile.TemporaryDirectory",
    "cli/main.py: os.open",
}


def writing_calls(path: Path) -> Iterator[str]:
    for node in ast.walk(parse(path)):
        if not isinstance(node, ast.Call):
            continue
        whole = ast.unparse(node.func)
        name, words = whole.rpartition(".")[2], [ast.unparse(word) for word in node.args]
        words += [ast.unparse(word.value) for word in node.keywords if word.arg == "mode"]
        is_write = name in WRITING and not whole.startswith("disk.")
        is_write |= whole in ("os.replace", "os.write", "os.remove", "torch.save")
        is_write |= whole in ("np.save", "numpy.save") or (
            name == "replace" and len(words) == 1 and not node.keywords
        )
        if whole == "os.open":
            is_write |= bool(re.search("O_(WRONLY|RDWR|CREAT|TRUNC|APPEND)", " ".join(words)))
        elif name == "open":
            is_write |= any(re.search(r"'[rwaxbt+]*[wax+][rwaxbt+]*'", one) for one in words)
        if is_write:
            yield f"{name_of(path)}: {whole.removeprefix('safetensors.torch.')}"


def test_only_the_disk_module_writes() -> None:
    found = {call for path in SOURCES if name_of(path) != "disk.py" for call in writing_calls(path)}
    assert found == WRITE_ELSEWHERE
    assert {"disk.py: os.replace", "disk.py: open"} <= {*writing_calls(PACKAGE / "disk.py")}


def test_only_bindings_use_python_and_all_sources_are_compiled() -> None:
    native = REPOSITORY / "native"
    include = re.compile(r'#\s*include\s*[<"](Python|python_\w+)\.h')
    files = [path for path in native.glob("*") if path.is_file()]
    knowing = {path.name for path in files if include.search(path.read_text("utf-8"))}
    assert knowing == {path.name for path in native.glob("python_*")}
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    (extension,) = settings["tool"]["setuptools"]["ext-modules"]
    assert {*extension["sources"]} == {f"native/{path.name}" for path in native.glob("*.cpp")}
    # And there is no package for miscellaneous files.
    forbidden = {"utils", "common", "helpers", "misc"}
    assert not [name_of(path) for path in SOURCES if forbidden & {*path.parts, path.stem}]
