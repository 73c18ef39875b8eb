"""Takes numbers and lists of numbers out of parsed JSON; what is none is told with its key."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from soak.core.errors import PlanError

_NS = 1e9


def number(value: object, name: str, key: str) -> float:
    """Return a number; null and "NaN" (as Jackson writes it) are NaN.

    Raises:
        PlanError: it is none, or infinite.
    """
    if value is None or value == "NaN":
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PlanError(f"{name}: {key}: {_shown(value)} is not a number")
    if (isinstance(value, float) and not math.isfinite(value)) or abs(value) > 2**63:
        raise PlanError(f"{name}: {key}: {_shown(value)} is out of range")
    return float(value)


def numbers(value: object, name: str, key: str) -> NDArray[np.float64]:
    """Return a list of numbers, shape (n,).

    Raises:
        PlanError: it is no list, or one of its items is no number.
    """
    if not isinstance(value, list):
        raise PlanError(f"{name}: {key}: {_shown(value)} is not a list of numbers")
    return np.array(
        [number(item, name, f"{key}[{at}]") for at, item in enumerate(value)], dtype=np.float64
    )


def percentile_map(
    value: object, name: str, key: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return percentiles ascending and their values, each of shape (m,).

    Raises:
        PlanError: it is no map of percentiles between 0 and 100 to numbers.
    """
    if not isinstance(value, Mapping):
        raise PlanError(f"{name}: {key}: {_shown(value)} is not a map of percentiles")
    pairs = sorted(
        (_percentile(text, name, key), number(item, name, f"{key}.{text}"))
        for text, item in value.items()
    )
    block = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return block[:, 0], block[:, 1]


def whole_ns(values: NDArray[np.float64], per_second: int) -> NDArray[np.float64]:
    """Return seconds, to a whole nanosecond: so a number survives its way through ms or us and back."""
    rounded: NDArray[np.float64] = np.round(values * (_NS / per_second)) / _NS
    return rounded


def in_unit(seconds: NDArray[np.float64], per_second: int) -> NDArray[np.float64]:
    """Return the inverse of `whole_ns`."""
    scaled: NDArray[np.float64] = np.round(seconds * _NS) / (_NS / per_second)
    return scaled


def _percentile(text: str, name: str, key: str) -> float:
    try:
        found = float(text)
    except ValueError as error:
        raise PlanError(f"{name}: {key}: {text!r} is not a percentile") from error
    if not 0.0 <= found <= 100.0:  # noqa: PLR2004  # per cent
        raise PlanError(f"{name}: {key}: {text!r} does not lie between 0 and 100")
    return found


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."  # noqa: PLR2004  # a line's worth
