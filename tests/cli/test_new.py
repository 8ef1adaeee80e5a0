"""`groundup new` and `groundup quickstart` (new on stories): every step runs, is printed and, the
second time, is kept."""

import contextlib
import io
import itertools
import os
import re
import shlex
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch

from groundup.cli import new as verb
from groundup.cli.arguments import parse
from groundup.cli.main import main
from groundup.cli.verbs import GROUPS, find_verb
from groundup.config import load_settings
from groundup.data.shards import open_shards
from groundup.files import locked
from groundup.generation import LanguageModel
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.tokenizer import Tokenizer
from groundup.training import probe
from groundup.training.clock import Clock
from groundup.training.metrics import AfterStep

SHORT = ["--num-steps", "2", "--max-tokens", "4"]
# With this seed, one of the few documents is selected for validation.
TEXT = ["--megabytes", "0.05", "--seed", "11"]
SMALL = [*TEXT, "--vocab-size", "400", *SHORT]
RUN = Path("quickstart/runs/stories")
WIDTHS = (16, 32)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder and the output of a finished quickstart with a tiny model."""
    folder = tmp_path_factory.mktemp("quickstart")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("groundup.training.recipe._WIDTHS", WIDTHS)
        patch.setattr("groundup.cli.new.STARTED", time.monotonic())
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            assert main(["quickstart", *SMALL]) == 0
    return folder, out.getvalue()


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a new folder, with tiny models and a process that has just started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("groundup.cli.new.STARTED", time.monotonic())
    monkeypatch.setattr("groundup.training.recipe._WIDTHS", WIDTHS)


@pytest.fixture
def page(finished: tuple[Path, str], tmp_path: Path) -> str:
    """The quickstart's output; its files are in the working directory."""
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    return finished[1]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    # A command's time starts with the command, not with the test process.
    verb.__dict__["STARTED"] = time.monotonic()
    assert main([*words]) == 0
    captured = capsys.readouterr()
    return captured.out + captured.err


def test_quickstart_goes_from_nothing_to_stories(page: str) -> None:
    tokenizer = Tokenizer.load("quickstart/tokenizer.json")
    assert tokenizer.vocab_size == 400 and LanguageModel.load(RUN).step == 2
    assert open_shards("quickstart/shards", "train", tokenizer).num_tokens > 10_000
    words = ["stories", "bytes per token", "B/s", "FLOP a second", "parameters, "]
    words += [r"step 1/2 +loss \d", "sample: Once upon a time", r"perplexity +\d", "bits per byte"]
    for word in (*words, r"1 of 3, seed 1 ===\nOnce upon a time,.*=== 3 of 3"):
        assert re.search(word, page, re.DOTALL), word


def test_printed_commands_can_be_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    # A command's time starts with its process, here that of all tests.
    monkeypatch.setattr("groundup.cli.train.STARTED", time.monotonic())
    commands = [shlex.split(line)[1:] for line in re.findall(r"\$ (groundup .*)", page)]
    done, offered = commands[:6], commands[6:]
    assert [words[0] for words in done[-4:]] == ["data", "train", "evaluate", "generate"]
    assert [words[0] for words in offered[:2]] == ["serve", "generate"]
    shutil.rmtree(RUN)
    shutil.rmtree("quickstart/shards")
    for words in done:
        assert main(words) == 0, words
    stories = page.index("=== 1 of 3")
    assert page[stories : page.index("\nLook at it")] in capsys.readouterr().out
    assert main(offered[1]) == 0
    # The first model can be exported.
    assert main(next(words for words in offered if words[0] == "export")) == 0
    for words in offered:
        if words[0] == "tune":
            continue
        name = " ".join(words[:2]) if words[0] in GROUPS else words[0]
        assert parse(find_verb(name)[0], name, words[len(name.split()) :]) is not None


