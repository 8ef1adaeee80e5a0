"""Writes the planner's tables of the guide to many GPUs, so that page and program cannot disagree.

`make docs` runs it; `tests/test_docs.py` compares the page with a fresh rendering.
"""

import re
from pathlib import Path

from groundup.files import write_text_atomic
from groundup.model.config import PRESETS
from groundup.planner import get_accelerator, make_plan
from groundup.planner.quantities import show_bytes
from groundup.planner.scaling import Scaling, plan_scaling

DOCS = Path(__file__).resolve().parent.parent / "docs"
SCALING_PAGE = DOCS / "guides" / "distributed.md"

# Model, device, what connects machines, and sequences of each GPU.
_CASES = [
    ("gpt2-small", "H100", "infiniband-ndr", 64),
    ("gpt2-small", "H100", "ethernet-100g", 64),
    ("gpt2-xl", "H100", "infiniband-ndr", 16),
    ("gpt2-xl", "H100", "ethernet-100g", 16),
    ("gpt2-xl", "RTX 4090", "ethernet-100g", 16),
]


def render_scaling(page: str) -> str:
    """The guide with its two tables as the planner has them now.

    page: the guide as it is.
    """
    scaling = _scaling("gpt2-xl", "H100", "infiniband-ndr", 16)
    rows = ["| | memory of a GPU | it sends inside | across | in | of that waits | efficiency |"]
    rows.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, one in scaling.strategies.items():
        sent, efficiency = one.traffic, f"{one.efficiency:.1%}"
        sizes = (one.peak_bytes, sent.inside_bytes, sent.across_bytes)
        times = (f"{1e3 * seconds:,.3g} ms" for seconds in (sent.seconds, one.exposed_seconds))
        rows.append(f"| {' | '.join([name, *map(show_bytes, sizes), *times, efficiency])} |")
    page = _fill(page, "strategies", rows)
    rows = [
        "| model, sequences of a GPU | between machines | GPUs | ddp | ddp, exact | fsdp | hsdp |"
    ]
    rows.append("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for preset, device, link, num_sequences in _CASES:
        table = _scaling(preset, device, link, num_sequences).same_batch_per_gpu
        for num_gpus in (8, 64, 512):
            cells = [
                "too large" if one is None else f"{one:.1%}" for one in table[num_gpus].values()
            ]
            case = f"{preset}, {num_sequences} on {device}"
            rows.append(f"| {' | '.join([case, link, str(num_gpus), *cells])} |")
    return _fill(page, "scaling", rows)


def _scaling(preset: str, device: str, link: str, num_sequences: int) -> Scaling:
    batch_size = 64 * num_sequences
    plan = make_plan(PRESETS[preset], get_accelerator(device), batch_size=batch_size, num_steps=1)
    return plan_scaling(plan, num_gpus=64, interconnects=[link])


def _fill(page: str, name: str, lines: list[str]) -> str:
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    text = "\n".join([begin, *lines, end])
    return re.sub(f"{begin}.*?{end}", lambda _: text, page, flags=re.DOTALL)


if __name__ == "__main__":
    write_text_atomic(SCALING_PAGE, render_scaling(SCALING_PAGE.read_text(encoding="utf-8")))
