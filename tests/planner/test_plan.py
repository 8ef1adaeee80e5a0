"""The plan of a run, the table of devices, and formatting of quantities."""

from pathlib import Path

import pytest

import groundup
from groundup.errors import ConfigError
from groundup.model.config import PRESETS
from groundup.planner import (
    Plan,
    describe_cpu,
    find_accelerator,
    get_accelerator,
    make_plan,
    peak_flops_per_second,
)
from groundup.planner.hardware import ACCELERATORS, PRICES, device_kind
from groundup.planner.quantities import show_bytes


def plan_on(device: str, mfu: float = 0.5) -> Plan:
    config, row = PRESETS["gpt2-small"], get_accelerator(device)
    return make_plan(config, row, batch_size=64, num_steps=1_000, mfu=mfu)


def test_time_is_flops_over_rate_and_price_follows() -> None:
    slow, fast = plan_on("A100 80GB"), plan_on("H200")
    assert slow.duration.seconds / fast.duration.seconds == pytest.approx(989.4 / 312)
    half = plan_on("H200", mfu=0.25)
    assert half.duration.seconds == 2 * fast.duration.seconds
    assert half.duration.dollars == pytest.approx(half.duration.seconds / 3600 * 4.00)
    assert plan_on("L40S").duration.dollars is None
    assert "$4.00" in fast.duration.derivation()[-1]


def test_plans_choose_the_micro_batch_and_its_peak() -> None:
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


def test_unsupported_precisions_raise_and_tf32_falls_back() -> None:
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


def test_within_counts_the_steps_that_fit() -> None:
    plan = plan_on("H200")
    ten_minutes = plan.within(600)
    duration = ten_minutes.duration
    one_step = duration.flops_per_step / duration.flops_per_second
    assert duration.seconds <= 600 < duration.seconds + one_step
    assert ten_minutes.num_tokens == duration.num_steps * 64 * 1_024
    with pytest.raises(ConfigError, match="one step takes"):
        plan.within(0.1)


REPORTED = {
    "NVIDIA H200": "H200",
    "NVIDIA H100 80GB HBM3": "H100",
    "NVIDIA H100 PCIe": "H100 PCIE",
    "NVIDIA GH200 480GB": "GH200",
    "NVIDIA A100-SXM4-80GB": "A100 80GB",
    "NVIDIA A100-SXM4-40GB": "A100",
    "NVIDIA A10": "A10",
    "NVIDIA GB200": "GB200",
    "NVIDIA GeForce RTX 4090": "RTX 4090",
    "Tesla V100-SXM2-32GB": "V100 32GB",
    "Apple M1": "M1",
    "Apple M4 Max": "M4 MAX",
}
TYPED = {"h200": "H200", "a100 80gb": "A100 80GB", "rtx-4090": "RTX 4090", "m4max": "M4 MAX"}


def test_a_reported_or_typed_name_finds_its_row() -> None:
    for name, row in REPORTED.items():
        found = find_accelerator(name)
        assert found is not None and found.name == row, name
    for name, row in TYPED.items():
        assert get_accelerator(name).name == row, name


def test_slower_variants_and_unknown_devices_have_no_row() -> None:
    others = ["", "cpu", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D"]
    others += ["NVIDIA GeForce RTX 3090 Ti", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "Apple M9 Pro"]
    others += ["NVIDIA GeForce RTX 4090 Max-Q", "Intel(R) Xeon(R) Processor"]
    for name in others:
        assert find_accelerator(name) is None, name
        assert peak_flops_per_second(name, "bfloat16") is None


def test_rows_are_plausible() -> None:
    assert get_accelerator("H200")[1:5] == (989.4e12, 494.7e12, 66.9e12, 141 * 2**30)
    assert len({row.name for row in ACCELERATORS}) == len(ACCELERATORS)
    for row in ACCELERATORS:
        tf32 = row.tf32_flops_per_second or row.float32_flops_per_second
        bfloat16 = row.bfloat16_flops_per_second or tf32
        assert bfloat16 >= tf32 >= row.float32_flops_per_second and row.source


def test_device_kinds_are_torch_device_types() -> None:
    for name, kind in {"H200": "cuda", "M1": "mps", "M4 Max": "mps", "MI300X": "cuda"}.items():
        assert device_kind(get_accelerator(name)) == kind
    assert device_kind(describe_cpu(2, 10**9)) == "cpu"
    assert [get_accelerator(name).name for name in PRICES] == list(PRICES)
    with pytest.raises(ConfigError, match="choose from V100, "):
        get_accelerator("abacus")


UNITS = {"1e12": "TB", "1e9": "GB", "1e6": "MB", "1e3": "kB"}


def test_a_gb_is_a_billion_bytes_everywhere() -> None:
    assert [show_bytes(float(size)) for size in UNITS] == [f"1.0 {unit}" for unit in UNITS.values()]
    units = ", ".join(f'[{size}, " {unit}"]' for size, unit in UNITS.items())
    package = Path(groundup.__file__).parent
    assert f"[{units}]" in (package / "serving/static/run_format.js").read_text("utf-8")
