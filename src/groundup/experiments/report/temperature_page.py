"""A temperature study as a document: a table, what its metrics mean, charts, the first texts."""

import datetime
from collections.abc import Mapping
from typing import Any, NamedTuple

from groundup.experiments.report.charts import NUM_STYLES, Chart, Line
from groundup.experiments.report.document import (
    Block,
    Document,
    Figure,
    Section,
    Specimen,
    Specimens,
    Table,
    Text,
)
from groundup.experiments.report.text import UNKNOWN

Study = Mapping[str, Any]
"""What `groundup temperatures --out` writes."""


class Metric(NamedTuple):
    """One of the columns; fractions have their charts in percent."""

    title: str
    meaning: str
    num_digits: int = 1
    is_fraction: bool = True

    def show(self, interval: Mapping[str, Any] | None) -> str:
        """mean ± half width, or the one value there is."""
        if interval is None:
            return UNKNOWN
        factor, unit = (100, "%") if self.is_fraction else (1, "")
        parts = [part for part in (interval["mean"], interval["half_width"]) if part is not None]
        return " ± ".join(f"{factor * part:,.{self.num_digits}f}" for part in parts) + unit


METRICS = {
    "bits_per_token": Metric(
        "bits per token",
        "how unlikely the model itself finds what it generated: -log2 of the probability of each "
        "token at temperature 1 without top-p, the end of the text included",
        2,
        is_fraction=False,
    ),
    "num_tokens": Metric("tokens", "the length of a text without its end", 0, is_fraction=False),
    "known_words": Metric(
        "known words",
        "the fraction of a text's words that are known (below), for their spelling; the last word "
        "of a text that was cut off is left out",
    ),
    "own_3_grams": Metric(
        "own 3-grams",
        "the fraction of a text's 3-grams of words that no other text of the same prompt and "
        "setting holds: how much the texts differ from each other",
    ),
    "distinct_1_grams": Metric(
        "distinct words",
        "different words as a fraction of all words of a text; it is smaller in longer texts",
    ),
    "distinct_2_grams": Metric("distinct 2-grams", "the same of two words that follow each other"),
    "distinct_3_grams": Metric("distinct 3-grams", "the same of three"),
    "repeated_4_grams": Metric(
        "repeated 4-grams",
        "the fraction of a text's 4-grams of words that stand in it before: loops",
    ),
}
_CHARTED = ("bits_per_token", "own_3_grams", "repeated_4_grams", "known_words", "distinct_1_grams")


def temperature_document(study: Study, title: str, *, why: str = "", finding: str = "") -> Document:
    """The whole page."""
    conditions, runs = study["conditions"], study["runs"]
    measured = runs[0]["results"][0]["figures"]
    metrics = {name: metric for name, metric in METRICS.items() if name in measured}
    results: list[Block] = [_table(run, metrics) for run in runs]
    results.append(Text("Means over texts ± 95% intervals (Student's t). What the columns say:"))
    results += [Text(f"{metric.title}: {metric.meaning}") for metric in metrics.values()]
    results += map(Text, _reference_sentences(study))
    about = Text("The first text of each setting, with its prompt; all have the same seed.")
    specimens = []
    for run in runs:
        for result in run["results"]:
            first = result["texts"][0]
            text = first["text"].rstrip() + ("" if first["is_finished"] else " …")
            label = f"Temperature {setting_label(result['setting'])}"
            specimens.append(Specimen(label, run["name"], ((first["prompt"], text),)))
    names = ", ".join(
        run["name"] if run["step"] is None else f"{run['name']} at step {run['step']:,}"
        for run in runs
    )
    prompts = ", ".join(f"“{prompt}”" if prompt else "nothing" for prompt in conditions["prompts"])
    summary = (
        f"{names}; texts of up to {conditions['max_tokens']} tokens after {prompts}; for each "
        f"setting and prompt {conditions['num_texts']}, with seeds from {conditions['seed']} on, "
        f"and one at temperature 0; {study['device']}; {datetime.date.today():%Y-%m-%d}."
    )
    return Document(
        kind="temperatures",
        command="groundup temperatures",
        title=title,
        why=why,
        facts={"Runs": str(len(runs)), "Device": study["device"]},
        summary=summary,
        verdicts=(),
        finding=finding,
        warnings=tuple(
            f"{run['name']}: texts are cut off after {run['most_tokens']} tokens, for its context "
            f"is full"
            for run in runs
            if run["most_tokens"] < conditions["max_tokens"]
        ),
        sections=(
            Section("results", "Results", tuple(results)),
            Section(
                "charts", "Over the temperature", (Figure("over_temperature", _charts(study)),)
            ),
            Section("specimens", "Specimens", (about, Specimens(tuple(specimens)))),
        ),
    )


