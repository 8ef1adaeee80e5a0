"""Device names as torch reports them find their row, and slices or relatives find none."""

import pytest

from groundup.planner import find_accelerator, peak_flops_per_second
from groundup.planner.hardware import ACCELERATORS


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
