"""Numbers of the live view; all other words are those of mails and report."""

from __future__ import annotations

from soak.core import wording


def latency(seconds: float) -> str:
    return wording.amount(seconds, "seconds")


def count(value: float) -> str:
    return wording.amount(value, "")


def span(seconds: int) -> str:
    """Return a clock, `h:mm:ss` or `m:ss`, which keeps its width as it ticks."""
    minutes, rest = divmod(max(0, seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
