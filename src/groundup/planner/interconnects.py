"""The table of interconnects: what each GPU sends a second while all of them communicate.

These are measured bus bandwidths of collectives, below the line rate of every data sheet. Clusters
differ by their switches and settings: a plan takes another rate where it is given.
"""

import contextlib
import math
from collections.abc import Sequence
from typing import NamedTuple

from groundup.errors import ConfigError, did_you_mean
from groundup.planner.activations import DeviceKind

_LEAST_GB, _MOST_GB = 1e-6, 1e6


class Interconnect(NamedTuple):
    """One kind of link, as a GPU sees it."""

    name: str
    bytes_per_second: float
    """What a GPU sends, or a whole machine where the link is shared."""
    hop_seconds: float
    """From one rank to the next, however little is sent."""
    source: str = ""
    is_across: bool = False
    """Between machines, not inside one."""
    is_shared: bool = False
    """One for all GPUs of a machine."""


# A hop of a ring with the protocol for large messages, as NCCL's tuning table has it (NCCL 2.25,
# graph/tuning.cc): NVLink, PCIe, network. gloo's was measured as the loopback's bandwidth was.
_NVLINK, _PCIE, _NETWORK, _GLOO = 3.4e-6, 5.7e-6, 14e-6, 250e-6
_AS_NVLINK4 = "82% of the line rate, as nvlink4"

# In GB/s, as nccl-tests prints the bus bandwidth: bytes that a GPU sends in a ring over the time.
# With the devices that have it, and what usually connects their machines.
_INSIDE: list[tuple[str, float, float, str, tuple[str, ...], str]] = [
    ("nvlink2", 123, _NVLINK, _AS_NVLINK4, ("V100", "V100 32GB"), "infiniband-hdr"),
    ("nvlink3", 232, _NVLINK, "8 A100: github.com/NVIDIA/nccl-tests/issues/175",
     ("A100", "A100 80GB"), "infiniband-hdr"),
    ("nvlink-a800", 160, _NVLINK, "8 A800: github.com/NVIDIA/nccl/issues/412",
     ("A800", "H800"), "infiniband-hdr"),
    ("nvlink4", 370, _NVLINK, "8 H100, ring: github.com/NVIDIA/nccl-tests/issues/212",
     ("H100", "H200", "GH200"), "infiniband-ndr"),
    ("nvlink5", 740, _NVLINK, _AS_NVLINK4, ("B200", "GB200"), "infiniband-ndr"),
    ("infinity-fabric", 367, _NVLINK, _AS_NVLINK4, ("MI300X",), "infiniband-ndr"),
    ("pcie4", 20, _PCIE, "A100 without a bridge: github.com/NVIDIA/nccl-tests/issues/178",
     (), "ethernet-100g"),
    ("pcie5", 28, _PCIE, "8 RTX 5090: github.com/NVIDIA/nccl/issues/1639",
     ("H100 PCIE", "H100 NVL", "H200 NVL", "RTX 5090"), "ethernet-100g"),
    ("loopback", 0.8, _GLOO, "gloo, 2 ranks on two Arm cores, 2026-11", (), "ethernet-25g"),
]  # fmt: skip
# InfiniBand and RoCE with an adapter for each GPU; Ethernet is TCP over one card of the machine.
_ACROSS = [
    ("infiniband-ndr", 47, "400 Gb/s: github.com/NVIDIA/nccl-tests/issues/290"),
    ("infiniband-hdr", 24, "200 Gb/s: github.com/NVIDIA/nccl/issues/812"),
    ("roce-100g", 9.4, "8 adapters: github.com/NVIDIA/nccl/issues/495"),
    ("ethernet-100g", 5, "TCP: github.com/NVIDIA/nccl/issues/450"),
    ("ethernet-25g", 1.9, "TCP, 60% of the line rate: github.com/NVIDIA/nccl/issues/209"),
]

INTERCONNECTS = (
    *(Interconnect(name, rate * 1e9, hop, source) for name, rate, hop, source, _, _ in _INSIDE),
    *(
        Interconnect(name, rate * 1e9, _NETWORK, source, True, name.startswith("ethernet"))
        for name, rate, source in _ACROSS
    ),
)
_BY_NAME = {row.name: row for row in INTERCONNECTS}


def choose_interconnects(
    device: str, kind: DeviceKind, given: Sequence[str] = ()
) -> tuple[Interconnect, Interconnect]:
    """The links inside a machine and across machines.

    device, kind: a name of the table of devices, and what torch calls it, for what is not given.
    given: names of the table, each of which takes its own place, or GB/s of a GPU across machines.
    """
    usual = "loopback" if kind == "cpu" else "pcie4"
    (row,) = [row for row in _INSIDE if device in row[4]] or [
        row for row in _INSIDE if row[0] == usual
    ]
    inside, across = _BY_NAME[row[0]], _BY_NAME[row[5]]
    found = [_find(name) for name in given]
    for is_across in (False, True):
        names = [link.name for link in found if link.is_across == is_across]
        if len(names) > 1:
            where = "across machines" if is_across else "inside a machine"
            raise ConfigError(f"--interconnect has {' and '.join(names)} {where}: give one")
    for link in found:
        inside, across = (inside, link) if link.is_across else (link, across)
    return inside, across


def _find(name: str) -> Interconnect:
    if name.lower() in _BY_NAME:
        return _BY_NAME[name.lower()]
    rate = math.nan
    with contextlib.suppress(ValueError):
        rate = float(name)
    if _LEAST_GB <= rate <= _MOST_GB:
        return Interconnect(f"{rate:g} GB/s", rate * 1e9, _NETWORK, "as given", is_across=True)
    raise ConfigError(
        f"interconnect {name!r} is not in the planner's table: {did_you_mean(name, _BY_NAME)} "
        f"(groundup plan --devices lists them; a number from {_LEAST_GB:g} to {_MOST_GB:g} is "
        f"GB/s of each GPU across machines)"
    )
