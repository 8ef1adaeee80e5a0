"""A temperature study as a document: a table, what its metrics mean, charts, the first texts."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from groundup.experiments.report.charts import Chart, Line
from groundup.experiments.report.curves import NUM_STYLES
from groundup.experiments.report.document import (
    Block,
    Document,
    Figure,
    Section,
    Specimen,
    Table,
    Text,
)
from groundup.experiments.report.text import UNKNOWN
from groundup.experiments.results.statistics import Interval
from groundup.experiments.temperatures import RunStudy, SettingResult, TemperatureStudy


@dataclass(frozen=True)
class Metric:
    """One of the columns."""

    name: str
    title: str
    meaning: str
    is_fraction: bool = True
    num_digits: int = 1

    def show(self, interval: Interval | None) -> str:
        """mean ± half width, or the one value there is."""
        if interval is None:
            return UNKNOWN
        parts = [interval.mean, *([] if interval.half_width is None else [interval.half_width])]
        factor, unit = (100, "%") if self.is_fraction else (1, "")
        return " ± ".join(f"{factor * part:,.{self.num_digits}f}" for part in parts) + unit


METRICS = {
    metric.name: metric
    for metric in (
        Metric(
            "bits_per_token",
            "bits per token",
            "how unlikely the model itself finds what it generated: -log2 of the probability of "
            "each token at temperature 1 without top-p, the end of the text included",
            is_fraction=False,
            num_digits=2,
        ),
        Metric(
            "num_tokens",
            "tokens",
            "the length of a text without its end",
            is_fraction=False,
            num_digits=0,
        ),
        Metric(
            "known_words",
            "known words",
            "the fraction of a text's words that are known (below), for their spelling; the last "
            "word of a text that was cut off is left out",
        ),
        Metric(
            "own_3_grams",
            "own 3-grams",
            "the fraction of a text's 3-grams of words that no other text of the same prompt and "
            "setting holds: how much the texts differ from each other",
        ),
        Metric(
            "distinct_1_grams",
            "distinct words",
            "different words as a fraction of all words of a text; it is smaller in longer texts",
        ),
        Metric(
            "distinct_2_grams",
            "distinct 2-grams",
            "the same of two words that follow each other",
        ),
        Metric("distinct_3_grams", "distinct 3-grams", "the same of three"),
        Metric(
            "repeated_4_grams",
            "repeated 4-grams",
            "the fraction of a text's 4-grams of words that stand in it before: loops",
        ),
    )
}
_CHARTED = ("bits_per_token", "own_3_grams", "repeated_4_grams", "known_words", "distinct_1_grams")


def temperature_document(
    study: TemperatureStudy, title: str, *, why: str = "", finding: str = ""
) -> Document:
    """The whole page."""
    measured = study.runs[0].results[0].figures
    metrics = [metric for name, metric in METRICS.items() if name in measured]
    results: list[Block] = [_table(run, metrics) for run in study.runs]
    results.append(Text("Means over texts ± 95% intervals (Student's t). What the columns say:"))
    results += [Text(f"{metric.title}: {metric.meaning}") for metric in metrics]
    results += map(Text, _reference_sentences(study))
    specimens: list[Block] = [
        Text("The first text of each setting, with its prompt; all have the same seed.")
    ]
    specimens += [_specimen(run, result) for run in study.runs for result in run.results]
    charts = Figure("over_temperature", tuple(_charts(study)))
    return Document(
        kind="temperatures",
        command="groundup temperatures",
        title=title,
        why=why,
        facts={"Runs": str(len(study.runs)), "Device": study.device},
        summary=f"{_describe(study)}; {datetime.date.today():%Y-%m-%d}.",
        verdicts=(),
        finding=finding,
        warnings=tuple(
            f"{run.name}: texts are cut off after {run.most_tokens} tokens, for its context is full"
            for run in study.runs
            if run.most_tokens < study.conditions.max_tokens
        ),
        sections=(
            Section("results", "Results", tuple(results)),
            Section("charts", "Over the temperature", (charts,)),
            Section("specimens", "Specimens", tuple(specimens)),
        ),
    )


def _describe(study: TemperatureStudy) -> str:
    """What was generated, and with which models."""
    conditions = study.conditions
    runs = ", ".join(
        run.name if run.step is None else f"{run.name} at step {run.step:,}" for run in study.runs
    )
    prompts = ", ".join(f"“{prompt}”" if prompt else "nothing" for prompt in conditions.prompts)
    return (
        f"{runs}; texts of up to {conditions.max_tokens} tokens after {prompts}; for each setting "
        f"and prompt {conditions.num_texts}, with seeds from {conditions.seed} on, and one at "
        f"temperature 0; {study.device}"
    )


def _table(run: RunStudy, metrics: Sequence[Metric]) -> Table:
    """How many texts ended is counted: an interval would claim too much where all or none did."""
    rows = [
        (
            result.setting.label,
            *(metric.show(result.figures[metric.name]) for metric in metrics),
            f"{result.num_finished} of {len(result.texts)}",
        )
        for result in run.results
    ]
    if run.reference is not None:
        of_people = [metric.show(run.reference[metric.name]) for metric in metrics]
        rows.append(("reference text", *of_people, UNKNOWN))
    headers = ("temperature", *(metric.title for metric in metrics), "came to an end")
    return Table(run.name, headers, tuple(rows), "study")


def _specimen(run: RunStudy, result: SettingResult) -> Specimen:
    first = result.texts[0]
    text = first.text.rstrip() + ("" if first.is_finished else " …")
    return Specimen(f"Temperature {result.setting.label}", run.name, ((first.prompt, text),))


def _reference_sentences(study: TemperatureStudy) -> list[str]:
    """Which documents people wrote, and what to consider when texts are held against them."""
    sentences = []
    beginning = "They are read from their beginning; texts go on from a prompt."
    measured = [run for run in study.runs if run.reference is not None]
    if any(run.reference_is_unseen for run in measured):
        sentences.append(
            "Reference text: the first documents of the validation split, which the model did not "
            f"learn from, cut off where texts are. {beginning}"
        )
    if any(not run.reference_is_unseen for run in measured):
        sentences.append(
            f"Reference text: the first documents of {study.reference}, cut off where texts are. "
            f"{beginning} Where the model learned from them they cost it fewer bits than other "
            f"text of their kind."
        )
    if study.reference is not None:
        sentences.append(f"Known are the words of {study.reference}.")
    return sentences


def _charts(study: TemperatureStudy) -> list[Chart]:
    """How likely, how varied, how repetitive, how well spelled: four metrics at most."""
    charts = []
    for name in _CHARTED:
        metric, lines = METRICS[name], _lines(study, METRICS[name])
        if any(line.points for line in lines):
            title = metric.title[0].upper() + metric.title[1:]
            references = [run.reference[name] for run in study.runs if run.reference is not None]
            charts.append(
                Chart(
                    title,
                    "temperature",
                    title,
                    tuple(lines),
                    description=f"{title} over the temperature.",
                    is_percent=metric.is_fraction,
                    references=tuple(one.mean for one in references if one is not None),
                )
            )
    return charts[:4]


def _lines(study: TemperatureStudy, metric: Metric) -> list[Line]:
    """A line for each run and top-p, from the lowest temperature on."""
    # Greedy decoding knows no top-p: every line of its run begins there.
    top_ps = dict.fromkeys(one.top_p for one in study.settings if not one.is_greedy) or [1.0]
    lines: list[Line] = []
    for run in study.runs:
        for top_p in top_ps:
            words = [run.name] if len(study.runs) > 1 else []
            words += [f"top-p {top_p:g}"] if len(top_ps) > 1 or not words else []
            known = [
                (result.setting.temperature, interval)
                for result in sorted(run.results, key=lambda one: one.setting.temperature)
                if result.setting.top_p == top_p or result.setting.is_greedy
                if (interval := result.figures.get(metric.name)) is not None
            ]
            highest = 1.0 if metric.is_fraction else float("inf")
            lines.append(
                Line(
                    ", ".join(words),
                    tuple((at, interval.mean) for at, interval in known),
                    len(lines) if len(lines) < NUM_STYLES else None,
                    band=tuple(
                        (at, max(interval.low, 0.0), min(interval.high, highest))
                        for at, interval in known
                    ),
                )
            )
    return lines
