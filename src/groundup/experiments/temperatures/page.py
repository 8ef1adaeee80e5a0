"""A temperature study as Markdown with its drawing, for a repository that keeps its experiments."""

import datetime

from groundup.experiments.report.figure_text import UNKNOWN
from groundup.experiments.report.markdown_page import slug
from groundup.experiments.report.markdown_text import (
    cell,
    fenced,
    finding_paragraphs,
    plain,
    table,
)
from groundup.experiments.temperatures.drawing import draw_study
from groundup.experiments.temperatures.figures import Figure, figures_in, row_of, show_finished
from groundup.experiments.temperatures.study import RunStudy, TemperatureStudy

DRAWING = "over_temperature.svg"


def render_temperatures(
    study: TemperatureStudy,
    title: str,
    *,
    why: str = "",
    finding: str = "",
    today: datetime.date | None = None,
) -> dict[str, str]:
    """The files by their paths: `<slug>.md`, and the drawing in a folder `<slug>`."""
    today = today or datetime.date.today()
    name = slug(title)
    figures = figures_in(study)
    parts = [f"# {plain(title)}", plain(why)]
    parts.append(plain(f"{describe(study)}; {today:%Y-%m-%d}."))
    parts += finding_paragraphs(finding)
    parts.append("\n".join(f"> - {plain(warning)}" for warning in warnings_of(study)))
    parts.append("## Results")
    for run in study.runs:
        parts += [_heading(study, run), _results(run, figures)]
    parts.append("Means over texts ± 95% intervals (Student's t). What the columns say:")
    parts.append("\n".join(f"- {figure.title}: {plain(figure.meaning)}" for figure in figures))
    parts += [plain(sentence) for sentence in reference_sentences(study)]
    parts.append("## Over the temperature")
    parts.append(
        f"![bits per token, variety and repetition over the temperature]({name}/{DRAWING})"
    )
    parts.append("## Specimens")
    parts.append("The first text of each setting, with its prompt; all have the same seed.")
    parts += _specimens(study)
    page = "\n\n".join(part for part in parts if part) + "\n"
    return {f"{name}.md": page, f"{name}/{DRAWING}": draw_study(study)}


def describe(study: TemperatureStudy) -> str:
    """What was written, and with which models."""
    conditions = study.conditions
    runs = ", ".join(f"{run.name}{_step(run)}" for run in study.runs)
    prompts = ", ".join(f"“{prompt}”" if prompt else "nothing" for prompt in conditions.prompts)
    return (
        f"{runs}; texts of up to {conditions.max_tokens} tokens after {prompts}; for each setting "
        f"and prompt {conditions.num_texts}, with seeds from {conditions.seed} on, and one at "
        f"temperature 0; {study.device}"
    )


def reference_sentences(study: TemperatureStudy) -> list[str]:
    """Which documents people wrote, and what is to be thought of when texts are held against
    them."""
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


def warnings_of(study: TemperatureStudy) -> list[str]:
    """What keeps texts from being as long as was asked for."""
    return [
        f"{run.name}: texts are cut off after {run.most_tokens} tokens, for its context is full"
        for run in study.runs
        if run.most_tokens < study.conditions.max_tokens
    ]


def _step(run: RunStudy) -> str:
    return "" if run.step is None else f" at step {run.step:,}"


def _heading(study: TemperatureStudy, run: RunStudy) -> str:
    return f"### {plain(run.name)}" if len(study.runs) > 1 else ""


def _results(run: RunStudy, figures: list[Figure]) -> str:
    headers = ["temperature", *(figure.title for figure in figures), "came to an end"]
    rows = [
        [cell(result.setting.label), *row_of(result.figures, figures), show_finished(result)]
        for result in run.results
    ]
    if run.reference is not None:
        rows.append(["reference text", *row_of(run.reference, figures), UNKNOWN])
    return table(headers, rows)


def _specimens(study: TemperatureStudy) -> list[str]:
    parts = []
    for run in study.runs:
        parts.append(_heading(study, run))
        for result in run.results:
            text = result.specimen
            cut = "" if text.is_finished else " …"
            parts.append(f"Temperature {plain(result.setting.label)}:")
            parts.append(fenced((text.prompt + text.text).rstrip() + cut))
    return parts
