"""Many texts at once, with how unlikely the model itself found every token that was chosen."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from groundup.generation import Engine, GenerationRequest
from groundup.generation.sampling import not_finite


@dataclass
class Draft:
    """The ids of a text as far as it is written."""

    request: GenerationRequest
    ids: list[int] = field(default_factory=list)
    nats: float = 0.0
    """-ln p of all ids chosen, by the model alone: before temperature and cuts."""
    num_chosen: int = 0
    """One more than there are ids if the text is finished: its end was chosen too."""
    is_finished: bool = False
    """Did a stop id end it, rather than the number of tokens or the context?"""


def write_drafts(
    engine: Engine, requests: Sequence[GenerationRequest], tell: Callable[[], None]
) -> list[Draft]:
    """Write until every text is over, as many at a time as the engine has rows.

    The requests must ask for log-probabilities. `tell` is called whenever a text is over.
    """
    drafts = [Draft(request) for request in requests]
    waiting = deque(drafts)
    running: dict[int, Draft] = {}
    while waiting or running:
        while waiting and engine.num_free:
            draft = waiting.popleft()
            running[engine.add(draft.request)] = draft
        for handle, token in engine.step():
            draft = running[handle]
            if token.finish_reason == "error" or token.log_probability is None:
                raise not_finite()
            draft.nats -= token.log_probability
            draft.num_chosen += 1
            draft.is_finished = token.finish_reason == "stop"
            if not draft.is_finished:
                draft.ids.append(token.id)
            if token.finish_reason is not None:
                del running[handle]
                tell()
    return drafts
