"""What devices can do at best, from their makers' data sheets: dense rates, no sparsity.

Tensor-core rates are those that add up in float32, as training does.
"""

import re
from typing import Literal, NamedTuple

from groundup.errors import ConfigError, did_you_mean

Precision = Literal["bfloat16", "tf32", "float32"]

_GIB = 2**30


class Accelerator(NamedTuple):
    """One device; a rate is None where the hardware lacks the precision."""

    name: str
    bfloat16_flops_per_second: float | None
    tf32_flops_per_second: float | None
    float32_flops_per_second: float
    memory_bytes: int


def _accelerator(
    name: str, bfloat16: float | None, tf32: float | None, float32: float, memory_gib: int
) -> Accelerator:
    """A row of the table, whose rates are in units of 10^12 operations a second."""
    return Accelerator(
        name,
        None if bfloat16 is None else bfloat16 * 1e12,
        None if tf32 is None else tf32 * 1e12,
        float32 * 1e12,
        memory_gib * _GIB,
    )


ACCELERATORS = (
    # NVIDIA Tesla V100 data sheet (SXM2; the PCIe card runs at nine tenths of it); no bfloat16.
    _accelerator("V100", None, None, 15.7, 16),
    _accelerator("V100 32GB", None, None, 15.7, 32),
    # NVIDIA T4 data sheet; no bfloat16.
    _accelerator("T4", None, None, 8.1, 16),
    # NVIDIA A100 data sheet.
    _accelerator("A100", 312.0, 156.0, 19.5, 40),
    _accelerator("A100 80GB", 312.0, 156.0, 19.5, 80),
    _accelerator("A800", 312.0, 156.0, 19.5, 80),
    # NVIDIA A10, A10G, A30 and A40 data sheets.
    _accelerator("A10", 125.0, 62.5, 31.2, 24),
    _accelerator("A10G", 70.0, 35.0, 35.0, 24),
    _accelerator("A30", 165.0, 82.0, 10.3, 24),
    _accelerator("A40", 149.7, 74.8, 37.4, 48),
    # NVIDIA Ampere GA102 architecture paper.
    _accelerator("RTX 3090", 71.0, 35.6, 35.6, 24),
    _accelerator("RTX A6000", 154.8, 77.4, 38.7, 48),
    # NVIDIA H100 data sheet, whose tensor-core rates are with sparsity: half of them. The same
    # chips sit in H800, H200 and GH200.
    _accelerator("H100", 989.4, 494.7, 66.9, 80),
    _accelerator("H100 PCIE", 756.0, 378.0, 51.0, 80),
    _accelerator("H100 NVL", 835.5, 417.5, 60.0, 94),
    _accelerator("H800", 989.4, 494.7, 66.9, 80),
    _accelerator("GH200", 989.4, 494.7, 66.9, 96),
    # NVIDIA H200 data sheet (SXM and NVL), likewise halved.
    _accelerator("H200", 989.4, 494.7, 66.9, 141),
    _accelerator("H200 NVL", 835.5, 417.5, 60.0, 141),
    # NVIDIA HGX B200 data sheet, an eighth of the system, likewise halved; GB200 by itself.
    _accelerator("B200", 2250.0, 1125.0, 75.0, 180),
    _accelerator("GB200", 2500.0, 1250.0, 80.0, 186),
    # NVIDIA L4, L40 and L40S data sheets.
    _accelerator("L4", 121.0, 60.0, 30.3, 24),
    _accelerator("L40", 181.0, 90.5, 90.5, 48),
    _accelerator("L40S", 362.0, 183.0, 91.6, 48),
    # NVIDIA Ada GPU architecture paper.
    _accelerator("RTX 4090", 165.2, 82.6, 82.6, 24),
    # NVIDIA RTX Blackwell GPU architecture paper.
    _accelerator("RTX 5090", 209.5, 104.8, 104.8, 32),
    # AMD Instinct MI300X data sheet.
    _accelerator("MI300X", 1307.4, 653.7, 163.4, 192),
    # Apple's announcements of M1 (2020) to M2 Ultra (2023), greatest configuration; M3 and M4 by
    # the same count, cores x 128 lanes x 2 x clock, since Apple names no rates for them. Memory is
    # shared with the rest of the machine, and no precision is faster than float32.
    _accelerator("M1", None, None, 2.6, 16),
    _accelerator("M1 PRO", None, None, 5.2, 32),
    _accelerator("M1 MAX", None, None, 10.4, 64),
    _accelerator("M1 ULTRA", None, None, 21.0, 128),
    _accelerator("M2", None, None, 3.6, 24),
    _accelerator("M2 PRO", None, None, 6.8, 32),
    _accelerator("M2 MAX", None, None, 13.6, 96),
    _accelerator("M2 ULTRA", None, None, 27.2, 192),
    _accelerator("M3", None, None, 3.6, 24),
    _accelerator("M3 MAX", None, None, 14.3, 128),
    _accelerator("M4", None, None, 3.8, 32),
    _accelerator("M4 PRO", None, None, 7.5, 64),
    _accelerator("M4 MAX", None, None, 15.1, 128),
)

