"""What chronyd says of the clock it keeps: `chronyc -c tracking`, which anyone on the machine may ask."""

from __future__ import annotations

import math
import subprocess

from soak.core.errors import ProbeError

COMMAND = ("chronyc", "-n", "-c", "tracking")
LIMIT_SECONDS = 5.0

_FIELDS = 14  # reference, its name, stratum, its time, system offset, ..., leap status
_OFFSET, _ROOT_DELAY, _ROOT_DISPERSION, _LEAP = 4, 10, 11, 13
_UNKEPT = "Not synchronised"
_ITSELF = "7F7F0101"  # 127.127.1.1: told to serve its own clock, which it then calls exact


def ask() -> str:
    """Return what chronyc prints; may block for LIMIT_SECONDS.

    Raises:
        ProbeError: there is no chronyc, or no chronyd that answers it.
    """
    try:
        done = subprocess.run(
            COMMAND,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProbeError(f"cannot ask chronyc: {error}") from error
    if done.returncode:
        said = (done.stdout or done.stderr).strip()
        raise ProbeError(f"chronyc has no answer: {said}")
    return done.stdout


def bound_seconds(text: str) -> float | None:
    """Return how far the clock may be off, None while chronyd has no source.

    The bound that chronyc(1) gives under "tracking": offset, root dispersion and half the root delay.

    Raises:
        ProbeError: the text is not as chronyc writes it.
    """
    fields = text.removesuffix("\n").split(",")
    if len(fields) != _FIELDS or not text.endswith("\n"):
        raise _unreadable(text)
    if fields[_LEAP] == _UNKEPT or fields[0] == _ITSELF:
        return None
    offset, delay, dispersion = (
        _number(fields[at], text) for at in (_OFFSET, _ROOT_DELAY, _ROOT_DISPERSION)
    )
    if min(delay, dispersion) < 0.0:
        raise _unreadable(text)
    return abs(offset) + dispersion + delay / 2


def _number(field: str, text: str) -> float:
    try:
        value = float(field)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _unreadable(text)
    return value


def _unreadable(text: str) -> ProbeError:
    return ProbeError(f"cannot read this answer of chronyc: {text!r}")
