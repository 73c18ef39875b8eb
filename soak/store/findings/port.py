"""What the detector, the alert daemon and the report need of a store of findings and notifications.

A `FindingsPlace` says where the store of one run is; `open` gives access for one piece of work. There are two
kinds: `findings.db` in the run folder (`store`), and two Kafka topics that several hosts share (`topic`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from soak.core.model import Change, Finding
from soak.store.findings.rows import Notification, NotificationContent, NotificationKind


class Findings(Protocol):
    """The changes, findings and notifications of a run; every write is idempotent.

    A method that writes does so whole or not at all. Each raises `FindingsError` when the store fails.
    """

    def record_changes(self, run: str, changes: Sequence[Change]) -> None:
        """Store the newest state of each change, by (run, series, raised_k); delete a withdrawn one."""

    def changes(self, run: str) -> list[Change]:
        """Return the changes of a run in the order of their raises."""

    def assign(self, run: str, keys: Mapping[tuple[str, int], str]) -> None:
        """Assign changes (series and raise) to findings; an earlier assignment stays."""

    def assigned(self, run: str) -> dict[tuple[str, int], str]:
        """Return the key of the finding of each change."""

    def drop_warning(self, key: str) -> None:
        """Delete a finding that was never confirmed; any other stays."""

    def save_finding(self, finding: Finding, sinks: Sequence[str], now_wall_ns: int) -> None:
        """Store the newest state of a finding and queue its notifications, each once."""

    def queue_added(self, run: str, sinks: Sequence[str], since_k: int, now_wall_ns: int) -> None:
        """Queue the findings of a run for added sinks, except those resolved before second `since_k`."""

    def findings(self, run: str) -> list[Finding]:
        """Return the findings of a run in the order of their raises."""

    def has_findings(self, run: str) -> bool:
        """Return whether the run has any finding."""

    def finding(self, key: str) -> Finding | None:
        """Return one finding, or None when it is not stored."""

    def due(self, now_wall_ns: int) -> list[Notification]:
        """Return the notifications to send now, oldest first."""

    def open_notifications(self) -> list[Notification]:
        """Return the notifications that are neither sent nor refused."""

    def unresolved(self, sink: str) -> list[Notification]:
        """Return the newest notification that a sink got of each subject that is not resolved."""

    def notifications(self, run: str) -> list[Notification]:
        """Return all notifications about the findings of a run."""

    def sent_between(self, sink: str, after_wall_ns: int, wall_ns: int) -> int:
        """Return how many messages, without summaries, a sink took after one instant and up to another."""

    def last_sent_ns(self, sink: str, wall_ns: int) -> int | None:
        """Return when a sink took its last message, no summary, up to an instant; None: it took none."""

    def begin_try(
        self, row: Notification, now_wall_ns: int, next_at_wall_ns: int
    ) -> NotificationContent | None:
        """Store that a try begins, and return what it says; None: the notification is not needed any more."""

    def content(self, row: Notification) -> NotificationContent:
        """Return what a notification says, whether it was tried or not."""

    def mark_sent(self, row: Notification, now_wall_ns: int, detail: str = "") -> None:
        """Store that a notification was sent."""

    def mark_refused(
        self, row: Notification, now_wall_ns: int, detail: str, *, may_have_arrived: bool = False
    ) -> None:
        """Give up a notification that was refused for good; the row stays with its reason."""

    def mark_deferred(
        self,
        row: Notification,
        now_wall_ns: int,
        next_at_wall_ns: int,
        detail: str,
        progress: str = "",
        *,
        may_have_arrived: bool = False,
    ) -> None:
        """Put a notification off to another try."""

    def save_notice(
        self,
        key: str,
        body: str,
        kind: NotificationKind,
        sinks: Sequence[str],
        now_wall_ns: int,
    ) -> None:
        """Store facts about the run itself and queue the notification about them, once."""

    def notice(self, key: str) -> str | None:
        """Return the body of a notice, or None when it is not stored."""

    def notices(self) -> list[str]:
        """Return the bodies of all notices in the order of their keys."""

    def queue_digest(self, sink: str, due_wall_ns: int) -> None:
        """Queue the digest of an instant; it replaces an earlier one that was not sent."""

    def queue_end(self, run: str, summary: str, sinks: Sequence[str], now_wall_ns: int) -> None:
        """Store what the report of a run says, as JSON, and queue the message about its end, once."""

    def end_summary(self, run: str) -> str | None:
        """Return what the report of a run says, or None when it is not stored."""

    def last_digest_ns(self, sink: str) -> int | None:
        """Return the instant of the last digest that was sent or refused."""

    def forget_digests_after(self, sink: str, wall_ns: int) -> None:
        """Forget the digests of later instants, which were queued while the clock ran ahead."""


class FindingsPlace(Protocol):
    """Where the findings of one run are; making one reads and writes nothing."""

    def exists(self) -> bool:
        """Return whether there is a store to open; a file that is missing need not be created to be read."""

    def open(self) -> AbstractContextManager[Findings]:
        """Return access for one piece of work, which sees what was stored before it.

        Raises:
            FindingsError: on entry, when the store cannot be used.
        """

    def claim(self) -> bool:
        """Return whether this process may send the notifications of the run now.

        Raises:
            FindingsError: the store cannot be used.
        """

    def close(self) -> None:
        """Give up the claim and all connections; the place may be used again."""
