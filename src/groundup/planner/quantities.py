"""Format counts, bytes, FLOPs and dollars for people."""


def show_count(number: float) -> str:
    return _in_units(number, (("billion", 1e9), ("million", 1e6))) or f"{number:,.0f}"


def show_bytes(number: float) -> str:
    """Format a size in decimal units: 1 GB is 10^9 bytes."""
    units = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
    return _in_units(number, units) or f"{number:,.0f} B"


def show_flops(number: float) -> str:
    prefixes = {"zetta": 1e21, "exa": 1e18, "peta": 1e15, "tera": 1e12, "giga": 1e9, "mega": 1e6}
    units = tuple((f"{prefix}FLOP", size) for prefix, size in prefixes.items())
    return _in_units(number, units, ".3g") or f"{number:,.0f} FLOP"


def show_dollars(number: float) -> str:
    if number < 0.01:
        return "less than a cent"
    return f"${number:,.0f}" if number >= 100 else f"${number:,.2f}"


def _in_units(
    number: float, units: tuple[tuple[str, float], ...], digits: str = ".1f"
) -> str | None:
    found = ((unit, size) for unit, size in units if number >= size)
    return next((f"{number / size:,{digits}} {unit}" for unit, size in found), None)
