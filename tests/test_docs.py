"""The documentation is correct: commands exist and run, and the tree matches the folders.

The commands in blocks marked `sh` must work as written; other blocks are not tested. When run, only
sizes are changed, as listed in `SMALL`. `LEFT_OUT` lists commands that other tests run.
"""

import importlib.util
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from groundup.cli.arguments import known_flags
from groundup.cli.main import main
from groundup.cli.verbs import GROUPS, VERBS, find_verb
from groundup.model.config import PRESETS
from groundup.planner import count_parameters, forward_flops, get_accelerator, make_plan

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
def test_documented_commands_exist(page: Path, words: list[str]) -> None:
    if words[0] == "torchrun":
        words = words[words.index("-m") + 1 :]
    if words[0] == "make":
        assert re.search(rf"^{re.escape(words[1])}:", MAKEFILE, re.MULTILINE)
    elif words[0] == "groundup":
        length = 2 if words[1] in GROUPS else 1
        verb = " ".join(words[1 : 1 + length])
        assert verb in VERBS
        flags = {word.split("=")[0] for word in words[1 + length :] if word.startswith("--")}
        assert flags <= set(flags_of(verb))
    elif words[0] == "python":
        script = (REPOSITORY / words[1]).read_text("utf-8")
        flags = {word.split("=")[0] for word in words[2:] if word.startswith("--")}
        assert all(f'"{flag}"' in script for flag in flags)
    else:
        assert words[0] in {"pip", "uv", ".", "source"}, f"{page_name(page)} runs {words[0]}"


def flags_of(verb: str) -> list[str]:
    return known_flags(find_verb(verb)[0])


def test_deployment_files_use_existing_paths_and_flags() -> None:
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


@pytest.mark.slow
@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize("guide", ["tokenizer", "extending"])
def test_the_python_code_of_guides_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guide: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (
        "data sample --megabytes 0.1 --out stories.txt",
        "tokenizer train stories.txt --vocab-size 400 --special-token <|endoftext|>",
        "data prepare stories.txt",
    ):
        assert main(command.split()) == 0
    names: dict[str, object] = {}
    for block in blocks(REPOSITORY / "docs" / "guides" / f"{guide}.md", "python"):
        fewer = "num_steps=10, evaluation={'num_windows': 2},"
        exec(block.replace("10_000", "400").replace("num_steps=10,", fewer, 1), names)


def test_extras_and_dependencies_are_documented() -> None:
    page = (REPOSITORY / "docs" / "quickstart.md").read_text("utf-8")
    rows = page.split("| extra | for |")[1].split("\n\n")[0]
    first = " ".join(re.findall(r"^\| (`.*?) \|", rows, re.MULTILINE))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(re.findall(r"`(\w+)`", first)) == set(project["optional-dependencies"])
    page = (REPOSITORY / "CONTRIBUTING.md").read_text("utf-8")
    table = page.split("| package | reason |")[1].split("\n\n")[0]
    names = [re.split(r"[>=<]", one)[0] for one in project["dependencies"]]
    assert re.findall(r"^\| `([\w-]+)` \| \w", table, re.MULTILINE) == names and len(names) <= 15
    assert len((REPOSITORY / "README.md").read_text("utf-8").splitlines()) < 150


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


def test_the_tree_in_the_readme_matches_the_folders() -> None:
    (tree,) = (b for b in blocks(REPOSITORY / "README.md", "text") if "Makefile" in b)
    shown: dict[str, set[str]] = {"": set(), "src/groundup": set()}
    for line in tree.splitlines():
        folder = "src/groundup" if line.startswith("  ") else ""
        shown[folder].add(line.split()[0].rstrip("/"))
    assert shown["src/groundup"] == present("src/groundup")
    assert {entry.split("/")[0] for entry in shown[""]} == present("")


