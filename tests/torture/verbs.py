"""Every verb that writes: a command line, and what must lie on disk when it has come to its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from artefacts import Artefacts, locked
from harness import Case, Child, Ended, Lost

from groundup.cli.verbs import VERBS as KNOWN
from groundup.files import hash_bytes, hash_file

# What says when and where a run took place; `comparable_records` leaves the clocks out of metrics.
_OF_THE_MOMENT = {"log.txt", "environment.json", "outcome.json", "state.json", "trials.jsonl"}


@dataclass(frozen=True)
class WritingVerb:
    """A verb, the words after it, and the words to go on after it was stopped."""

    words: Callable[[Artefacts], list[str]]
    resume_words: tuple[str, ...] = ()
    """Added where the output has been begun."""
    output: str = "out"
    is_slow: bool = False


VERBS = {
    "tokenizer train": WritingVerb(
        lambda a: f"tokenizer train {a.text} --vocab-size 1000 --out out/t.json".split()
    ),
    "data prepare": WritingVerb(lambda a: a.prepare_words("out")),
    "train": WritingVerb(
        lambda a: [*a.train_words("run"), "--runs-folder", "out"], resume_words=("--resume",)
    ),
    "export huggingface": WritingVerb(
        lambda a: ["export", str(a.run), "--to", "huggingface", "out/export"]
    ),
    "export gguf": WritingVerb(lambda a: ["export", str(a.run), "--to", "gguf", "out/m.gguf"]),
    "import huggingface": WritingVerb(
        lambda a: ["import", "huggingface", str(a.export), "--name", "r", "--runs-folder", "out"]
    ),
    "data sample": WritingVerb(lambda a: "data sample --megabytes 1 --out out/s.txt".split()),
    "tokenizer convert": WritingVerb(
        lambda a: ["tokenizer", "convert", str(a.tokenizer), "--to", "gpt2", "out"]
    ),
    "report": WritingVerb(lambda a: ["report", str(a.run), "--out", "out/report.html"]),
    "sweep": WritingVerb(lambda a: ["sweep", str(a.sweep)], output="sweeps", is_slow=True),
}
"""quickstart, ablate, scaling and verify-resume run these verbs' own code one after another."""


def verbs_of(case: Case) -> list[str]:
    """The verbs to disturb; those of a few seconds are left out of quick runs."""
    names = [name for name, verb in VERBS.items() if not (case.quick and verb.is_slow)]
    return [name for name in names if name in KNOWN or name.split()[0] == "export"]


def command_line(verb: WritingVerb, artefacts: Artefacts, place: Path) -> list[str]:
    """What a user types, the first time or to go on."""
    words = verb.words(artefacts)
    has_begun = verb.resume_words and any((place / verb.output).glob("*/config.yaml"))
    return [*words, *verb.resume_words] if has_begun else words


def undisturbed(case: Case, name: str) -> tuple[dict[str, str], float, int]:
    """What the verb leaves when nothing happens, in how many seconds, and the bytes on disk."""
    place = case.work / "undisturbed" / name.replace(" ", "_")
    place.mkdir(parents=True, exist_ok=True)
    record = Path(f"{place}.json")
    with locked(Path(f"{place}.lock")) as is_known:
        if not is_known:
            ended = Child(place, VERBS[name].words(Artefacts(case.work))).wait()
            if ended.status:
                raise Lost(f"undisturbed it ended with {ended.status}: {ended.error[-500:]}")
            output = place / VERBS[name].output
            size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
            record.write_text(json.dumps([contents(output), ended.seconds, size]))
    files, seconds, size = json.loads(record.read_text())
    return files, seconds, size


def finish(case: Case, name: str) -> Ended:
    """Run the command again, without a fault; what it leaves must be what it always leaves."""
    verb = VERBS[name]
    ended = Child(case.place, command_line(verb, Artefacts(case.work), case.place)).wait()
    ended.check()
    expected = undisturbed(case, name)[0]
    found = contents(case.place / verb.output)
    wrong = [path for path in expected if found.get(path) != expected[path]]
    if wrong:
        end = ended.error.strip().splitlines()[-1:] or [""]
        raise Lost(f"{', '.join(wrong[:3])} differ from an undisturbed run's ({end[0]})")
    if extra := found.keys() - expected.keys():
        raise Lost(f"left behind: {', '.join(sorted(extra)[:3])}")
    return ended


def contents(folder: Path) -> dict[str, str]:
    """Every file by its path: its hash, without clocks."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        name = path.relative_to(folder).as_posix()
        if path.name == "metrics.jsonl":
            from groundup.training.verify import comparable_records

            found[name] = hash_bytes(json.dumps(comparable_records(path)).encode())
        elif path.name not in _OF_THE_MOMENT and path.parent.name != "trials":
            found[name] = hash_file(path)
    return found
