"""Peak rates, memory and rental prices of accelerators.

Tensor-core rates are dense, with float32 accumulation, as in training. Prices change, and differ by
a factor of three between providers: take them as orders of magnitude.
"""

import re
from typing import Literal, NamedTuple

from groundup.errors import ConfigError, did_you_mean

Precision = Literal["bfloat16", "tf32", "float32"]


class Accelerator(NamedTuple):
    """One device; a rate is None if the hardware lacks the precision."""

    name: str
    bfloat16_flops_per_second: float | None
    tf32_flops_per_second: float | None
    float32_flops_per_second: float
    memory_bytes: int
    source: str = ""
    """The source of the rates."""


# Name; rates in bfloat16, TF32 and float32 in TFLOP/s; memory in GiB.
# NVIDIA lists the tensor-core rates of H100, H200, B200, L4 and L40S with sparsity: halved here.
_ROWS: dict[str, list[tuple[str, float | None, float | None, float, int]]] = {
    # The SXM version, if there are several.
    "NVIDIA data sheet": [
        ("V100", None, None, 15.7, 16),
        ("V100 32GB", None, None, 15.7, 32),
        ("T4", None, None, 8.1, 16),
        ("A100", 312.0, 156.0, 19.5, 40),
        ("A100 80GB", 312.0, 156.0, 19.5, 80),
        ("A800", 312.0, 156.0, 19.5, 80),
        ("A10", 125.0, 62.5, 31.2, 24),
        ("A10G", 70.0, 35.0, 35.0, 24),
        ("A30", 165.0, 82.0, 10.3, 24),
        ("A40", 149.7, 74.8, 37.4, 48),
        ("L4", 121.0, 60.0, 30.3, 24),
        ("L40", 181.0, 90.5, 90.5, 48),
        ("L40S", 362.0, 183.0, 91.6, 48),
    ],
    "NVIDIA data sheet, halved": [
        ("H100", 989.4, 494.7, 66.9, 80),
        ("H100 PCIE", 756.0, 378.0, 51.0, 80),
        ("H100 NVL", 835.5, 417.5, 60.0, 94),
        ("H800", 989.4, 494.7, 66.9, 80),
        ("GH200", 989.4, 494.7, 66.9, 96),
        ("H200", 989.4, 494.7, 66.9, 141),
        ("H200 NVL", 835.5, 417.5, 60.0, 141),
        # A single GPU of systems with 8 and 72.
        ("B200", 2250.0, 1125.0, 75.0, 180),
        ("GB200", 2500.0, 1250.0, 80.0, 186),
    ],
    "NVIDIA architecture paper": [
        ("RTX 3090", 71.0, 35.6, 35.6, 24),
        ("RTX A6000", 154.8, 77.4, 38.7, 48),
        ("RTX 4090", 165.2, 82.6, 82.6, 24),
        ("RTX 5090", 209.5, 104.8, 104.8, 32),
    ],
    "AMD Instinct MI300X data sheet": [("MI300X", 1307.4, 653.7, 163.4, 192)],
    # Memory is shared with the CPU, and no precision is faster than float32.
    "Apple's announcement, largest configuration": [
        ("M1", None, None, 2.6, 16),
        ("M1 PRO", None, None, 5.2, 32),
        ("M1 MAX", None, None, 10.4, 64),
        ("M1 ULTRA", None, None, 21.0, 128),
        ("M2", None, None, 3.6, 24),
        ("M2 PRO", None, None, 6.8, 32),
        ("M2 MAX", None, None, 13.6, 96),
        ("M2 ULTRA", None, None, 27.2, 192),
    ],
    "computed: GPU cores x 128 lanes x 2 x clock by powermetrics, as Apple publishes no rate": [
        ("M3", None, None, 3.6, 24),
        ("M3 PRO", None, None, 6.4, 36),
        ("M3 MAX", None, None, 14.3, 128),
        ("M4", None, None, 3.8, 32),
        ("M4 PRO", None, None, 8.1, 64),
        ("M4 MAX", None, None, 16.2, 128),
    ],
}


ACCELERATORS = tuple(
    Accelerator(
        name,
        bfloat16 and round(bfloat16 * 1e12),
        tf32 and round(tf32 * 1e12),
        round(float32 * 1e12),
        memory_gib * 2**30,
        source,
    )
    for source, rows in _ROWS.items()
    for name, bfloat16, tf32, float32, memory_gib in rows
)

