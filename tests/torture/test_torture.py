"""A minute of `make torture`: a few fixed faults of each kind."""

from pathlib import Path

import histories
import pytest
from harness import Case
from proof import FAULTS, PACKAGE, torture


@pytest.mark.slow
def test_work_continues_bitwise_after_power_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 histories; `make torture` tries ten thousand."""
    # Commands run in the folder that they write to.
    monkeypatch.chdir(tmp_path)
    histories.make_artefacts(tmp_path / "made")
    for number in (0, 1, 3, 5, 7):
        case = Case("power", 1, number, tmp_path)
        case.place.mkdir(parents=True)
        histories.lose_power(case, 40, 2)
        assert case.counts["states"] > 3 and case.counts["continued"] == 2


@pytest.mark.slow
def test_every_fault_is_survived() -> None:
    options = "--quick --only damage --only fuzz --only clients"
    assert torture(options.split(), 1, 1, None) == ""


def test_the_seeded_faults_apply() -> None:
    for fault in FAULTS:
        assert fault["old"] in (PACKAGE / fault["file"]).read_text("utf-8"), fault["name"]
