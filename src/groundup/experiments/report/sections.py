"""A comparison of runs as a document: results, curves, settings, cost, samples, environment."""

import datetime
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

from groundup.config import flatten
from groundup.experiments.report.charts import Chart
from groundup.experiments.report.comparison import (
    STATES,
    Report,
    list_names,
    num_in,
    results_table,
    run_notes,
)
from groundup.experiments.report.curves import AXES, learning_curves, thin_evenly
from groundup.experiments.report.document import (
    Block,
    Cell,
    Document,
    Figure,
    Folded,
    Mark,
    Pairs,
    Row,
    Section,
    Specimen,
    Specimens,
    Table,
    Text,
    Verdict,
)
from groundup.experiments.report.text import (
    UNKNOWN,
    show_count,
    show_flops,
    show_interval,
    show_loss,
    show_percent,
    shown,
    slug,
)
from groundup.experiments.results.groups import (
    shared_settings,
    show_setting,
    usual_values,
)
from groundup.experiments.results.run_cost import mean_cost
from groundup.experiments.results.run_result import RunResult
from groundup.planner.duration import EXPECTED_MFU
from groundup.planner.quantities import show_bytes
from groundup.runs.metrics import Sample
from groundup.runtime import format_duration

_METRICS = {
    "validation_loss": "Validation loss",
    "loss": "Training loss",
    "bits_per_byte": "Bits per byte",
    "learning_rate": "Learning rate",
    "gradient_norm": "Gradient norm",
    "tokens_per_second": "Tokens per second",
}
_NUM_COLUMNS = 7
_MOST_GROUPS_OPEN, _MOST_EARLIER = 4, 12
_TOLD_ELSEWHERE = ("command", "started", "seed", "resumes")


def comparison_document(report: Report) -> Document:
    """The whole page about some runs."""
    runs = report.runs
    devices = dict.fromkeys(str(run.environment.get("device", "")) for run in runs)
    device = ", ".join(filter(None, devices))
    num_runs, finished = len(runs), num_in(runs, "finished")
    flops = sum(run.cost.flops or 0 for run in runs)
    facts = {
        "Runs": f"{num_runs}" if finished == num_runs else f"{finished} of {num_runs} finished",
        "Settings compared": str(len(report.groups)),
        "Tokens": show_count(sum(run.cost.tokens or 0 for run in runs)),
        "Compute": show_flops(flops) if flops else UNKNOWN,
        "Time, all runs": format_duration(sum(run.cost.seconds or 0 for run in runs)),
        "Device": device or UNKNOWN,
        **({"Begun": report.days} if report.days else {}),
    }
    told = "One run" if num_runs == 1 else f"{num_runs} runs of {len(report.groups)} settings"
    chart = report.chart
    figures = () if chart is None else (Figure(slug(chart.title), (chart,), chart.title),)
    days = report.days or f"{datetime.date.today():%Y-%m-%d}"
    return Document(
        kind="report",
        command="groundup report",
        title=report.title,
        why=report.why,
        facts=facts,
        summary=f"{told}; {device or 'device unknown'}; {days}.",
        verdicts=_verdicts(report),
        finding=report.finding,
        warnings=tuple(report.warnings),
        sections=(
            *(study.section for study in report.studies),
            Section("results", "Results", (*figures, results_table(report))),
            _curves(report),
            Section("settings", "Settings", _settings(report)),
            Section("cost", "Cost, planned and measured", _cost(report)),
            Section("samples", "Samples", _samples(report)),
            Section("environment", "Environment", _environment(report)),
        ),
    )


def _verdicts(report: Report) -> tuple[Verdict, ...]:
    """The sentences, those about a group with its number; one about an ablation has none."""
    told = report.winners or (report.groups if len(report.groups) == 1 else ())
    numbers = {group.label: show_interval(group.best) for group in told if group.best}
    verdicts = []
    for text in report.verdicts:
        label = next((label for label in numbers if text.startswith(f"{label} ")), "")
        verdicts.append(Verdict(text, label, numbers.get(label, ""), report.measure_name))
    return tuple(verdicts)