# GB/s that each GPU sends in a collective, within and between machines: bus bandwidths measured by
# nccl-tests (github.com/NVIDIA/nccl-tests/issues/175, 178, 212, 290), with an InfiniBand adapter
# per GPU. Others: PCIe, and 100 Gb/s Ethernet shared by eight GPUs.
_LINKS = {
    ("V100", "V100 32GB"): (123, 24),
    ("A100", "A100 80GB"): (232, 24),
    ("A800", "H800"): (160, 24),
    ("H100", "H200", "GH200"): (370, 47),
    ("B200", "GB200"): (740, 47),
    ("MI300X",): (367, 47),
}
_OTHER_LINKS = (20, 0.6)

# Words that denote a variant, or a slice (MIG), of the device that the rest of the name denotes.
_OTHER_DEVICE_WORDS = frozenset(
    {"LAPTOP", "MOBILE", "MAX", "D", "TI", "SUPER", "MIG", "PRO", "ULTRA"}
)

# Two fused multiply-adds of eight float32 values per cycle, at 3 GHz: an x86 core with AVX2.
_CPU_CORE_FLOPS_PER_SECOND = 2 * 2 * 8 * 3_000_000_000


def find_accelerator(device_name: str) -> Accelerator | None:
    """Find the row for a name reported by torch, such as "NVIDIA A100-SXM4-80GB": the one with the
    most words, all of them in the name. None if the other words denote another device."""
    words = set(re.findall(r"[A-Z0-9]+", device_name.upper()))

    def fits(row: Accelerator) -> bool:
        own = set(row.name.split())
        return words >= own and not (words - own) & _OTHER_DEVICE_WORDS

    fitting = [row for row in ACCELERATORS if fits(row)]
    return max(fitting, key=lambda row: len(row.name.split()), default=None)


def describe_cpu(num_cores: int, memory_bytes: int) -> Accelerator:
    """Create a row for a CPU with its approximate peak rate."""
    rate = num_cores * _CPU_CORE_FLOPS_PER_SECOND
    name = f"CPU of {num_cores} core{'' if num_cores == 1 else 's'}"
    return Accelerator(name, None, None, rate, memory_bytes, "computed: cores x 32 x 3 GHz")


def get_accelerator(name: str) -> Accelerator:
    """Find the row for a name typed by a user: "rtx4090" and "4090" match RTX 4090, too."""
    typed = re.sub(r"[^A-Z0-9]", "", name.upper())
    for row in ACCELERATORS:
        if typed in (row.name.replace(" ", ""), row.name.removeprefix("RTX ")):
            return row
    if found := find_accelerator(name):
        return found
    raise ConfigError(
        f"device {name!r} is not in the planner's table: "
        f"{did_you_mean(name, [row.name for row in ACCELERATORS])}"
    )


def link_rates(device: str) -> tuple[float, float]:
    """Return the bytes per second that one device sends within a machine, and between machines."""
    known = (rates for names, rates in _LINKS.items() if device in names)
    inside, across = next(known, _OTHER_LINKS)
    return inside * 1e9, across * 1e9


def device_kind(accelerator: Accelerator) -> Literal["cpu", "cuda", "mps"]:
    """Return torch's device type."""
    if accelerator.name.startswith("CPU"):
        return "cpu"
    return "mps" if re.match(r"M\d( |$)", accelerator.name) else "cuda"


def rate_in(accelerator: Accelerator, precision: Precision) -> float | None:
    """Return the peak rate in a precision; None if the hardware lacks it."""
    rate: float | None = getattr(accelerator, f"{precision}_flops_per_second")
    return rate


def peak_flops_per_second(device_name: str, precision: Precision) -> float | None:
    """Return the peak rate of a device in a precision; None if unknown."""
    accelerator = find_accelerator(device_name)
    return None if accelerator is None else rate_in(accelerator, precision)


class Price(NamedTuple):
    """On-demand price of one device, with its source and date."""

    dollars_per_hour: float
    source: str
    date: str


_MERCATUS = "Mercatus, cloud GPU pricing: middle of the specialized providers' range"

PRICES = {
    "A100": Price(1.30, f"as for 80 GB: {_MERCATUS}", "2026-05"),
    "A100 80GB": Price(1.30, _MERCATUS, "2026-05"),
    "H100": Price(2.95, "AIMultiple, cloud GPU rental price index: median of providers", "2026-05"),
    "H200": Price(4.00, _MERCATUS, "2026-05"),
    "B200": Price(6.03, "Spheron's rate on demand", "2026-03"),
    "RTX 4090": Price(0.60, "RunPod on demand, as listed by DeployBase", "2026-03"),
}
