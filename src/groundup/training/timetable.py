"""After which steps something besides the step itself is due: a line, an evaluation, a checkpoint.

It depends on the settings and the step alone, so an interrupted run does at every step what an
uninterrupted one does.
"""

import math

from groundup.runs.config import RunConfig


class Timetable:
    """Says what is due after a step, counted from 1."""

    def __init__(self, config: RunConfig, *, can_evaluate: bool, can_sample: bool) -> None:
        self._config = config
        self._can_evaluate = can_evaluate
        self._can_sample = can_sample and config.samples.every_steps > 0

    def is_log_due(self, step: int) -> bool:
        return step == 1 or self._is_due(step, self._config.logging.every_steps)

    def is_evaluation_due(self, step: int) -> bool:
        """A checkpoint that may be the best one has to be measured, whatever the intervals."""
        if not self._can_evaluate:
            return False
        is_due = self._is_due(step, self._config.evaluation.every_steps)
        return is_due or (_measures_checkpoints(self._config) and self.is_save_due(step))

    def is_sample_due(self, step: int) -> bool:
        return self._can_sample and self._is_due(step, self._config.samples.every_steps)

    def is_save_due(self, step: int) -> bool:
        return self._is_due(step, self._config.checkpoints.every_steps)

    def needs_weights(self, step: int) -> bool:
        """Does anything look at the weights before the next step changes them?"""
        return self.is_evaluation_due(step) or self.is_sample_due(step) or self.is_save_due(step)

    def _is_due(self, step: int, every_steps: int) -> bool:
        is_last = step == self._config.num_steps
        return is_last or (every_steps > 0 and step % every_steps == 0)


def times_due(config: RunConfig, steps_done: int = 0) -> dict[str, int]:
    """How often a run that has steps left has an evaluation, a sample and a checkpoint in them,
    where it has them."""
    evaluate, save = config.evaluation.every_steps, config.checkpoints.every_steps

    def count(every_steps: int) -> int:
        return -(-config.num_steps // every_steps) - steps_done // every_steps if every_steps else 1

    num_evaluations = count(evaluate)
    if _measures_checkpoints(config):
        num_evaluations += count(save) - count(math.lcm(evaluate, save))
    return {
        "evaluation": num_evaluations,
        "sample": count(config.samples.every_steps),
        "checkpoint": count(save),
    }


def _measures_checkpoints(config: RunConfig) -> bool:
    """Is every checkpoint evaluated, because it may be the best one?"""
    return config.evaluation.every_steps > 0 and config.checkpoints.keep_best
