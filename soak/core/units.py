"""Durations, sizes, rates and ratios as people write them: `36h`, `1KiB`, `10k/s`, `1 per 30d`."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, ValidationInfo

SECOND_NS = 1_000_000_000

_DURATION_NS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": SECOND_NS,
    "min": 60 * SECOND_NS,
    "h": 3_600 * SECOND_NS,
    "d": 86_400 * SECOND_NS,
}
_SIZE_BYTES = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_MULTIPLE = {"": 1, "k": 1_000, "M": 1_000_000}
RATE_PARTS = 10**6
"""Rates are whole numbers of these parts of a message a second."""
MAX_RATE = Fraction(10**9)
MAX_DURATION_NS = 3650 * _DURATION_NS["d"]
"""Ten years, longer than every plan; instants in nanoseconds have 64 bits."""
_NUMBER = r"(?P<number>\d+(?:\.\d+)?)"


def _fraction(
    text: object, pattern: str, scale: dict[str, int], kind: str, example: str
) -> Fraction:
    match = re.fullmatch(pattern, text.strip()) if isinstance(text, str) else None
    if match is None or match["unit"] not in scale:
        units = ", ".join(unit for unit in scale if unit)
        raise ValueError(f"{text!r} is not a {kind}; write it like {example} (units: {units})")
    return Fraction(match["number"]) * scale[match["unit"]]


def duration_ns(value: object) -> int:
    """Return nanoseconds."""
    length_ns = _any_duration_ns(value)
    if length_ns > MAX_DURATION_NS:
        raise ValueError(f"{str(value)[:40]!r} is longer than {format_duration(MAX_DURATION_NS)}")
    return length_ns


def _any_duration_ns(value: object) -> int:
    pattern = _NUMBER + r"\s*(?P<unit>[a-z]+)"
    return int(_fraction(value, pattern, _DURATION_NS, "duration", "36h, 90s or 1.5ms"))


def size_bytes(value: object) -> int:
    """Return bytes."""
    pattern = _NUMBER + r"\s*(?P<unit>[A-Za-z]+)"
    return int(_fraction(value, pattern, _SIZE_BYTES, "size", "1KiB or 64MiB"))


def rate_per_second(value: object) -> Fraction:
    """Return messages a second as an exact fraction."""
    pattern = _NUMBER + r"\s*(?P<unit>[kM]?)\s*/\s*s"
    return _fraction(value, pattern, _MULTIPLE, "rate", "500/s or 10k/s")


def planned_rate(value: object) -> Fraction:
    """Return a rate that a plan may have: one that a schedule in 64-bit integers can keep exactly."""
    rate = rate_per_second(value)
    if rate > MAX_RATE:
        raise ValueError(f"{value!r} is above {format_rate(MAX_RATE)}, the maximum")
    if RATE_PARTS % rate.denominator:
        raise ValueError(f"{value!r} has more than six decimals of a message a second")
    return rate


def nearest_rate(rate: Fraction) -> Fraction:
    """Return the nearest rate that a plan may have; a rate above 0 stays above 0."""
    return max(Fraction(round(rate * RATE_PARTS), RATE_PARTS), Fraction(bool(rate), RATE_PARTS))


def per_duration_ns(value: object) -> int:
    """Return the mean time between two alarms, in ns, from text like `1 per 30d`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s+per\s+(.+)", value) if isinstance(value, str) else None
    if match is None or Fraction(match[1]) == 0:
        raise ValueError(f"{value!r} is not a rate of alarms; write it like 1 per 30d")
    return int(_any_duration_ns(match[2]) / Fraction(match[1]))


def format_duration(value_ns: int) -> str:
    """Return the shortest exact text: `format_duration(duration_ns(x))` means the same as `x`."""
    return _format(value_ns, _DURATION_NS)


def format_size(value_bytes: int) -> str:
    """Return the shortest exact text, in binary units if possible."""
    return _format(value_bytes, _SIZE_BYTES)


def format_rate(value: Fraction) -> str:
    """Return the text of a rate; exact for `planned_rate` and `nearest_rate`, otherwise to 28 digits."""
    suffix, scale = next(
        item for item in (("M", 10**6), ("k", 1_000), ("", 1)) if value >= item[1] or not item[0]
    )
    scaled = Decimal(value.numerator) / (value.denominator * scale)
    return f"{scaled.normalize():f}{suffix}/s"


def format_per_duration(value_ns: int) -> str:
    return f"1 per {format_duration(value_ns)}"


def _format(value: int, scale: dict[str, int]) -> str:
    for unit, size in sorted(scale.items(), key=lambda item: -item[1]):
        if value % size == 0 and abs(value) >= size:
            return f"{value // size}{unit}"
    return f"0{'s' if 's' in scale else 'B'}"


IN_TEXT = {"is_text": True}
"""Validation context for values from a file, in which a number needs a unit."""


def _unless_parsed(parse: Callable[[object], int | Fraction]) -> BeforeValidator:
    """Return a validator that accepts numbers in base units from code; text is always parsed."""

    def convert(value: object, info: ValidationInfo) -> int | Fraction:
        is_number = isinstance(value, int | Fraction) and not isinstance(value, bool)
        if is_number and not info.context:
            return value  # type: ignore[return-value]  # narrowed by is_number
        return parse(value)

    return BeforeValidator(convert)


Duration = Annotated[int, _unless_parsed(duration_ns), PlainSerializer(format_duration)]
Size = Annotated[int, _unless_parsed(size_bytes), PlainSerializer(format_size)]
Rate = Annotated[Fraction, _unless_parsed(planned_rate), PlainSerializer(format_rate)]
PerDuration = Annotated[int, _unless_parsed(per_duration_ns), PlainSerializer(format_per_duration)]
