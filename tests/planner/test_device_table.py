"""Every row of the table of devices against its maker's figures, restated here one by one.

Rates are dense and in TFLOP/s: bfloat16, TF32, float32; memory is in GiB. A figure that changes in
the table has to be looked up and changed here as well.
"""

import pytest

from groundup.planner import describe_cpu
from groundup.planner.accelerators import ACCELERATORS
from groundup.planner.prices import PRICES, find_price

Figures = tuple[float | None, float | None, float, int]

# Data sheets of V100, T4, A100, A10, A30, A40, H100, H200, HGX B200, GB200 NVL72, L4, L40 and L40S:
# where NVIDIA counts with sparsity, half of it. Architecture papers of GA102, Ada and RTX Blackwell
# for the GeForce cards, with sums in float32, which halves their tensor cores.
NVIDIA: dict[str, Figures] = {
    "V100": (None, None, 15.7, 16),
    "V100 32GB": (None, None, 15.7, 32),
    "T4": (None, None, 8.1, 16),
    "A100": (312, 156, 19.5, 40),
    "A100 80GB": (312, 156, 19.5, 80),
    "A800": (312, 156, 19.5, 80),
    "A10": (125, 62.5, 31.2, 24),
    "A10G": (70, 35, 35, 24),
    "A30": (165, 82, 10.3, 24),
    "A40": (149.7, 74.8, 37.4, 48),
    "RTX 3090": (71, 35.6, 35.6, 24),
    "RTX A6000": (154.8, 77.4, 38.7, 48),
    "H100": (1_978.8 / 2, 989.4 / 2, 66.9, 80),
    "H100 PCIE": (1_512 / 2, 756 / 2, 51, 80),
    "H100 NVL": (1_671 / 2, 835 / 2, 60, 94),
    "H800": (1_978.8 / 2, 989.4 / 2, 66.9, 80),
    "GH200": (1_978.8 / 2, 989.4 / 2, 66.9, 96),
    "H200": (1_978.8 / 2, 989.4 / 2, 66.9, 141),
    "H200 NVL": (1_671 / 2, 835 / 2, 60, 141),
    "B200": (36_000 / 8 / 2, 18_000 / 8 / 2, 600 / 8, 180),
    "GB200": (5_000 / 2, 2_500 / 2, 80, 186),
    "L4": (242 / 2, 120 / 2, 30.3, 24),
    "L40": (181, 90.5, 90.5, 48),
    "L40S": (362, 183, 91.6, 48),
    "RTX 4090": (165.2, 82.6, 82.6, 24),
    "RTX 5090": (209.5, 104.8, 104.8, 32),
}
AMD: dict[str, Figures] = {"MI300X": (1_307.4, 653.7, 163.4, 192)}
# As announced; from the M3 on the count of GPU cores and the highest clock in GHz at which Apple's
# own powermetrics sees them run, each core with 128 lanes that multiply and add.
APPLE = {
    "M1": (2.6, 16),
    "M1 PRO": (5.2, 32),
    "M1 MAX": (10.4, 64),
    "M1 ULTRA": (21, 128),
    "M2": (3.6, 24),
    "M2 PRO": (6.8, 32),
    "M2 MAX": (13.6, 96),
    "M2 ULTRA": (27.2, 192),
}
APPLE_BY_COUNT = {
    "M3": (10, 1.398, 24),
    "M3 PRO": (18, 1.398, 36),
    "M3 MAX": (40, 1.398, 128),
    "M4": (10, 1.470, 32),
    "M4 PRO": (20, 1.578, 64),
    "M4 MAX": (40, 1.578, 128),
}
DOLLARS_AN_HOUR = {
    "A100": 1.30,
    "A100 80GB": 1.30,
    "H100": 2.95,
    "H200": 4.00,
    "B200": 6.03,
    "RTX 4090": 0.60,
}

ROWS = {row.name: row for row in ACCELERATORS}


@pytest.mark.parametrize("name", [*NVIDIA, *AMD])
def test_a_gpu_has_the_rates_and_the_memory_of_its_data_sheet(name: str) -> None:
    row = ROWS[name]
    rates = (
        row.bfloat16_flops_per_second,
        row.tf32_flops_per_second,
        row.float32_flops_per_second,
    )
    *expected, memory_gib = {**NVIDIA, **AMD}[name]
    assert rates == tuple(None if rate is None else round(rate * 1e12) for rate in expected)
    assert row.memory_bytes == memory_gib * 2**30


@pytest.mark.parametrize("name", [*APPLE, *APPLE_BY_COUNT])
def test_a_chip_of_apples_has_one_rate_as_announced_or_counted(name: str) -> None:
    row = ROWS[name]
    if name in APPLE:
        rate, memory_gib = APPLE[name]
    else:
        num_cores, clock, memory_gib = APPLE_BY_COUNT[name]
        rate = round(num_cores * 128 * 2 * clock / 1e3, 1)
    assert row.float32_flops_per_second == round(rate * 1e12)
    assert row.bfloat16_flops_per_second is row.tf32_flops_per_second is None
    assert row.memory_bytes == memory_gib * 2**30


def test_no_row_is_left_unchecked() -> None:
    assert {*NVIDIA, *AMD, *APPLE, *APPLE_BY_COUNT} == ROWS.keys()


def test_a_core_of_a_cpu_counts_as_two_avx2_multiply_adds_a_cycle_at_3_ghz() -> None:
    row = describe_cpu(2, 10**9)
    assert row.float32_flops_per_second == 2 * (2 * 8 * 2) * 3e9
    assert (row.bfloat16_flops_per_second, row.memory_bytes) == (None, 10**9)


def test_prices_are_those_that_were_read() -> None:
    assert {name: price.dollars_per_hour for name, price in PRICES.items()} == DOLLARS_AN_HOUR
    cores = find_price("CPU of 2 cores")
    assert cores is not None and cores.dollars_per_hour == pytest.approx(0.0816)
