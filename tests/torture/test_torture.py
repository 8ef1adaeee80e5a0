"""A minute of `make torture`: a few faults of each kind, the same ones always."""

import os
from pathlib import Path

import histories
import pytest
from harness import Case, Kind, Lost, Results, run_cases
from proof import PACKAGE, read_faults, torture


@pytest.mark.slow
def test_what_a_loss_of_power_leaves_is_continued_with_the_same_bits(tmp_path: Path) -> None:
    """200 histories; `make torture` tries ten thousand."""
    histories.make_artefacts(tmp_path / "made")
    for number in (0, 1, 3, 5, 7):
        case = Case("power", 1, number, tmp_path)
        case.place.mkdir(parents=True)
        histories.lose_power(case, 40, 2)
        assert case.counts["states"] > 3 and case.counts["continued"] == 2


@pytest.mark.slow
def test_every_fault_is_survived() -> None:
    options = "--quick --only damage --only fuzz --only clients --only forged"
    assert torture(options.split(), 1, 1, None) == ""


@pytest.mark.slow
def test_a_loss_and_a_crash_are_told_with_the_commands_that_show_them_again(tmp_path: Path) -> None:
    def inject(case: Case) -> None:
        if case.number == 1:
            raise Lost("a reason")
        if case.number == 2:
            os._exit(3)

    results = Results()
    cases = (Case("kind", 7, number, tmp_path, "a name") for number in range(4))
    run_cases(Kind("kind", inject, 1.0, 4), cases, results, 2, 60.0, "")
    assert results.rows["kind"] == {"injected": 4, "lost": 2}
    assert "--seed 7 --case kind/1 --aim 'a name'" in results.losses["kind: : a reason"][0]
    assert "--case kind/2" in results.losses["kind: its process: status 3"][0]


def test_the_faults_of_the_proof_can_be_made() -> None:
    for fault in read_faults():
        assert fault.old in (PACKAGE / fault.file).read_text("utf-8"), fault.name
