"""The final cause of a finding: sent once, where it differs from the cause that readers know."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.core.model import Evidence, Explanation, Finding
from soak.core.units import SECOND_NS
from soak.store.findings.outbox import SETTLE_LIMIT_NS
from soak.store.findings.rows import STEPS
from soak.store.findings.store import FindingsStore
from tests.support.alerting.findings import NOW, finding
from tests.support.examples import examples

CLIFF, COMPACTION, UNKNOWN, CLIENT = (
    (Explanation(name, 0.8, (Evidence(f"{name} it is."),)),)
    for name in ("retention_cliff", "compaction", "unknown", "client")
)
FIRST = finding(causes=CLIFF, is_settled=False)
LAST = finding(causes=COMPACTION)


@dataclass(frozen=True)
class Sent:
    kind: str
    cause: str
    previous_cause: str = ""


@pytest.fixture
def store() -> Iterator[FindingsStore]:
    with FindingsStore(Path(":memory:")) as opened:
        yield opened


def save(store: FindingsStore, *findings: Finding) -> None:
    for one in findings:
        store.save_finding(one, ["mail"], NOW)


def send_due(store: FindingsStore, now_ns: int = NOW) -> list[Sent]:
    """Send the due notifications, and those that become due by that."""
    sent = []
    while rows := store.due(now_ns):
        content = store.begin_try(rows[0], now_ns, now_ns)
        if content is not None and content.finding is not None:
            store.mark_sent(rows[0], now_ns)
            sent.append(Sent(rows[0].kind, content.finding.cause, content.previous_cause))
    return sent


@pytest.mark.parametrize(
    ("first", "last"), [(CLIFF, COMPACTION), (UNKNOWN, CLIFF), (CLIFF, UNKNOWN)]
)
def test_another_final_cause_is_sent_once(
    store: FindingsStore, first: tuple[Explanation], last: tuple[Explanation]
) -> None:
    """Also where no cause was known, or none is; later changes are not sent."""
    save(store, replace(FIRST, causes=first))
    before = send_due(store)
    save(store, replace(LAST, causes=last), replace(LAST, causes=last))
    after = send_due(store)
    save(store, replace(LAST, causes=CLIENT))

    known, now = first[0].cause, last[0].cause
    assert before == [Sent("opened", known)]
    assert after == [Sent("corrected", now, previous_cause=known)]
    assert send_due(store) == []


def test_the_same_final_cause_is_not_sent(store: FindingsStore) -> None:
    """Neither is another cause that is not final yet."""
    save(store, FIRST)
    send_due(store)
    save(store, replace(LAST, is_settled=False), finding(causes=CLIFF))

    assert send_due(store) == []


def test_a_first_message_that_was_delayed_has_the_final_cause(store: FindingsStore) -> None:
    """Its readers know nothing that could be corrected."""
    save(store, FIRST)
    (row,) = store.due(NOW)
    store.begin_try(row, NOW, NOW)
    store.mark_deferred(row, NOW, NOW, "451 later")
    save(store, LAST)

    assert send_due(store) == [Sent("opened", "compaction")]
    assert store.open_notifications() == []


def test_a_message_in_transit_at_the_final_cause_is_corrected(store: FindingsStore) -> None:
    save(store, FIRST)
    (row,) = store.due(NOW)
    store.begin_try(row, NOW, NOW)
    save(store, LAST)
    store.mark_sent(row, NOW)

    assert send_due(store) == [Sent("corrected", "compaction", previous_cause="retention_cliff")]


def test_a_reader_who_got_the_first_message_early_is_corrected(store: FindingsStore) -> None:
    """The other recipient was deferred until the final cause was known."""
    save(store, FIRST)
    (row,) = store.due(NOW)
    store.begin_try(row, NOW, NOW)
    store.mark_deferred(row, NOW, NOW, "b: 450 later", progress="a has it", may_have_arrived=True)
    save(store, LAST)

    assert send_due(store) == [
        Sent("opened", "compaction"),
        Sent("corrected", "compaction", previous_cause="retention_cliff"),
    ]


def test_a_try_without_a_reply_may_have_arrived(store: FindingsStore) -> None:
    """A mailbox may keep the first of two mails with one Message-ID."""
    save(store, FIRST)
    (row,) = store.due(NOW)
    store.begin_try(row, NOW, NOW)
    store.mark_deferred(row, NOW, NOW, "no answer", may_have_arrived=True)
    save(store, LAST)

    assert send_due(store) == [
        Sent("opened", "compaction"),
        Sent("corrected", "compaction", previous_cause="retention_cliff"),
    ]


def test_a_later_try_that_reached_no_reader_does_not_count(store: FindingsStore) -> None:
    save(store, FIRST)
    (row,) = store.due(NOW)
    store.begin_try(row, NOW, NOW)
    store.mark_deferred(row, NOW, NOW, "b: 450 later", progress="a has it", may_have_arrived=True)
    save(store, replace(FIRST, causes=COMPACTION))
    (row,) = store.due(NOW)
    store.begin_try(row, NOW, NOW)
    store.mark_deferred(row, NOW, NOW, "away", progress="a has it")
    save(store, replace(LAST, causes=CLIFF))

    assert send_due(store) == [Sent("opened", "retention_cliff")]


def test_a_correction_that_changes_between_tries_goes_to_all_again(
    store: FindingsStore,
) -> None:
    save(store, FIRST)
    send_due(store)
    save(store, LAST)
    (row,) = store.due(NOW)
    store.begin_try(row, NOW, NOW)
    store.mark_deferred(row, NOW, NOW, "b: 450 later", progress="a has it", may_have_arrived=True)
    same = store.content(store.due(NOW)[0])
    save(store, replace(LAST, causes=CLIFF))
    (row,) = store.due(NOW)
    content = store.begin_try(row, NOW, NOW)

    assert same.progress == "a has it"
    assert content is not None
    assert (content.progress, content.previous_cause, store.due(NOW)[0].progress) == (
        "",
        "compaction",
        "",
    )


@pytest.mark.parametrize("is_over", [False, True])
def test_a_message_refused_after_a_crash_in_its_first_try_may_have_arrived(
    store: FindingsStore, *, is_over: bool
) -> None:
    save(store, FIRST)
    store.begin_try(store.due(NOW)[0], NOW, NOW)
    (row,) = store.due(NOW)
    store.begin_try(row, NOW, NOW)
    store.mark_refused(row, NOW, "554 no")
    save(store, replace(LAST, state="gone", resolved_k=900) if is_over else LAST)

    kind = "resolved" if is_over else "corrected"
    assert send_due(store) == [Sent(kind, "compaction", previous_cause="retention_cliff")]


def test_a_correction_refused_after_a_crash_in_its_first_try_may_have_arrived(
    store: FindingsStore,
) -> None:
    save(store, FIRST)
    send_due(store)
    save(store, LAST)
    store.begin_try(store.due(NOW)[0], NOW, NOW)
    (row,) = store.due(NOW)
    store.begin_try(row, NOW, NOW)
    store.mark_refused(row, NOW, "554 no")
    save(store, replace(LAST, causes=CLIFF, state="gone", resolved_k=900))

    assert send_due(store) == [Sent("resolved", "retention_cliff", previous_cause="compaction")]


def test_a_try_in_which_the_daemon_crashed_may_have_arrived(store: FindingsStore) -> None:
    """The second mail has the same Message-ID: a mailbox may keep the first one only."""
    save(store, FIRST)
    store.begin_try(store.due(NOW)[0], NOW, NOW)
    save(store, LAST)

    assert send_due(store) == [
        Sent("opened", "compaction"),
        Sent("corrected", "compaction", previous_cause="retention_cliff"),
    ]


def test_two_tries_with_two_causes_are_corrected(store: FindingsStore) -> None:
    """The daemon crashed in the first: a mailbox may keep either."""
    save(store, LAST)
    store.begin_try(store.due(NOW)[0], NOW, NOW)
    save(store, FIRST)
    first = send_due(store)
    save(store, LAST)

    assert first == [Sent("opened", "retention_cliff")]
    assert send_due(store) == [Sent("corrected", "compaction", previous_cause="retention_cliff")]


def test_a_try_that_reached_no_reader_keeps_the_cause_of_the_one_before(
    store: FindingsStore,
) -> None:
    save(store, FIRST)
    store.begin_try(store.due(NOW)[0], NOW, NOW)
    (row,) = store.due(NOW)
    store.begin_try(row, NOW, NOW)
    store.mark_deferred(row, NOW, NOW, "451 later")
    save(store, LAST)

    assert send_due(store) == [
        Sent("opened", "compaction"),
        Sent("corrected", "compaction", previous_cause="retention_cliff"),
    ]


def test_a_correction_after_a_crash_is_sent_even_when_the_first_cause_is_true_again(
    store: FindingsStore,
) -> None:
    """The crashed try may have arrived."""
    save(store, FIRST)
    send_due(store)
    save(store, LAST)
    store.begin_try(store.due(NOW)[0], NOW, NOW)
    save(store, replace(LAST, causes=CLIFF))

    assert send_due(store) == [Sent("corrected", "retention_cliff", previous_cause="compaction")]


def test_a_cause_that_readers_may_know_from_two_messages_is_named_once(
    store: FindingsStore,
) -> None:
    save(store, FIRST)
    store.begin_try(store.due(NOW)[0], NOW, NOW)
    save(store, replace(FIRST, causes=COMPACTION))
    send_due(store)
    save(store, replace(LAST, causes=CLIFF))
    store.begin_try(store.due(NOW)[0], NOW, NOW)
    save(store, LAST)

    assert send_due(store) == [Sent("corrected", "compaction", previous_cause="retention_cliff")]


def test_a_refused_message_has_no_correction(store: FindingsStore) -> None:
    save(store, FIRST)
    (row,) = store.due(NOW)
    store.begin_try(row, NOW, NOW)
    store.mark_refused(row, NOW, "554 no")
    save(store, LAST)

    assert store.open_notifications() == []


def test_a_resolved_message_has_the_final_cause(store: FindingsStore) -> None:
    """It waits for that after a short step, and names the previous cause."""
    save(store, FIRST)
    send_due(store)
    save(store, replace(FIRST, state="gone", resolved_k=160))
    early = send_due(store)
    save(store, replace(LAST, state="gone", resolved_k=160))

    assert early == []
    assert send_due(store) == [Sent("resolved", "compaction", previous_cause="retention_cliff")]


def test_a_resolved_message_waits_five_minutes_at_most(store: FindingsStore) -> None:
    """A detector that crashed settles nothing."""
    save(store, FIRST)
    send_due(store)
    save(store, replace(FIRST, state="gone", resolved_k=160))

    assert send_due(store, NOW + SETTLE_LIMIT_NS - SECOND_NS) == []
    assert send_due(store, NOW + SETTLE_LIMIT_NS) == [Sent("resolved", "retention_cliff")]


def test_a_correction_that_was_not_sent_is_replaced_by_resolved(
    store: FindingsStore,
) -> None:
    save(store, FIRST)
    send_due(store)
    save(store, LAST, replace(LAST, state="gone", resolved_k=900))

    assert send_due(store) == [Sent("resolved", "compaction", previous_cause="retention_cliff")]


def test_a_finding_of_the_client_is_withdrawn_and_not_corrected(store: FindingsStore) -> None:
    save(store, FIRST)
    send_due(store)
    save(store, replace(LAST, causes=CLIENT, is_about_cluster=False))

    assert send_due(store) == [Sent("resolved", "client", previous_cause="retention_cliff")]


def test_a_finding_that_is_open_again_before_resolved_was_sent_is_corrected(
    store: FindingsStore,
) -> None:
    save(store, FIRST)
    send_due(store)
    save(store, replace(FIRST, state="gone", resolved_k=160), LAST)

    assert send_due(store) == [Sent("corrected", "compaction", previous_cause="retention_cliff")]


def test_an_open_finding_is_sent_again_with_its_newest_cause(store: FindingsStore) -> None:
    save(store, FIRST)
    send_due(store)
    save(store, LAST)
    while_pending = [(row.kind, store.content(row)) for row in store.unresolved("mail")]
    send_due(store)
    after = [(row.kind, store.content(row).previous_cause) for row in store.unresolved("mail")]
    save(store, replace(LAST, state="gone", resolved_k=900))

    assert [kind for kind, _ in while_pending] == ["opened"]
    assert after == [("corrected", "retention_cliff")]
    assert store.unresolved("mail") == []


SAVES = st.builds(
    replace,
    st.just(LAST),
    state=st.sampled_from(["warning", "confirmed", "gone"]),
    causes=st.sampled_from([CLIFF, COMPACTION, UNKNOWN]),
    is_settled=st.booleans(),
    is_about_cluster=st.booleans(),
)
TRIES = st.sampled_from(["sent", "deferred", "refused", "died", "unanswered", "one more"])


@dataclass
class Readers:
    """The two recipients of one sink, and the messages that both have got.

    `known` has the causes that a reader may know of an occurrence, also from a try in which the daemon died.
    """

    store: FindingsStore
    sent: list[tuple[int, int]] = field(default_factory=list)  # occurrence and step
    known: dict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))

    def try_all(self, outcome: str) -> None:
        """Try each due notification once; when the daemon dies in a try, no result is stored."""
        for row in self.store.due(NOW + SETTLE_LIMIT_NS):
            content = self.store.begin_try(row, NOW, NOW)
            if content is None or content.finding is None:
                continue
            cause = content.finding.cause
            waiting = [one for one in "ab" if one not in content.progress]
            reached = {"deferred": [], "refused": [], "one more": waiting[:1]}.get(outcome, waiting)
            for one in reached:
                self.known[one, row.occurrence].add(cause)
            if outcome == "sent" or (outcome == "one more" and reached == waiting):
                assert row.kind != "corrected" or content.previous_cause not in {"", cause}
                self.sent.append((row.occurrence, STEPS[row.kind]))
                self.store.mark_sent(row, NOW)
            elif outcome in {"deferred", "unanswered", "one more"}:
                progress = content.progress
                if outcome == "one more":
                    progress += "".join(reached)
                self.store.mark_deferred(
                    row, NOW, NOW, "451", progress, may_have_arrived=bool(reached)
                )
            elif outcome == "refused":
                self.store.mark_refused(row, NOW, "554")


@pytest.mark.long
@settings(max_examples=examples(100))
@given(steps=st.lists(SAVES | TRIES, max_size=14))
def test_each_kind_is_sent_once_and_readers_end_with_the_final_cause(
    steps: list[Finding | str],
) -> None:
    """Whatever is found and however the tries end: one message a kind and occurrence, in their order."""
    with FindingsStore(Path(":memory:")) as store:
        readers = Readers(store)
        for step in [*steps, LAST]:
            if isinstance(step, str):
                readers.try_all(step)
            else:
                save(store, step)
        while store.open_notifications():
            readers.try_all("sent")
        is_all_sent = all(row.state == "sent" for row in store.notifications("run1"))

    assert readers.sent == sorted(set(readers.sent))
    occurrence, last = readers.sent[-1] if readers.sent else (0, -1)
    if is_all_sent and last == STEPS["opened"]:
        assert [readers.known[one, occurrence] for one in "ab"] == [{"compaction"}] * 2
