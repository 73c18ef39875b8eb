"""Whether messages came once and in order, where the client's settings promise that."""

from __future__ import annotations

from collections.abc import Iterator

from soak.store.audited import is_order_promised
from spark.gaps import Gap
from spark.timeline import Timeline


def order_doubts(timeline: Timeline) -> Iterator[Gap]:
    """Name what an idempotent producer rules out; without one, a message sent again may come twice."""
    doubled, late = timeline.audit["duplicated"] or 0, timeline.audit["reordered"] or 0
    if (doubled or late) and is_order_promised(timeline.plan):
        why = f"doubled {doubled:,} messages and reordered {late:,} of idempotent producers"
        yield Gap("cluster", 0, 0, why)
