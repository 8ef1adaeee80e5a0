"""SIGKILL at a random moment of every verb that writes; then the same command again."""

from __future__ import annotations

import signal

from artefacts import Artefacts
from harness import Case, Child
from verbs import VERBS, command_line, finish, undisturbed, verbs_of


def kill(case: Case) -> None:
    """Kill once or more, at moments spread over the time that the verb takes undisturbed."""
    name = case.pick(verbs_of(case))
    case.row = f"killed: {name}"
    _, seconds, _ = undisturbed(case, name)
    case.num_faults = case.random.choice((1, 1, 2, 3))
    for _ in range(case.num_faults):
        child = Child(case.place, command_line(VERBS[name], Artefacts(case.work), case.place))
        ended = child.wait(case.random.uniform(0.0, 1.05 * seconds), kill=True)
        ended.check(signals=[signal.SIGKILL])
        case.note("MB", ended.growth_bytes / 2**20)
    finish(case, name)
