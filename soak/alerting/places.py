"""Which broker an address is of, and where a drive is mounted, as the journals of a run say it.

Findings name a broker by host and port and a drive by its device: what a message says of them is for readers
who look for a number in the cluster's own tools, and for a folder on the host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from soak.core.series import host_of, parse_series
from soak.store.journal.history import History

_AROUND_SECONDS = (
    60  # before the onset, and a few after it: a broker that is down has no record later
)
_AFTER_SECONDS = 10
_MAX_MOUNTS = 2  # that are named of one drive
_LEADER = re.compile(r"\bleader (\d+)")

Drive = tuple[str, str]
"""Host, and device on it."""


@dataclass(frozen=True, slots=True)
class Places:
    """Ids of brokers by host and port, in small letters, and mount points of drives; those that are known."""

    broker_ids: Mapping[str, str] = field(default_factory=dict)
    mount_points: Mapping[Drive, str] = field(default_factory=dict)

    def with_broker_ids(self, text: str) -> str:
        """Return a text with the id before each address of a broker: `broker 2 at 10.0.0.4:9092`."""
        if not self.broker_ids:
            return text
        addresses = "|".join(map(re.escape, sorted(self.broker_ids, key=len, reverse=True)))
        pattern = rf"(?<![\w.:-])(?:(?P<word>broker) )?(?P<address>{addresses})(?![\w-])"
        return re.sub(pattern, self._broker, text, flags=re.IGNORECASE)

    def named(self, text: str) -> str:
        """Return a text with the id before each broker, and the mount point after each `drive on host`."""
        for (host, device), point in self.mount_points.items():
            name, of = re.escape(device), re.escape(host)
            marked = f"{device} ({point})".replace("\\", r"\\")
            text = re.sub(rf"(?<![\w.-]){name}(?= on {of}(?![\w.-]))", marked, text)
        return self.with_broker_ids(text)

    def with_leaders(self, text: str) -> str:
        """Return a title whose `leader 2` is `broker 2 at 10.0.0.4:9092`, where that address is known."""
        addresses = {broker: address for address, broker in self.broker_ids.items()}

        def led(found: re.Match[str]) -> str:
            address = addresses.get(found[1])
            return found[0] if address is None else f"broker {found[1]} at {address}"

        return _LEADER.sub(led, text)

    def with_leader_ids(self, text: str) -> str:
        """Return a title whose `leader 2` is `broker 2`, where that is known to be a broker's id."""
        ids = set(self.broker_ids.values())
        return _LEADER.sub(lambda one: f"broker {one[1]}" if one[1] in ids else one[0], text)

    def _broker(self, found: re.Match[str]) -> str:
        word, address = found["word"] or "broker", found["address"]
        return f"{word} {self.broker_ids[address.lower()]} at {address}"


NOWHERE = Places()
"""Of a run whose journals are not here."""


def read_places(history: History, k: int) -> Places:
    """Return what is recorded about brokers and drives around interval `k`.

    An address that had several ids is not known, as of a broker that was replaced.
    """
    window = history.window(max(0, k - _AROUND_SECONDS), max(0, k + _AFTER_SECONDS))
    return places_of(window.columns)


def places_of(names: Iterable[str]) -> Places:
    """Return what the labels of these series say."""
    ids: dict[str, set[str]] = {}
    points: dict[Drive, set[str]] = {}
    for name in map(parse_series, names):
        leader, address = name.label("leader"), name.label("address")
        if name.metric == "leader_info" and leader.isdigit() and address:
            ids.setdefault(address.lower(), set()).add(leader)
        if name.metric == "disk_mount_info":
            drive = host_of(name.source), name.label("device")
            points.setdefault(drive, set()).add(name.label("mountpoint"))
    return Places(
        {address: one for address, (one, *others) in ids.items() if not others},
        {drive: _listed(sorted(found)) for drive, found in points.items()},
    )


def _listed(points: list[str]) -> str:
    more = len(points) - _MAX_MOUNTS
    return ", ".join(points[:_MAX_MOUNTS]) + (f" and {more} more" if more > 0 else "")