def test_readme_and_ci_use_existing_make_targets() -> None:
    text = (REPOSITORY / "README.md").read_text("utf-8")
    assert commands(REPOSITORY / "README.md")[:2] == [["make", "quickstart"], ["make", "test"]]
    assert "make test" in (REPOSITORY / ".ci" / "run").read_text("utf-8")
    (shown,) = re.findall(r"^Makefile +(.*)$", text, re.MULTILINE)
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    # A step that other targets depend on.
    assert set(shown.split(" · ")) == targets - {"sanitized"}


# Words for which docs/glossary.md has the field's term.
FORBIDDEN = re.compile(
    r"(?i:by heart|rehears|\bverdict|\bladders?\b|\brungs?\b|polite stop|mean no good)"
    r"|\bALONE\b|from_first|\bgreatest\(|extra_values|input_mix|head_gates|average_over"
    r"|clip_norm|\bnum_ids\b|\.recompute\b|writable ids|own_parts|edge search"
    r"|\b[mM]end(s|ed|ing)?\b|micro-batches that wait|\b(is|was|are|be|been|not) settled\b",
)
TEXTS = ".py .pyi .js .html .css .md .yaml .txt .toml".split()


def test_documents_use_the_terms_of_the_field() -> None:
    sources = [path for path in (REPOSITORY / "src").rglob("*") if "samples" not in path.parts]
    sources += [REPOSITORY / "README.md", *(REPOSITORY / "configs").rglob("*")]
    sources += (REPOSITORY / "docs").rglob("*")
    texts = {path: path.read_text("utf-8") for path in sources if path.suffix in TEXTS}
    # Exclude the table of names in files of earlier versions.
    table = REPOSITORY / "src" / "groundup" / "config.py"
    texts[table] = re.sub(r"\n_EARLIER_NAMES = \{.*?\n\}", "", texts[table], flags=re.DOTALL)
    found = [
        f"{page_name(one)}: {hit[0]}" for one in texts for hit in FORBIDDEN.finditer(texts[one])
    ]
    assert len(texts) > 300 and not found, found


# Reference tables: results of benchmarks and experiments.
REFERENCES = [REPOSITORY / "docs" / "benchmarks.md", *REPOSITORY.glob("docs/experiments/*.md")]


@pytest.mark.parametrize("page", sorted({*PAGES} - {*REFERENCES}), ids=page_name)
def test_pages_are_short_enough_to_read(page: Path) -> None:
    assert len(page.read_text("utf-8").split()) <= 1_500
    assert page.name != "reliability.md" or len(page.read_text("utf-8").splitlines()) <= 60


def test_links_between_documents_are_valid() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            # The reference is generated with the site.
            if "://" not in target and not target.startswith("reference/"):
                assert (page.parent / target).exists(), f"{page_name(page)} links to {target}"


def test_the_architecture_page_matches_the_layering_test() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    spec = importlib.util.spec_from_file_location("layering", REPOSITORY / "tests/test_layering.py")
    assert spec is not None and spec.loader is not None
    layering = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(layering)
    shown = {int(row): names.split() for row, names in re.findall(r"^(\d)  (.*)$", page, re.M)}
    held = {
        row: [package for package in packages if package != "__main__"]
        for row, packages in enumerate(layering.ROWS)
    }
    assert shown == held
    packages = page.split("## The packages")[1].split("\n## ")[0]
    described = re.findall(r"^\| `(\w+)` \|", packages, re.M)
    assert sorted(described) == sorted(package for row in held.values() for package in row)


def test_make_sanitize_covers_all_callers_of_the_native_core() -> None:
    package = REPOSITORY / "src" / "groundup"
    callers = {
        path.relative_to(package).parts[0]
        for path in package.rglob("*/*.py")
        if re.search(r"^ *from groundup(\._native import| import _native)", path.read_text(), re.M)
    }
    found = re.search(r"^SANITIZE_TESTS \?= (.*)", MAKEFILE, re.M)
    assert found is not None
    assert callers == {folder.removeprefix("tests/") for folder in found[1].split()}


# All commands of the README, the quickstart and the guides are run, in this order, at small sizes.

