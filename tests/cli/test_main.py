"""The command line's frame: finding verbs, reading flags, exit statuses, one-line errors."""

import errno
import os
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import pytest
import tyro

from groundup import __version__
from groundup.cli import verbs
from groundup.cli.flags import is_on
from groundup.cli.main import main
from groundup.errors import DataError


class Arguments(pydantic.BaseModel):
    """Write a corpus."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    files: tyro.conf.Positional[tuple[str, ...]] = ()
    """What to read."""
    out: Path = Path("corpus.txt")
    """Where the corpus goes."""
    megabytes: Annotated[float, pydantic.Field(gt=0)] = 20.0
    """How much text; unlike --kilobytes elsewhere."""
    errors: Literal["strict", "replace"] = "strict"
    """What invalid text gets."""
    quiet: bool = False
    """Say less."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Two numbers."""


class NeedyArguments(pydantic.BaseModel):
    """Needs two values."""

    tokenizer: Path
    """The tokenizer file to use, whatever its format may be: a description long enough to wrap."""
    out_folder: Path
    """Where the shards go."""


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """`groundup try it`, whose Arguments and run a test may replace."""
    module = types.ModuleType("groundup.cli.try_it")
    module.Arguments = Arguments  # type: ignore[attr-defined]
    module.run = lambda arguments: print(arguments)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(verbs.VERBS, "try it", verbs.Verb("try it", "a verb of the tests"))
    monkeypatch.setitem(verbs.GROUPS, "try", "things of the tests")
    return module


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"]])
def test_the_overview_lists_every_verb(shell: Any, argv: list[str]) -> None:
    text = shell(*argv)
    for verb in verbs.VERBS.values():
        assert f"  {verb.name} " in text and verb.summary in text
    assert max(map(len, text.splitlines())) <= 100


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"groundup {__version__}\n"


@pytest.mark.parametrize("group", verbs.GROUPS)
def test_a_group_lists_its_verbs_only(shell: Any, group: str) -> None:
    for argv in ([group], [group, "--help"]):
        text = shell(*argv)
        for name in verbs.VERBS:
            assert (f"  {name} " in text) == (name.split()[0] == group)


def test_help_and_version_import_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from groundup.cli.main import main\n"
        "for words in '', '--help', '--version', 'tokenizer --help', 'data', 'tokeniser':\n"
        "    main(words.split())\n"
        "heavy = {'torch', 'numpy', 'tyro', 'pydantic', 'rich', 'yaml', 'regex'}\n"
        "sys.exit(repr(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


NO_TORCH = """
import sys
from groundup.cli.main import main
for line in '''
    data sample --megabytes 0.02 --out stories.txt
    tokenizer train stories.txt --vocab-size 300
    tokenizer encode --text the
    tokenizer inspect the
    tokenizer compare tokenizer.json --texts stories.txt
    data prepare stories.txt
    data verify shards
    plan --preset gpt2-xl --minutes 10000
'''.strip().splitlines():
    assert main(line.split()) == 0, line
    assert "data sample" not in line or "numpy" not in sys.modules
assert "torch" not in sys.modules
"""


def test_verbs_without_tensors_import_no_torch(tmp_path: Path, repository: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(repository / "src")}
    command = [sys.executable, "-c", NO_TORCH]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["tokeniser"], "unknown command groundup tokeniser: did you mean tokenizer?"),
        (
            ["tokenizer", "trian"],
            "groundup tokenizer trian: did you mean tokenizer train?",
        ),
        (["prepare"], "unknown command groundup prepare: did you mean data prepare?"),
        (["quikstart"], "unknown command groundup quikstart: did you mean quickstart?"),
        (["--verison"], "groundup has no option --verison: did you mean --version?"),
        (["data", "--sample"], "did you mean data sample?"),
        (["xyz"], "unknown command groundup xyz: known are"),
    ],
)
def test_an_unknown_verb_offers_the_nearest(shell: Any, argv: list[str], complaint: str) -> None:
    assert complaint in shell.fails(*argv)


