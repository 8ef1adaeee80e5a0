"""What a report adds to its runs: a person's finding, an ablation's worths, a ladder's laws."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groundup.experiments.report.comparison import make_report
from groundup.experiments.report.sections import comparison_document
from groundup.experiments.report.studies import ablation_study

Pages = Callable[..., tuple[str, str, dict[str, str]]]
ROW: dict[str, Any] = {
    "variant": "base",
    "settings": {},
    "num_parameters": 46_240,
    "learning_rate": 0.01,
    "is_at_edge": False,
    "loss": {"mean": 4.0, "half_width": 0.1, "num_values": 3},
    "difference": 0.0,
    "is_clear": False,
    "diverged_at": [],
    "rates_tried": [0.003, 0.01, 0.03],
}
FIT = {"budget_flops": 1e15, "best_parameters": 2e6, "best_loss": 3.0, "is_inside": True}
RUNG = {"budget_flops": 1e15, "num_parameters": 1_000_000, "loss": 3.1}
PREDICTION = {
    "budget_flops": 4e15,
    "best_parameters": 8e6,
    "d_model": 128,
    "num_parameters": 8_100_000,
    "predicted_loss": 2.5,
    "measured_loss": 2.625,
}
LADDER: dict[str, Any] = {
    "rungs": [RUNG, {**RUNG, "num_parameters": 4_000_000, "loss": 3.05}],
    "fits": [FIT, {**FIT, "is_inside": False}],
    "size_law": {"factor": 1.0, "exponent": 0.5},
    "loss_law": {"factor": 1.0, "exponent": -0.05},
    "prediction": PREDICTION,
}


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A sweep over two rates, the greater of which diverges."""
    folder = tmp_path / "rates"
    write_spec(folder, grid={"optimizer.learning_rate": [0.1, 0.2]})
    write_trial(folder, "learning_rate=0.1+seed=0", 0.1, [9.0, 2.0])
    write_trial(folder, "learning_rate=0.2+seed=0", 0.2, [9.0, None])
    return folder


