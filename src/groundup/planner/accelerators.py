"""The table of devices: what each can do at best, by the paper that says so.

Rates are dense, without sparsity, and those of tensor cores add up in float32, as training does.
"""

from typing import NamedTuple

_GIB = 2**30


class Accelerator(NamedTuple):
    """One device; a rate is None where the hardware lacks the precision."""

    name: str
    bfloat16_flops_per_second: float | None
    tf32_flops_per_second: float | None
    float32_flops_per_second: float
    memory_bytes: int
    source: str = ""
    """Where the rates were read."""


# Name, rates in bfloat16, TF32 and float32 in 10^12 operations a second, memory in GiB.
_Row = tuple[str, float | None, float | None, float, int]

# NVIDIA gives the tensor-core rates of H100, H200, B200, L4 and L40S with sparsity: half of them.
_ROWS: dict[str, list[_Row]] = {
    "NVIDIA V100 data sheet, SXM2": [
        ("V100", None, None, 15.7, 16),
        ("V100 32GB", None, None, 15.7, 32),
    ],
    "NVIDIA T4 data sheet": [("T4", None, None, 8.1, 16)],
    "NVIDIA A100 data sheet": [
        ("A100", 312.0, 156.0, 19.5, 40),
        ("A100 80GB", 312.0, 156.0, 19.5, 80),
        ("A800", 312.0, 156.0, 19.5, 80),
    ],
    "NVIDIA A10, A10G, A30 and A40 data sheets": [
        ("A10", 125.0, 62.5, 31.2, 24),
        ("A10G", 70.0, 35.0, 35.0, 24),
        ("A30", 165.0, 82.0, 10.3, 24),
        ("A40", 149.7, 74.8, 37.4, 48),
    ],
    "NVIDIA Ampere GA102 architecture paper": [
        ("RTX 3090", 71.0, 35.6, 35.6, 24),
        ("RTX A6000", 154.8, 77.4, 38.7, 48),
    ],
    "NVIDIA H100 data sheet, halved": [
        ("H100", 989.4, 494.7, 66.9, 80),
        ("H100 PCIE", 756.0, 378.0, 51.0, 80),
        ("H100 NVL", 835.5, 417.5, 60.0, 94),
        ("H800", 989.4, 494.7, 66.9, 80),
        ("GH200", 989.4, 494.7, 66.9, 96),
    ],
    "NVIDIA H200 data sheet, halved": [
        ("H200", 989.4, 494.7, 66.9, 141),
        ("H200 NVL", 835.5, 417.5, 60.0, 141),
    ],
    "NVIDIA HGX B200 data sheet, an eighth of the system, halved": [
        ("B200", 2250.0, 1125.0, 75.0, 180),
    ],
    "NVIDIA GB200 NVL72 data sheet, one GPU, halved": [("GB200", 2500.0, 1250.0, 80.0, 186)],
    "NVIDIA L4, L40 and L40S data sheets": [
        ("L4", 121.0, 60.0, 30.3, 24),
        ("L40", 181.0, 90.5, 90.5, 48),
        ("L40S", 362.0, 183.0, 91.6, 48),
    ],
    "NVIDIA Ada GPU architecture paper": [("RTX 4090", 165.2, 82.6, 82.6, 24)],
    "NVIDIA RTX Blackwell GPU architecture paper": [("RTX 5090", 209.5, 104.8, 104.8, 32)],
    "AMD Instinct MI300X data sheet": [("MI300X", 1307.4, 653.7, 163.4, 192)],
    # Memory is shared with the rest of the machine, and no precision is faster than float32.
    "Apple's announcement, greatest configuration": [
        ("M1", None, None, 2.6, 16),
        ("M1 PRO", None, None, 5.2, 32),
        ("M1 MAX", None, None, 10.4, 64),
        ("M1 ULTRA", None, None, 21.0, 128),
        ("M2", None, None, 3.6, 24),
        ("M2 PRO", None, None, 6.8, 32),
        ("M2 MAX", None, None, 13.6, 96),
        ("M2 ULTRA", None, None, 27.2, 192),
    ],
    "by count, GPU cores x 128 lanes x 2 x clock by powermetrics, as Apple names no rate": [
        ("M3", None, None, 3.6, 24),
        ("M3 PRO", None, None, 6.4, 36),
        ("M3 MAX", None, None, 14.3, 128),
        ("M4", None, None, 3.8, 32),
        ("M4 PRO", None, None, 8.1, 64),
        ("M4 MAX", None, None, 16.2, 128),
    ],
}


def _accelerator(row: _Row, source: str) -> Accelerator:
    name, bfloat16, tf32, float32, memory_gib = row
    return Accelerator(
        name,
        None if bfloat16 is None else round(bfloat16 * 1e12),
        None if tf32 is None else round(tf32 * 1e12),
        round(float32 * 1e12),
        memory_gib * _GIB,
        source,
    )


ACCELERATORS = tuple(_accelerator(row, source) for source, rows in _ROWS.items() for row in rows)
