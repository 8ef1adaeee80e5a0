"""How much Python a step of the engine runs: as much for a large vocabulary as for a small one."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from groundup.generation import Engine, GenerationRequest, Sampler
from groundup.model import TransformerLM

NewModel = Callable[..., TransformerLM]


def count_instructions(work: Callable[[], Any]) -> int:
    """How many instructions of Python run meanwhile."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    # What is called when memory is collected is no part of the work.
    gc.disable()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


@pytest.mark.parametrize("sharpness", [0.01, 50.0], ids=["even", "sharp"])
def test_no_python_work_grows_with_the_vocabulary(new_model: NewModel, sharpness: float) -> None:
    counts = []
    for vocab_size in (200, 20_000):
        model = new_model(vocab_size=vocab_size, num_layers=1)
        model.output_weight.data.mul_(sharpness)
        engine = Engine(model, max_rows=2)
        for seed in (1, 2):
            engine.add(GenerationRequest((3, 1, 4), 8, Sampler.of(0.9, top_p=0.9), seed))
        # The first steps read the prompts and make what later ones find ready.
        engine.step()
        engine.step()
        counts.append(count_instructions(engine.step))
        assert engine.num_running == 2
    assert 0 < counts[0] == counts[1]
