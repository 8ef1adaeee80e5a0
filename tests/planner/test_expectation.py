"""The time that a run is expected to take where it runs, and the line that says so."""

import pytest

from groundup.model.config import PRESETS
from groundup.planner import Execution, describe_cpu, expected_duration, step_flops, time_line
from groundup.planner.activations import DeviceKind
from groundup.planner.duration import Duration
from groundup.planner.expectation import EXPECTED_MFU
from groundup.planner.quantities import show_duration

CONFIG = PRESETS["tinystories"]


def duration_on(device: str, kind: DeviceKind, peak: float, precision: str) -> Duration:
    return expected_duration(
        CONFIG,
        batch_size=128,
        num_steps=10_000,
        peak_flops_per_second=peak,
        device=device,
        kind=kind,
        precision=precision,
    )


def test_a_known_gpu_is_named_with_its_assumption_its_source_and_its_price() -> None:
    duration = duration_on("NVIDIA H200", "cuda", 989.4e12, "bfloat16")
    seconds = 10_000 * step_flops(CONFIG, 128) / (0.4 * 989.4e12)
    assert duration.seconds == pytest.approx(seconds) == pytest.approx(92.5, abs=0.1)
    assert time_line(duration) == (
        "about 92.5 s for 10,000 steps at 40% of the 989.4 TFLOP/s in bfloat16 of one H200 "
        "(NVIDIA H200 data sheet, halved): $0.10 at $4.00 an hour"
    )


def test_a_cpu_is_expected_to_reach_half_of_what_was_measured() -> None:
    device = describe_cpu(2, 0).name
    line = time_line(duration_on(device, "cpu", 218.3e9, "float32"))
    assert line == (
        "about 3.9 days for 10,000 steps at 50% of the 0.2183 TFLOP/s in float32 of one CPU of 2 "
        "cores (measured): $7.60 at $0.08 an hour"
    )


def test_a_device_without_a_price_has_none_in_its_line() -> None:
    line = time_line(duration_on("NVIDIA L40S", "cuda", 362e12, "bfloat16"))
    assert line.endswith("of one L40S (NVIDIA L4, L40 and L40S data sheets)")


def test_every_kind_of_device_has_a_share() -> None:
    kinds = {Execution.of(name, "float32").device for name in ("cpu", "cuda:1", "mps")}
    assert kinds == EXPECTED_MFU.keys()
    assert all(0 < share <= 1 for share in EXPECTED_MFU.values())


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0214, "21 ms"),
        (1.0, "1.0 s"),
        (119.0, "119.0 s"),
        (120.0, "2.0 minutes"),
        (7_200.0, "2.0 hours"),
        (172_800.0, "2.0 days"),
    ],
)
def test_a_time_is_shown_in_the_unit_that_suits_it(seconds: float, shown: str) -> None:
    assert show_duration(seconds) == shown
