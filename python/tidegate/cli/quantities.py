"""Figures as people read them: three digits and a unit."""

from __future__ import annotations

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def seconds(value: float) -> str:
    """ "12.3 us"; 0 is "0 s"."""
    if value <= 0:
        return "0 s"
    # 999.96e-6 s reads 1 ms, so what counts is the value that is shown.
    factor, unit = next(
        (f, u) for f, u in (*_TIMES, _TIMES[-1]) if value >= 0.9995 * f or u == "ns"
    )
    return f"{digits(value / factor)} {unit}"


def size(value: float) -> str:
    """Bytes in powers of 1024, as sizes are written on the command line: "64 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1023.5:
            return f"{digits(value)} {unit}"
        value /= 1024
    return f"{digits(value)} TiB"


def rate(value: float) -> str:
    """Bytes per second in powers of 1000, as rates are: "50 GB/s"."""
    for unit in ("B", "KB", "MB", "GB"):
        if value < 999.5:
            return f"{digits(value)} {unit}/s"
        value /= 1000
    return f"{digits(value)} TB/s"


def digits(value: float) -> str:
    """At most three digits, no trailing zeros."""
    if value >= 100:
        return f"{value:.0f}"
    text = f"{value:.3g}"
    return f"{value:.2f}".rstrip("0").rstrip(".") if "e" in text and value >= 0.005 else text
