"""The text of a message to the letter, its size, and its chart."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from detectors.causes.hypothesis import Confirmation
from detectors.objectives import breach_series
from soak.alerting.chart import (
    Overview,
    Window,
    chart_title,
    draw_chart,
    overview_title,
    read_window,
    window_bounds,
    with_breaks,
)
from soak.alerting.document import COLUMNS
from soak.alerting.load_state import LoadState
from soak.alerting.message.body import MAX_LINES
from soak.alerting.message.compose import compose
from soak.alerting.message.context import MessageContext
from soak.alerting.places import Places
from soak.core.errors import JournalError
from soak.core.model import Change, Evidence, Explanation
from soak.core.plan.objectives import parse_objective
from soak.core.ports import CHART_URL
from soak.core.units import SECOND_NS
from soak.runtime.incident_size import IncidentSize, Level
from soak.store.findings.rows import NotificationKind
from tests.support.alerting import findings
from tests.support.spark.synthetic_run import (
    CONSUMER,
    PROBE,
    START_WALL_NS,
    Shape,
    write_synthetic_run,
)

P99 = 'consume.0@host|end_to_end_latency_seconds{quantile="0.99"}'
PUBLISH = 'produce.0@host|publish_latency_seconds{quantile="0.99"}'
CAUSES = (
    Explanation(
        "retention_cliff",
        0.93,
        (
            Evidence("The first deletion came 2 s before the step."),
            Evidence(
                "Latency peaks in 121 of the 127 seconds with a deletion; in as many seconds"
                " taken at random it does in 31."
            ),
        ),
    ),
    Explanation("slow_fsync", 0.31, (Evidence("fsync p99 of /data rose 1.2 times."),)),
    Explanation("client", 0.0, ()),
)
FINDING = findings.finding(
    key="run1-118",
    raised_k=118,
    onset_k=112,
    interval=(111, 113),
    series=P99,
    causes=CAUSES,
    changes=(P99, PUBLISH),
)
CHANGE = Change(PUBLISH, 117, 112, (110, 113), 0.003, 0.04, "confirmed", 0.99)
K = np.arange(12, 212)
WINDOW = Window(K, {"0.99": np.where(K < 112, 0.004, 0.06)}, "0.99", (110, 111))
REPORT = "on h1: soak report /runs/r1"
CONTEXT = MessageContext(FINDING, "opened", "demo", REPORT, START_WALL_NS, (CHANGE,), WINDOW)

CONFIRMED = """\
what      p99 end-to-end latency 4.1 ms -> 61 ms (x15)
since     2026-09-21 14:15:12Z (between 14:15:11Z and 14:15:13Z)
source    consume.0@host

p99 end-to-end latency, 4 ms to 60 ms, log scale, 4 s a column
  ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁█████████████████████████
                           ^ onset
  14:13:32Z                                14:16:51Z

cause     retention_cliff (score 0.93, almost certain)
  - The first deletion came 2 s before the step.
  - Latency peaks in 121 of the 127 seconds with a deletion; in as many
    seconds taken at random it does in 31.

other possible causes
  - slow_fsync 0.31: fsync p99 of /data rose 1.2 times.

also changed
  p99 publish latency of produce.0@host  3 ms -> 40 ms (x13)

