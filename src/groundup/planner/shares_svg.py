"""The shares of a forward pass as a drawing: stacked bars over model sizes and context lengths."""

from collections.abc import Mapping
from html import escape

from groundup.model.config import ModelConfig
from groundup.planner.flops import fractions_by_context, fractions_by_size

_PANEL_WIDTH, _HEIGHT = 400, 320
_LEFT, _TOP, _PLOT_HEIGHT = 44, 56, 210
_TITLES = {
    "projections": "projections",
    "attention": "attention",
    "feed_forward": "feed-forward",
    "output_head": "output head",
}
# Lightness falls from one to the next, so that they are told apart without colour too.
_COLOURS = ("#c6dbef", "#fd8d3c", "#4292c6", "#08306b")
_LABEL_COLOURS = ("#111", "#111", "#fff", "#fff")
# Below this a label does not fit into its part of the bar.
_LEAST_LABELLED = 0.05


def draw_shares(config: ModelConfig, name: str = "the model") -> str:
    """An SVG of two panels: GPT-2's sizes, and the model at growing context lengths."""
    sizes = {size.removeprefix("gpt2-"): one for size, one in fractions_by_size().items()}
    contexts = {f"{length:,}": one for length, one in fractions_by_context(config).items()}
    title = f"by context length, {name}"
    width = 2 * _PANEL_WIDTH
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" '
        f'font-family="sans-serif" font-size="11" role="img">\n'
        f"<title>Shares of the operations of a forward pass</title>\n"
        f"<style>.page{{fill:#fff}}.ink{{fill:#222}}.rule{{stroke:#ddd}}"
        f"@media (prefers-color-scheme: dark)"
        f"{{.page{{fill:#15181d}}.ink{{fill:#ddd}}.rule{{stroke:#333}}}}</style>\n"
        f'<rect class="page" width="{width}" height="{_HEIGHT}"/>\n'
        + _legend()
        + _panel(sizes, "by size, GPT-2 at context 1,024", 0)
        + _panel(contexts, title, _PANEL_WIDTH)
        + "</svg>\n"
    )


def _legend() -> str:
    parts = []
    for number, (title, colour) in enumerate(zip(_TITLES.values(), _COLOURS, strict=True)):
        x = _LEFT + 110 * number
        parts.append(f'<rect x="{x}" y="12" width="12" height="12" fill="{colour}"/>\n')
        parts.append(f'<text class="ink" x="{x + 17}" y="22">{title}</text>\n')
    return "".join(parts)


def _panel(bars: Mapping[str, Mapping[str, float]], title: str, left: int) -> str:
    begin, end = left + _LEFT, left + _PANEL_WIDTH - 12
    parts = [f'<text class="ink" x="{begin}" y="{_TOP - 10}">{escape(title)}</text>\n']
    for percent in (0, 25, 50, 75, 100):
        y = _TOP + _PLOT_HEIGHT * (1 - percent / 100)
        parts.append(f'<path class="rule" d="M{begin} {y:g}H{end}"/>\n')
        parts.append(
            f'<text class="ink" x="{begin - 5}" y="{y + 4:g}" text-anchor="end">{percent}%</text>\n'
        )
    step = (end - begin) / len(bars)
    for number, (label, shares) in enumerate(bars.items()):
        x, bar_width = begin + step * (number + 0.15), step * 0.7
        parts.append(_bar(shares, x, bar_width))
        middle, y = x + bar_width / 2, _TOP + _PLOT_HEIGHT + 18
        parts.append(
            f'<text class="ink" x="{middle:.1f}" y="{y}" text-anchor="middle">'
            f"{escape(label)}</text>\n"
        )
    return "".join(parts)


def _bar(shares: Mapping[str, float], x: float, width: float) -> str:
    parts, below = [], 0.0
    for name, colour, ink in zip(_TITLES, _COLOURS, _LABEL_COLOURS, strict=True):
        share = shares[name]
        height = _PLOT_HEIGHT * share
        top = _TOP + _PLOT_HEIGHT * (1 - below) - height
        below += share
        parts.append(
            f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'fill="{colour}"><title>{_TITLES[name]} {share:.1%}</title></rect>\n'
        )
        if share >= _LEAST_LABELLED:
            parts.append(
                f'<text x="{x + width / 2:.1f}" y="{top + height / 2 + 4:.1f}" fill="{ink}" '
                f'text-anchor="middle">{share:.0%}</text>\n'
            )
    return "".join(parts)
