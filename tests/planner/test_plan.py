"""The whole plan as one value, its drawing, and the two lines that the log of a run begins with."""

import json

import pytest

from groundup.errors import ConfigError
from groundup.model.config import PRESETS, ModelConfig
from groundup.planner import (
    Execution,
    Plan,
    describe_cpu,
    expected_duration,
    get_accelerator,
    make_plan,
    step_flops,
    time_line,
    two_line_plan,
)
from groundup.planner.duration import EXPECTED_MFU
from groundup.planner.hardware import Price
from groundup.planner.memory import DeviceKind


def plan_on(device: str, preset: str = "gpt2-small", mfu: float = 0.5) -> Plan:
    accelerator = get_accelerator(device)
    return make_plan(PRESETS[preset], accelerator, batch_size=64, num_steps=1_000, mfu=mfu)


def test_a_plan_is_json_to_the_last_value() -> None:
    results = plan_on("H200").to_json()
    assert json.loads(json.dumps(results)) == results


def test_time_is_work_over_rate_and_price_is_time() -> None:
    slow, fast = plan_on("A100 80GB"), plan_on("H200")
    assert slow.duration.seconds / fast.duration.seconds == pytest.approx(989.4 / 312)
    half = plan_on("H200", mfu=0.25)
    assert half.duration.seconds == 2 * fast.duration.seconds
    assert half.duration.dollars == pytest.approx(half.duration.seconds / 3600 * 4.00)


def test_a_price_that_is_given_replaces_the_tables() -> None:
    assert plan_on("L40S").duration.dollars is None
    price, l40s = Price(2.0, "a quote", "2026"), get_accelerator("L40S")
    plan = make_plan(PRESETS["gpt2-small"], l40s, batch_size=8, num_steps=10, price=price)
    assert plan.duration.dollars == pytest.approx(plan.duration.seconds / 1800)
    assert "a quote" in plan.duration.derivation()[-1]


def test_a_plan_picks_the_micro_batch_and_knows_its_peak() -> None:
    plan = plan_on("RTX 4090")
    assert 0 < plan.micro_batch < 64 and 64 % plan.micro_batch == 0
    assert plan.peak_bytes is not None and plan.peak_bytes < plan.memory_bytes
    too_large = make_plan(PRESETS["gpt2-xl"], describe_cpu(1, 10**9), batch_size=1, num_steps=1)
    assert too_large.micro_batch == 0 and too_large.peak_bytes is None
    assert too_large.to_json()["memory"]["largest_micro_batch"] == 0 and not too_large.fits
    given = make_plan(
        PRESETS["gpt2-xl"], get_accelerator("H200"), batch_size=512, num_steps=1, micro_batch=512
    )
    assert not given.fits and plan.fits


@pytest.mark.parametrize("mfu", [0.0, -1.0, 1e-300, 1.5, float("nan")])
def test_an_mfu_that_is_no_fraction_is_refused(mfu: float) -> None:
    with pytest.raises(ConfigError, match=r"mfu is .*from 1e-06 to 1"):
        plan_on("H200", mfu=mfu)


def test_a_precision_that_the_hardware_lacks_is_refused() -> None:
    v100 = get_accelerator("V100")
    with pytest.raises(ConfigError, match="V100 has no bfloat16"):
        make_plan(PRESETS["gpt2-small"], v100, batch_size=1, num_steps=1, precision="bfloat16")
    plan = make_plan(PRESETS["gpt2-small"], v100, batch_size=1, num_steps=1)
    assert plan.duration.precision == "float32"


def test_a_time_buys_the_steps_that_fit_into_it() -> None:
    plan = plan_on("H200")
    ten_minutes = plan.within(600)
    duration = ten_minutes.duration
    one_step = duration.flops_per_step / duration.flops_per_second
    assert duration.seconds <= 600 < duration.seconds + one_step
    assert ten_minutes.num_tokens == duration.num_steps * 64 * 1_024
    assert any(line.startswith("the budget: 600 s x ") for line in duration.derivation())
    with pytest.raises(ConfigError, match=r"one step takes 0\.136 s on H200, and there are 0\.1:"):
        plan.within(0.1)


