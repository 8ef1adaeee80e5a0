"""The figures of a temperature study as a reader meets them: their names, meanings and digits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from groundup.experiments.report.figure_text import UNKNOWN
from groundup.experiments.results.statistics import Interval
from groundup.experiments.temperatures.study import SettingResult, TemperatureStudy


@dataclass(frozen=True)
class Figure:
    """One of the columns."""

    name: str
    title: str
    short_title: str
    meaning: str
    is_share: bool = True
    num_digits: int = 1

    @property
    def factor(self) -> float:
        """What a value is multiplied by to be shown."""
        return 100.0 if self.is_share else 1.0

    def show(self, interval: Interval | None) -> str:
        """mean ± half width, or the one value there is."""
        if interval is None:
            return UNKNOWN
        parts = [interval.mean]
        if interval.half_width is not None:
            parts.append(interval.half_width)
        told = " ± ".join(f"{self.factor * part:,.{self.num_digits}f}" for part in parts)
        return told + ("%" if self.is_share else "")


FIGURES = {
    figure.name: figure
    for figure in (
        Figure(
            "bits_per_token",
            "bits per token",
            "bits/token",
            "how unlikely the model itself finds what it wrote: -log2 of the probability of each "
            "token at temperature 1 without a cut, the end of the text included",
            is_share=False,
            num_digits=2,
        ),
        Figure(
            "num_tokens",
            "tokens",
            "tokens",
            "the length of a text without its end",
            is_share=False,
            num_digits=0,
        ),
        Figure(
            "known_words",
            "known words",
            "known words",
            "the share of a text's words that are known (below), for their spelling; the "
            "last word of a text that was cut off is left out",
        ),
        Figure(
            "own_3_grams",
            "own 3-grams",
            "own 3",
            "the share of a text's 3-grams of words that no other text of the same prompt and "
            "setting holds: how much the texts differ from each other",
        ),
        Figure(
            "distinct_1_grams",
            "distinct words",
            "distinct 1",
            "different words in parts of all words of a text; longer texts have a smaller share",
        ),
        Figure(
            "distinct_2_grams",
            "distinct 2-grams",
            "distinct 2",
            "the same of two words that follow each other",
        ),
        Figure("distinct_3_grams", "distinct 3-grams", "distinct 3", "the same of three"),
        Figure(
            "repeated_4_grams",
            "repeated 4-grams",
            "repeated 4",
            "the share of a text's 4-grams of words that stand in it before: loops",
        ),
    )
}


def figures_in(study: TemperatureStudy) -> list[Figure]:
    """The figures that were measured."""
    measured = study.runs[0].results[0].figures
    return [figure for name, figure in FIGURES.items() if name in measured]


def show_finished(result: SettingResult) -> str:
    """Counted, not as mean ± interval, which would claim too much where all or none did."""
    return f"{result.num_finished} of {len(result.texts)}"


def row_of(means: Mapping[str, Interval | None], figures: Sequence[Figure]) -> list[str]:
    """The cells of these figures."""
    return [figure.show(means[figure.name]) for figure in figures]