report    on h1: soak report /runs/r1
finding   run1-118
"""


LOAD = LoadState(1000.0, 0.0, 23, 60, is_since_onset=True, producers=2, recorded=2, is_behind=True)


@pytest.mark.parametrize("kind", ["opened", "resolved"])
def test_a_mail_says_the_load_and_never_that_nothing_was_lost_before_that_is_known(
    kind: NotificationKind,
) -> None:
    context = dataclasses.replace(CONTEXT, kind=kind, load=LOAD)
    ended = dataclasses.replace(context, audit={"lost": 0, "duplicated": 2})

    during, after = (compose(one, None, 0).text for one in (context, ended))

    load = (
        "load      1,000/s sent, 0/s acknowledged, so 1,000/s wait or fail; 23 messages\n"
        "          failed since the onset\n"
    )
    assert f"\n{load}lost      not known before the end of the run\nsource    " in during
    assert f"\n{load}lost      0 messages, 2 duplicated in the whole run\nsource    " in after


def test_a_subject_names_both_causes_where_one_is_as_probable_as_the_other() -> None:
    first, second, *_ = CAUSES
    causes = (dataclasses.replace(first, suspect="b1"), dataclasses.replace(second, score=0.9))
    finding = dataclasses.replace(FINDING, causes=causes)

    message = compose(dataclasses.replace(CONTEXT, finding=finding), None, 7)

    assert message.subject.startswith("[soakd] retention cliff or slow fsync: p99 end-to-end")


def test_other_quantiles_of_what_changed_are_in_the_table_and_not_listed_again() -> None:
    median = P99.replace("0.99", "0.5")
    finding = dataclasses.replace(FINDING, changes=(P99, median, PUBLISH))

    message = compose(dataclasses.replace(CONTEXT, finding=finding), None, 7)

    assert message.text == CONFIRMED


def test_a_topic_that_was_made_for_the_run_is_said_to_be() -> None:
    def text(suspect: str) -> str:
        causes = (dataclasses.replace(CAUSES[0], suspect=suspect),)
        finding = dataclasses.replace(FINDING, causes=causes)
        return compose(dataclasses.replace(CONTEXT, finding=finding), None, 7).text

    assert "suspect   topic soak-run1, made for this run\n" in text("topic soak-run1")
    assert "suspect   topic a, soak-run1-3, made for this run\n" in text("topic a, soak-run1-3")
    for other in ("topic orders", "topic soak-run12", "topic my-soak-run1", "run1:9092"):
        assert f"suspect   {other}\n" in text(other)


def test_a_name_with_hyphens_stays_whole() -> None:
    """It is copied, and searched for."""
    name = "orders-" * 9 + "eu"
    causes = (dataclasses.replace(CAUSES[0], suspect=f"topic {name}"),)

    text = text_of(finding=dataclasses.replace(FINDING, causes=causes))

    assert f"suspect   topic\n          {name}\n" in text


def test_an_opened_finding_reads_like_this() -> None:
    """The subject alone says why, what and how much."""
    message = compose(CONTEXT, None, 7)

    assert message.subject == (
        "[soakd] retention cliff: p99 end-to-end 4.1 ms -> 61 ms (x15) - demo"
    )
    assert message.text == CONFIRMED
    assert (message.key, message.follows, message.at_wall_ns) == ("run1-118.confirmed", "", 7)


def test_a_resolved_finding_says_when_and_the_level_after_it() -> None:
    """The level is the median after the end: the seconds before it are those of the incident."""
    gone = dataclasses.replace(FINDING, state="gone", resolved_k=180)
    window = dataclasses.replace(
        WINDOW, values={"0.99": np.where(K < 180, 0.06, np.where(K <= 190, 0.0042, 0.03))}
    )
    context = dataclasses.replace(CONTEXT, finding=gone, kind="resolved", window=window)

    message = compose(context, None, 0)

    assert message.subject == (
        "[soakd] resolved after 1 min 8 s: p99 end-to-end was 61 ms, now 4.2 ms "
        "(retention cliff) - demo"
    )
    assert "resolved  by 14:16:20Z, after 1 min 8 s; now 4.2 ms\n" in message.text
    assert (message.key, message.follows) == ("run1-118.gone", "run1-118.confirmed")


def test_an_unknown_level_after_a_finding_is_left_out() -> None:
    """The journals are missing, or nothing was measured."""
    gone = dataclasses.replace(FINDING, state="gone", resolved_k=180)
    blank = dataclasses.replace(WINDOW, values={"0.99": np.full(K.size, np.nan)})

    for window in (None, blank):
        context = dataclasses.replace(CONTEXT, finding=gone, kind="resolved", window=window)
        message = compose(context, None, 0)

        assert "p99 end-to-end was 61 ms (retention cliff)" in message.subject
        assert "resolved  by 14:16:20Z, after 1 min 8 s\n" in message.text


def test_a_late_message_says_that_the_finding_is_resolved_by_now() -> None:
    gone = dataclasses.replace(FINDING, state="gone", resolved_k=130)

    late = compose(dataclasses.replace(CONTEXT, finding=gone), None, 0)

    assert late.text.startswith("This is resolved by now, see the next message.\n\nwhat ")


def test_an_unknown_cause_has_no_score_but_lists_what_else_changed() -> None:
    unknown = Explanation("unknown", 0.0, (Evidence("host CPU went from 0.4 to 1."),))
    finding = dataclasses.replace(FINDING, causes=(unknown,))
    bare = dataclasses.replace(FINDING, causes=(Explanation("unknown", 0.0, ()),))

    texts = [
        compose(dataclasses.replace(CONTEXT, finding=one), None, 0).text for one in (finding, bare)
    ]

    assert "cause     unknown; other changes:\n  - host CPU went from 0.4 to 1.\n" in texts[0]
    assert "cause     unknown\n" in texts[1]


def test_an_open_finding_has_a_next_step_and_a_resolved_one_its_runbook_alone() -> None:
    last = dataclasses.replace(CONTEXT, advice="see the drive", runbook_page="https://wiki/soak")
    over = dataclasses.replace(
        last, kind="resolved", finding=dataclasses.replace(FINDING, resolved_k=180)
    )

    runbook = "https://wiki/soak#retention_cliff"
    message = compose(last, None, 0)
    assert f"next step see the drive\nrunbook   {runbook}\nreport    on h1:" in message.text
    assert (message.runbook_url, compose(over, None, 0).runbook_url) == (runbook, runbook)
    assert "next step" not in compose(over, None, 0).text
    assert f"\nrunbook   {runbook}\nreport " in compose(over, None, 0).text


LASTING = Confirmation("on b1", "grep x", "a line", is_lasting=True)


@pytest.mark.parametrize(
    ("one", "confirm"),
    [
        (LASTING, "confirm   on b1\nrun       grep x\nshows     a line\n"),
        (dataclasses.replace(LASTING, is_lasting=False), ""),
    ],
)
def test_a_resolved_finding_has_the_next_step_of_a_cause_that_readers_did_not_know(
    one: Confirmation, confirm: str
) -> None:
    """Its command too, where that still shows it when the incident is over."""
    context = dataclasses.replace(
        CONTEXT,
        kind="resolved",
        previous_cause="unknown",
        advice="see the drive",
        confirmation=one,
        runbook_page="wiki",
        finding=dataclasses.replace(FINDING, resolved_k=180),
    )

    text = compose(context, None, 0).text

    assert text.endswith(
        f"\n\n{confirm}next step see the drive\nrunbook   wiki#retention_cliff\n"
        "report    on h1: soak report /runs/r1\nfinding   run1-118\n"
    )


def test_a_resolved_finding_says_whether_its_broker_answers_again() -> None:
    gone = dataclasses.replace(FINDING, state="gone", resolved_k=180)

    text = text_of(
        finding=gone,
        kind="resolved",
        broker_state="b3:9092 answers again since 14:16:19Z",
        places=Places({"b3:9092": "3"}),
        window=None,
    )

    assert text.startswith(
        "now       broker 3 at b3:9092 answers again since 14:16:19Z\nwhat      "
    )
    assert "resolved  by 14:16:20Z, after 1 min 8 s\n" in text


UNJUDGED = dataclasses.replace(
    FINDING,
    series="produce.0@host|acknowledgement_outage_seconds",
    kind="outage",
    before=0.0,
    after=5.0,
    causes=(),
    changes=(),
    is_settled=False,
)


def test_an_outage_whose_cause_was_not_judged_yet_says_until_when_another_message_follows() -> None:
    """Nobody has looked for its cause: that is no verdict."""
    at_ns = START_WALL_NS + (112 + 7) * SECOND_NS

    message = compose(dataclasses.replace(CONTEXT, finding=UNJUDGED, window=None), None, at_ns)

    assert message.subject == (
        "[soakd] cause not known yet: nothing was acknowledged for 5 s - demo"
    )
    assert ">Cause not known yet</p>" in message.html
    assert (
        "cause     not known yet (7 s after the onset); another message follows by\n"
        "          14:20:12Z if one is found\n"
    ) in message.text


def test_a_late_message_promises_no_message_by_a_time_that_is_past() -> None:
    """The mail server was away for an hour, and the detector has not judged the outage since."""
    composed_ns = START_WALL_NS + (112 + 3600) * SECOND_NS
    context = dataclasses.replace(
        CONTEXT, finding=UNJUDGED, window=None, composed_wall_ns=composed_ns
    )

    text = compose(context, None, START_WALL_NS + (112 + 7) * SECOND_NS).text

    assert (
        "cause     not known yet (1 h after the onset); another message follows if one\n"
        "          is found\n"
    ) in text


def test_an_open_finding_has_the_command_that_confirms_its_cause_and_a_resolved_one_has_none() -> (
    None
):
    """The command stays in one line, to be copied."""
    command = (
        "kafka-topics.sh --bootstrap-server HOST:PORT --describe --under-replicated-partitions"
    )
    one = Confirmation("from another host", command, "1 partition or more")
    last = dataclasses.replace(CONTEXT, advice="see the replicas", confirmation=one)
    over = dataclasses.replace(
        last, kind="resolved", finding=dataclasses.replace(FINDING, resolved_k=180)
    )

    text = compose(last, None, 0).text

    assert (
        f"confirm   from another host\nrun       {command}\nshows     1 partition or more\n"
        "next step see the replicas\nreport    on h1:"
    ) in text
    assert "confirm  " not in compose(over, None, 0).text


def test_hostile_names_and_log_lines_stay_text_in_their_line() -> None:
    """Terminals obey control characters, and a line break would add a line of ours."""
    evil = "a\x1b[2J\r\nBcc: x\u202e\udc80"
    series = f'probe@h|x_seconds{{topic="{evil}"}}'
    cause = Explanation("network", 0.7, (Evidence(f"log says {evil}"),))
    finding = dataclasses.replace(FINDING, series=series, changes=(series + "2",), causes=(cause,))

    message = compose(dataclasses.replace(CONTEXT, finding=finding, window=None), None, 0)

    assert message.subject.isprintable()
    assert all(line.isprintable() for line in message.text.splitlines())
    assert not any(line.startswith("Bcc") for line in message.text.splitlines())
    assert message.text.encode()


def test_hostile_names_and_log_lines_are_no_markup() -> None:
    """Mail programs run markup, and load what it refers to."""
    evil = "<img src=//x>&\x1b[2J"
    cause = Explanation("network", 0.7, (Evidence(f"log says {evil}"),))
    finding = dataclasses.replace(
        FINDING,
        series=f'probe@h|x_seconds{{topic="{evil}"}}',
        changes=(f"{evil}|y",),
        causes=(cause,),
    )
    html = compose(dataclasses.replace(CONTEXT, finding=finding), None, 0).html

    assert "<img" not in html
    assert "log says &lt;img src=//x&gt;&amp;" in html
    assert "\x1b" not in html


def test_the_page_has_what_the_text_has_and_the_chart_instead_of_the_sparkline() -> None:
    levels = {"p99": Level(0.0041, 0.074, np.nan)}
    size = IncidentSize(levels, 0.0075, 1200, 68, "end_to_end", 1300)
    context = dataclasses.replace(CONTEXT, size=size)

    plain, drawn = compose(context, None, 7), compose(context, b"png", 7)

    for part in (
        "4.1 ms",
        "74 ms",
        "end-to-end p99",
        "1,200 of 1,300 messages in the 1 min 8 s from the onset on",
    ):
        assert part in plain.text
        assert part in plain.html
    assert "▁▁▁█" in plain.html.replace("\n", "")
    assert CHART_URL not in plain.html
    assert CHART_URL in drawn.html
    assert "▁▁▁█" not in drawn.html
    assert "Latency peaks in 121 of the 127 seconds" in drawn.html
    assert drawn.text == plain.text


def test_a_message_names_other_open_findings() -> None:
    older = dataclasses.replace(FINDING, key="run1-60", onset_k=50, causes=())
    newer = dataclasses.replace(FINDING, key="run1-90", onset_k=80, series=PUBLISH)

    one, two = (
        compose(dataclasses.replace(CONTEXT, other_findings=those), None, 0).text
        for those in ([older], [newer, older])
    )

    assert "also open p99 end-to-end latency since 14:14:10Z, cause unknown\n" in one
    assert (
        "also open p99 publish latency since 14:14:40Z, cause retention cliff, and 1\n"
        "          more\n"
    ) in two


def test_another_finding_since_another_day_shows_the_day() -> None:
    older = dataclasses.replace(FINDING, key="run1-60", onset_k=112 - 86_400)

    text = compose(dataclasses.replace(CONTEXT, other_findings=[older]), None, 0).text

    assert "also open p99 end-to-end latency since 2026-09-20 14:15:12Z, cause" in text


def test_evidence_that_is_left_out_is_counted() -> None:
    reasons = tuple(Evidence(f"reason {at}") for at in range(10))
    causes = tuple(Explanation(f"cause_{at}", 0.9, reasons) for at in range(10))
    finding = dataclasses.replace(FINDING, causes=causes)

    text = compose(dataclasses.replace(CONTEXT, finding=finding), None, 0).text

    assert "  - reason 3\n  and 6 more\n" in text


def test_every_other_cause_is_named() -> None:
    """Of the first ones with the strongest reason."""
    causes = tuple(Explanation(f"cause_{at}", 1.0, (Evidence("a reason"),)) for at in range(6))
    finding = dataclasses.replace(FINDING, causes=causes)

    text = compose(dataclasses.replace(CONTEXT, finding=finding), None, 0).text

    assert (
        "  - cause_1 >0.99: a reason\n  - cause_2 >0.99: a reason\n"
        "  - cause_3 >0.99, cause_4 >0.99, cause_5 >0.99\n"
    ) in text


def test_an_end_on_another_day_shows_the_day() -> None:
    """As does an end of the interval across midnight, which is k = 35,200 of this run."""
    finding = dataclasses.replace(
        FINDING, onset_k=35_198, interval=(35_197, 35_201), state="gone", resolved_k=35_300
    )
    context = dataclasses.replace(CONTEXT, finding=finding, kind="resolved", window=None)

    text = compose(context, None, 0).text

    assert "since     2026-09-21 23:59:58Z (between 23:59:57Z and 2026-09-22 00:00:01Z)\n" in text
    assert "resolved  by 2026-09-22 00:01:40Z, after 1 min 42 s\n" in text


def test_a_long_name_keeps_its_end() -> None:
    """Paths differ at their end."""
    long = f'probe@h|fsync_latency_seconds{{directory="/{"d" * 60}/node-2/data",quantile="0.99"}}'
    finding = dataclasses.replace(FINDING, changes=(long,))
    change = dataclasses.replace(CHANGE, series=long)

    text = compose(dataclasses.replace(CONTEXT, finding=finding, changes=(change,)), None, 0).text

    (line,) = [line for line in text.splitlines() if "node-2" in line]
    assert line.endswith("/node-2/data) of probe@h  3 ms -> 40 ms (x13)")
    assert line.startswith("  p99 fsync latency")
    assert len(line) == COLUMNS


CORRECTED = """\
Cause corrected by newer records: retention cliff, not noisy neighbour.

