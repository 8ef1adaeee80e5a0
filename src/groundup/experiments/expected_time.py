"""How long the trials of a sweep are expected to take where they would run, and what that costs.

Each trial is expected to take what `groundup train` says before its first step.
"""

from collections.abc import Sequence

import torch

from groundup.checkpoint import CheckpointFolder
from groundup.errors import ConfigError
from groundup.experiments.slots import Slot, make_slots, num_devices
from groundup.experiments.trials import Trial
from groundup.planner import Execution, describe_cpu, expected_duration, find_accelerator
from groundup.planner.duration import Duration
from groundup.planner.hardware import Price, find_price
from groundup.planner.quantities import show_dollars
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runtime import format_duration, num_cores
from groundup.training.execution import (
    device_name,
    find_peak,
    matmul_precision,
    resolve_device,
    switches,
)


def expected_line(
    trials: Sequence[Trial], jobs: int | None = None, minutes: float | None = None
) -> str | None:
    """One line about trials that are left; None where no rate of their device is known.

    A machine that lacks the device which they name does not fail: the line says what it lacks.

    trials: those that are left.
    jobs: how many run at once.
    minutes: how long each is trained, if it is for a time: nothing about it is guessed then.
    """
    config = trials[0].config
    slots = make_slots(config, jobs)
    lanes = _num_lanes(config, slots)
    at_once = min(len(slots), len(trials))
    whose = "for the one trial left"
    if len(trials) > 1:
        how = "one after another" if at_once == 1 else f"{at_once} at once"
        whose = f"for the {len(trials):,} trials left, {how}"
    if minutes is not None:
        each = f"{minutes:g} minute{'' if minutes == 1 else 's'}"
        in_all = format_duration(60 * minutes * -(-len(trials) // len(slots)))
        try:
            price = find_price(_device_name(resolve_device(config)))
        except ConfigError:
            price = None
        seconds = 60 * minutes * len(trials) * lanes / len(slots)
        return f"{in_all} {whose}, {each} each{_cost(seconds, price)}"
    try:
        found = [_find_duration(trial) for trial in trials]
    except ConfigError as error:
        return f"how long the trials take is not known here: {error}"
    durations = [duration for duration in found if duration is not None]
    if len(durations) < len(trials):
        return None
    all_seconds = [duration.seconds for duration in durations]
    in_all = format_duration(max(sum(all_seconds) / lanes, *all_seconds))
    line = f"about {in_all} of training {whose}"
    if len(trials) > 1:
        ends = map(format_duration, (min(all_seconds), max(all_seconds)))
        line += f", {' to '.join(dict.fromkeys(ends))} each"
    rates = {(one.device, one.precision, one.mfu, one.peak_flops_per_second) for one in durations}
    first = durations[0]
    if len(rates) == 1:
        line += (
            f", at {first.mfu:.0%} of the {first.peak_flops_per_second / 1e12:,.4g} TFLOP/s in "
            f"{first.precision} of one {first.device} ({first.source})"
        )
    return f"{line}{_cost(sum(all_seconds), first.price)}; starting and evaluating comes on top"


def steps_left(trial: Trial) -> int:
    """The steps after the newest checkpoint, where a resume would go on."""
    checkpoints = CheckpointFolder(RunFolder(trial.config.run_folder).checkpoints)
    return max(0, trial.config.num_steps - max(checkpoints.steps(), default=0))


def _find_duration(trial: Trial) -> Duration | None:
    config = resolve_device(trial.config)
    with switches(config):
        peak = find_peak(config)
    if peak is None:
        return None
    return expected_duration(
        config.model,
        batch_size=config.batch_size,
        num_steps=steps_left(trial),
        peak_flops_per_second=peak,
        device=_device_name(config),
        kind=Execution.of(config.device, config.precision).device,
        precision=matmul_precision(config),
    )


def _device_name(config: RunConfig) -> str:
    if config.device == "cpu":
        return describe_cpu(config.num_threads or torch.get_num_threads(), 0).name
    name = device_name(config)
    row = find_accelerator(name)
    return name if row is None else row.name


def _num_lanes(config: RunConfig, slots: list[Slot]) -> int:
    """How many trials run at their full rate beside each other; more of them share that."""
    if num_devices(slots) > 1 or config.num_threads is None:
        return num_devices(slots)
    on_cuda = "CUDA_VISIBLE_DEVICES" in slots[0].environment
    return 1 if on_cuda else min(len(slots), max(1, num_cores() // config.num_threads))


def _cost(seconds: float, price: Price | None) -> str:
    if price is None:
        return ""
    dollars = seconds / 3_600 * price.dollars_per_hour
    return f": {show_dollars(dollars)} at ${price.dollars_per_hour:,.2f} an hour"
