"""The last word on a cause, five minutes after the first: told once, where it is another than people know."""

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
from tests.support.findings import NOW, finding

CLIFF, COMPACTION, UNKNOWN, CLIENT = (
    (Explanation(name, 0.8, (Evidence(f"{name} it is."),)),)
    for name in ("retention_cliff", "compaction", "unknown", "client")
)
FIRST = finding(causes=CLIFF, is_settled=False)
LAST = finding(causes=COMPACTION)


@dataclass(frozen=True)
class Said:
    kind: str
    cause: str
    was: str = ""


@pytest.fixture
def store() -> Iterator[FindingsStore]:
    with FindingsStore(Path(":memory:")) as opened:
        yield opened


def save(store: FindingsStore, *findings: Finding) -> None:
    for one in findings:
        store.save_finding(one, ["mail"], NOW)


def tell(store: FindingsStore, now_ns: int = NOW) -> list[Said]:
    """Send whatever is due, and what becomes due by that."""
    said = []
    while rows := store.due(now_ns):
        word = store.begin_try(rows[0], now_ns, now_ns)
        if word is not None and word.finding is not None:
            store.mark_sent(rows[0], now_ns)
            said.append(Said(rows[0].kind, word.finding.cause, word.previous_cause))
    return said


@pytest.mark.parametrize(
    ("first", "last"), [(CLIFF, COMPACTION), (UNKNOWN, CLIFF), (CLIFF, UNKNOWN)]
)
def test_another_last_word_is_told_once(
    store: FindingsStore, first: tuple[Explanation], last: tuple[Explanation]
) -> None:
    """Also where none was known, or none is. Whatever is thought of it later is not told."""
    save(store, replace(FIRST, causes=first))
    before = tell(store)
    save(store, replace(LAST, causes=last), replace(LAST, causes=last))
    after = tell(store)
    save(store, replace(LAST, causes=CLIENT))

    known, now = first[0].cause, last[0].cause
    assert before == [Said("opened", known)]
    assert after == [Said("corrected", now, was=known)]
    assert tell(store) == []


def test_the_same_last_word_is_no_news(store: FindingsStore) -> None:
    """Nor is another one as long as it may not be the last."""
    save(store, FIRST)
    tell(store)
    save(store, replace(LAST, is_settled=False), finding(causes=CLIFF))

    assert tell(store) == []


def test_a_first_mail_that_waited_carries_the_last_word(store: FindingsStore) -> None:
    """A sink that was away has heard nothing that could be corrected."""
    save(store, FIRST)
    (row,) = store.due(NOW)
    store.begin_try(row, NOW, NOW)
    store.mark_deferred(row, NOW, NOW, "451 later")
    save(store, LAST)

    assert tell(store) == [Said("opened", "compaction")]
    assert store.open_notifications() == []


def test_a_mail_on_its_way_at_the_last_word_is_corrected(store: FindingsStore) -> None:
    """It was begun before, and is taken after."""
    save(store, FIRST)
    (row,) = store.due(NOW)
    store.begin_try(row, NOW, NOW)
    save(store, LAST)
    store.mark_sent(row, NOW)

    assert tell(store) == [Said("corrected", "compaction", was="retention_cliff")]


def test_whoever_got_the_first_mail_before_others_is_told_too(store: FindingsStore) -> None:
    """One recipient was put off over the last word: the other one knows the first."""
    save(store, FIRST)
    (row,) = store.due(NOW)
    store.begin_try(row, NOW, NOW)
    store.mark_deferred(row, NOW, NOW, "b: 450 later", progress="a has it", may_have_arrived=True)
    save(store, LAST)

    assert tell(store) == [
        Said("opened", "compaction"),
        Said("corrected", "compaction", was="retention_cliff"),
    ]


def test_a_try_that_no_server_answered_may_have_been_heard(store: FindingsStore) -> None:
    """A mailbox may keep the first of two mails with one Message-ID."""
    save(store, FIRST)
    (row,) = store.due(NOW)
    store.begin_try(row, NOW, NOW)
    store.mark_deferred(row, NOW, NOW, "no answer", may_have_arrived=True)
    save(store, LAST)

    assert tell(store) == [
        Said("opened", "compaction"),
        Said("corrected", "compaction", was="retention_cliff"),
    ]