"""


def test_a_corrected_cause_is_shown_with_the_previous_one_and_its_evidence() -> None:
    """The rest is the text of the first message."""
    context = dataclasses.replace(CONTEXT, kind="corrected", previous_cause="noisy_neighbour")

    message = compose(context, None, 7)

    assert message.subject == (
        "[soakd] cause now retention cliff, not noisy neighbour: "
        "p99 end-to-end 4.1 ms -> 61 ms (x15) - demo"
    )
    assert message.text == CORRECTED + CONFIRMED.replace(
        "certain)", "certain, was noisy_neighbour)"
    )
    assert (message.key, message.follows) == ("run1-118.corrected", "run1-118.confirmed")
    assert message.end_wall_ns is None


@pytest.mark.parametrize("kind", ["named", "corrected"])
def test_a_cause_that_became_known_is_said_as_in_a_first_message(kind: NotificationKind) -> None:
    """Nothing was wrong before, so nothing is called corrected."""
    context = dataclasses.replace(CONTEXT, kind=kind, previous_cause="unknown")

    message = compose(context, None, 7)

    assert message.subject == (
        "[soakd] cause known: retention cliff: p99 end-to-end 4.1 ms -> 61 ms (x15) - demo"
    )
    assert message.text.startswith("The cause is known by now: retention cliff.\n\n")
    assert "cause     retention_cliff (score 0.93, almost certain, was unknown)\n" in message.text
    assert ">Open - cause known<" in message.html
    assert (message.key, message.follows) == (f"run1-118.{kind}", "run1-118.confirmed")


def suspected(suspect: str, **other: object) -> MessageContext:
    """Return a correction of a finding with a suspect."""
    causes = (dataclasses.replace(CAUSES[0], suspect=suspect), *CAUSES[1:])
    finding = dataclasses.replace(FINDING, causes=causes)
    return dataclasses.replace(CONTEXT, finding=finding, kind="corrected", **other)  # type: ignore[arg-type]  # the fields of a context


def test_a_corrected_suspect_is_shown_with_the_previous_one() -> None:
    """The cause stays, so it is not called corrected."""
    places = Places({"b3:9092": "3", "b1:9092": "1"})

    message = compose(
        suspected("b3:9092", previous_suspect="b1:9092", places=places, advice="see the drive"),
        None,
        7,
    )

    assert message.subject == (
        "[soakd] suspect now broker 3 at b3:9092, not broker 1 at b1:9092: "
        "p99 end-to-end 4.1 ms -> 61 ms (x15) - demo"
    )
    assert message.text.startswith(
        "Suspect corrected by newer records: broker 3 at b3:9092, not broker 1 at\nb1:9092.\n\n"
    )
    assert "suspect   broker 3 at b3:9092 (was broker 1 at b1:9092)\n" in message.text
    assert "cause     retention_cliff (score 0.93, almost certain)\n" in message.text
    assert ">Open - suspect corrected<" in message.html


def test_a_resolved_finding_has_the_next_step_of_a_suspect_that_readers_did_not_know() -> None:
    over = suspected("b3", previous_suspect="b1", advice="see the drive")
    gone = dataclasses.replace(over.finding, state="gone", resolved_k=180)

    text = compose(dataclasses.replace(over, finding=gone, kind="resolved"), None, 0).text

    assert "suspect   b3 (was b1)\n" in text
    assert "next step see the drive\n" in text


def test_a_cause_that_is_corrected_after_resolved_was_sent_says_that_it_is_over() -> None:
    gone = dataclasses.replace(FINDING, state="gone", resolved_k=180)
    context = dataclasses.replace(
        CONTEXT,
        finding=gone,
        kind="revised",
        window=None,
        previous_cause="noisy_neighbour",
        advice="see the drive",
        confirmation=dataclasses.replace(LASTING, is_lasting=False),
    )

    message = compose(context, None, START_WALL_NS + 400 * SECOND_NS)

    assert message.subject.startswith("[soakd] resolved: cause now retention cliff, not noisy n")
    assert message.text.startswith(
        "Cause corrected by newer records: retention cliff, not noisy neighbour.\n"
        "The incident is resolved; only its cause is new.\n\n"
    )
    assert "resolved  by 14:16:20Z, after 1 min 8 s\n" in message.text
    assert "next step see the drive\n" in message.text
    assert "\nrun " not in message.text
    assert ">Resolved - cause corrected<" in message.html
    assert (message.key, message.follows) == ("run1-118.revised", "run1-118.gone")
    assert message.end_wall_ns == START_WALL_NS + 180 * SECOND_NS


def test_a_correction_that_is_sent_after_the_end_does_not_look_open() -> None:
    gone = dataclasses.replace(FINDING, state="gone", resolved_k=180)
    context = dataclasses.replace(
        CONTEXT, finding=gone, kind="corrected", previous_cause="noisy_neighbour"
    )

    message = compose(context, None, 7)

    assert message.subject.startswith("[soakd] resolved by now: cause now retention cliff, not ")
    assert ">Resolved by now<" in message.html
    assert ">Open" not in message.html


def test_a_resolved_finding_names_the_cause_and_the_previous_one() -> None:
    gone = dataclasses.replace(FINDING, state="gone", resolved_k=180)

    message = compose(
        dataclasses.replace(CONTEXT, finding=gone, kind="resolved", previous_cause="unknown"),
        None,
        0,
    )

    assert message.subject.endswith("(retention cliff) - demo")
    assert "cause     retention_cliff (score 0.93, almost certain, was unknown)\n" in message.text


def test_all_messages_about_a_finding_have_the_same_labels() -> None:
    """An alert is resolved by its labels."""
    later = dataclasses.replace(
        FINDING, state="gone", resolved_k=200, onset_k=113, causes=CAUSES[1:]
    )
    gone = dataclasses.replace(CONTEXT, finding=later, kind="resolved")
    now_ns = START_WALL_NS + 240 * SECOND_NS
    first, last = compose(CONTEXT, None, now_ns), compose(gone, None, now_ns)
    set_back = compose(gone, None, START_WALL_NS)

    assert first.labels == last.labels
    assert first.labels["finding"] == "run1-118"
    assert (first.begin_wall_ns, first.end_wall_ns) == (START_WALL_NS + 112 * SECOND_NS, None)
    assert last.end_wall_ns == START_WALL_NS + 200 * SECOND_NS
    assert set_back.end_wall_ns == START_WALL_NS, "it is over by any clock"


def test_a_finding_without_journals_and_cause_makes_a_message() -> None:
    bare = dataclasses.replace(FINDING, causes=(), changes=())
    context = dataclasses.replace(CONTEXT, finding=bare, window=None, changes=())

    message = compose(context, None, 0)

    assert message.subject == "[soakd] cause unknown: p99 end-to-end 4.1 ms -> 61 ms (x15) - demo"
    assert message.text.count("\n\n") == 2


@pytest.mark.parametrize("resolved_k", [None, 180])
@pytest.mark.parametrize("kind", ["opened", "named", "corrected", "resolved", "revised"])
def test_a_long_message_stays_within_its_lines_of_78_columns(
    kind: NotificationKind, resolved_k: int | None
) -> None:
    """Ten causes with ten long reasons each and a hundred series are cut, and the others counted."""
    reasons = tuple(Evidence("a reason that goes on " * 20) for _ in range(10))
    doubts = reasons[:2]
    causes = tuple(
        Explanation(f"cause_{at}", 0.9, reasons, doubts, "b1:9092, nvme0n1 on b1")
        for at in range(10)
    )
    series = tuple(f'probe@host|some_metric_{at}{{device="{"d" * 90}"}}' for at in range(100))
    longest = (
        f'consume.0@{"h" * 64}|end_to_end_latency_seconds{{topic="{"t" * 249}",quantile="0.99"}}'
    )
    much = dataclasses.replace(
        FINDING,
        series=longest,
        kind="drift",
        state="confirmed" if resolved_k is None else "gone",
        resolved_k=resolved_k,
        causes=causes,
        changes=series,
    )
    beside = dataclasses.replace(much, onset_k=112 - 86_400)
    advice = "check if the broker was stopped or swapped, or its host migrated to another"

    context = dataclasses.replace(
        CONTEXT,
        finding=much,
        kind=kind,
        previous_cause="noisy_neighbour",
        advice=advice,
        runbook_page="docs/reference/causes.md",
        other_findings=[beside] * 12,
        size=IncidentSize(dict.fromkeys(("p50", "p99", "p99.9", "max"), Level(1, 2, 3)), 1, 9, 60),
        load=dataclasses.replace(LOAD, failed_messages=10**9, recorded=1),
        confirmation=Confirmation("on the broker's host, as root", "iostat -x 1", "a sign " * 14),
        cluster="kafka b1.example.org:9092 and 11 more",
        is_lab=True,
        composed_wall_ns=START_WALL_NS + 60 * SECOND_NS,
        places=Places({"b1:9092": "1"}, {("b1", "nvme0n1"): "/var/lib/kafka/" * 3}),
    )
    message = compose(context, None, START_WALL_NS)
    lines = message.text.splitlines()

    assert len(lines) <= MAX_LINES + 4
    assert max(map(len, lines)) <= COLUMNS
    assert "  and 9 more" in lines
    assert "cause_9 0.90" in message.text
    assert len(message.subject) <= 140


def test_a_long_subject_ends_after_a_word_and_with_the_plan() -> None:
    """A phone shows two or three lines of it; the message has the rest."""
    series = f'produce.0@h|publish_latency_seconds{{topic="{"a topic " * 30}"}}'
    finding = dataclasses.replace(FINDING, series=series)

    message = compose(dataclasses.replace(CONTEXT, finding=finding), None, 0)

    what, _, plan = message.subject.rpartition(" - ")
    assert plan == "demo"
    assert len(message.subject) <= 140
    assert what.endswith((" ...", "(x15)"))


def test_the_window_of_a_drift_ends_where_it_could_be_detected() -> None:
    """It began an hour before: its first minutes show nothing."""
    drift = dataclasses.replace(FINDING, kind="drift", raised_k=4000)

    assert window_bounds(drift, is_resolved=False) == (3220, 4120)


def test_the_wait_of_an_unacknowledged_message_may_be_longer_than_measured() -> None:
    waiting = dataclasses.replace(
        FINDING, series="produce.0@h|publish_waiting_seconds", before=0.0, after=5.477
    )
    message = compose(dataclasses.replace(CONTEXT, finding=waiting, window=None), None, 7)

    assert (
        "wait of the oldest unacknowledged message 0 s -> 5.48 s and longer - " in message.subject
    )


def test_an_outage_is_reported_by_its_length_and_its_messages() -> None:
    outage = dataclasses.replace(
        FINDING,
        series="produce.0@h|acknowledgement_outage_seconds",
        kind="outage",
        before=0.0,
        after=5.0,
        causes=(),
        changes=(),
        failed_messages=10,
        late_messages=0,
        due_messages=900,
    )
    opened = dataclasses.replace(CONTEXT, finding=outage, window=None)
    over = dataclasses.replace(outage, state="gone", resolved_k=173, after=61.0)
    resolved = dataclasses.replace(opened, finding=over, kind="resolved")
    what = "nothing was acknowledged for"

    assert f"[soakd] cause unknown: {what} 5 s - " in compose(opened, None, 7).subject
    assert f"{what} 5 s; 10 of 900 messages of the run so far failed" in compose(
        opened, None, 7
    ).text.replace("\n          ", " ")
    assert f"resolved: {what} 61 s - " in compose(resolved, None, 7).subject


def test_messages_of_an_outage_that_came_late_are_said_to_be_later_than_the_plans_limit() -> None:
    outage = dataclasses.replace(
        FINDING,
        series="produce.0@h|acknowledgement_outage_seconds",
        kind="outage",
        before=0.0,
        after=16.0,
        state="gone",
        resolved_k=131,
        failed_messages=0,
        late_messages=1268,
        due_messages=24_600,
    )

    text = text_of(finding=outage, window=None, kind="resolved", late_seconds=10.0)

    assert text.startswith(
        "what      nothing was acknowledged for 16 s; 1,268 of 24,600 messages of the\n"
        "          run until then came more than 10 s late\n"
    )


OUTAGE_AGAIN = dataclasses.replace(
    FINDING,
    series="produce.0@h|acknowledgement_outage_seconds",
    kind="outage",
    before=0.0,
    after=16.0,
    causes=(Explanation("broker_down", 0.98, (), suspect="b3:9092"),),
    changes=(PUBLISH,),
    worst_k=112,
)
WITHIN_OUTAGE = dataclasses.replace(CHANGE, after=7.5)
SINCE_OUTAGE = dataclasses.replace(CHANGE, onset_k=167, raised_k=180)


def test_an_outage_that_is_open_again_because_latency_rose_says_so_first() -> None:
    """A broker that is back must not be announced as down again."""
    context = dataclasses.replace(
        CONTEXT,
        finding=OUTAGE_AGAIN,
        window=None,
        occurrence=2,
        changes=(WITHIN_OUTAGE, SINCE_OUTAGE),
    )

    latency = compose(context, None, 7)
    outage_again = compose(dataclasses.replace(context, changes=(WITHIN_OUTAGE,)), None, 7)

    assert latency.subject == (
        "[soakd] again: p99 publish 3 ms -> 40 ms (x13), after nothing was acknowledged for 16 s"
        " (broker down) - demo"
    )
    assert latency.text.startswith(
        "The finding was resolved and is open again.\n"
        "The outage is over; latency rose after it. Cause and evidence are of the\n"
        "outage.\n"
        "\n"
        "now       p99 publish latency 3 ms -> 40 ms (x13), since 14:16:07Z\n"
        "what      nothing was acknowledged for 16 s\n"
    )
    assert outage_again.subject.startswith("[soakd] again: broker down on b3:9092: nothing was ")
    assert "now  " not in outage_again.text


def test_a_late_message_of_a_rise_that_is_over_does_not_say_that_it_is_so_now() -> None:
    context = dataclasses.replace(
        CONTEXT,
        finding=dataclasses.replace(OUTAGE_AGAIN, state="gone", resolved_k=230),
        window=None,
        occurrence=2,
        changes=(SINCE_OUTAGE,),
    )

    message = compose(context, None, 7)

    assert message.subject.startswith("[soakd] again: resolved by now: p99 publish 3 ms -> 40 ms")
    assert "now  " not in message.text


def test_the_step_nearest_to_the_finding_is_shown_of_a_series_that_stepped_twice() -> None:
    before = dataclasses.replace(CHANGE, onset_k=70, after=0.009)
    message = compose(dataclasses.replace(CONTEXT, changes=(before, CHANGE)), None, 7)

    assert "3 ms -> 40 ms" in message.text


@pytest.mark.long
def test_the_window_has_the_gaps_and_deletions_of_the_journals(tmp_path: Path) -> None:
    shape = Shape(seconds=130, gaps=((CONSUMER, range(60, 64)),))
    folder = write_synthetic_run(tmp_path / "run", shape)

    window = read_window(folder.journal, P99, *window_bounds(FINDING, is_resolved=False))

    assert window is not None
    assert window.k.tolist() == [k for k in range(125) if not 60 <= k < 64]  # the rest is drain
    assert list(window.values) == ["0.5", "0.99", "0.999"]
    assert window.deletions_k == tuple(range(110, 130))
    assert window.level(112, 130) > 10 * float(np.median(window.headline_values[:80]))


def test_the_window_of_a_series_without_quantiles_is_that_series(tmp_path: Path) -> None:
    folder = write_synthetic_run(tmp_path / "run", Shape(seconds=60))

    window = read_window(folder.journal, f'{PROBE}|disk_write_await_seconds{{device="vda"}}', 0, 9)

    assert window is not None
    assert list(window.values) == [""]
    assert window.k.tolist() == list(range(10))


def test_an_unknown_source_is_a_typed_error_and_an_unknown_series_is_nothing(
    tmp_path: Path,
) -> None:
    folder = write_synthetic_run(tmp_path / "run", Shape(seconds=60))

    assert read_window(folder.journal, f"{PROBE}|no_such_metric", 0, 9) is None
    with pytest.raises(JournalError, match="nobody@host"):
        read_window(folder.journal, "nobody@host|x", 0, 9)


def test_the_window_of_a_long_finding_is_bounded() -> None:
    """A step of eight hours does not read eight hours of journal."""
    gone = dataclasses.replace(FINDING, state="gone", resolved_k=112 + 8 * 3600)

    first_k, last_k = window_bounds(gone, is_resolved=True)

    assert last_k - first_k <= 900
    assert first_k < 112 + 8 * 3600 < last_k


@pytest.mark.long
@pytest.mark.parametrize(
    "values",
    [np.where(K < 112, 0.004, 0.06), np.zeros(K.size), np.full(K.size, np.nan)],
    ids=["a step", "all zero", "nothing measured"],
)
def test_a_chart_is_drawn_of_any_values(values: NDArray[np.float64]) -> None:
    """At most some tens of kilobytes, also where a log scale has nothing to show."""
    png = draw_chart(FINDING, dataclasses.replace(WINDOW, values={"0.99": values}), START_WALL_NS)

    assert png.startswith(b"\x89PNG")
    assert len(png) < 100_000


def test_the_title_of_a_chart_says_what_of_which_broker_by_whom_and_when() -> None:
    series = P99.replace("{", '{leader="2",')
    finding = dataclasses.replace(FINDING, series=series)
    places = Places({"10.0.0.4:9092": "2"})

    assert chart_title(finding, WINDOW, START_WALL_NS, places) == (
        "p99 end-to-end latency (broker 2 at 10.0.0.4:9092)\n"
        "consume.0@host, 2026-09-21 14:13:32Z to 14:16:52Z"
    )
    assert chart_title(FINDING, WINDOW, START_WALL_NS).startswith("p99 end-to-end latency\n")


def test_a_title_of_long_names_has_two_lines_that_fit_and_shows_another_day() -> None:
    """Names come from clusters and hosts."""
    topic = "a b\n" * 90
    series = f'consume.0@{"h" * 300}|end_to_end_latency_seconds{{topic="{topic}"}}'
    finding = dataclasses.replace(FINDING, series=series)
    night = dataclasses.replace(WINDOW, k=np.arange(35_100, 35_300))

    lines = chart_title(finding, night, START_WALL_NS).split("\n")

    assert len(lines) == 2
    assert max(map(len, lines)) <= 66
    assert lines[1].endswith(", 2026-09-21 23:58:20Z to 2026-09-22 00:01:40Z")


def test_the_title_of_a_whole_run_says_of_whom_and_when() -> None:
    run = Overview(START_WALL_NS, 600, [0, 600, 1200], {}, [])

    assert overview_title(run) == (
        "p99 latency, the highest of all producers and consumers\n"
        "2026-09-21 14:13:20Z to 14:43:20Z, incidents shaded"
    )


@pytest.mark.long
def test_a_single_second_is_drawn() -> None:
    """Lines join neighbours only, so that every other second of a stall would not be visible."""
    alone = np.where((K > 112) & (K % 2 == 0), np.nan, 0.004)
    pictures = [
        draw_chart(FINDING, dataclasses.replace(WINDOW, values={"0.99": values}), START_WALL_NS)
        for values in (alone, np.where(K > 112, np.nan, 0.004))
    ]

    assert pictures[0] != pictures[1]


@pytest.mark.long
def test_a_title_is_not_a_formula() -> None:
    """Names of topics may hold what the drawing library takes for one."""
    finding = dataclasses.replace(FINDING, series='consume.0@host|x_seconds{leader="a$_$"}')

    assert draw_chart(finding, WINDOW, START_WALL_NS).startswith(b"\x89PNG")


def test_lines_break_where_nothing_was_measured() -> None:
    k, values = with_breaks(np.array([1, 2, 5, 6]), np.array([1.0, 2.0, 3.0, 4.0]))

    assert str(k.tolist()) == "[1.0, 2.0, nan, 5.0, 6.0]"
    assert str(values.tolist()) == "[1.0, 2.0, nan, 3.0, 4.0]"


def test_times_count_from_the_start_of_the_run() -> None:
    later = dataclasses.replace(CONTEXT, start_wall_ns=START_WALL_NS + 60 * SECOND_NS)

    assert (CONTEXT.moment(0), later.moment(0)) == ("14:13:20Z", "14:14:20Z")


def test_a_window_of_few_seconds_makes_a_message() -> None:
    few = Window(np.arange(110, 114), {"0.99": np.array([0.004, 0.004, 0.06, 0.06])}, "0.99", ())

    text = compose(dataclasses.replace(CONTEXT, window=few), None, 0).text

    assert ", log scale, 1 s a column\n  ▁▁██\n    ^ onset\n  14:15:10Z14:15:13Z\n" in text


MISSED = """\
what      objective missed: p99 publish <= 50ms for 99% of minutes: 22 of
          2,160 minutes were bad, 21.6 allowed
