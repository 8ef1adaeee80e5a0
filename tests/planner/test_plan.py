"""The whole plan as one value, and the lines that the log of a run begins with."""

import json

import pytest

from groundup.errors import ConfigError
from groundup.model.config import PRESETS
from groundup.planner import Plan, describe_cpu, get_accelerator, make_plan


def plan_on(device: str, mfu: float = 0.5) -> Plan:
    config, row = PRESETS["gpt2-small"], get_accelerator(device)
    return make_plan(config, row, batch_size=64, num_steps=1_000, mfu=mfu)


def test_time_is_work_over_rate_and_price_is_time() -> None:
    slow, fast = plan_on("A100 80GB"), plan_on("H200")
    assert slow.duration.seconds / fast.duration.seconds == pytest.approx(989.4 / 312)
    half = plan_on("H200", mfu=0.25)
    assert half.duration.seconds == 2 * fast.duration.seconds
    assert half.duration.dollars == pytest.approx(half.duration.seconds / 3600 * 4.00)
    assert plan_on("L40S").duration.dollars is None
    assert "$4.00" in fast.duration.derivation()[-1]


def test_a_plan_picks_the_micro_batch_and_knows_its_peak() -> None:
    plan = plan_on("RTX 4090")
    assert 0 < plan.micro_batch < 64 and 64 % plan.micro_batch == 0
    assert plan.peak_bytes is not None and plan.peak_bytes < plan.memory_bytes
    too_large = make_plan(PRESETS["gpt2-xl"], describe_cpu(1, 10**9), batch_size=1, num_steps=1)
    assert too_large.micro_batch == 0 and too_large.peak_bytes is None
    assert too_large.to_json()["memory"]["peak_bytes"] is None and not too_large.fits
    given = make_plan(
        PRESETS["gpt2-xl"], get_accelerator("H200"), batch_size=512, num_steps=1, micro_batch=512
    )
    assert not given.fits and plan.fits


def test_a_precision_that_the_hardware_lacks_is_refused_and_tf32_falls_back_to_float32() -> None:
    config = PRESETS["gpt2-small"]
    with pytest.raises(ConfigError, match="V100 does not support bfloat16"):
        v100 = get_accelerator("V100")
        make_plan(config, v100, batch_size=1, num_steps=1, precision="bfloat16")
    for name, precision in (("A100", "bfloat16"), ("T4", "float32"), ("M1", "float32")):
        assert plan_on(name).duration.precision == precision
    for name, precision, rate in (("A100", "tf32", 156e12), ("M4 Max", "float32", 16.2e12)):
        device = get_accelerator(name)
        plan = make_plan(config, device, batch_size=1, num_steps=1, precision="tf32")
        assert plan.duration.precision == precision and plan.duration.peak_flops_per_second == rate
        assert plan.memory.execution.precision == "float32"


def test_a_time_buys_the_steps_that_fit_into_it() -> None:
    plan = plan_on("H200")
    ten_minutes = plan.within(600)
    duration = ten_minutes.duration
    one_step = duration.flops_per_step / duration.flops_per_second
    assert duration.seconds <= 600 < duration.seconds + one_step
    assert ten_minutes.num_tokens == duration.num_steps * 64 * 1_024
    with pytest.raises(ConfigError, match="one step takes"):
        plan.within(0.1)


def test_a_plan_is_json_with_the_steps_that_are_enough() -> None:
    h200, config = get_accelerator("H200"), PRESETS["tinystories"]
    plan = make_plan(config, h200, batch_size=4, num_steps=100)
    found = plan.to_json()
    assert json.loads(json.dumps(found)) == found
    steps, tokens_per_step = found["compute_optimal"]["steps_for_this_model"], 4 * 256
    assert (steps - 1) * tokens_per_step < 20 * plan.num_parameters <= steps * tokens_per_step