def test_a_later_try_that_nobody_took_told_nobody(store: FindingsStore) -> None:
    """One recipient has the first; the server was away when another cause was tried on the other one."""
    save(store, FIRST)
    (row,) = store.due(NOW)
    store.begin_try(row, NOW, NOW)
    store.mark_deferred(row, NOW, NOW, "b: 450 later", progress="a has it", may_have_arrived=True)
    save(store, replace(FIRST, causes=COMPACTION))
    (row,) = store.due(NOW)
    store.begin_try(row, NOW, NOW)
    store.mark_deferred(row, NOW, NOW, "away", progress="a has it")
    save(store, replace(LAST, causes=CLIFF))

    assert tell(store) == [Said("opened", "retention_cliff")]


def test_a_correction_that_some_have_got_goes_to_all_once_it_says_another_cause(
    store: FindingsStore,
) -> None:
    save(store, FIRST)
    tell(store)
    save(store, LAST)
    (row,) = store.due(NOW)
    store.begin_try(row, NOW, NOW)
    store.mark_deferred(row, NOW, NOW, "b: 450 later", progress="a has it", may_have_arrived=True)
    same = store.content(store.due(NOW)[0])
    save(store, replace(LAST, causes=CLIFF))
    (row,) = store.due(NOW)
    word = store.begin_try(row, NOW, NOW)

    assert same.progress == "a has it"
    assert word is not None
    assert (word.progress, word.previous_cause, store.due(NOW)[0].progress) == (
        "",
        "compaction",
        "",
    )


@pytest.mark.parametrize("is_over", [False, True])
def test_what_was_refused_after_the_daemon_died_in_it_may_have_been_heard(
    store: FindingsStore, *, is_over: bool
) -> None:
    """The first mail may have been taken, the second was refused."""
    save(store, FIRST)
    store.begin_try(store.due(NOW)[0], NOW, NOW)
    (row,) = store.due(NOW)
    store.begin_try(row, NOW, NOW)
    store.mark_refused(row, NOW, "554 no")
    save(store, replace(LAST, state="gone", resolved_k=900) if is_over else LAST)

    kind = "resolved" if is_over else "corrected"
    assert tell(store) == [Said(kind, "compaction", was="retention_cliff")]


def test_a_correction_that_was_refused_after_the_daemon_died_in_it_may_have_been_heard(
    store: FindingsStore,
) -> None:
    save(store, FIRST)
    tell(store)
    save(store, LAST)
    store.begin_try(store.due(NOW)[0], NOW, NOW)
    (row,) = store.due(NOW)
    store.begin_try(row, NOW, NOW)
    store.mark_refused(row, NOW, "554 no")
    save(store, replace(LAST, causes=CLIFF, state="gone", resolved_k=900))

    assert tell(store) == [Said("resolved", "retention_cliff", was="compaction")]


def test_a_daemon_that_died_in_a_try_may_have_been_heard(store: FindingsStore) -> None:
    """The second mail has the same Message-ID: a mailbox may keep the first one alone."""
    save(store, FIRST)
    store.begin_try(store.due(NOW)[0], NOW, NOW)
    save(store, LAST)

    assert tell(store) == [
        Said("opened", "compaction"),
        Said("corrected", "compaction", was="retention_cliff"),
    ]


def test_two_tries_that_told_two_causes_are_corrected_by_either(store: FindingsStore) -> None:
    """Its daemon died in the first, the second was taken: nobody knows which of the two a mailbox keeps."""
    save(store, LAST)
    store.begin_try(store.due(NOW)[0], NOW, NOW)
    save(store, FIRST)
    first = tell(store)
    save(store, LAST)

    assert first == [Said("opened", "retention_cliff")]
    assert tell(store) == [Said("corrected", "compaction", was="retention_cliff")]


def test_a_try_that_nobody_took_leaves_what_the_one_before_may_have_told(
    store: FindingsStore,
) -> None:
    """The daemon died in the first, the second was put off, and the third told another cause."""
    save(store, FIRST)
    store.begin_try(store.due(NOW)[0], NOW, NOW)
    (row,) = store.due(NOW)
    store.begin_try(row, NOW, NOW)
    store.mark_deferred(row, NOW, NOW, "451 later")
    save(store, LAST)

    assert tell(store) == [
        Said("opened", "compaction"),
        Said("corrected", "compaction", was="retention_cliff"),
    ]