# A relative, or a slice, of what the rest of the name says.
_OTHER_DEVICE_WORDS = frozenset(
    {"LAPTOP", "MOBILE", "MAX", "D", "TI", "SUPER", "MIG", "PRO", "ULTRA"}
)

# Two fused multiply-adds of eight float32 values a cycle, at 3 GHz: an x86 core with AVX2.
_CPU_CORE_FLOPS_PER_SECOND = 2 * 2 * 8 * 3e9


def find_accelerator(device_name: str) -> Accelerator | None:
    """The row that fits a name as torch reports it ("NVIDIA A100-SXM4-80GB"), or None.

    A row fits when all its words are in the name and none that means another device is left; the
    one with the most words is taken.
    """
    words = set(re.findall(r"[A-Z0-9]+", device_name.upper()))

    def fits(row: Accelerator) -> bool:
        own = set(row.name.split())
        return words >= own and not (words - own) & _OTHER_DEVICE_WORDS

    fitting = [row for row in ACCELERATORS if fits(row)]
    return max(fitting, key=lambda row: len(row.name.split()), default=None)


def describe_cpu(num_cores: int, memory_bytes: int) -> Accelerator:
    """A row for a processor: what its cores could do at best, roughly."""
    rate = num_cores * _CPU_CORE_FLOPS_PER_SECOND
    name = f"CPU of {num_cores} core{'' if num_cores == 1 else 's'}"
    return Accelerator(name, None, None, rate, memory_bytes)


def get_accelerator(name: str) -> Accelerator:
    """The row of the table that a person means by `name`."""
    found = find_accelerator(name)
    if found is None:
        known = [row.name for row in ACCELERATORS]
        raise ConfigError(
            f"there is no device {name!r} in the planner's table: {did_you_mean(name, known)} "
            f"(any other can be planned for with its peak and memory: --peak-tflops, --memory-gb)"
        )
    return found


def device_kind(accelerator: Accelerator) -> Literal["cpu", "cuda", "mps"]:
    """What torch calls such a device."""
    if accelerator.name.startswith("CPU"):
        return "cpu"
    return "mps" if re.match(r"M\d( |$)", accelerator.name) else "cuda"


def fastest_precision(accelerator: Accelerator) -> Literal["float32", "bfloat16"]:
    """What training takes by itself: bfloat16 where the hardware has it."""
    return "float32" if accelerator.bfloat16_flops_per_second is None else "bfloat16"


def rate_in(accelerator: Accelerator, precision: Precision) -> float | None:
    """Its peak in one precision, None where the hardware lacks it."""
    rates: dict[str, float | None] = {
        "bfloat16": accelerator.bfloat16_flops_per_second,
        "tf32": accelerator.tf32_flops_per_second,
        "float32": accelerator.float32_flops_per_second,
    }
    return rates[precision]


def peak_flops_per_second(device_name: str, precision: Precision) -> float | None:
    """The most operations a second the device can do in `precision`; None when that is not known.

    "tf32" is float32 data multiplied by tensor cores, "float32" full precision throughout.
    """
    accelerator = find_accelerator(device_name)
    return None if accelerator is None else rate_in(accelerator, precision)
