"""Which digest each sink is owed, and who has got it: kept in `findings.db`, over restarts and the end."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from soak.core.errors import FindingsError
from soak.store.findings import FindingsStore

_PREFIX, _TRIED = "digest.", ".tried"


@dataclass(frozen=True, slots=True)
class Told:
    """What a sink has been told up to, and of the digest that it is owed beyond that, who has got it."""

    until_wall_ns: int
    due_wall_ns: int = 0
    so_far: str = ""

    @property
    def is_owed(self) -> bool:
        return self.due_wall_ns > self.until_wall_ns


def read_told(store: FindingsStore, sink: str, start_wall_ns: int) -> Told:
    """Return what a sink was told since the run's start.

    Raises:
        FindingsError: it is damaged.
    """
    try:
        until_ns = int(store.checkpoint(_PREFIX + sink) or start_wall_ns)
        tried = json.loads(store.checkpoint(_PREFIX + sink + _TRIED) or "{}")
        return Told(until_ns, int(tried.get("due_wall_ns", 0)), str(tried.get("so_far", "")))
    except (ValueError, TypeError, AttributeError) as error:
        raise FindingsError(f"what is noted of digests to {sink} is damaged: {error}") from error


def owe(store: FindingsStore, sink: str, told: Told, due_wall_ns: int) -> Told:
    """Note which digest is owed, before it is tried; one that takes the place of another is new to all."""
    if told.due_wall_ns == due_wall_ns:
        return told
    told = replace(told, due_wall_ns=due_wall_ns, so_far="")
    _keep_tried(store, sink, told)
    return told


def put_off(store: FindingsStore, sink: str, told: Told, so_far: str) -> None:
    """Note who has got a digest that was not delivered to all."""
    if so_far != told.so_far:
        _keep_tried(store, sink, replace(told, so_far=so_far))


def set_told(store: FindingsStore, sink: str, until_wall_ns: int) -> None:
    """Note that a sink has been told, or is not to be, up to an instant."""
    store.set_checkpoint(_PREFIX + sink, str(until_wall_ns))


def forget_tried(store: FindingsStore, sink: str) -> None:
    """Owe nothing: what was due by a clock that ran ahead is not due yet."""
    store.set_checkpoint(_PREFIX + sink + _TRIED, "{}")


def owed_digests(store: FindingsStore) -> list[str]:
    """Return the sinks that are owed a digest."""
    names = [name.removeprefix(_PREFIX) for name in store.checkpoints(_PREFIX)]
    sinks = [name.removesuffix(_TRIED) for name in names if name.endswith(_TRIED)]
    return [sink for sink in sinks if read_told(store, sink, 0).is_owed]


def _keep_tried(store: FindingsStore, sink: str, told: Told) -> None:
    kept = asdict(told)
    del kept["until_wall_ns"]
    store.set_checkpoint(_PREFIX + sink + _TRIED, json.dumps(kept))