def _curves(report: Report) -> Section:
    blocks: list[Block] = []
    more: list[Block] = []
    for metric, name in _METRICS.items():
        charts = learning_curves(report.groups, metric, name)
        figures = [
            Figure(f"{metric}_by_{axis}", (chart,), chart.title, axis)
            for axis, chart in charts.items()
        ]
        if metric not in ("validation_loss", "loss"):
            more += figures
        elif charts:
            table = _numbers(name, charts["step"])
            blocks += [*figures, Folded(table.title, (table,), is_page_only=True)]
    if more:
        blocks.append(Folded("More metrics", tuple(more), is_page_only=True))
    if not blocks:
        return Section("curves", "Learning curves", (Text("There are no metrics yet."),))
    choices = {str(axis): name for axis, name in AXES.items()}
    return Section("curves", "Learning curves", tuple(blocks), choices)


def _numbers(name: str, chart: Chart) -> Table:
    """The curves as a table: what each says at a few steps, for eyes and ears alike."""
    steps = sorted({x for line in chart.lines for x, _ in line.points})
    steps = [steps[index] for index in thin_evenly(len(steps), _NUM_COLUMNS)]
    rows = []
    for line in chart.lines:
        row: dict[str, Cell | str] = {"Runs": line.label}
        for step in steps:
            until = [y for x, y in line.points if x <= step]
            is_known = until and step <= line.points[-1][0]
            row[f"step {step:,.0f}"] = show_loss(until[-1]) if is_known else UNKNOWN
        rows.append(row)
    return Table.of(f"{name} in numbers", rows)


def _settings(report: Report) -> tuple[Block, ...]:
    """The settings in which groups differ; values off the usual one stand out."""
    usual = {name: show_setting(value) for name, value in usual_values(report.groups).items()}
    rows: list[Row] = []
    for group in report.groups:
        cells: dict[str, Cell | str] = {"Runs": group.label}
        for name, value in group.differences.items():
            own = show_setting(value) if group.runs[0].settings else UNKNOWN
            cells[name] = Cell(own, is_strong=own not in (usual.get(name, own), UNKNOWN))
        rows.append(cells)
    if rows and len(rows[0]) > 1:
        block: Block = Table.of("Settings that differ", rows, "settings")
    elif any(run.settings for run in report.runs):
        told = "One run: nothing to compare." if len(report.runs) == 1 else "Only seeds differ."
        block = Text(told, is_muted=False)
    else:
        block = Text("No run says what its settings were.", is_muted=False)
    shared = {name: show_setting(value) for name, value in shared_settings(report.runs).items()}
    if not shared:
        return (block,)
    is_alone = len(report.runs) == 1
    title = f"All {len(shared)} settings" if is_alone else f"{len(shared)} settings all runs share"
    return block, Folded(title, (Pairs(shared),))


def _cost(report: Report) -> tuple[Block, ...]:
    """What a run of each group was to cost beside what it did cost on average."""
    rows: list[Row] = []
    for group in report.groups:
        cost = mean_cost([run.cost for run in group.counted or group.runs])
        rate, planned_rate = cost.tokens_per_second, cost.planned_tokens_per_second
        rows.append(
            {
                "Runs": group.label,
                "Parameters": shown(show_count, cost.num_parameters),
                "Compute": shown(show_flops, cost.flops),
                "Tokens": _against(show_count, cost.tokens, cost.planned_tokens),
                "Tokens per second": _against(show_count, rate, planned_rate),
                "MFU": _against(show_percent, cost.mfu, cost.planned_mfu),
                "Wall clock": _against(format_duration, cost.seconds, cost.planned_seconds),
                "Memory": _against(show_bytes, cost.memory_bytes, cost.planned_bytes),
            }
        )
    explained = (
        "Means over seeds. Planned values follow from the settings: 6 FLOPs per parameter and "
        "token and those of attention, for the wall clock of the tokens that were read, at "
        f"{EXPECTED_MFU['cuda']:.0%} of the device's peak rate by its data sheet, on a CPU "
        f"{EXPECTED_MFU['cpu']:.0%} of the rate that the run measured. Measured speed and MFU are "
        "medians; memory is the device's, on a CPU that of the whole process."
    )
    return Text(explained), Table.of("Cost, measured and planned", rows, "cost")


