"""What every verb guarantees: help without torch, one-line errors, exit statuses, any stream."""

import errno
import os
import pty
import shlex
import shutil
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import torch
from pydantic import Field

from groundup import __version__
from groundup._native import vectors
from groundup.cli import verbs
from groundup.cli.arguments import FlagsOf, Positional, Repeated, as_command, parse
from groundup.cli.main import main
from groundup.cli.terminal import prepare_streams
from groundup.config import Settings
from groundup.errors import DataError


class Inner(Settings):
    """A section."""

    d_ff: int = Field(default=64, ge=1)
    """Width."""


class Arguments(Settings):
    """Write a corpus."""

    run: Positional[str]
    """The run."""
    files: Positional[tuple[str, ...]] = ()
    """What to read."""
    out: Path = Path("corpus.txt")
    """Where the corpus goes."""
    megabytes: float = Field(default=20.0, gt=0)
    """How much text; unlike --kilobytes elsewhere."""
    count: int | None = Field(default=7, ge=1)
    """How many."""
    errors: Literal["strict", "replace"] = "strict"
    """What invalid text gets."""
    quiet: bool = False
    """Say less."""
    stop: Repeated[tuple[str, ...]] = ()
    """Where to stop."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Two numbers."""
    from_: str = ""
    """A name that Python keeps for itself."""
    model: Annotated[dict[str, Any], FlagsOf(Inner, "model.")] = Field(default_factory=dict)


def read(*words: str) -> Any:
    return parse(Arguments, "groundup try it", words)


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A verb `groundup try it`, whose function a test may replace."""
    module = types.ModuleType("groundup.cli.try_it")
    module.Arguments = Arguments  # type: ignore[attr-defined]
    module.run = lambda arguments: print(arguments)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(verbs.VERBS, "try it", "a verb of the tests")
    monkeypatch.setitem(verbs.GROUPS, "try", "things of the tests")
    return module


def test_words_are_parsed_to_arguments() -> None:
    typed = "r a --megabytes 3 --quiet b --stop x --stop=-y --out=-x --betas 0.1 2e-1 --count 1e3"
    found = read(*typed.split(), "--model.d_ff=8", "--from", "here there", "c", "--", "-d")
    assert found.run == "r" and found.files == ("a", "b", "c", "-d") and found.quiet
    assert found.out == Path("-x") and found.stop == ("x", "-y") and found.betas == (0.1, 0.2)
    assert (found.megabytes, found.count, found.from_) == (3.0, 1000, "here there")
    assert found.model == {"d_ff": 8}
    assert not read("r", "--no-quiet").quiet and read("r", "--count", "None").count is None
    assert read("r", "--count=1", "--count=2").count == 2


@pytest.mark.parametrize(
    "words",
    [
        ["r"],
        ["r", "a b", "--quiet", "--count", "none", "--stop", "'x'", "--stop=-y", "--out=-x y"],
        ["r", "--betas", "1", "2", "--model.d-ff", "3", "--errors=replace"],
    ],
)
def test_printed_commands_can_be_run(words: list[str]) -> None:
    arguments = read(*words)
    program, *typed = shlex.split(as_command("try it", arguments))
    assert program == "groundup" and typed[:2] == ["try", "it"]
    assert read(*typed[2:]) == arguments


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--megabites 3", "has no option --megabites: did you mean --megabytes?"),
        ("--mega_bites=3", "did you mean --megabytes?"),
        ("--n-embd 3", "groundup try it has no option --n-embd: see groundup try it --help"),
        ("--d-ff 3", "did you mean --model.d-ff?"),
        ("-x", "has no option -x"),
        ("--megabytes many", "--megabytes is 'many'"),
        ("--megabytes -3", "--megabytes is '-3', but input should be greater than 0"),
        ("--count 1.5e0", "--count"),
        (f"--count {'9' * 5000}", "--count"),
        ("--errors ignore", "--errors is 'ignore'"),
        ("--out --quiet", "--out"),
        ("--betas 0.9 --quiet", "--betas"),
        ("--model.d-ff 0", "--model.d-ff is '0'"),
    ],
)
def test_a_bad_flag_is_one_line_that_names_it(
    shell: Any, verb: types.ModuleType, words: str, complaint: str
) -> None:
    error = shell.fails("try", "it", "r", *words.split())
    assert complaint in error and len(error) < 500


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_the_overview_lists_every_verb(shell: Any, words: list[str]) -> None:
    text = shell(*words)
    for verb, summary in verbs.VERBS.items():
        assert f"  {verb} " in text and summary in text
    assert max(map(len, text.splitlines())) <= 100
    for group in verbs.GROUPS:
        for name in verbs.VERBS:
            assert (f"  {name} " in shell(group, *words)) == (name.split()[0] == group)


def test_the_version_names_what_a_bug_report_needs(
    shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = shell("--version").splitlines()
    assert lines[0] == f"groundup {__version__}"
    fields = dict(line.split(maxsplit=1) for line in lines)
    assert fields["native"].startswith(vectors()[0]) and fields["torch"] == torch.__version__
    assert fields["device"].startswith(("cpu: ", "cuda: ", "mps: "))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: 1 / 0)
    assert "device   not usable: division by zero" in shell("--version")


def test_help_shows_every_default(shell: Any, verb: types.ModuleType) -> None:
    text = " ".join(shell("try", "it", "--help-all").split())
    assert text.startswith("usage: groundup try it ") and "Write a corpus." in text
    for default in ("corpus.txt", "20.0", "strict", "False", "0.9 0.95", "64"):
        assert f"(default: {default})" in text
    assert "(required)" in text and "{strict" not in text and "strict|replace" in text
    assert " ".join(shell("try", "it", "a.txt", "--out", "x", "--help-all").split()) == text


def test_help_names_the_source_of_model_settings(capsys: pytest.CaptureFixture[str]) -> None:
    for name in "more", "tune":
        assert main([name, "--help"]) == 0
        assert "residual stream. (default: the run's)" in " ".join(capsys.readouterr().out.split())


LIGHT = """
import contextlib, io, sys
from groundup.cli.main import main
from groundup.cli.terminal import prepare_streams
from groundup.cli.verbs import VERBS

