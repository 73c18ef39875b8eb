"""Changes of latency as detectors report them."""

from __future__ import annotations

from dataclasses import replace

from soak.core.model import Change

P99 = 'produce.0@h|publish_latency_seconds{quantile="0.99"}'
P999 = 'produce.0@h|publish_latency_seconds{quantile="0.999"}'
P50 = 'produce.0@h|publish_latency_seconds{quantile="0.5"}'
END_TO_END = 'consume.0@h|end_to_end_latency_seconds{quantile="0.99"}'


def change(series: str, onset_k: int, before: float, after: float) -> Change:
    """Return a confirmed step that was raised six seconds after its onset."""
    near = (onset_k, onset_k)
    return Change(series, onset_k + 6, onset_k, near, before, after, "confirmed", 0.99)


def rise(onset_k: int, before: float = 4.0, after: float = 60.0, series: str = P99) -> Change:
    return change(series, onset_k, before, after)


def fall(onset_k: int, before: float = 60.0, after: float = 4.0, series: str = P99) -> Change:
    return change(series, onset_k, before, after)


def outage(onset_k: int, seconds: float, source: str = "produce.0@h") -> Change:
    """Return an outage that was raised after five seconds."""
    name = f"{source}|acknowledgement_outage_seconds"
    return replace(
        change(name, onset_k, 0.0, seconds),
        raised_k=onset_k + 4,
        kind="outage",
        failed_messages=30,
        late_messages=2,
        due_messages=900,
    )


def warned(one: Change) -> Change:
    return replace(one, state="warning")


def withdrawn(one: Change) -> Change:
    return replace(one, state="withdrawn")


def over(one: Change, k: int) -> Change:
    """Return a change that its detector found to be over."""
    return replace(one, state="gone", resolved_k=k)