def _against(show: Callable[[float], str], measured: float | None, planned: float | None) -> Cell:
    told, expected = shown(show, measured), shown(show, planned)
    return Cell(told, "" if expected in (UNKNOWN, told) else f"planned {expected}")


def _samples(report: Report) -> tuple[Block, ...]:
    """The newest texts of each group, best group first, with the earlier ones folded away."""
    specimens = []
    for group in report.groups:
        run = next((run for run in group.runs if run.metrics.samples), None)
        if run is not None:
            newest, *earlier = (_specimen(run, sample) for sample in reversed(run.metrics.samples))
            kept = tuple(earlier[index] for index in thin_evenly(len(earlier), _MOST_EARLIER))
            specimens.append(replace(newest, title=group.label, earlier=kept))
    if not specimens:
        return (Text("No run generated samples: set samples.every_steps.", is_muted=False),)
    first = Specimens(tuple(specimens[:_MOST_GROUPS_OPEN]))
    others = Specimens(tuple(specimens[_MOST_GROUPS_OPEN:]))
    if not others.specimens:
        return (first,)
    title = f"Samples of {len(others.specimens)} more"
    return first, Folded(title, (others,), is_page_only=True)


def _specimen(run: RunResult, sample: Sample) -> Specimen:
    prompts = [*run.prompts, *[""] * len(sample.texts)]
    texts = tuple(zip(prompts, sample.texts, strict=False))
    return Specimen("", f"after step {sample.step:,}", texts)


def _environment(report: Report) -> tuple[Block, ...]:
    """What all runs ran on, what differs between them, and the runs one by one."""
    blocks: list[Block] = []
    shared, differing = _split([run for run in report.runs if run.environment])
    if shared or differing:
        blocks.append(Pairs(shared))
    else:
        blocks.append(Text("No run says what it ran on.", is_muted=False))
    if differing:
        blocks.append(Table.of("Environments that differ", differing, "differing"))
    known = [data_id for data_id in report.data_ids if data_id is not None]
    if len(known) > 1:
        blocks.append(Pairs({report.data_name(data_id): data_id for data_id in known}))
    blocks += [Text(note) for note in run_notes(report.runs)]
    return (*blocks, Folded("Every run", (_runs(report),)))


def _runs(report: Report) -> Table:
    rows: list[Row] = []
    for run in report.runs:
        sign, word = STATES[run.outcome.state]
        rows.append(
            {
                "Run": Cell(run.name, marks=(Mark(sign, word, run.outcome.state),)),
                "Seed": UNKNOWN if run.seed is None else str(run.seed),
                "Steps": f"{run.metrics.last_step:,}",
                "Tokens": shown(show_count, run.cost.tokens),
                "Wall clock": shown(format_duration, run.cost.seconds),
                "Began": str(run.environment.get("started", UNKNOWN)).replace("T", " "),
                "Outcome": run.outcome.sentence,
                "Folder": Cell(str(run.path), _command(run), is_code=True),
            }
        )
    return Table.of("Every run", rows, "runs")


def _split(runs: Sequence[RunResult]) -> tuple[dict[str, str], list[Row]]:
    """What all environments say alike; and what they do not, with the runs that say so."""
    flat = [{name: show_setting(value) for name, value in flatten(run.environment)} for run in runs]
    shared: dict[str, str] = {}
    differing: list[Row] = []
    for name in dict.fromkeys(name for one in flat for name in one):
        names: dict[str, list[str]] = {}
        for run, one in zip(runs, flat, strict=True):
            names.setdefault(one.get(name, UNKNOWN), []).append(run.name)
        if name in _TOLD_ELSEWHERE:
            continue
        if len(names) == 1:
            shared[name] = next(iter(names))
            continue
        differing += [
            {"What differs": name, "Value": value, "Runs": list_names(these)}
            for value, these in names.items()
        ]
    return shared, differing


def _command(run: RunResult) -> str:
    command = run.environment.get("command")
    if not isinstance(command, list) or not command:
        return ""
    words = [str(word) for word in command]
    program = words[0].rpartition("/")[2]
    return shlex.join(["groundup" if program == "__main__.py" else program, *words[1:]])