def run(words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        return main(words), out.getvalue()

for words in "", "--help", "tokenizer --help", "data", "tokeniser":
    run(words.split())
heavy = {"torch", "numpy", "argparse", "pydantic", "rich", "yaml", "regex"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
for verb in VERBS:
    status, shown = run([*verb.split(), "--help"])
    assert status == 0 and shown.startswith(f"usage: groundup {verb}"), (verb, shown)
    assert "torch" not in sys.modules, f"help of {verb} imports torch"
    status, shown = run([*verb.split(), "--no-such-flag"])
    assert status == 2 and shown.startswith("error: ") and shown.count("\\n") == 1, (verb, shown)
for line in '''
    data sample --megabytes 0.02 --out stories.txt
    tokenizer train stories.txt --vocab-size 300
    tokenizer encode --text the
    tokenizer inspect the
    data prepare stories.txt
    data verify shards
    plan --preset gpt2-xl
'''.strip().splitlines():
    assert run(line.split())[0] == 0, line
    assert "torch" not in sys.modules, line
"""


def test_help_and_verbs_without_tensors_import_no_torch(tmp_path: Path, repository: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(repository / "src")}
    command = [sys.executable, "-c", LIGHT]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_environment_variables_are_set_before_torch_is_imported(
    verb: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    verb.run = lambda arguments: None  # type: ignore[attr-defined]
    for name, default in (("OMP_WAIT_POLICY", "PASSIVE"), ("MIMALLOC_PURGE_DELAY", "-1")):
        monkeypatch.delenv(name, raising=False)
        assert main(["try", "it", "r"]) == 0 and os.environ[name] == default
        monkeypatch.setenv(name, "mine")
        assert main(["try", "it", "r"]) == 0 and os.environ[name] == "mine"


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (DataError("a.txt is empty:\n use another"), 2, "a.txt is empty: use another"),
        (FileNotFoundError(2, "No such file or directory", "a\x1b[2J"), 2, "a\\x1b[2J: no such"),
        (PermissionError(13, "Permission denied", "a"), 2, "a: permission denied"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "free some space"),
        (OSError(errno.EIO, "Input/output error", "a"), 1, "a: input/output error"),
        (MemoryError(), 1, "out of memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate"), 1, "out of memory"),
    ],
)
def test_errors_are_one_line_with_an_exit_status(
    shell: Any, verb: types.ModuleType, error: Exception, status: int, line: str
) -> None:
    def run(arguments: Arguments) -> None:
        raise error

    verb.run = run  # type: ignore[attr-defined]
    message = shell.fails("try", "it", "r", status=status)
    assert message.isprintable() and line in message


def test_interrupts_print_one_word_and_bugs_a_traceback(
    verb: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    verb.run = lambda arguments: signal.raise_signal(signal.SIGINT)  # type: ignore[attr-defined]
    assert main(["try", "it", "r"]) == 130 and capsys.readouterr() == ("", "interrupted\n")
    verb.run = lambda arguments: 1 // 0  # type: ignore[attr-defined]
    with pytest.raises(ZeroDivisionError):
        main(["try", "it", "r"])
    verb.run = lambda arguments: True  # type: ignore[attr-defined]
    assert main(["try", "it", "r"]) == 1


def run_in_shell(words: list[str], ending: str = "", **environment: str) -> tuple[int, bytes, str]:
    command = f"{shlex.join([sys.executable, '-m', 'groundup', *words])} {ending}"
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, env={**os.environ, **environment}
    )
    return done.returncode, done.stdout, done.stderr.decode("utf-8", "replace")


def test_closed_streams_and_pipes_are_handled() -> None:
    for ending in (">&-", "<&- >&- 2>&-"):
        assert run_in_shell(["plan", "--preset", "tinystories"], ending) == (0, b"", "")
    status, _, errors = run_in_shell(["tokenizer", "decode", "--ids", "x y"], ">&-")
    assert status == 2 and errors.startswith("error: ") and errors.count("\n") == 1
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "groundup", "--help"]
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_locale_without_an_encoding_prints_utf8(small_config: Path) -> None:
    text = "née 日本 🙂"
    flags = ["--tokenizer", str(small_config.parent / "tokenizer.json")]
    locale = {"PYTHONUTF8": "0", "LC_ALL": "C"}
    status, ids, errors = run_in_shell(["tokenizer", "encode", "--text", text, *flags], **locale)
    assert status == 0 and errors == ""
    words = ["tokenizer", "decode", "--ids", ids.decode().strip(), *flags]
    assert run_in_shell(words, **locale)[1].decode("utf-8") == text
    assert "日" in run_in_shell(["tokenizer", "inspect", text, *flags], **locale)[1].decode("utf-8")


def test_a_missing_native_core_is_one_line(tmp_path: Path) -> None:
    words = ["tokenizer", "train", "stories.txt", "--vocab-size", "300"]
    script = (
        "import sys; sys.modules['groundup._native'] = None\n"
        f"from groundup.cli.main import main; sys.exit(main({words!r}))"
    )
    (tmp_path / "stories.txt").write_text("Once upon a time")
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: groundup's native core is not built: run `make install`")


def test_an_outdated_native_core_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call_with_other_signature(words: list[str]) -> int:
        raise TypeError("'NoneType' object cannot be interpreted as an integer")

    core, signatures = tmp_path / "_native.abi3.so", tmp_path / "_native.pyi"
    core.touch()
    signatures.touch()
    monkeypatch.setattr("groundup.cli.main._dispatch", call_with_other_signature)
    monkeypatch.setitem(sys.modules, "groundup._native", types.SimpleNamespace(__file__=str(core)))
    with pytest.raises(TypeError):
        main([])
    os.utime(core, (0, 0))
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("error: the native core is outdated")


@pytest.mark.slow
def test_a_folder_named_triton_is_not_triton(tmp_path: Path) -> None:
    (tmp_path / "triton").mkdir()
    command = [sys.executable, "-c", "import groundup.nn.kernels"]
    subprocess.run(command, cwd=tmp_path, check=True)


TRAIN = "train --config small.yaml --name new"


@pytest.fixture(scope="module")
def with_files(
    folder_of_run: Path, small_config: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with a run, settings, a tokenizer, text, and damaged files."""
    folder = tmp_path_factory.mktemp("mistakes")
    shutil.copytree(folder_of_run, folder, dirs_exist_ok=True)
    shutil.copytree(folder / "runs/small", folder / "runs/empty")
    shutil.rmtree(folder / "runs/empty/checkpoints")
    for name in ("small.yaml", "stories.txt", "tokenizer.json"):
        shutil.copy(small_config.parent / name, folder)
    (folder / "blank.txt").write_text("\n \n")
    (folder / "bad.txt").write_bytes(b"good \xc3( bad")
    (folder / "odd.bin").write_bytes(b"abc")
    (folder / "cut.json").write_bytes((folder / "tokenizer.json").read_bytes()[:500])
    return folder


@pytest.fixture
def bare_machine(with_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(with_files)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("tokeniser train", "unknown command groundup tokeniser: did you mean tokenizer"),
        ("prepare", "unknown command groundup prepare: did you mean data prepare?"),
        ("data --sample", "did you mean data sample?"),
        ("xyz", "unknown command groundup xyz: choose from"),
        ("train --every-steps 3", "did you mean --evaluation.every-steps or --checkpoints.every-"),
        ("train --resume", "add --name RUN"),
        ("plan --preset gpt2-xl --config a.yaml", "--preset and --config exclude each other"),
        ("plan --batch-size 8 --micro-batch-size 3", "divisor of --batch-size"),
        ("plan --device H20", "did you mean H200"),
        ("generate smal", "neither as a folder nor in runs: did you mean small?"),
        ("generate empty", "runs/empty has no checkpoint yet"),
        ("generate small --checkpoint 7", "no checkpoint of step 7"),
        (f"generate small --prompt {'long' * 40}", "more than the context of 16"),
        (f"generate small --seed {2**64 - 1} --num-samples 2", "seed"),
        ("generate small --prompts blank.txt", "blank.txt has no prompt"),
        ("generate small --prompts blank.txt --prompt x", "--prompt or --prompts, not both"),
        ("generate small --chat --prompt Hi", "the model has no chat template"),
        ("serve small --host 0.0.0.0", "token"),
        (f"serve small --host {'x' * 70}", "resolved"),
        ("evaluate small --tasks pairs.jsonl --whole", "--split, --whole and --shards apply"),
        ("evaluate runs", "runs is not a run folder: it has no config.yaml"),
        ("evaluate small --split validaton", "did you mean validation?"),
        ("evaluate small --shards nowhere", "nowhere"),
        ("verify-resume small --num-steps 3", "num_steps is 3"),
        ("tune small missing.jsonl --name new", "missing.jsonl does not exist"),
        ("export small out", "needs --to"),
        ("report small --out runs", "must be a file that ends in .html"),
        ("tokenizer train stories.txt --out runs", "is a folder"),
        ("tokenizer train stories.txt --out stories.txt", "is one of the inputs"),
        ("tokenizer train stories.txt --ray-address x:1", "--engine ray"),
        ("tokenizer encode runs", "runs is a folder"),
        ("tokenizer encode bad.txt --out bad.txt", "is one of the inputs"),
        ("tokenizer encode bad.txt --text x", "either --text or"),
        ("tokenizer decode bad.txt --ids 1", "either --ids or"),
        ("tokenizer decode --ids x", "--ids cannot be read as ids"),
        ("tokenizer decode odd.bin", "odd.bin"),
        ("tokenizer decode --ids 1 --tokenizer cut.json", "truncated"),
        ("data prepare stories.txt --separator <|end|>", "has no special token <|end|>"),
        ("data verify a b", "takes no argument b"),
    ],
)
def test_user_errors_are_one_line_and_write_nothing(
    shell: Any, bare_machine: None, words: str, complaint: str
) -> None:
    before = sorted(Path().rglob("*"))
    error = shell.fails(*words.split(" "))
    assert complaint in error and len(error) < 700
    assert sorted(path for path in Path().rglob("*") if path.name != "sweeps") == before


def test_untrusted_text_cannot_control_the_terminal(
    shell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x\x1b[2J.txt").write_text("Ada had a kite. " * 50)
    words = ["--vocab-size", "260", "--out", "o\x1b[2J.json"]
    shown = shell("tokenizer", "train", "x\x1b[2J.txt", *words)
    assert "o\\x1b[2J.json" in shown and "\x1b[2J" not in shown
    Path("y\x1b[2J.txt").write_bytes("a naïve café ".encode("cp1252"))
    assert main(["tokenizer", "encode", "y\x1b[2J.txt", "--tokenizer", "o\x1b[2J.json"]) == 0
    assert "y\\x1b[2J.txt" in capsys.readouterr().err
    primary, secondary = pty.openpty()
    monkeypatch.setattr(sys, "stdout", os.fdopen(secondary, "w"))
    prepare_streams()
    print("a model says \x1b[2J", flush=True)
    assert b"\x1b[2J" not in os.read(primary, 100)
    sys.stdout.close()
    os.close(primary)