def test_epochs_are_tokens_over_the_corpus() -> None:
    h200 = get_accelerator("H200")
    config = PRESETS["tinystories"]
    plan = make_plan(config, h200, batch_size=4, num_steps=100, tokens_in_corpus=51_200)
    assert plan.num_epochs == 2.0 and plan.to_json()["duration"]["num_epochs"] == 2.0
    assert plan_on("H200").num_epochs is None


def test_tf32_is_a_rate_of_its_own_where_there_are_tensor_cores_and_float32_elsewhere() -> None:
    config = PRESETS["gpt2-small"]
    rates = {}
    for name in ("A100", "M4 Max"):
        device = get_accelerator(name)
        plan = make_plan(config, device, batch_size=1, num_steps=1, precision="tf32")
        rates[name] = (plan.duration.precision, plan.duration.peak_flops_per_second)
        assert plan.memory.execution.precision == "float32"
    assert rates == {"A100": ("tf32", 156e12), "M4 Max": ("float32", 16.2e12)}


def test_a_run_beyond_all_devices_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"more than 1e\+60 operations"):
        make_plan(PRESETS["gpt2-xl"], get_accelerator("H200"), batch_size=10**30, num_steps=10**30)


def test_enough_steps_give_a_model_its_twenty_tokens_a_parameter() -> None:
    plan = plan_on("H200")
    tokens_per_step = 64 * 1_024
    steps = plan.enough.num_steps
    assert (steps - 1) * tokens_per_step < 20 * plan.num_parameters <= steps * tokens_per_step


def test_two_lines_say_parameters_memory_tokens_and_operations() -> None:
    config = PRESETS["tinystories"]
    first, second = two_line_plan(config, 32, 40_000, tokens_in_corpus=200_000_000)
    assert first.startswith("22.7 million parameters: 363.1 MB of memory")
    assert second == (
        "40,000 steps of 8,192 tokens: 327.7 million tokens (1.6 epochs of 200.0 million), "
        "915 gigaFLOP a step, 36.6 petaFLOP in all"
    )
    averaging, _ = two_line_plan(config, 32, 40_000, ema=True)
    assert averaging.startswith("22.7 million parameters: 453.9 MB of memory")
    tiny = ModelConfig(vocab_size=2, context_length=1, d_model=2, num_layers=0, num_heads=1)
    first, second = two_line_plan(tiny, 1, 1)
    assert first.startswith("10 parameters: 160 B ") and "24 FLOP a step" in second
    assert second.startswith("1 step of ")
    _, second = two_line_plan(PRESETS["gpt2-xl"], 512, 10_000_000)
    assert "zettaFLOP in all" in second and "e+" not in second


@pytest.mark.parametrize(
    ("device", "kind", "peak", "precision", "line"),
    [
        (
            "NVIDIA H200", "cuda", 989.4e12, "bfloat16",
            "about 92.5 s for 10,000 steps at 40% of the 989.4 TFLOP/s in bfloat16 of one H200 "
            "(NVIDIA H200 data sheet, halved): $0.10 at $4.00 an hour",
        ),
        (
            "CPU of 2 cores", "cpu", 218.3e9, "float32",
            "about 3.9 days for 10,000 steps at 50% of the 0.2183 TFLOP/s in float32 of one CPU of "
            "2 cores (measured): $7.60 at $0.08 an hour",
        ),
        (
            "NVIDIA L40S", "cuda", 362e12, "bfloat16",
            "about 4.2 minutes for 10,000 steps at 40% of the 362 TFLOP/s in bfloat16 of one L40S "
            "(NVIDIA L4, L40 and L40S data sheets)",
        ),
    ],
)  # fmt: skip
def test_an_expected_time_says_what_it_assumes_and_costs(
    device: str, kind: DeviceKind, peak: float, precision: str, line: str
) -> None:
    duration = expected_duration(
        PRESETS["tinystories"],
        batch_size=128,
        num_steps=10_000,
        peak_flops_per_second=peak,
        device=device,
        kind=kind,
        precision=precision,
    )
    assert time_line(duration) == line
    seconds = 10_000 * step_flops(PRESETS["tinystories"], 128) / (EXPECTED_MFU[kind] * peak)
    assert duration.seconds == pytest.approx(seconds)
    assert EXPECTED_MFU.keys() == {Execution.of(d, "").device for d in ("cpu", "cuda:1", "mps")}
