"""What an hour of a device costs to rent, in dollars, from lists that anyone may look up.

Prices move and differ threefold between providers: these are for orders of magnitude, and a plan
takes another one where it is given.
"""

import re
from typing import NamedTuple


class Price(NamedTuple):
    """Dollars for an hour of one device, on demand, with where and when that was read."""

    dollars_per_hour: float
    source: str
    date: str


_MERCATUS = "Mercatus, cloud GPU pricing: middle of the specialized providers' range"
_PER_CORE = Price(0.0408, "Amazon EC2 on demand: half of an m7g.large for each core", "2026-06")

PRICES = {
    "A100": Price(1.30, f"as for 80 GB: {_MERCATUS}", "2026-05"),
    "A100 80GB": Price(1.30, _MERCATUS, "2026-05"),
    "H100": Price(2.95, "AIMultiple, cloud GPU rental price index: median of providers", "2026-05"),
    "H200": Price(4.00, _MERCATUS, "2026-05"),
    "B200": Price(6.03, "Spheron's rate on demand", "2026-03"),
    "RTX 4090": Price(0.60, "RunPod on demand, as listed by DeployBase", "2026-03"),
}


def find_price(device: str) -> Price | None:
    """The price of a device by its name in the table, or of a processor by its cores; None where no
    list that we know has it."""
    cores = re.fullmatch(r"CPU of (\d+) cores?", device)
    if cores is not None:
        return _PER_CORE._replace(dollars_per_hour=int(cores[1]) * _PER_CORE.dollars_per_hour)
    return PRICES.get(device)
