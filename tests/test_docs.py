"""The documents tell the truth: commands exist, and the tree is the folder.

A block marked `sh` is a promise that its lines can be typed; other blocks are not.
"""

import importlib.util
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from groundup.cli.verbs import GROUPS, VERBS, module_of

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]


def page_name(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    pattern = rf"^```{language}\n(.*?)^```$"
    return re.findall(pattern, page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    lines = "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


ALL_COMMANDS = [(page, words) for page in PAGES for words in commands(page)]
MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("page", "words"),
    ALL_COMMANDS,
    ids=[f"{page_name(page)}: {shlex.join(words)}" for page, words in ALL_COMMANDS],
)
def test_a_command_in_a_document_exists(page: Path, words: list[str]) -> None:
    if words[0] == "torchrun":
        words = words[words.index("-m") + 1 :]
    if words[0] == "make":
        assert re.search(rf"^{re.escape(words[1])}:", MAKEFILE, re.MULTILINE)
    elif words[0] == "groundup":
        length = 2 if words[1] in GROUPS else 1
        verb = " ".join(words[1 : 1 + length])
        assert verb in VERBS and importlib.util.find_spec(module_of(verb)) is not None
        flags = {word.split("=")[0] for word in words[1 + length :] if word.startswith("--")}
        assert flags <= set(flags_of(verb))
    elif words[0] == "python":
        script = (REPOSITORY / words[1]).read_text("utf-8")
        flags = {word.split("=")[0] for word in words[2:] if word.startswith("--")}
        assert all(f'"{flag}"' in script for flag in flags)
    else:
        assert words[0] in {"pip", "uv", ".", "source"}, f"{page_name(page)} runs {words[0]}"


def flags_of(verb: str) -> list[str]:
    from groundup.cli.arguments import known_flags

    return known_flags(importlib.import_module(module_of(verb)).Arguments)


def test_the_deployment_files_name_what_there_is() -> None:
    folder = REPOSITORY / "docs" / "deployment"
    container = (folder / "Containerfile").read_text("utf-8").replace("\\\n", " ")
    copied = [line.split()[1:-1] for line in container.splitlines() if line.startswith("COPY ")]
    sources = [word for words in copied for word in words if "--from=build" not in words]
    assert {"native", "src"} <= set(sources)
    assert all((REPOSITORY / source).exists() for source in sources)
    unit = (folder / "groundup.service").read_text("utf-8")
    (start,) = re.findall(r"^ExecStart=\S+/groundup serve (.*)$", unit, re.MULTILINE)
    (default,) = re.findall(r"^CMD (.*)$", container, re.MULTILINE)
    flags = re.findall(r"--[a-z-]+", start + default)
    assert {"--token-file", "--drain-seconds"} <= set(flags) <= set(flags_of("serve"))


def test_the_python_of_the_guide_to_the_tokenizer_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from groundup.data.samples import write_sample_corpus

    monkeypatch.chdir(tmp_path)
    write_sample_corpus(tmp_path / "stories.txt", megabytes=0.05, seed=0)
    names: dict[str, object] = {}
    for block in blocks(REPOSITORY / "docs" / "guides" / "tokenizer.md", "python"):
        exec(block, names)


def test_the_quickstart_lists_all_extras() -> None:
    page = (REPOSITORY / "docs" / "quickstart.md").read_text("utf-8")
    rows = page.split("| extra | for |")[1].split("\n\n")[0]
    first = " ".join(re.findall(r"^\| (`.*?) \|", rows, re.MULTILINE))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(re.findall(r"`(\w+)`", first)) == set(project["optional-dependencies"])


def readme_tree() -> dict[str, set[str]]:
    """The entries that the README's tree shows, by folder: the root and src/groundup."""
    (tree,) = (b for b in blocks(REPOSITORY / "README.md", "text") if "Makefile" in b)
    shown: dict[str, set[str]] = {"": set(), "src/groundup": set()}
    for line in tree.splitlines():
        folder = "src/groundup" if line.startswith("  ") else ""
        shown[folder].add(line.split()[0].rstrip("/"))
    return shown


def present(folder: str) -> set[str]:
    """The visible entries of a folder that git knows or would add."""
    git = shutil.which("git")
    if git is None or not (REPOSITORY / ".git").exists():
        pytest.skip("not a git checkout: no telling what belongs to the tree")
    command = [git, "ls-files", "--cached", "--others", "--exclude-standard", "--", folder or "."]
    listing = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    depth = len(Path(folder).parts)
    paths = [Path(line) for line in listing.stdout.splitlines()]
    entries = {path.parts[depth] for path in paths if (REPOSITORY / path).exists()}
    return {entry for entry in entries if not entry.startswith(".")}


def test_the_readmes_tree_is_the_folder_listing() -> None:
    shown = readme_tree()
    assert shown["src/groundup"] == present("src/groundup")
    assert {entry.split("/")[0] for entry in shown[""]} == present("")


def test_the_readme_and_the_ci_name_targets_of_the_makefile() -> None:
    text = (REPOSITORY / "README.md").read_text("utf-8")
    assert commands(REPOSITORY / "README.md")[:2] == [["make", "quickstart"], ["make", "test"]]
    assert "make test" in (REPOSITORY / ".ci" / "run").read_text("utf-8")
    (shown,) = re.findall(r"^Makefile +(.*)$", text, re.MULTILINE)
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    # A step of others.
    assert set(shown.split(" · ")) == targets - {"sanitized"}


def test_links_between_documents_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page_name(page)} links to {target}"


def test_the_architecture_page_shows_the_table_of_the_layering_test() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    spec = importlib.util.spec_from_file_location("layering", REPOSITORY / "tests/test_layering.py")
    assert spec is not None and spec.loader is not None
    layering = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(layering)
    shown = {int(row): names.split() for row, names in re.findall(r"^(\d)  (.*)$", page, re.M)}
    held = {
        row: [room for room in rooms if room != "__main__"]
        for row, rooms in enumerate(layering.ROWS)
    }
    assert shown == held
    rooms = page.split("## The rooms")[1].split("\n## ")[0]
    described = re.findall(r"^\| `(\w+)` \|", rooms, re.M)
    assert sorted(described) == sorted(room for row in held.values() for room in row)


def test_make_bench_runs_every_benchmark_that_has_results() -> None:
    scripts = set(re.findall(r"benchmarks/(\w+)\.py", MAKEFILE))
    results = [path.name for path in (REPOSITORY / "benchmarks" / "results").glob("*.json")]
    assert results
    for name in results:
        assert any(name.startswith(script) for script in scripts), name


def test_make_sanitize_tests_every_package_that_calls_the_native_core() -> None:
    package = REPOSITORY / "src" / "groundup"
    callers = {
        path.relative_to(package).parts[0]
        for path in package.rglob("*/*.py")
        if re.search(r"^ *from groundup(\._native import| import _native)", path.read_text(), re.M)
    }
    found = re.search(r"^SANITIZE_TESTS \?= (.*)", MAKEFILE, re.M)
    assert found is not None
    assert callers == {folder.removeprefix("tests/") for folder in found[1].split()}