GUIDES = "training tuning evaluation generation export planning distributed experiments reports"
RUN_PAGES = ["README.md", "docs/quickstart.md"]
RUN_PAGES += [f"docs/guides/{name}.md" for name in GUIDES.split()] + ["docs/cs336.md"]

LEFT_OUT = {
    "serve": "tests/serving starts servers",
    "chat": "tests/cli types what a person types",
    "verify-resume": "tests/training proves a resume",
    "new": "tests/cli trains on folders of its own",
}
SMALL = {
    "--megabytes": "0.3",
    "--vocab-size": "400",
    "--num-steps": "8",
    "--max-tokens": "8",
    "--model.vocab-size": "400",
    "--model.context-length": "16",
    "--model.d-model": "32",
    "--model.num-heads": "2",
}
# Its clock starts with the process: tests/training measures it in separate processes.
LEFT_OUT_FLAG = "--minutes"
# Flags whose defaults are too large for a test.
ADDED: dict[str, dict[str, str]] = {
    "train": {"--device": "cpu", "--batch-size": "2", "--evaluation.num-windows": "2"},
    "tune": {"--device": "cpu", "--num-steps": "8", "--model.context-length": "200"},
    "generate": {"--max-tokens": "8"},
}
# For a run that would choose its settings for ten minutes.
SIZES = {"--model.context-length": "16", "--model.d-model": "32", "--model.num-layers": "1"}
PROBED = "--model.d-model 32 --model.num-heads 2 --model.context-length 16".split()


def small(words: list[str]) -> list[str]:
    if words[0] == "plan":
        return [*words, *PROBED] if "--probe" in words else words
    kept: list[str] = []
    values = ""
    for word in words:
        if word.startswith("--"):
            values = SMALL.get(word, "")
            kept += [word, *values.split()]
        elif not values:
            kept.append(word)
    added = ADDED.get(words[0], {})
    if words[0] == "train" and not {"--config", "--resume", "--from"} & set(words):
        added = added | SIZES
    for flag, value in added.items():
        if flag not in kept:
            kept += [flag, value]
    return kept


def make_small_configs(folder: Path) -> None:
    """Copy the repository's configs, with sizes, data and devices for a test."""
    for source in sorted((REPOSITORY / "configs").rglob("*.yaml")):
        settings: dict[str, Any] = yaml.safe_load(source.read_text(encoding="utf-8"))
        if source.parent.name == "train":
            settings |= {"num_steps": 8, "batch_size": 2, "device": "cpu", "precision": "float32"}
            sizes = {"vocab_size": 400, "context_length": 16, "d_model": 32}
            settings["model"] = sizes | {"num_layers": 1, "num_heads": 2}
            settings["data"] = {"shards": "shards", "tokenizer": "tokenizer.json"}
            settings["schedule"] = {"warmup_steps": 1}
            settings["evaluation"] = {"every_steps": 2, "num_windows": 2}
            settings["samples"] = {"every_steps": 0}
            settings.pop("runs_folder", None)
        else:
            settings |= {"seeds": [0], "variants": {}, "tokens": 64}
            settings["grid"] = {"optimizer.learning_rate": [1e-3]}
        target = folder / source.relative_to(REPOSITORY)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(yaml.safe_dump(settings), encoding="utf-8")