since     2026-09-21 14:15:20Z (between 14:15:20Z and 14:16:19Z)
budget    exceeded by 0.4 minutes
source    producers

cause     retention_cliff (score 0.93, almost certain)
  - The first deletion came 2 s before the step.
  - Latency peaks in 121 of the 127 seconds with a deletion; in as many
    seconds taken at random it does in 31.

other possible causes
  - slow_fsync 0.31: fsync p99 of /data rose 1.2 times.

report    on h1: soak report /runs/r1
finding   run1-180
"""


def test_a_missed_objective_reads_like_this() -> None:
    """The subject says the cause, the objective and the bad minutes of all."""
    missed = dataclasses.replace(
        FINDING,
        key="run1-180",
        raised_k=180,
        onset_k=120,
        interval=(120, 179),
        series=breach_series(parse_objective("p99 publish <= 50ms for 99% of minutes")),
        kind="objective",
        before=21.6,
        after=22.0,
        changes=(),
    )

    message = compose(dataclasses.replace(CONTEXT, finding=missed, window=None), None, 0)

    assert message.subject == (
        "[soakd] retention cliff: objective missed: p99 publish <= 50ms for 99% of minutes: "
        "22 of 2,160 minutes were bad, 21.6 allowed - demo"
    )
    assert message.text == MISSED


# --- what the reader must not have to guess


def text_of(**fields: object) -> str:
    return compose(dataclasses.replace(CONTEXT, **fields), None, 7).text  # type: ignore[arg-type]  # of a context


def test_a_mail_of_a_lab_says_so_in_its_second_line_and_in_its_subject() -> None:
    """Its faults may be those of a drill."""
    message = compose(dataclasses.replace(CONTEXT, is_lab=True), None, 7)

    assert message.subject.startswith("[soakd lab] retention cliff: ")
    assert message.text.splitlines()[1] == (
        "lab       soakd started this cluster: faults may be those of a drill or trial"
    )


def test_a_mail_names_the_cluster() -> None:
    text = text_of(cluster="kafka b1:9092 and 2 more")

    assert "Z)\ncluster   kafka b1:9092 and 2 more\nsource " in text


def test_a_mail_that_is_composed_later_than_its_date_says_when() -> None:
    """The evidence is of that time."""
    context = dataclasses.replace(CONTEXT, composed_wall_ns=START_WALL_NS + 200 * SECOND_NS)

    later = compose(context, None, START_WALL_NS + 130 * SECOND_NS).text
    at_once = compose(context, None, START_WALL_NS + 199 * SECOND_NS).text

    assert later.startswith(
        "Sent late: cause and evidence of 14:16:40Z, load and table of 14:15:30Z.\n\nwhat "
    )
    assert at_once == CONFIRMED


@pytest.mark.parametrize(
    ("occurrence", "subject", "opening"),
    [
        (1, "[soakd] resolved by now: retention cliff: p99 end-to-end 4.1", ""),
        (
            2,
            "[soakd] again: resolved by now: retention cliff: p99 end-to-end 4.1",
            "The finding was resolved and came back.\n",
        ),
    ],
)
def test_a_late_mail_says_in_its_subject_and_its_badge_that_it_is_resolved(
    occurrence: int, subject: str, opening: str
) -> None:
    gone = dataclasses.replace(FINDING, state="gone", resolved_k=130)

    late = compose(dataclasses.replace(CONTEXT, finding=gone, occurrence=occurrence), None, 0)

    assert late.subject.startswith(subject)
    assert late.text.startswith(f"{opening}This is resolved by now, see the next message.\n\n")
    assert ">Resolved by now</span>" in late.html


def test_the_column_after_the_end_is_of_what_there_is_by_then() -> None:
    """Of 10 s to half a minute, not of a whole one."""
    size = IncidentSize({"p99": Level(0.004, 0.06, 0.005)}, 0.0075, 12, 68, "publish", 13)
    gone = dataclasses.replace(FINDING, state="gone", resolved_k=180)

    text = text_of(size=size, kind="resolved", finding=gone)

    assert "minute before   worst second          after\n" in text


def test_an_onset_that_is_hardly_known_is_a_span() -> None:
    text = text_of(finding=dataclasses.replace(FINDING, interval=(20, 216)))

    assert (
        "since     some time between 14:13:40Z and 14:16:56Z, most likely 2026-09-21\n"
        "          14:15:12Z\n"
    ) in text


def test_what_an_unknown_cause_is_not_is_called_ruled_out() -> None:
    against = (Evidence("Drive GC is ruled out: Writes did not become slower."),)
    unknown = Explanation("unknown", 0.0, (Evidence("CPU went up."),), against)
    message = compose(
        dataclasses.replace(CONTEXT, finding=dataclasses.replace(FINDING, causes=(unknown,))),
        None,
        7,
    )

    assert message.subject.startswith("[soakd] cause unknown: p99 end-to-end")
    assert (
        "cause     unknown; other changes:\n  - CPU went up.\n\n"
        "ruled out\n  - Drive GC is ruled out: Writes did not become slower.\n"
    ) in message.text


LED = 'consume.0@host|end_to_end_latency_seconds{{leader="{}",quantile="0.99"}}'


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ({1: 0.05, 2: 0.06}, "p99 end-to-end latency (all leaders) 4.1 ms"),
        ({1: 0.05, 2: 0.006}, "p99 end-to-end latency (leaders 1, 3) 4.1 ms"),
        ({1: 0.005, 2: 0.006}, "p99 end-to-end latency (broker 3 at b3:9092) 4.1 ms"),
    ],
)
def test_a_leader_is_named_alone_where_the_others_did_not_rise_alike(
    after: dict[int, float], expected: str
) -> None:
    """Alike is half of the step, on logarithms."""
    others = [
        dataclasses.replace(CHANGE, series=LED.format(one), before=0.004, after=level)
        for one, level in after.items()
    ]
    finding = dataclasses.replace(
        FINDING, series=LED.format(3), changes=tuple(one.series for one in others)
    )
    places = Places({f"b{one}:9092": str(one) for one in (1, 2, 3)})

    text = text_of(finding=finding, changes=others, places=places)

    assert text.startswith(f"what      {expected}")


def test_a_suspect_that_only_its_own_host_reaches_may_be_a_relay() -> None:
    cause = dataclasses.replace(CAUSES[0], suspect="127.0.0.1:9092")

    text = text_of(finding=dataclasses.replace(FINDING, causes=(cause,)))

    assert (
        "suspect   127.0.0.1:9092 (an address of host itself: a broker, a relay or a\n"
        "          tunnel)\n"
    ) in text


def test_a_long_path_does_not_cost_a_number() -> None:
    """Points are left out before one is cut."""
    long = f"disk write await (/data/{'d' * 70}) of probe@host went from 458 us to 227 ms, at the onset."
    cause = Explanation("drive_gc", 0.9, (Evidence(long),) * 6)
    series = tuple(f"probe@host|metric_{at}_seconds" for at in range(9))
    size = IncidentSize(dict.fromkeys(("p50", "p99", "max"), Level(1, 2, 3)), 1, 9, 60)

    text = text_of(
        finding=dataclasses.replace(FINDING, causes=(cause,), changes=series),
        size=size,
        load=LOAD,
        is_lab=True,
        advice="see the drive",
        runbook_page="docs/reference/causes.md",
    )

    assert text.count("\n") <= MAX_LINES
    assert "went from 458 us to 227 ms, at the onset." in " ".join(text.split())
    assert "..." not in text.partition("\ncause ")[2].partition("\n\n")[0]


def test_the_table_leaves_out_a_quantile_that_equals_the_one_before() -> None:
    levels = {"p99": Level(0.004, 0.06, np.nan), "p99.9": Level(0.004, 0.06, np.nan)}
    size = IncidentSize(levels, 0.0075, 12, 68, "publish", 13)

    text = text_of(size=size)

    assert (
        "             minute before   worst second\n"
        "publish p99           4 ms          60 ms\n"
        "12 of 13 messages in the 1 min 8 s from the onset on took longer than 7.5 ms,\n"
        "the level before plus the smallest step; those that still wait are not counted\n"
    ) in text


def test_brokers_and_drives_are_named_before_soakd_itself_and_evidence_is_not_repeated() -> None:
    own, of_drive, of_client = (
        "probe@b1|host_daemon_cpu_cores",
        "probe@b1|disk_write_await_seconds",
        PUBLISH,
    )
    cause = Explanation("drive_gc", 0.9, (Evidence("It rose.", {"series": "probe@b1|x_seconds"}),))
    finding = dataclasses.replace(
        FINDING, causes=(cause,), changes=(own, of_client, of_drive, "probe@b1|x_seconds")
    )

    listed = text_of(finding=finding).partition("also changed\n")[2].splitlines()[:4]

    assert [line.split("  ")[1] for line in listed[:3]] == [
        "disk write await of probe@b1",
        "p99 publish latency of produce.0@host",
        "host daemon CPU of probe@b1",
    ]
    assert listed[3] == ""


def test_messages_that_came_through_are_named_first_and_polls_of_soakd_itself_not_at_all() -> None:
    """Hundredths of a core of its daemons are noise."""
    received, of_drive, own, poll = (
        "consume.1@host|received_messages",
        "probe@b1|disk_write_await_seconds",
        'probe@b1|host_daemon_cpu_cores{daemon="consume.0"}',
        "probe@b1|broker_log_poll_age_seconds",
    )
    changes = tuple(
        dataclasses.replace(CHANGE, series=one, before=before, after=after)
        for one, before, after in (
            (poll, 0.2, 0.1),
            (own, 0.0, 0.02),
            (of_drive, 0.001, 0.2),
            (received, 200.0, 0.0),
        )
    )
    finding = dataclasses.replace(FINDING, changes=tuple(one.series for one in changes))

    listed = text_of(finding=finding, changes=changes).partition("also changed\n")[2]

    assert listed.startswith(
        "  received messages of consume.1@host  200 messages -> 0 messages\n"
        "  disk write await of probe@b1  1 ms -> 200 ms (x200)\n\n"
    )


def test_a_name_that_is_too_long_loses_the_middle_of_its_topic_and_no_metric() -> None:
    series = 'probe@vm|retention_deleted_messages{topic="soak-20261130T011914Z-0932-of-orders"}'
    finding = dataclasses.replace(FINDING, changes=(series,))
    change = dataclasses.replace(CHANGE, series=series, before=0.0, after=1000.0)

    listed = text_of(finding=finding, changes=(change,)).partition("also changed\n")[2]

    (line, *_) = listed.splitlines()
    assert line == ("  retention deleted messages (...) of probe@vm  0 messages -> 1,000 messages")


def test_a_name_that_is_a_little_too_long_keeps_the_ends_of_its_topic() -> None:
    series = 'probe@vm|retention_deleted_bytes{topic="soak-20261130T011914Z-0932"}'
    finding = dataclasses.replace(FINDING, changes=(series,))
    change = dataclasses.replace(CHANGE, series=series, before=0.0, after=2.0**20)

    listed = text_of(finding=finding, changes=(change,)).partition("also changed\n")[2]

    assert listed.startswith(
        "  retention deleted bytes (soak-20...0T011914Z-0932) of probe@vm  0 B -> 1 MiB\n"
    )
