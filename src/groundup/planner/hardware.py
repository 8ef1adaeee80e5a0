"""Finding a device of the table by the name torch reports or a person types, and its rates."""

import re
from typing import Literal

from groundup.errors import ConfigError, did_you_mean
from groundup.planner.accelerators import ACCELERATORS, Accelerator

Precision = Literal["bfloat16", "tf32", "float32"]

# A relative, or a slice, of what the rest of the name says.
_OTHER_DEVICE_WORDS = frozenset(
    {"LAPTOP", "MOBILE", "MAX", "D", "TI", "SUPER", "MIG", "PRO", "ULTRA"}
)

# Two fused multiply-adds of eight float32 values a cycle, at 3 GHz: an x86 core with AVX2.
_CPU_CORE_FLOPS_PER_SECOND = 2 * 2 * 8 * 3_000_000_000


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
    return Accelerator(name, None, None, rate, memory_bytes, "by count, cores x 32 x 3 GHz")


def get_accelerator(name: str) -> Accelerator:
    """The row of the table that a person means by `name`."""
    found = find_accelerator(name) or _find_written_otherwise(name)
    if found is None:
        known = [row.name for row in ACCELERATORS]
        raise ConfigError(
            f"there is no device {name!r} in the planner's table: {did_you_mean(name, known)} "
            f"(groundup plan --devices lists them; any other can be planned for with its "
            f"--peak-tflops and --memory-gb)"
        )
    return found


def _find_written_otherwise(name: str) -> Accelerator | None:
    """The row whose words run together ("rtx4090"), or whose number stands alone ("4090")."""
    typed = re.sub(r"[^A-Z0-9]", "", name.upper())
    for row in ACCELERATORS:
        if typed in (row.name.replace(" ", ""), row.name.removeprefix("RTX ")):
            return row
    return None


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
