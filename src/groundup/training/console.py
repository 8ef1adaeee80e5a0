"""Records of a run as lines that a person reads while it trains."""

from typing import Any


def show_record(record: dict[str, Any], num_steps: int, seconds_left: float | None = None) -> str:
    """One line: step, losses, learning rate, gradient norm, speed, MFU, time left."""
    width = len(f"{num_steps:,}")
    parts = [f"step {record['step']:>{width},}/{num_steps:,}"]
    if record.get("skipped"):
        parts.append(f"skipped: {record['reason']}")
    _add(parts, record, "loss", "loss {:.4f}")
    _add(parts, record, "validation_loss", "validation loss {:.4f}")
    _add(parts, record, "perplexity", "perplexity {:.2f}")
    _add(parts, record, "bits_per_byte", "bits per byte {:.4f}")
    _add(parts, record, "learning_rate", "learning rate {:.2e}")
    _add(parts, record, "gradient_norm", "gradient norm {:.3f}")
    if record.get("tokens_per_second") is not None:
        parts.append(f"{show_rate(record['tokens_per_second'])} tokens/s")
    if record.get("mfu") is not None:
        parts.append(f"MFU {100 * record['mfu']:.1f}%")
    if seconds_left is not None:
        parts.append(f"{show_duration(seconds_left)} left")
    return "  ".join(parts)


def show_rate(rate: float) -> str:
    """Three digits and a unit: 950, 12.3k, 4.51M."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if rate >= size:
            scaled = rate / size
            digits = 2 if scaled < 10 else 1 if scaled < 100 else 0
            return f"{scaled:.{digits}f}{unit}"
    return f"{rate:.0f}"


def show_duration(seconds: float) -> str:
    """Hours, minutes and seconds as clocks show them."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _add(parts: list[str], record: dict[str, Any], key: str, template: str) -> None:
    value = record.get(key)
    if value is not None:
        parts.append(template.format(value))