def setting_label(setting: Mapping[str, float]) -> str:
    """The temperature, and what is cut."""
    cut = "" if setting["top_p"] == 1 else f", top-p {setting['top_p']:g}"
    return f"{setting['temperature']:g}{cut}"


def _table(run: Mapping[str, Any], metrics: Mapping[str, Metric]) -> Table:
    """How many texts ended is counted: an interval would claim too much where all or none did."""
    rows = []
    for result in run["results"]:
        shown = [metric.show(result["figures"][name]) for name, metric in metrics.items()]
        num_finished = sum(text["is_finished"] for text in result["texts"])
        ended = f"{num_finished} of {len(result['texts'])}"
        rows.append((setting_label(result["setting"]), *shown, ended))
    if run["reference"] is not None:
        shown = [metric.show(run["reference"][name]) for name, metric in metrics.items()]
        rows.append(("reference text", *shown, UNKNOWN))
    titles = (metric.title for metric in metrics.values())
    return Table(run["name"], ("temperature", *titles, "came to an end"), tuple(rows), "study")


def _reference_sentences(study: Study) -> list[str]:
    """Which documents people wrote, and what to consider when texts are held against them."""
    cut = "cut off where texts are. They are read from their beginning; texts go on from a prompt."
    kinds = {run["reference_is_unseen"] for run in study["runs"] if run["reference"] is not None}
    sentences = []
    if True in kinds:
        sentences.append(
            "Reference text: the first documents of the validation split, which the model did not "
            f"learn from, {cut}"
        )
    if False in kinds:
        sentences.append(
            f"Reference text: the first documents of {study['reference']}, {cut} Where the model "
            f"learned from them they cost it fewer bits than other text of their kind."
        )
    if study["reference"] is not None:
        sentences.append(f"Known are the words of {study['reference']}.")
    return sentences


def _charts(study: Study) -> tuple[Chart, ...]:
    """How likely, how varied, how repetitive, how well spelled: four metrics at most."""
    charts = []
    for name in _CHARTED:
        metric, lines = METRICS[name], _lines(study, name)
        known = [run["reference"][name] for run in study["runs"] if run["reference"]]
        title = metric.title[0].upper() + metric.title[1:]
        chart = Chart(
            title,
            "temperature",
            title,
            tuple(lines),
            description=f"{title} over the temperature.",
            is_percent=metric.is_fraction,
            references=tuple(one["mean"] for one in known if one is not None),
        )
        charts += [chart] if any(line.points for line in lines) else []
    return tuple(charts[:4])


def _lines(study: Study, name: str) -> list[Line]:
    """A line for each run and top-p, from the lowest temperature on."""
    highest = 1.0 if METRICS[name].is_fraction else float("inf")
    lines: list[Line] = []
    for run in study["runs"]:
        found = [
            (one["setting"]["temperature"], one["setting"]["top_p"], one["figures"].get(name))
            for one in run["results"]
        ]
        known = sorted((x, top_p, m["mean"], m["half_width"] or 0.0) for x, top_p, m in found if m)
        # Greedy decoding knows no top-p: every line of its run begins there.
        top_ps = dict.fromkeys(top_p for x, top_p, _ in found if x) or [1.0]
        for top_p in top_ps:
            words = [run["name"]] if len(study["runs"]) > 1 else []
            words += [f"top-p {top_p:g}"] if len(top_ps) > 1 or not words else []
            own = [(x, y, width) for x, p, y, width in known if p == top_p or not x]
            lines.append(
                Line(
                    ", ".join(words),
                    tuple((x, y) for x, y, _ in own),
                    len(lines) if len(lines) < NUM_STYLES else None,
                    band=tuple((x, max(y - w, 0.0), min(y + w, highest)) for x, y, w in own),
                )
            )
    return lines