@pytest.mark.usefixtures("page")
def test_the_second_run_keeps_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    files = [path for path in Path("quickstart").rglob("*") if path.is_file()]
    before = {path: path.stat().st_mtime_ns for path in files}
    page = run(capsys, "quickstart", *SMALL)
    assert {path: path.stat().st_mtime_ns for path in files} == before
    assert page.count("done before") == 3 and "up to date: quickstart/shards" in page
    assert "made before, and kept: quickstart/train.yaml" in page


@pytest.mark.usefixtures("page")
def test_interrupted_training_continues(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = LanguageModel.load(RUN).model.state_dict()
    shutil.rmtree(RUN)

    def interrupt(step: int, progress: float) -> None:
        if step == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as context:
        context.setattr("groundup.cli.train.sampler", lambda config: AfterStep(interrupt))
        assert main(["quickstart", *SMALL]) == 130
    page, log = capsys.readouterr()
    # The log names the command of the step, the output that of the whole.
    assert "--resume" in log
    assert "or run the same command again" in page and "Three stories" not in page
    assert LanguageModel.load(RUN).step == 1
    page = run(capsys, "quickstart", *SMALL)
    assert "config.yaml --resume" in page and "resumed from" in page
    for name, value in LanguageModel.load(RUN).model.state_dict().items():
        assert torch.equal(value, whole[name]), name


@pytest.mark.slow
def test_a_plan_of_few_steps_does_not_end_a_timed_run_early(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The machine is busy during the probe, so the plan assumes 2 seconds per step. On this clock
    # each reading takes a tenth of a second.
    monkeypatch.setattr(probe, "time_steps", lambda config, machine: (2.0, 0))
    ticks = itertools.count()

    class TickingClock(Clock):
        def __init__(self, began: float) -> None:
            super().__init__(now=lambda: next(ticks) / 10)

    monkeypatch.setattr("groundup.training.clock.Clock", TickingClock)
    monkeypatch.setattr(verb.Project, "minutes_left", 0.1)
    words = [word for word in SMALL if word not in ("--num-steps", "1", "2", "3")]
    run(capsys, "quickstart", *words, "--minutes", "0.1")
    config, outcome = RunFolder(RUN).read_config(), RunFolder(RUN).read_outcome()
    assert config.minutes is not None and outcome is not None
    assert outcome.state == "finished" and outcome.step is not None and outcome.step > 4


@pytest.mark.parametrize(("minutes", "left"), [(10, 7.6), (60, 57.5), (1, 0.01)])
def test_training_gets_the_remaining_time(
    monkeypatch: pytest.MonkeyPatch, minutes: float, left: float
) -> None:
    monkeypatch.setattr(verb, "STARTED", time.monotonic() - 120)
    arguments = verb.Arguments(files=("a.txt",), minutes=minutes)
    project = verb.Project(arguments, "a", Path("prepared/a"))
    assert project.minutes_left == pytest.approx(left, abs=1e-3)


TEXT_OF_ONE = "The fox and the bear went to the river, and that was the end of it.\n"


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A mixed folder: Markdown, code, a picture, a subfolder."""
    folder = tmp_path / "my notes"
    (folder / "deep").mkdir(parents=True)
    for number in range(12):
        text = "".join(f"{word} {TEXT_OF_ONE}" for word in ("One", "Two", str(number)) * 9)
        (folder / f"{number}.md").write_text(f"# Note {number}\n\n{text}")
    (folder / "deep" / "code.py").write_text("def f(x):\n    return x + 1\n" * 20)
    (folder / "picture.png").write_bytes(b"\x89PNG\r\n")
    return folder


def new(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    return run(capsys, "new", *words, "--max-tokens", "4", "--minutes", "10")


def test_a_folder_becomes_a_model_with_its_settings_file(
    capsys: pytest.CaptureFixture[str], notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "_VALIDATION_BYTES", 200)
    page = new(capsys, str(notes), "--num-steps", "3")
    assert "13 files, 13 documents" in page and "picture.png" in page
    num_bytes = sum(path.stat().st_size for path in notes.rglob("*.*") if path.suffix != ".png")
    assert f"--validation-fraction {200 / num_bytes:.2g}" in page
    run = Path("runs/my-notes")
    assert LanguageModel.load(run).step == 3
    settings = load_settings(RunConfig, Path("prepared/my-notes/train.yaml"))
    trained = RunFolder(run).read_config()
    assert settings.optimizer == trained.optimizer and settings.name == "my-notes"
    assert trained.model.vocab_size == open_shards("prepared/my-notes/shards").index.vocab_size
    assert settings.samples.prompts[0].split()[0] in ("One", "Two", "def", "1")
    samples = re.findall(r"\$ (groundup generate runs/my-notes (?!.*Your own).*)", page)
    counts = [re.search(r"--num-samples (\d)", command) for command in samples]
    assert sum(1 if count is None else int(count[1]) for count in counts) == 3
    for offered in ("serve", "tune", "export", "more"):
        assert f"$ groundup {offered} runs/my-notes" in page
    assert '"content": "What do you know about: ' in page
    (export,) = re.findall(r"\$ groundup (export .*)", page)
    assert main(shlex.split(export)) == 0
    assert Path("prepared/my-notes/exports/my-notes/config.json").is_file()
    # More text gives another model; the existing one stays.
    (notes / "more.txt").write_text(TEXT_OF_ONE * 50)
    page = new(capsys, str(notes), "--num-steps", "3")
    assert "this one is my-notes-2" in page and "14 files" in page
    assert LanguageModel.load("runs/my-notes-2").step == 3
    assert new(capsys, str(notes), "--num-steps", "3").count("kept") == 3
    odd = (notes / "more.txt").rename(notes / "odd\nseed: 77.txt")
    new(capsys, str(odd), "--num-steps", "1", "--name", "odd")
    assert load_settings(RunConfig, Path("prepared/odd/train.yaml")).seed != 77


@pytest.mark.parametrize(
    ("text", "words", "complaint"),
    [
        ("a", "new text.txt", "the text has 1 byte and one context 128 tokens: give more text"),
        ("a fox\n" * 9_000, "new text.txt --minutes 0.0001", "give 1"),
        ("a fox", "new -", "save standard input to a file first"),
        ("a fox", "new text.txt --name held", "contains other files: choose another --name"),
        ("a fox", "quickstart --folder text.txt", "not a directory"),
    ],
)
def test_errors_are_raised_before_anything_is_written(
    capsys: pytest.CaptureFixture[str], text: str, words: str, complaint: str
) -> None:
    Path("text.txt").write_bytes(text.encode("latin-1"))
    Path("prepared/held").mkdir(parents=True)
    Path("prepared/held/thesis.docx").write_text("all of it")
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("error:") and complaint in error
    assert not Path("runs").exists() and not Path("prepared/text/tokenizer.json").exists()


def test_changed_text_continues_if_stopped_before_its_shards(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["text.txt", "--num-steps", "2"]
    Path("text.txt").write_text(TEXT_OF_ONE * 50)
    # A killed first write leaves only a temporary file.
    leftover = Path("prepared/text/.new.json.writing-0123456789ab")
    leftover.parent.mkdir(parents=True)
    leftover.write_text("{")
    new(capsys, *words)
    assert not leftover.exists()
    Path("text.txt").write_text("Another fox. " + TEXT_OF_ONE * 60)
    with locked(Path("prepared/text/shards")):
        assert main(["new", *words]) == 2
    assert "another process is writing" in capsys.readouterr().err
    assert "--overwrite" in new(capsys, *words)
    assert LanguageModel.load("runs/text-2").step == 2
    assert "--overwrite" not in new(capsys, *words)
    # Another text with the same name is rejected.
    Path("q").mkdir()
    Path("q/text.md").write_text(TEXT_OF_ONE * 50)
    before = Path("prepared/text/train.yaml").read_bytes()
    assert main(["new", "q/text.md"]) == 2
    made_from = Path("text.txt").resolve()
    assert f"prepared/text was made from {made_from}; choose" in capsys.readouterr().err
    assert Path("prepared/text/train.yaml").read_bytes() == before
