"""The final cause of a finding: sent once, where it differs from the cause that readers know."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.core.model import PROVISIONAL_SCORE, Evidence, Explanation, Finding
from soak.core.units import SECOND_NS
from soak.store.findings.outbox import SETTLE_LIMIT_NS
from soak.store.findings.rows import NEWS_OF_CAUSES, STEPS
from soak.store.findings.store import FindingsStore
from tests.support.alerting.findings import NOW, finding
from tests.support.examples import examples

CLIFF, COMPACTION, UNKNOWN, CLIENT = (
    (Explanation(name, 0.8, (Evidence(f"{name} it is."),)),)
    for name in ("retention_cliff", "compaction", "unknown", "client")
)
FIRST = finding(causes=CLIFF, is_settled=False)
LAST = finding(causes=COMPACTION)
EARLY_END = replace(FIRST, state="gone", resolved_k=160)
LATE_END = replace(LAST, state="gone", resolved_k=160)


def on(suspect: str) -> tuple[Explanation]:
    """Return the first cause with a suspect."""
    return (replace(CLIFF[0], suspect=suspect),)


@dataclass(frozen=True)
class Sent:
    kind: str
    cause: str
    previous_cause: str = ""
    previous_suspect: str = ""


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
            previous = content.previous_cause, content.previous_suspect
            sent.append(Sent(rows[0].kind, content.finding.cause, *previous))
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
    save(store, FIRST)
    send_due(store)
    save(store, finding(causes=CLIFF))

    assert send_due(store) == []


@pytest.mark.parametrize("first", [(), UNKNOWN, COMPACTION])
def test_a_cause_that_becomes_known_is_sent_before_it_is_final(
    store: FindingsStore, first: tuple[Explanation, ...]
) -> None:
    """Once: an outage is sent before anybody has looked for its cause, and people act on it."""
    save(store, replace(FIRST, kind="outage", causes=first))
    opened = send_due(store)
    save(store, *[replace(FIRST, kind="outage")] * 2)
    named = send_due(store)
    save(store, replace(FIRST, kind="outage", causes=CLIENT))
    later = send_due(store)
    save(store, replace(LAST, kind="outage", causes=CLIFF))

    known = first[0].cause if first else "unknown"
    assert opened == [Sent("opened", known)]
    assert named == [Sent("named", "retention_cliff", previous_cause=known)]
    assert later == send_due(store) == []


def test_a_final_cause_that_is_not_the_one_that_became_known_is_sent(store: FindingsStore) -> None:
    save(store, replace(FIRST, causes=UNKNOWN))
    send_due(store)
    save(store, FIRST)
    send_due(store)
    save(store, LAST, LAST)

    assert send_due(store) == [Sent("corrected", "compaction", previous_cause="retention_cliff")]


def test_a_cause_that_the_next_seconds_may_take_back_is_not_sent_early(
    store: FindingsStore,
) -> None:
    """Nor is that it is unknown again."""
    save(store, FIRST)
    send_due(store)
    suspicion = replace(COMPACTION[0], score=PROVISIONAL_SCORE)
    save(store, replace(FIRST, causes=(suspicion,)), replace(FIRST, causes=UNKNOWN))

    assert send_due(store) == []


def test_a_known_cause_that_is_taken_back_before_it_was_sent_is_not_sent(
    store: FindingsStore,
) -> None:
    save(store, replace(FIRST, causes=UNKNOWN))
    send_due(store)
    save(store, FIRST, replace(FIRST, causes=UNKNOWN))

    assert send_due(store) == []
    assert store.open_notifications() == []


def test_a_known_cause_that_was_refused_is_sent_as_the_final_one(store: FindingsStore) -> None:
    save(store, replace(FIRST, causes=UNKNOWN))
    send_due(store)
    save(store, FIRST)
    (row,) = store.due(NOW)
    store.begin_try(row, NOW, NOW)
    store.mark_refused(row, NOW, "554 no")
    save(store, finding(causes=CLIFF))

    assert send_due(store) == [Sent("corrected", "retention_cliff", previous_cause="unknown")]


def test_a_known_cause_that_was_not_sent_is_in_the_resolved_message(store: FindingsStore) -> None:
    save(store, replace(FIRST, causes=UNKNOWN))
    send_due(store)
    save(store, FIRST, replace(LATE_END, causes=CLIFF))

    assert send_due(store) == [Sent("resolved", "retention_cliff", previous_cause="unknown")]


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
    row, _ = store.due(NOW)
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

    assert first == [
        Sent("opened", "retention_cliff"),
        Sent("named", "retention_cliff", previous_cause="compaction"),
    ]
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


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ("nvme1n1 on b1", "nvme1n1 on b3"),
        ("vda on b1", "vdb on b1"),
        ("b1:9092", "b3:9092"),
        ("127.0.0.1:9092", "127.0.0.1:9093"),
        ("b1:9092, b2:9092", "b3:9092"),
        ("topic orders", "topic payments"),
    ],
)
def test_another_final_suspect_of_the_same_cause_is_sent_once(
    store: FindingsStore, first: str, last: str
) -> None:
    """Else people work on the wrong broker."""
    save(store, replace(FIRST, causes=on(first)))
    send_due(store)
    save(store, *[replace(LAST, causes=on(last))] * 2)
    sent = send_due(store)
    save(store, replace(LAST, causes=on("b7:9092")))

    assert sent == [Sent("corrected", "retention_cliff", previous_suspect=first)]
    assert send_due(store) == []


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ("b1:9092", "b1.example.org:9092"),
        ("10.0.0.1:9092", "b1.example.org:9092"),
        ("B1", "b1:9092"),
        ("b1:9092", "vda on b1"),
        ("127.0.0.1:9092", "localhost:9092"),
        ("pulsar://b1:6650", "b1:6650"),
        ("/data on b1", "/data/kafka on b1"),
        ("b1:9092, b2:9092", "b2:9092"),
        ("leader 2", "b2:9092"),
        ("b1:9092", ""),
        ("", "b1:9092"),
    ],
)
def test_a_suspect_that_is_named_otherwise_is_not_sent(
    store: FindingsStore, first: str, last: str
) -> None:
    """Nor is one that was not known, or is not known any more."""
    save(store, replace(FIRST, causes=on(first)))
    send_due(store)
    save(store, replace(LAST, causes=on(last)))

    assert send_due(store) == []


def test_a_suspect_is_corrected_once_and_another_cause_nevertheless(store: FindingsStore) -> None:
    """The incident becomes worse after the correction, so it is judged anew."""
    save(store, replace(FIRST, causes=on("b1")))
    send_due(store)
    save(store, replace(LAST, causes=on("b2")))
    corrected = send_due(store)
    save(store, replace(EARLY_END, causes=on("b2")))
    send_due(store, NOW + SETTLE_LIMIT_NS)
    save(store, replace(LATE_END, causes=on("b3")))
    same_cause = send_due(store)
    save(store, LATE_END)

    assert [one.kind for one in corrected] == ["corrected"]
    assert same_cause == []
    assert send_due(store) == [Sent("revised", "compaction", previous_cause="retention_cliff")]


def test_a_resolved_message_names_the_other_suspect(store: FindingsStore) -> None:
    save(store, replace(FIRST, causes=on("b1")))
    send_due(store)
    save(store, replace(LATE_END, causes=on("b3")))

    assert send_due(store) == [Sent("resolved", "retention_cliff", previous_suspect="b1")]


def over_early(store: FindingsStore, causes: tuple[Explanation] = CLIFF) -> None:
    """Send that a finding was opened and resolved, before its final cause is known."""
    save(store, replace(FIRST, causes=causes))
    send_due(store)
    save(store, replace(EARLY_END, causes=causes))
    send_due(store, NOW + SETTLE_LIMIT_NS)


@pytest.mark.parametrize(
    ("first", "last", "news"),
    [
        (CLIFF, COMPACTION, Sent("revised", "compaction", previous_cause="retention_cliff")),
        (UNKNOWN, CLIFF, Sent("revised", "retention_cliff", previous_cause="unknown")),
        (on("b1"), on("b3"), Sent("revised", "retention_cliff", previous_suspect="b1")),
    ],
)
def test_a_final_cause_that_comes_after_resolved_was_sent_is_sent_once(
    store: FindingsStore, first: tuple[Explanation], last: tuple[Explanation], news: Sent
) -> None:
    """The first message promised it, also of an incident that is over within minutes."""
    over_early(store, causes=first)
    save(store, *[replace(LATE_END, causes=last)] * 2)
    sent = send_due(store)
    save(store, replace(LATE_END, causes=CLIENT))

    assert sent == [news]
    assert send_due(store) == []
    assert store.unresolved("mail") == []


def test_a_finding_that_proves_to_be_the_clients_after_resolved_was_sent_is_withdrawn(
    store: FindingsStore,
) -> None:
    over_early(store)
    save(store, replace(LATE_END, causes=CLIENT, is_about_cluster=False))

    assert send_due(store) == [Sent("revised", "client", previous_cause="retention_cliff")]


def test_the_same_final_cause_after_resolved_was_sent_is_not_sent(store: FindingsStore) -> None:
    over_early(store)
    save(store, replace(LATE_END, causes=CLIFF))

    assert store.open_notifications() == []


def test_a_final_cause_while_resolved_is_in_transit_is_sent_after_it(store: FindingsStore) -> None:
    save(store, FIRST)
    send_due(store)
    save(store, EARLY_END)
    (row,) = store.due(NOW + SETTLE_LIMIT_NS)
    store.begin_try(row, NOW, NOW)
    save(store, LATE_END)
    waiting = store.due(NOW)
    store.mark_sent(row, NOW)

    assert [one.kind for one in waiting] == ["resolved"]
    assert send_due(store) == [Sent("revised", "compaction", previous_cause="retention_cliff")]


def test_a_resolved_message_that_was_refused_has_no_correction(store: FindingsStore) -> None:
    save(store, FIRST)
    send_due(store)
    save(store, EARLY_END)
    (row,) = store.due(NOW + SETTLE_LIMIT_NS)
    store.begin_try(row, NOW, NOW)
    store.mark_refused(row, NOW, "554 no")
    save(store, LATE_END)

    assert store.open_notifications() == []


def test_a_finding_that_comes_back_says_the_final_cause_itself(store: FindingsStore) -> None:
    """A correction of what was over is not sent any more then."""
    over_early(store)
    save(store, LATE_END, LAST)

    assert send_due(store) == [Sent("opened", "compaction")]


def test_a_finding_that_comes_back_after_its_correction_is_opened_again(
    store: FindingsStore,
) -> None:
    over_early(store)
    save(store, LATE_END)
    send_due(store)
    save(store, LAST)

    assert send_due(store) == [Sent("opened", "compaction")]
    assert [(row.occurrence, row.kind) for row in store.notifications("run1")] == [
        (1, "opened"),
        (1, "resolved"),
        (1, "revised"),
        (2, "opened"),
    ]


SAVES = st.builds(
    replace,
    st.just(LAST),
    state=st.sampled_from(["warning", "confirmed", "gone"]),
    causes=st.sampled_from([CLIFF, COMPACTION, UNKNOWN, on("b1"), on("b2")]),
    is_settled=st.booleans(),
    is_about_cluster=st.booleans(),
)
TRIES = st.sampled_from(["sent", "deferred", "refused", "died", "unanswered", "one more"])


@dataclass
class Readers:
    """The two recipients of one sink, and the messages that both have got.

    `known` has the causes that a reader may know of an occurrence, also from a try in which the daemon died;
    `newest` is the cause in the last message that both got.
    """

    store: FindingsStore
    sent: list[tuple[int, int]] = field(default_factory=list)  # occurrence and step
    known: dict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    newest: str = ""

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
                is_news = content.previous_cause or content.previous_suspect
                assert row.kind not in NEWS_OF_CAUSES or is_news
                assert content.previous_cause != cause
                self.newest = cause
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
@given(steps=st.lists(SAVES | TRIES, max_size=14), end=st.sampled_from([LAST, LATE_END]))
def test_each_kind_is_sent_once_and_readers_end_with_the_final_cause(
    steps: list[Finding | str], end: Finding
) -> None:
    """Whatever is found and however the tries end: one message a kind and occurrence, in their order."""
    with FindingsStore(Path(":memory:")) as store:
        readers = Readers(store)
        for step in [*steps, end]:
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
    if is_all_sent and last == STEPS["resolved"]:
        assert readers.newest == "compaction"