def test_arguments_reach_the_verb(shell: Any, verb: types.ModuleType) -> None:
    text = shell("try", "it", "a", "-b c", "--megabytes", "3", "--out", "-x y", "--quiet")
    assert "files=('a', '-b c')" in text and "PosixPath('-x y')" in text
    assert "megabytes=3.0" in text and "quiet=True" in text


@pytest.mark.parametrize(
    ("words", "is_quiet"),
    [
        (["--quiet"], True),
        (["--no-quiet"], False),
        (["--quiet", "true"], True),
        (["--quiet", "False", "--out", "x"], False),
        (["--quiet=TRUE"], True),
        (["--quiet=false"], False),
        (["--quiet", "--out", "true"], True),
        (["--out=false"], False),
        (["--quiet", "--no-quiet"], False),
        (["--no-quiet", "--quiet=true"], True),
    ],
)
def test_a_switch_takes_truth_values(
    shell: Any, verb: types.ModuleType, words: list[str], is_quiet: bool
) -> None:
    assert f"quiet={is_quiet}" in shell("try", "it", *words)
    assert is_on("--quiet", words) is is_quiet


def test_a_verb_may_say_what_the_flags_start_from(shell: Any, verb: types.ModuleType) -> None:
    verb.defaults = lambda words: Arguments(megabytes=len(words), quiet=True)  # type: ignore[attr-defined]
    text = shell("try", "it", "--out", "x")
    assert "megabytes=2.0" in text and "quiet=True" in text and "'x'" in text
    assert "(default: 1.0)" in shell("try", "it", "--help")


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "MIMALLOC_PURGE_DELAY"])
def test_what_torch_reads_as_it_loads_is_set_before_a_verb_runs(
    verb: types.ModuleType, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    seen = []
    verb.run = lambda arguments: seen.append(os.environ[name])  # type: ignore[attr-defined]
    monkeypatch.delenv(name, raising=False)
    main(["try", "it"])
    monkeypatch.setenv(name, "mine")
    main(["try", "it"])
    ours, theirs = seen
    assert ours in ("PASSIVE", "-1") and theirs == "mine"


@pytest.mark.parametrize(("returned", "status"), [(None, 0), (0, 0), (1, 1), (True, 1)])
def test_a_verb_decides_its_exit_status(
    verb: types.ModuleType, returned: int | None, status: int
) -> None:
    verb.run = lambda arguments: returned  # type: ignore[attr-defined]
    assert main(["try", "it"]) == status


def test_help_of_a_verb_shows_every_default(shell: Any, verb: types.ModuleType) -> None:
    text = shell("try", "it", "--help")
    assert text.startswith("usage: groundup try it ")
    for default in ("corpus.txt", "20.0", "strict", "False"):
        assert f"(default: {default})" in text
    assert "FILES" in text
    assert shell("try", "it", "a.txt", "--out", "x", "-h") == text


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (
            ["--megabites", "3"],
            "groundup try it has no option --megabites: did you mean --megabytes?",
        ),
        (["--mega_bites=3"], "has no option --mega_bites: did you mean --megabytes?"),
        (["--kilobytes", "1"], "has no option --kilobytes"),
        (["--zzz"], "groundup try it has no option --zzz: see groundup try it --help"),
        (["-x"], "groundup try it has no option -x"),
        (["--megabytes", "many"], "--megabytes must be a finite number, got 'many'"),
        (["--megabytes", "-3"], "--megabytes is -3.0, but input should be greater than 0"),
        (["--errors", "ignore"], "--errors must be one of strict, replace, got 'ignore'"),
        (["--out"], "--out needs a value"),
        (["--betas", "0.9", "--quiet"], "--betas takes 2 values, got '0.9'"),
        (["--betas", "0.9", "0.9", "1"], "--betas takes 2 values, got '0.9 0.9 1'"),
    ],
)
def test_a_bad_flag_is_one_line_that_names_it(
    shell: Any, verb: types.ModuleType, argv: list[str], complaint: str
) -> None:
    assert complaint in shell.fails("try", "it", *argv)


