"""What an hour of a device costs to rent, in dollars, from lists that anyone may look up.

Prices move and differ threefold between providers: these are for orders of magnitude, and a plan
takes another one where it is given.
"""

from typing import NamedTuple


class Price(NamedTuple):
    """Dollars for an hour of one device, on demand, with where and when that was read."""

    dollars_per_hour: float
    source: str
    date: str


_MERCATUS = "Mercatus, cloud GPU pricing: middle of the specialized providers' range"
_RUNPOD = "RunPod's rate card, as quoted by usagepricing.com"

PRICES = {
    "A100 80GB": Price(1.30, _MERCATUS, "2026-05"),
    "H100": Price(2.95, "AIMultiple, cloud GPU rental price index: median of providers", "2026-05"),
    "H200": Price(4.00, _MERCATUS, "2026-05"),
    "B200": Price(5.89, _RUNPOD, "2026"),
    "RTX 4090": Price(0.69, _RUNPOD, "2026"),
}
