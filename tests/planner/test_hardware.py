"""Device names as torch reports them find their row, and slices or relatives find none."""

import pytest

from groundup.errors import ConfigError
from groundup.planner import (
    describe_cpu,
    find_accelerator,
    get_accelerator,
    peak_flops_per_second,
)
from groundup.planner.accelerators import ACCELERATORS
from groundup.planner.hardware import device_kind, fastest_precision
from groundup.planner.prices import PRICES, find_price


@pytest.mark.parametrize(
    ("device_name", "row"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIE"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("Tesla V100-SXM2-32GB", "V100 32GB"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla T4", "T4"),
        ("AMD Instinct MI300X", "MI300X"),
        ("Apple M1", "M1"),
        ("Apple M2 Ultra", "M2 ULTRA"),
        ("Apple M4 Max", "M4 MAX"),
    ],
)
def test_a_reported_name_finds_its_row(device_name: str, row: str) -> None:
    found = find_accelerator(device_name)
    assert found is not None and found.name == row


@pytest.mark.parametrize(
    "device_name",
    [
        "",
        "cpu",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA GeForce GTX 1080",
        "NVIDIA GeForce RTX 4090 Max-Q",
        "Apple M9 Pro",
        "Intel(R) Xeon(R) Processor",
    ],
)
def test_a_slower_relative_or_a_stranger_finds_none(device_name: str) -> None:
    assert find_accelerator(device_name) is None
    assert peak_flops_per_second(device_name, "bfloat16") is None


def test_rates_are_dense() -> None:
    assert peak_flops_per_second("NVIDIA H200", "bfloat16") == pytest.approx(989.4e12)
    assert peak_flops_per_second("NVIDIA A100-SXM4-80GB", "bfloat16") == pytest.approx(312e12)
    assert peak_flops_per_second("NVIDIA A100-SXM4-80GB", "tf32") == pytest.approx(156e12)
    assert peak_flops_per_second("NVIDIA A100-SXM4-80GB", "float32") == pytest.approx(19.5e12)


def test_hardware_without_a_precision_has_no_rate_for_it() -> None:
    assert peak_flops_per_second("Tesla V100-SXM2-16GB", "bfloat16") is None
    assert peak_flops_per_second("Tesla V100-SXM2-16GB", "float32") == pytest.approx(15.7e12)


def test_less_precision_is_never_slower() -> None:
    for row in ACCELERATORS:
        tf32 = row.tf32_flops_per_second or row.float32_flops_per_second
        bfloat16 = row.bfloat16_flops_per_second or tf32
        assert bfloat16 >= tf32 >= row.float32_flops_per_second


def test_rows_have_names_of_their_own() -> None:
    assert len({row.name for row in ACCELERATORS}) == len(ACCELERATORS)


@pytest.mark.parametrize(
    ("typed", "row"),
    [
        ("h200", "H200"),
        ("a100 80gb", "A100 80GB"),
        ("a100_80gb", "A100 80GB"),
        ("rtx-4090", "RTX 4090"),
        ("RTX4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("m4max", "M4 MAX"),
    ],
)
def test_a_typed_name_finds_its_row(typed: str, row: str) -> None:
    assert get_accelerator(typed).name == row


def test_a_device_that_is_not_in_the_table_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no device 'H20' .*did you mean H200"):
        get_accelerator("H20")
    with pytest.raises(ConfigError, match=r"no device 'abacus' .*known are .*--peak-tflops"):
        get_accelerator("abacus")


def test_the_kind_of_a_device_is_torchs() -> None:
    kinds = {
        name: device_kind(get_accelerator(name)) for name in ("H200", "M1", "M4 Max", "MI300X")
    }
    assert kinds == {"H200": "cuda", "M1": "mps", "M4 Max": "mps", "MI300X": "cuda"}
    assert device_kind(describe_cpu(2, 10**9)) == "cpu"


def test_a_cpu_has_a_rate_for_each_of_its_cores() -> None:
    one, four = describe_cpu(1, 10**9), describe_cpu(4, 10**9)
    assert four.float32_flops_per_second == 4 * one.float32_flops_per_second
    assert (one.name, four.name) == ("CPU of 1 core", "CPU of 4 cores")


def test_bfloat16_is_taken_where_the_hardware_has_it() -> None:
    assert fastest_precision(get_accelerator("A100")) == "bfloat16"
    assert fastest_precision(get_accelerator("T4")) == fastest_precision(get_accelerator("M1"))
    assert fastest_precision(get_accelerator("M1")) == "float32"


def test_every_rate_has_a_source() -> None:
    assert all(row.source for row in [*ACCELERATORS, describe_cpu(2, 10**9)])


def test_a_processor_costs_by_its_cores_and_a_stranger_has_no_price() -> None:
    one, four = find_price("CPU of 1 core"), find_price("CPU of 4 cores")
    assert one is not None and four is not None
    assert four.dollars_per_hour == pytest.approx(4 * one.dollars_per_hour)
    assert find_price("H200") == PRICES["H200"]
    assert find_price("M4 MAX") is find_price("abacus") is None


def test_prices_have_a_device_a_source_and_a_date() -> None:
    for name, price in PRICES.items():
        assert get_accelerator(name).name == name
        assert price.dollars_per_hour > 0 and price.source and price.date.startswith("20")