@pytest.mark.parametrize("columns", ["40", "80", "300"])
def test_missing_arguments_are_named_at_any_width(
    shell: Any, monkeypatch: pytest.MonkeyPatch, verb: types.ModuleType, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    verb.Arguments = NeedyArguments  # type: ignore[attr-defined]
    message = shell.fails("try", "it")
    assert message == (
        "groundup try it needs --tokenizer and --out-folder: see groundup try it --help"
    )
    message = shell.fails("try", "it", "--tokenizer", "t", "--out-folder", "o", "a", "b")
    assert message == "groundup try it has no use for a, b: see groundup try it --help"
    message = shell.fails("try", "it", "--out-foldr", "x")
    assert message == "groundup try it has no option --out-foldr: did you mean --out-folder?"


def test_colours_are_not_part_of_an_error(
    shell: Any, monkeypatch: pytest.MonkeyPatch, verb: types.ModuleType
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in shell.fails("try", "it", "--errors", "ignore")


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (DataError("a.txt is empty:\n use another"), 2, "a.txt is empty: use another"),
        (FileNotFoundError(2, "No such file or directory", "a\x1b[2J"), 2, None),
        (PermissionError(13, "Permission denied", "a"), 2, "a: permission denied"),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            2,
            "no space left on device; free some space and run the same command again",
        ),
        (OSError(errno.EIO, "Input/output error", "a"), 1, "a: input/output error"),
        (OSError("odd"), 1, "odd"),
        (MemoryError(), 1, "out of memory: close other programs or work on less at once"),
    ],
)
def test_what_goes_wrong_is_one_line_and_a_status(
    shell: Any, verb: types.ModuleType, error: Exception, status: int, line: str | None
) -> None:
    def run(arguments: Arguments) -> None:
        raise error

    verb.run = run  # type: ignore[attr-defined]
    message = shell.fails("try", "it", status=status)
    assert message.isprintable()
    if line is not None:
        assert message == line


def test_a_bug_of_ours_is_not_dressed_up(verb: types.ModuleType) -> None:
    def run(arguments: Arguments) -> None:
        raise ZeroDivisionError

    verb.run = run  # type: ignore[attr-defined]
    with pytest.raises(ZeroDivisionError):
        main(["try", "it"])


INTERRUPTED = """
import dataclasses, sys, time, types
from groundup.cli import verbs
from groundup.cli.main import main
module = types.ModuleType("groundup.cli.hang")
@dataclasses.dataclass
class Arguments:
    seconds: int = 60
def run(arguments):
    print("hanging", flush=True)
    time.sleep(arguments.seconds)
module.Arguments, module.run = Arguments, run
sys.modules[module.__name__] = module
verbs.VERBS["hang"] = verbs.Verb("hang", "")
sys.exit(main(["hang"]))
"""


def test_an_interrupt_is_one_word_and_status_130() -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "hanging\n"
        child.send_signal(signal.SIGINT)
        _, stderr = child.communicate()
    assert (child.returncode, stderr) == (130, "interrupted\n")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "groundup", "--help"]
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_module_runs_as_a_program() -> None:
    command = [sys.executable, "-m", "groundup", "tokenizer", "trian"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("error: ")


@pytest.mark.parametrize(
    "words",
    [
        ["tokenizer", "train", "stories.txt", "--vocab-size", "300"],
        ["data", "prepare", "stories.txt"],
    ],
    ids=" ".join,
)
def test_a_core_that_is_not_built_is_one_line(words: list[str], tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['groundup._native'] = None\n"
        f"from groundup.cli.main import main; sys.exit(main({words!r}))"
    )
    (tmp_path / "stories.txt").write_text("Once upon a time")
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: groundup's native core is not built: run `make install`")