# Trials of a sweep are processes.
@pytest.mark.slow
@pytest.mark.usefixtures("steady")
def test_documented_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "src"))
    monkeypatch.chdir(tmp_path)
    make_small_configs(tmp_path)
    (tmp_path / "prompts.txt").write_text("Once\nThe cat\n")
    (tmp_path / "corpora").mkdir()
    failures: list[str] = []

    def run(page: str, words: list[str]) -> None:
        capsys.readouterr()
        if main(words) != 0:
            error = capsys.readouterr().err.strip()
            failures.append(f"{page}: groundup {shlex.join(words)}\n  {error}")

    for name in ("stories", "web"):
        path = f"corpora/{name}.txt"
        run("given", ["data", "sample", "--megabytes", "0.1", "--seed", "3", "--out", path])
    done: set[str] = set()
    interrupted = ["train", "--config", "configs/train/tinystories.yaml", "--name", "tinystories"]
    for page in RUN_PAGES:
        lines = [words[1:] for words in commands(REPOSITORY / page) if words[0] == "groundup"]
        for words in lines:
            text = shlex.join(small(words))
            is_timed = words[0] in ("train", "more") and LEFT_OUT_FLAG in words
            if text in done or words[0] in LEFT_OUT or is_timed:
                continue
            done.add(text)
            if words[:2] == ["train", "--name"] and "--resume" not in words:
                shutil.rmtree(Path("runs", words[2]), ignore_errors=True)
            run(page, small(words))
            if words[:3] == ["train", "--name", "first"] and not Path("runs/second").exists():
                run("given", [*small(words)[:2], "second", *small(words)[3:]])
                run("given", small(interrupted))
    assert not failures, "\n".join(failures)


def test_the_costs_on_the_cs336_page_match_the_planner() -> None:
    page = (REPOSITORY / "docs" / "cs336.md").read_text("utf-8")
    xl = PRESETS["gpt2-xl"]
    rows = {
        f"| {size}": PRESETS[f"gpt2-{size.lower()}"] for size in "small medium large XL".split()
    }
    rows |= {"| XL, d_ff 4,288 (newer handout)": xl.with_(d_ff=4_288)}
    rows |= {"| XL, context 16,384": xl.with_(context_length=16_384)}
    for row, model in rows.items():
        flops = forward_flops(model).values()
        numbers = [sum(count_parameters(model).values()), *flops, sum(flops)]
        assert " | ".join([row, *(f"{number:,}" for number in numbers)]) + " |" in page
    for model in (xl, xl.with_(feed_forward="silu"), xl.with_(d_ff=4_288)):
        device = get_accelerator("A100 80GB")
        run: dict[str, Any] = {"batch_size": 1_024, "num_steps": 400_000, "mfu": 0.5}
        plan = make_plan(model, device, precision="float32", **run).to_json()
        memory, days = plan["textbook_memory"], plan["duration"]["days"]
        numbers = [memory[name] for name in ("fixed_bytes", "bytes_per_sequence", "largest_batch")]
        assert " | ".join(f"{number:,}" for number in numbers) + " |" in page
        assert f"{days:,.1f}" in page


# The tour of the code in docs/reading.md.

READING = REPOSITORY / "docs" / "reading.md"
READING_TEXT = READING.read_text(encoding="utf-8")


def test_every_stop_exists_and_has_code_to_run() -> None:
    """Checks the files on the page, and the functions and classes to read in them."""
    assert all(one.count("```python\n") == 1 for one in READING_TEXT.split("\n## ")[1:])
    items = re.findall(r"^- `([\w/]+\.py)`(?:: ((?:`\w+`\s*)+))?", READING_TEXT, re.MULTILINE)
    assert len(items) >= 15
    for file, names in items:
        source = (REPOSITORY / "src" / "groundup" / file).read_text("utf-8")
        found = set(re.findall(r"^(?:def|class) (\w+)", source, re.MULTILINE))
        assert set(re.findall(r"`(\w+)`", names)) <= found, file


@pytest.mark.slow
@pytest.mark.usefixtures("steady")
def test_the_code_runs_and_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    before = None
    smaller = READING_TEXT.replace('"--megabytes", "1"', '"--megabytes", "0.3"')
    smaller = smaller.replace("get_batch(data, 16, 64,", "get_batch(data, 8, 32,")
    (tmp_path / "reading.md").write_text(smaller, encoding="utf-8")
    for block in blocks(tmp_path / "reading.md", "python"):
        exec(compile(block, "reading.md", "exec"), names)
        if "cross_entropy" in names and before is None:
            before = names["cross_entropy"](names["model"](names["ids"][:-1]), names["ids"][1:])
    assert before is not None and names["loss"] < before - 2
    assert names["tokenizer"].decode(names["generated"]).startswith("Once upon a time")