def test_a_correction_in_which_the_daemon_died_is_told_even_where_the_first_cause_holds_again(
    store: FindingsStore,
) -> None:
    """It may have been heard, so what it said is what to correct."""
    save(store, FIRST)
    tell(store)
    save(store, LAST)
    store.begin_try(store.due(NOW)[0], NOW, NOW)
    save(store, replace(LAST, causes=CLIFF))

    assert tell(store) == [Said("corrected", "retention_cliff", was="compaction")]


def test_what_readers_may_know_from_two_mails_is_named_once(store: FindingsStore) -> None:
    """The daemon died in the first mail and in the correction, which said the same."""
    save(store, FIRST)
    store.begin_try(store.due(NOW)[0], NOW, NOW)
    save(store, replace(FIRST, causes=COMPACTION))
    tell(store)
    save(store, replace(LAST, causes=CLIFF))
    store.begin_try(store.due(NOW)[0], NOW, NOW)
    save(store, LAST)

    assert tell(store) == [Said("corrected", "compaction", was="retention_cliff")]


def test_a_mail_that_was_refused_for_good_has_no_sequel(store: FindingsStore) -> None:
    """Nobody has read it."""
    save(store, FIRST)
    (row,) = store.due(NOW)
    store.begin_try(row, NOW, NOW)
    store.mark_refused(row, NOW, "554 no")
    save(store, LAST)

    assert store.open_notifications() == []


def test_that_it_went_away_carries_the_last_word(store: FindingsStore) -> None:
    """Of a short step it waits for that, and says what was told before."""
    save(store, FIRST)
    tell(store)
    save(store, replace(FIRST, state="gone", resolved_k=160))
    early = tell(store)
    save(store, replace(LAST, state="gone", resolved_k=160))

    assert early == []
    assert tell(store) == [Said("resolved", "compaction", was="retention_cliff")]


def test_that_it_went_away_waits_five_minutes_at_most(store: FindingsStore) -> None:
    """A detector that died says no last word."""
    save(store, FIRST)
    tell(store)
    save(store, replace(FIRST, state="gone", resolved_k=160))

    assert tell(store, NOW + SETTLE_LIMIT_NS - SECOND_NS) == []
    assert tell(store, NOW + SETTLE_LIMIT_NS) == [Said("resolved", "retention_cliff")]


def test_a_correction_that_nobody_has_heard_gives_way_to_that_it_went_away(
    store: FindingsStore,
) -> None:
    """One mail says both; what is the client's is taken back, and says so too."""
    save(store, FIRST)
    tell(store)
    save(store, LAST, replace(LAST, state="gone", resolved_k=900))

    assert tell(store) == [Said("resolved", "compaction", was="retention_cliff")]


def test_the_clients_fault_is_taken_back_and_not_corrected(store: FindingsStore) -> None:
    save(store, FIRST)
    tell(store)
    save(store, replace(LAST, causes=CLIENT, is_about_cluster=False))

    assert tell(store) == [Said("resolved", "client", was="retention_cliff")]


def test_what_came_back_before_it_was_told_as_gone_is_corrected(store: FindingsStore) -> None:
    """The last word came while it was thought to be over."""
    save(store, FIRST)
    tell(store)
    save(store, replace(FIRST, state="gone", resolved_k=160), LAST)

    assert tell(store) == [Said("corrected", "compaction", was="retention_cliff")]


def test_what_lasts_is_said_again_in_its_newest_words(store: FindingsStore) -> None:
    """A receiver that forgets is to know the finding all the time, and its cause as it is known now."""
    save(store, FIRST)
    tell(store)
    save(store, LAST)
    while_owed = [(row.kind, store.content(row)) for row in store.unresolved("mail")]
    tell(store)
    after = [(row.kind, store.content(row).previous_cause) for row in store.unresolved("mail")]
    save(store, replace(LAST, state="gone", resolved_k=900))

    assert [kind for kind, _ in while_owed] == ["opened"]
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


@settings(max_examples=100)
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