def write_spec(folder: Path, **spec: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    values = {"name": folder.name, "why": "To see.", "sampler": "grid", **spec}
    (folder / "sweep.yaml").write_text(json.dumps(values))


def write_trial(
    folder: Path,
    name: str,
    rate: float,
    losses: list[float | None],
    *,
    num_steps: int = 2,
    has_ended: bool = True,
) -> None:
    run = folder / "runs" / name
    run.mkdir(parents=True)
    seed = int(name.rpartition("=")[2])
    settings = {"num_steps": num_steps, "seed": seed, "optimizer": {"learning_rate": rate}}
    (run / "config.yaml").write_text(json.dumps(settings))
    (run / "environment.json").write_text('{"data": {"content": "sha256:aa"}}')
    lines = [{"step": step, "loss": loss} for step, loss in enumerate(losses, start=1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if has_ended:
        point = name.rpartition("+seed=")[0]
        status = "diverged" if losses[-1] is None else "finished"
        with (folder / "trials.jsonl").open("a") as file:
            file.write(json.dumps({"trial": name, "point": point, "status": status}) + "\n")


@pytest.fixture
def pages(html_of: Any, markdown_of: Any) -> Pages:
    """The page, the Markdown, and the pictures beside it."""

    def make(folder: Path, **options: Any) -> tuple[str, str, dict[str, str]]:
        report = make_report([folder], **options)
        files = markdown_of(report)
        return html_of(report), files.pop(f"{folder.name}.md"), files

    return make


def test_a_finding_stands_under_the_verdicts_as_a_persons_words(sweep: Path, pages: Pages) -> None:
    html, markdown, _ = pages(sweep, finding="It is <b>so</b> | *so*.\n\n1. And so on.")
    assert "It is &lt;b&gt;so&lt;/b&gt; | *so*." in html
    assert html.index('class="verdicts"') < html.index("It is &lt;b") < html.index('id="results"')
    assert "Written by hand" in html
    assert "(written by hand): It is \\<b\\>so\\</b\\> \\| \\*so\\*.\n\n1\\. And so on." in markdown


def test_a_sweeps_own_finding_is_kept_unless_another_is_given(sweep: Path) -> None:
    (sweep / "finding.txt").write_text("Ours, measured.\n")
    assert make_report([sweep]).finding == "Ours, measured."
    assert make_report([sweep.parent]).finding == "Ours, measured."
    assert make_report([sweep], finding="Another.").finding == "Another."
    assert make_report([sweep], finding="").finding == ""


def test_a_finding_that_is_no_text_is_named_and_the_report_made(sweep: Path) -> None:
    (sweep / "finding.txt").write_bytes(b"\xff\xfe")
    report = make_report([sweep])
    assert report.finding == ""
    assert "finding.txt of rates cannot be read as text" in report.warnings


def test_a_sweep_over_a_number_is_drawn_over_it(sweep: Path, pages: Pages) -> None:
    html, markdown, files = pages(sweep)
    assert "Best training loss by learning rate" in html
    assert "(rates/best_training_loss_by_learning_rate.svg)" in markdown
    assert "divergence at 0.2" in files["rates/best_training_loss_by_learning_rate.svg"]


def test_an_ablation_says_what_each_part_is_worth_before_the_results(
    sweep: Path, pages: Pages
) -> None:
    rows = [
        ROW,
        {**ROW, "variant": "better", "difference": -0.5, "is_clear": True},
        {**ROW, "variant": "worse", "difference": 0.5, "is_clear": True, "is_at_edge": True},
        {**ROW, "variant": "alike", "difference": 0.01, "diverged_at": [0.1, 1.0]},
        {**ROW, "variant": "alone", "difference": 0.1, "is_at_edge": True, "rates_tried": [0.01]},
        {
            **ROW,
            "variant": "lost",
            "loss": None,
            "difference": None,
            "learning_rate": None,
            "rates_tried": [],
        },
    ]
    (sweep / "ablation.json").write_text(json.dumps(rows))
    html, markdown, _ = pages(sweep)
    assert markdown.index("## What each part is worth") < markdown.index("## Results")
    assert html.index("What each part is worth</h2>") < html.index("Results</h2>")
    assert "| base | 46,240 | 0.01 | 0.003, 0.01, 0.03 | 4.0000 ± 0.1000 | — |  |" in markdown
    assert "| 4.0000 ± 0.1000 | -0.5000 | ★ clearly better |" in markdown
    assert "▲ clearly worse, → best rate at the end of those tried" in markdown
    assert "≈ not told apart from the base, ✕ diverged at 0.1, 1" in markdown
    assert "≈ not told apart from the base, → the only rate tried" in markdown
    assert "| lost | 46,240 | — | — | — | — | ✕ no run came to its end |" in markdown
    for told in ("clearly better", "clearly worse", "-0.5000", "diverged at 0.1, 1"):
        assert told in html


def test_a_variant_of_another_size_is_not_said_to_be_matched() -> None:
    def lede(*sizes: int) -> str:
        rows = [{**ROW, "variant": f"v{size}", "num_parameters": size} for size in sizes]
        return str(ablation_study(rows, "ablation").section.blocks[0])

    assert "as many parameters and tokens as the base. The" in lede(1_000, 1_004, 996)
    told = "as the base, but for the parameters of v1450 (+45%), v900 (-10%). The"
    assert told in lede(1_000, 1_450, 1_004, 900)


def test_a_page_says_when_the_runs_were_made_and_not_when_it_was(sweep: Path, pages: Pages) -> None:
    first, last = sorted((sweep / "runs").iterdir())
    for run, day in ((first, "2026-01-30"), (last, "2026-02-01")):
        (run / "environment.json").write_text(json.dumps({"started": f"{day}T10:00:00+00:00"}))
    html, page, _ = pages(sweep)
    assert "; 2026-01-30 to 2026-02-01.\n" in page and "2026-01-30 to 2026-02-01" in html
    (last / "environment.json").write_text('{"started": ["odd"]}')
    assert make_report([sweep]).days == "2026-01-30"


def test_the_verdict_of_an_ablation_is_about_its_variants(sweep: Path) -> None:
    write_trial(sweep, "learning_rate=0.3+seed=0", 0.3, [9.0, 3.0])

    def row(variant: str, difference: float | None, is_clear: bool) -> dict[str, Any]:
        loss = None if difference is None else {**ROW["loss"], "mean": 4 + difference}
        changes = {"variant": variant, "difference": difference, "is_clear": is_clear}
        return {**ROW, **changes, "loss": loss}

    rows = [
        ROW,
        row("muon", -0.5, True),
        row("qk-norm", 0.05, False),
        row("silu", 0.25, True),
        row("no-norm", None, False),
    ]
    (sweep / "ablation.json").write_text(json.dumps(rows))
    assert make_report([sweep]).verdicts == [
        "Against the base (4.0000 ± 0.1000), each at its own best learning rate: clearly better: "
        "muon (-0.5000); not told apart from the base: qk-norm (+0.0500); clearly worse: silu "
        "(+0.2500); no run came to its end: no-norm.",
    ]
    (verdict,) = comparison_document(make_report([sweep])).verdicts
    assert verdict.label == verdict.number == ""
    (sweep / "ablation.json").write_text(json.dumps([{**ROW, "loss": None}, *rows[1:]]))
    assert "has the lowest training loss" in make_report([sweep]).verdicts[0]


def test_a_ladder_shows_its_fits_and_the_prediction_beside_the_truth(
    sweep: Path, pages: Pages
) -> None:
    (sweep / "scaling.json").write_text(json.dumps(LADDER))
    html, markdown, files = pages(sweep)
    assert "| 1 PFLOP | 2 | 4M with 3.0500 | 2M | 3.0000 | — |" in markdown
    assert "| 4 PFLOP | 1 | — | 8M | 2.5000 | 2.6250 (+0.1250) |" in markdown
    assert "at the end of the ladder: add widths" in markdown
    assert "to the power 0.500, and its loss to the power -0.0500" in markdown
    assert "training them gave 2.6250, 0.1250 above the prediction" in markdown
    assert "4 PFLOP, predicted" in files["rates/study_1.svg"]
    assert "2.6250 (+0.1250)" in html and "4 PFLOP, trained" in html


def test_a_ladder_with_a_floor_says_which_law_foresaw_the_last_budget(
    sweep: Path, pages: Pages
) -> None:
    floor_fit = {
        "law": {"floor": 1.7, "factor": 500.0, "exponent": -0.15},
        "least_floor": 1.65,
        "greatest_floor": 1.8,
        "missed_by": 0.003,
        "power_law_missed_by": -0.09,
    }
    prediction = {**PREDICTION, "predicted_with_floor": 2.6}
    ladder = {**LADDER, "floor_fit": floor_fit, "prediction": prediction}
    (sweep / "scaling.json").write_text(json.dumps(ladder))
    html, markdown, _ = pages(sweep)
    told = "falls to 1.7000 (1.6500 to 1.8000 if any one budget is left out) with the power -0.1500"
    judged = "by +0.0030 and the power law by -0.0900: the law with a floor is closer."
    assert told in html and judged in html and judged in markdown
    verdict = make_report([sweep]).verdicts[-1]
    assert "a loss of 2.5000, or 2.6000 by a law with a floor; training them gave" in verdict
    assert verdict.endswith("2.6250, 0.1250 above the first.")
    floor_fit["missed_by"] = 0.2
    (sweep / "scaling.json").write_text(json.dumps(ladder))
    assert "by -0.0900: the power law is closer." in pages(sweep)[0]
    ladder["prediction"] = {**PREDICTION, "measured_loss": None}
    (sweep / "scaling.json").write_text(json.dumps(ladder))
    assert make_report([sweep]).verdicts[-1].endswith("2.5000; that has not been trained.")


@pytest.mark.parametrize("name", ["ablation.json", "scaling.json"])
@pytest.mark.parametrize("text", ["{torn", "[1]", "{}", '{"rungs": [], "fits": 3}', "null"])
def test_a_damaged_study_is_named_and_its_runs_are_shown(sweep: Path, name: str, text: str) -> None:
    (sweep / name).write_text(text)
    report = make_report([sweep])
    assert len(report.runs) == 2 and not report.studies
    assert f"{name} of rates cannot be read; its runs are shown without" in report.warnings


def test_a_trial_under_way_belongs_to_its_point(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    write_spec(
        folder, variants={"base": {}, "base-like": {}}, grid={"optimizer.learning_rate": [1]}
    )
    write_trial(folder, "base-like+learning_rate=1+seed=0", 1.0, [3.0, 2.0])
    write_trial(folder, "base-like+learning_rate=1+seed=1", 1.0, [3.0], has_ended=False)
    report = make_report([folder])
    assert [group.label for group in report.groups] == ["base-like, learning rate 1"]
    assert report.runs[1].variant == "base-like"
    assert any(note.startswith("1 of 2 points of parts has not begun") for note in report.warnings)


@pytest.mark.parametrize(
    "odd", [3, "text", None, [1, 2], {"a": 3}, {"a": {"num": "x"}}, {1: [None]}]
)
@pytest.mark.parametrize("part", ["grid", "ranges", "variants", "why", "name"])
def test_a_sweep_file_of_any_content_loses_no_run(
    sweep: Path, html_of: Any, part: str, odd: Any
) -> None:
    write_spec(sweep, **{part: odd})
    report = make_report([sweep])
    assert len(report.runs) == 2
    html_of(report)


def test_the_best_of_what_has_finished_is_called_no_more_than_that(sweep: Path) -> None:
    write_trial(sweep, "learning_rate=0.3+seed=0", 0.3, [9.0, 1.0], num_steps=99, has_ended=False)
    write_trial(sweep, "learning_rate=0.4+seed=0", 0.4, [9.0, 3.0])
    verdict = make_report([sweep]).verdicts[0]
    assert "0.1 has the lowest training loss of what has finished: 2.0000" in verdict


def test_names_with_commas_are_listed_apart(tmp_path: Path) -> None:
    folder = tmp_path / "wild"
    write_spec(folder, variants={"a": {}, "b": {}}, grid={"optimizer.learning_rate": [1]})
    for place, name in enumerate("ab"):
        write_trial(folder, f"{name}+learning_rate=1+seed=0", 1.0 + place, [3.0, None])
    warnings = make_report([folder]).warnings
    assert any("a, learning rate 1; b, learning rate 1." in warning for warning in warnings)
