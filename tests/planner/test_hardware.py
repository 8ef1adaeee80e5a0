"""Device names as torch reports them find their row, and slices or relatives find none."""

import pytest

from groundup.errors import ConfigError
from groundup.planner import describe_cpu, find_accelerator, get_accelerator, peak_flops_per_second
from groundup.planner.hardware import ACCELERATORS, PRICES, device_kind

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


def test_a_slower_relative_or_a_stranger_finds_none() -> None:
    others = ["", "cpu", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D"]
    others += ["NVIDIA GeForce RTX 3090 Ti", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "Apple M9 Pro"]
    others += ["NVIDIA GeForce RTX 4090 Max-Q", "Intel(R) Xeon(R) Processor"]
    for name in others:
        assert find_accelerator(name) is None, name
        assert peak_flops_per_second(name, "bfloat16") is None


def test_rows_are_sound() -> None:
    assert get_accelerator("H200")[1:5] == (989.4e12, 494.7e12, 66.9e12, 141 * 2**30)
    assert len({row.name for row in ACCELERATORS}) == len(ACCELERATORS)
    for row in ACCELERATORS:
        tf32 = row.tf32_flops_per_second or row.float32_flops_per_second
        bfloat16 = row.bfloat16_flops_per_second or tf32
        assert bfloat16 >= tf32 >= row.float32_flops_per_second and row.source


def test_the_kind_of_a_device_is_torchs() -> None:
    for name, kind in {"H200": "cuda", "M1": "mps", "M4 Max": "mps", "MI300X": "cuda"}.items():
        assert device_kind(get_accelerator(name)) == kind
    assert device_kind(describe_cpu(2, 10**9)) == "cpu"
    with pytest.raises(ConfigError, match="known are V100, "):
        get_accelerator("abacus")


def test_prices_have_a_device_a_source_and_a_date() -> None:
    for name, price in PRICES.items():
        assert get_accelerator(name).name == name
        assert price.dollars_per_hour > 0 and price.source and price.date.startswith("20")
