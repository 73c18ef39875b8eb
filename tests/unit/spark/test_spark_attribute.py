"""From change points to findings, on journals of a known run and without Spark."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from detectors.incidents import Incident, group
from detectors.objectives import breach_series
from soak.core.errors import FindingsError
from soak.core.model import Change, Explanation, Finding
from soak.core.plan import text
from soak.core.plan.objectives import parse_objective
from soak.core.plan.phases import decision_line
from soak.store.findings.store import FindingsStore
from soak.store.journal.history import MAX_WINDOW_SECONDS
from soak.store.run_folder import RunFolder, read_phases
from spark.streaming.attribution import (
    AFTER_SECONDS,
    PATIENCE_SECONDS,
    SETTLE_SECONDS,
    SOON_SECONDS,
    Attribution,
    nearby_of,
    seconds_around,
)
from tests.support.fakes import FakeClock
from tests.support.spark.growing_run import advance, begun, grow
from tests.support.spark.synthetic_run import CONSUMER, PROBE, PRODUCER, Shape, write_synthetic_run

pytestmark = pytest.mark.long

RUN = "synthetic-1"
ONSET = 202
SINKS = "{mail: {to: [oncall@example.org]}}"
STEP = Change(
    series=f'{PRODUCER}|publish_latency_seconds{{quantile="0.99"}}',
    raised_k=206,
    onset_k=ONSET,
    interval=(201, 203),
    before=0.0026,
    after=0.038,
    state="confirmed",
    confidence=0.99,
)
LATER = replace(
    STEP, series=f'{CONSUMER}|end_to_end_latency_seconds{{quantile="0.99"}}', raised_k=209
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    shape = Shape(seconds=600, deletions_k=200, fault_k=ONSET, sinks=SINKS, is_ended=False)
    return write_synthetic_run(tmp_path_factory.mktemp("whole") / "r", shape)


def attribution(folder: RunFolder) -> Attribution:
    plan = text.load(folder.plan.read_text(), "plan.yaml").plan
    return Attribution(folder, RUN, plan, FakeClock())


def findings(folder: RunFolder) -> list[Finding]:
    with FindingsStore(folder.findings) as store:
        return store.findings(RUN)


def messages(folder: RunFolder) -> list[tuple[str, str]]:
    with FindingsStore(folder.findings) as store:
        return [(row.sink, row.kind) for row in store.notifications(RUN)]


def test_a_cause_waits_until_all_sources_have_passed_the_onset(
    whole: RunFolder, tmp_path: Path
) -> None:
    """Before, the finding is confirmed, has no cause, and nothing is sent."""
    folder = begun(whole, tmp_path / "r")
    grow(whole, folder, ONSET + SOON_SECONDS)
    judge = attribution(folder)
    advance(judge, [STEP])
    early = (findings(folder)[0].causes, messages(folder))
    grow(whole, folder, ONSET + SOON_SECONDS + 1)
    advance(judge, [])

    assert early == ((), [])
    assert findings(folder)[0].cause == "retention_cliff"
    assert messages(folder) == [("mail", "opened")]


def test_that_no_cause_is_known_is_reported_later(tmp_path: Path) -> None:
    """A channel that moves after the latency may still name one."""
    shape = Shape(seconds=600, deletions_k=None, fault_k=ONSET, sinks=SINKS, is_ended=False)
    blameless = write_synthetic_run(tmp_path / "blameless", shape)
    folder = begun(blameless, tmp_path / "r")
    judge = attribution(folder)
    sent = []
    for end in (ONSET + SOON_SECONDS + 1, 203 + SETTLE_SECONDS, 204 + SETTLE_SECONDS):
        grow(blameless, folder, end)
        advance(judge, [STEP])
        sent.append(messages(folder))

    assert sent == [[], [], [("mail", "opened")]]
    assert findings(folder)[0].cause == "unknown"


@pytest.mark.parametrize(
    ("lifted_k", "causes", "sent"),
    [
        (228, ["client"] * 3, []),
        (None, ["client", "unknown", "unknown"], [("mail", "opened")]),
    ],
    ids=["over with the restart", "lasts"],
)
def test_a_step_as_our_detector_starts_is_ours_until_it_outlasts_that(
    tmp_path: Path, lifted_k: int | None, causes: list[str], sent: list[tuple[str, str]]
) -> None:
    """People hear of one that lasts as soon as the detector is idle again, not minutes later."""
    shape = Shape(
        seconds=600,
        deletions_k=None,
        fault_k=ONSET,
        lifted_k=lifted_k,
        busy=range(204, 228),
        sinks=SINKS,
        is_ended=False,
    )
    restarted = write_synthetic_run(tmp_path / "restarted", shape)
    folder = begun(restarted, tmp_path / "r")
    judge = attribution(folder)
    found = []
    for end in (ONSET + 21, 240, ONSET + AFTER_SECONDS + 1):
        grow(restarted, folder, end)
        advance(judge, [STEP])
        found.append(findings(folder)[0].cause)
        if end == 240:
            soon = messages(folder)

    assert found == causes
    assert soon == messages(folder) == sent


def test_what_was_the_client_s_does_not_hide_what_the_cluster_does_next(tmp_path: Path) -> None:
    """Within a minute both are one incident; its worst change is judged by itself, as soon as any other."""
    shape = Shape(
        seconds=600,
        deletions_k=200,
        fault_k=152,
        lifted_k=176,
        busy=range(154, 176),
        sinks=SINKS,
        is_ended=False,
    )
    whole = write_synthetic_run(tmp_path / "whole", shape)
    ours = replace(LATER, onset_k=152, interval=(152, 152), raised_k=156, after=0.008)
    folder = begun(whole, tmp_path / "r")
    judge = attribution(folder)
    found = []
    for end, change in (
        (152 + 21, ours),
        (180, replace(ours, state="gone", resolved_k=176)),
        (ONSET + 6, STEP),
        (ONSET + SOON_SECONDS + 1, STEP),
    ):
        grow(whole, folder, end)
        advance(judge, [change])
        (finding,) = findings(folder)
        found.append((finding.cause, finding.is_about_cluster, messages(folder)))

    assert found == [
        ("client", False, []),
        ("client", False, []),
        ("unknown", True, []),
        ("retention_cliff", True, [("mail", "opened")]),
    ]


def test_a_small_change_without_a_cause_does_not_hide_that_of_a_large_one_soon_after(
    whole: RunFolder, tmp_path: Path
) -> None:
    """They are one incident, and the deletions began with the large one."""
    small = replace(
        LATER,
        series=LATER.series.replace("0.99", "0.5"),
        onset_k=172,
        interval=(172, 172),
        raised_k=184,
        before=0.001,
        after=0.0016,
    )
    folder = begun(whole, tmp_path / "r")
    judge = attribution(folder)
    found = []
    for end, change in ((173 + SETTLE_SECONDS, small), (ONSET + SOON_SECONDS + 1, STEP)):
        grow(whole, folder, end)
        advance(judge, [change])
        (finding,) = findings(folder)
        found.append((finding.cause, finding.worst_k))

    assert found == [("unknown", 172), ("retention_cliff", ONSET)]


@pytest.mark.parametrize(
    ("after", "second", "causes"),
    [
        pytest.param(0.038, 0.9, ["broker_cpu", "broker_cpu", "network"], id="far worse"),
        pytest.param(0.038, 0.5, ["broker_cpu", "broker_cpu", "broker_cpu"], id="not sure"),
        pytest.param(0.005, 0.9, ["broker_cpu", "broker_cpu", "broker_cpu"], id="as bad"),
    ],
)
def test_what_is_far_worse_than_the_beginning_of_an_incident_is_judged_by_itself(
    whole: RunFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    after: float,
    second: float,
    causes: list[str],
) -> None:
    """It joins half a minute later; the cause of the beginning stays until another is sure."""
    small = replace(STEP, onset_k=172, interval=(172, 172), raised_k=184, after=0.0043)
    large = replace(LATER, after=after)

    def attribute(incident: Incident, *_: object, **__: object) -> list[Explanation]:
        is_small = incident.headline.onset_k == 172
        return [
            Explanation("broker_cpu", 0.9, ()) if is_small else Explanation("network", second, ())
        ]

    monkeypatch.setattr("spark.streaming.attribution.attribute", attribute)
    folder = begun(whole, tmp_path / "r")
    judge = attribution(folder)
    found = []
    for end, change in (
        (172 + SOON_SECONDS + 1, small),
        (ONSET + SETTLE_SECONDS, large),
        (ONSET + SETTLE_SECONDS + 1, large),
    ):
        grow(whole, folder, end)
        advance(judge, [change])
        found.append(findings(folder)[0].cause)

    assert found == causes


def test_a_cause_that_stays_says_that_it_is_of_an_earlier_change_than_the_worst(
    whole: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change that is the worst one by now came half a minute later, and is not judged by itself."""
    small = replace(STEP, onset_k=172, interval=(172, 172), raised_k=184, after=0.0043)
    monkeypatch.setattr(
        "spark.streaming.attribution.attribute",
        lambda *_, **__: [Explanation("broker_cpu", 0.9, ())],
    )
    folder = begun(whole, tmp_path / "r")
    judge = attribution(folder)
    said = []
    for end, change in ((172 + SOON_SECONDS + 1, small), (ONSET + 8, replace(LATER, after=0.005))):
        grow(whole, folder, end)
        advance(judge, [change])
        (finding,) = findings(folder)
        said.append((finding.worst_k, [one.text for one in finding.causes[0].evidence]))

    assert said == [
        (172, []),
        (ONSET, ["This is of another change, 30 s before the worst change."]),
    ]


def test_a_silent_source_is_not_waited_for_without_end(whole: RunFolder, tmp_path: Path) -> None:
    """The consumer died at the onset."""
    folder = begun(whole, tmp_path / "r")
    grow(whole, folder, ONSET + SOON_SECONDS + PATIENCE_SECONDS + 1)
    cut = begun(whole, tmp_path / "cut")
    grow(whole, cut, ONSET)
    (cut.journal / CONSUMER / "000000.jsonl").replace(folder.journal / CONSUMER / "000000.jsonl")
    advance(attribution(folder), [STEP])

    assert findings(folder)[0].cause == "retention_cliff"


def test_a_host_whose_clock_is_ahead_hurries_nobody(whole: RunFolder, tmp_path: Path) -> None:
    """By minutes: what it sends is no sign that the others have said all that they had to."""
    folder = begun(whole, tmp_path / "r")
    grow(whole, folder, ONSET + 10)
    shutil.copytree(whole.journal / PROBE, folder.journal / "probe@b1")
    judge = attribution(folder)
    advance(judge, [STEP])
    (early,) = findings(folder)
    grow(whole, folder, ONSET + SOON_SECONDS + 1)
    advance(judge, [])

    assert (early.causes, early.is_settled) == ((), False)
    assert findings(folder)[0].cause == "retention_cliff"
    assert messages(folder) == [("mail", "opened")]


def test_of_a_host_that_has_fallen_silent_nothing_is_waited_for(
    whole: RunFolder, tmp_path: Path
) -> None:
    """Others go on, and what they say is all that there will be."""
    folder, clock = begun(whole, tmp_path / "r"), FakeClock()
    grow(whole, folder, ONSET + 10)
    shutil.copytree(whole.journal / PROBE, folder.journal / "probe@b1")
    judge = replace(attribution(folder), clock=clock)
    advance(judge, [STEP])
    clock.advance(PATIENCE_SECONDS + 1)
    advance(judge, [])

    assert findings(folder)[0].is_settled


def test_a_run_that_ends_early_is_judged_by_what_is_known(whole: RunFolder, tmp_path: Path) -> None:
    """Nothing more will come."""
    folder = begun(whole, tmp_path / "r")
    grow(whole, folder, 225)
    judge = attribution(folder)
    advance(judge, [STEP])
    judge.conclude()

    assert findings(folder)[0].cause == "retention_cliff"
    assert messages(folder) == [("mail", "opened")]


def test_a_batch_delivered_again_changes_nothing(whole: RunFolder, tmp_path: Path) -> None:
    """Nor does it to a process that starts anew: one finding, one message."""
    folder = begun(whole, tmp_path / "r")
    grow(whole, folder, 300)
    advance(attribution(folder), [STEP, LATER])
    once = findings(folder)
    advance(attribution(folder), [STEP, LATER])
    advance(attribution(folder), [])

    assert findings(folder) == once
    assert messages(folder) == [("mail", "opened")]


def test_an_earlier_raise_that_comes_later_keeps_the_key(whole: RunFolder, tmp_path: Path) -> None:
    """A source that lagged behind gives the first raise of the incident in a later batch."""
    folder = begun(whole, tmp_path / "r")
    grow(whole, folder, 300)
    judge = attribution(folder)
    advance(judge, [LATER])
    advance(judge, [STEP])

    assert [finding.key for finding in findings(folder)] == [f"{RUN}-209"]
    assert len(messages(folder)) == 1


def test_a_step_that_goes_away_updates_its_finding(whole: RunFolder, tmp_path: Path) -> None:
    """Same key, same causes, a second message."""
    folder = begun(whole, tmp_path / "r")
    grow(whole, folder, 300)
    judge = attribution(folder)
    advance(judge, [STEP])
    causes = findings(folder)[0].causes
    grow(whole, folder, 400)
    advance(judge, [replace(STEP, state="gone", resolved_k=320)])
    (finding,) = findings(folder)

    assert (finding.state, finding.resolved_k, finding.causes) == ("gone", 320, causes)
    assert messages(folder) == [("mail", "opened"), ("mail", "resolved")]


def test_the_last_word_on_a_cause_looks_at_five_minutes(whole: RunFolder, tmp_path: Path) -> None:
    """The first is said early, with what there was."""
    folder = begun(whole, tmp_path / "r")
    grow(whole, folder, 240)
    judge = attribution(folder)
    advance(judge, [STEP])
    first = findings(folder)[0].causes
    grow(whole, folder, ONSET + AFTER_SECONDS + 1)
    advance(judge, [])
    last = findings(folder)[0].causes

    assert first[0].evidence[-1].numbers["seconds"] == 240 - ONSET
    assert last[0].evidence[-1].numbers["seconds"] == AFTER_SECONDS + 1


def test_a_cause_that_becomes_known_later_is_sent_to_those_who_got_the_first(
    whole: RunFolder, tmp_path: Path
) -> None:
    """The deletions were seen late: their host was away at first. It is not waited for until all is seen."""
    folder = begun(whole, tmp_path / "r")
    grow(whole, folder, 240)
    (folder.journal / PROBE).rename(tmp_path / "away")
    advance(attribution(folder), [STEP])
    first = findings(folder)[0]
    with FindingsStore(folder.findings) as store:
        (row,) = store.due(2**62)
        store.begin_try(row, 0, 0)
        store.mark_sent(row, 0)
    (tmp_path / "away").rename(folder.journal / PROBE)
    advance(attribution(folder), [])
    between = findings(folder)[0]
    grow(whole, folder, ONSET + AFTER_SECONDS + 1)
    advance(attribution(folder), [])
    last = findings(folder)[0]

    assert (first.cause, first.is_settled) == ("unknown", False)
    assert between == first, "a process that starts anew says no word between the two"
    assert (last.cause, last.is_settled) == ("retention_cliff", True)
    assert messages(folder) == [("mail", "opened"), ("mail", "named")]


def test_a_last_word_is_said_once(whole: RunFolder, tmp_path: Path) -> None:
    """A process that starts anew has it from the file, whatever the journals have become."""
    folder = begun(whole, tmp_path / "r")
    grow(whole, folder, ONSET + AFTER_SECONDS + 1)
    advance(attribution(folder), [STEP])
    said = findings(folder)
    (folder.journal / PROBE).rename(tmp_path / "away")
    advance(attribution(folder), [])

    assert said[0].is_settled
    assert findings(folder) == said


def test_a_pause_has_no_last_word(whole: RunFolder, tmp_path: Path) -> None:
    """Who goes on sees more; the end of the run is the end of it."""
    folder = begun(whole, tmp_path / "r")
    grow(whole, folder, 240)
    judge = attribution(folder)
    advance(judge, [STEP])
    judge.conclude()
    paused = findings(folder)[0].is_settled
    folder.phases.write_text(folder.phases.read_text() + decision_line("end", 240))
    attribution(folder).conclude()

    assert (paused, findings(folder)[0].is_settled) == (False, True)


def test_a_refined_onset_is_looked_at_anew(whole: RunFolder, tmp_path: Path) -> None:
    """What was seen around another second is not the last word on this one."""
    folder = begun(whole, tmp_path / "r")
    grow(whole, folder, ONSET + AFTER_SECONDS + 1)
    judge = attribution(folder)
    advance(judge, [STEP])
    advance(judge, [replace(STEP, onset_k=ONSET + 4, interval=(204, 208))])
    moved = findings(folder)[0].is_settled
    grow(whole, folder, ONSET + AFTER_SECONDS + 5)
    advance(judge, [])

    assert (moved, findings(folder)[0].is_settled) == (False, True)


def test_a_fall_in_the_second_of_a_rise_is_no_finding(whole: RunFolder, tmp_path: Path) -> None:
    """Nor does it take the rise away."""
    folder = begun(whole, tmp_path / "r")
    grow(whole, folder, 300)
    fall = replace(LATER, raised_k=STEP.raised_k, before=0.038, after=0.0026)
    advance(attribution(folder), [STEP, fall])
    advance(attribution(folder), [])
    (found,) = findings(folder)

    assert (found.key, found.series, found.state) == (f"{RUN}-206", STEP.series, "confirmed")
    assert found.is_about_cluster
    assert messages(folder) == [("mail", "opened")]


def test_a_refined_onset_makes_no_second_finding(whole: RunFolder, tmp_path: Path) -> None:
    """Both were warned of together; one is dated 12 s later when it is confirmed."""
    folder = begun(whole, tmp_path / "r")
    grow(whole, folder, 300)
    judge = attribution(folder)
    advance(judge, [replace(STEP, state="warning"), replace(LATER, state="warning")])
    advance(judge, [replace(STEP, onset_k=214, interval=(213, 215)), LATER])

    assert [finding.key for finding in findings(folder)] == [f"{RUN}-206"]
    assert messages(folder) == [("mail", "opened")]
    advance(judge, [replace(c, state="gone", resolved_k=k) for c, k in ((STEP, 280), (LATER, 285))])
    assert [(finding.state, finding.resolved_k) for finding in findings(folder)] == [("gone", 285)]


def test_a_withdrawn_warning_is_no_finding(whole: RunFolder, tmp_path: Path) -> None:
    """It was one while it might have come true; nothing was sent."""
    folder = begun(whole, tmp_path / "r")
    grow(whole, folder, 300)
    judge = attribution(folder)
    advance(judge, [replace(STEP, state="warning")])
    warned = [finding.state for finding in findings(folder)]
    advance(judge, [replace(STEP, state="withdrawn")])

    assert (warned, findings(folder), messages(folder)) == (["warning"], [], [])


def test_what_was_gone_is_back_while_another_of_it_is_up(whole: RunFolder, tmp_path: Path) -> None:
    """p99 went away, then p50 of the same onset was confirmed: no message says that it is over."""
    folder = begun(whole, tmp_path / "r")
    grow(whole, folder, 300)
    judge = attribution(folder)
    advance(judge, [STEP, replace(STEP, state="gone", resolved_k=250)])
    advance(judge, [replace(LATER, raised_k=255)])

    assert [(finding.state, finding.resolved_k) for finding in findings(folder)] == [
        ("confirmed", None)
    ]
    assert messages(folder) == [("mail", "opened")]


def test_other_channels_alone_are_no_finding(whole: RunFolder, tmp_path: Path) -> None:
    """Deletions without a step of latency are the broker's business."""
    folder = begun(whole, tmp_path / "r")
    grow(whole, folder, 300)
    name = 'probe@host|retention_deletions{topic="soak-synthetic-1"}'
    advance(attribution(folder), [replace(STEP, series=name)])

    assert findings(folder) == []


def test_causes_see_whose_record_has_an_event(whole: RunFolder) -> None:
    window = attribution(whole).history.window(0, 300)
    found = nearby_of(window, (), read_phases(whole.phases), {}, ())

    assert {one.source for one in found.events if one.event.kind == "retention_deletion"} == {PROBE}


def test_an_onset_anywhere_in_hours_fits_into_a_window() -> None:
    """A consumer that caught up for hours is not trusted meanwhile: the step lies before or after."""
    step = replace(STEP, raised_k=20_040, onset_k=20_000, interval=(5_000, 20_010))
    (incident,) = group([step])
    k0, k1 = seconds_around(incident.headline, 40_000)

    assert (k1, k1 - k0) == (20_000 + AFTER_SECONDS + 1, MAX_WINDOW_SECONDS)


BREACH = Change(
    series=breach_series(parse_objective("p99 publish <= 10ms for 90% of minutes")),
    raised_k=300,
    onset_k=240,
    interval=(240, 299),
    before=0.5,
    after=1.0,
    state="confirmed",
    confidence=1.0,
    kind="objective",
)


def test_a_missed_objective_is_sent_with_the_cause_of_the_incident_before_it(
    whole: RunFolder, tmp_path: Path
) -> None:
    folder = begun(whole, tmp_path / "r")
    grow(whole, folder, 310)
    judge = attribution(folder)
    advance(judge, [STEP, BREACH])

    step, missed = findings(folder)
    assert (missed.key, missed.kind, missed.is_about_cluster) == (f"{RUN}-300", "objective", True)
    assert missed.cause == step.cause == "retention_cliff"
    assert missed.causes[0].evidence[0].text.startswith("Before the budget was spent, this lasted")
    assert messages(folder) == [("mail", "opened")] * 2


def test_a_missed_objective_without_an_incident_is_sent_after_a_minute(
    whole: RunFolder, tmp_path: Path
) -> None:
    """An incident that explains it may be found a little later."""
    folder = begun(whole, tmp_path / "r")
    grow(whole, folder, 310)
    judge = attribution(folder)
    advance(judge, [BREACH])
    early = messages(folder)
    grow(whole, folder, 361)
    advance(judge, [])

    (missed,) = findings(folder)
    assert early == []
    assert messages(folder) == [("mail", "opened")]
    assert (missed.cause, missed.is_settled) == ("unknown", False)


def test_further_bad_minutes_are_the_same_finding_and_no_further_mail(
    whole: RunFolder, tmp_path: Path
) -> None:
    folder = begun(whole, tmp_path / "r")
    grow(whole, folder, 310)
    judge = attribution(folder)
    advance(judge, [STEP, BREACH])
    grow(whole, folder, 370)
    advance(judge, [replace(BREACH, after=2.0)])

    assert [(one.key, one.after) for one in findings(folder)][1] == (f"{RUN}-300", 2.0)
    assert messages(folder) == [("mail", "opened")] * 2


def dipped(onset_k: int, before: float, after: float, **changes: object) -> Change:
    """Return a confirmed step of the publish latency, raised four seconds after its onset."""
    values: dict[str, object] = {
        "raised_k": onset_k + 4,
        "onset_k": onset_k,
        "interval": (onset_k - 1, onset_k + 1),
        "before": before,
        "after": after,
    }
    return replace(STEP, **{**values, **changes})  # type: ignore[arg-type]  # fields of a change


@pytest.mark.parametrize(
    ("changes", "counted"),
    [
        ([dipped(100, 0.010, 0.004), dipped(200, 0.004, 0.011)], []),
        ([dipped(100, 0.010, 0.004), dipped(200, 0.004, 0.040)], [200]),
        ([dipped(100, 0.010, 0.004), dipped(800, 0.004, 0.011)], [800]),
        (
            [
                dipped(60, 0.004, 0.010, state="gone", resolved_k=130),
                dipped(100, 0.010, 0.004),
                dipped(200, 0.004, 0.011),
            ],
            [60, 200],
        ),
    ],
    ids=["a dip", "beyond it", "after ten minutes", "a fault that comes again"],
)
def test_the_end_of_a_dip_is_no_regression(
    changes: list[Change], counted: list[int], tmp_path: Path
) -> None:
    shape = Shape(seconds=40, warm_up=10, sinks=SINKS, is_ended=False)
    folder = write_synthetic_run(tmp_path / "r", shape)
    judge = attribution(folder)
    advance(judge, changes)
    judge.conclude()

    assert [one.onset_k for one in findings(folder) if one.is_about_cluster] == counted
    assert len(findings(folder)) == len(counted)


def test_a_judgement_that_failed_is_made_up_for(whole: RunFolder, tmp_path: Path) -> None:
    """Nothing that was stored is forgotten, although no further change comes."""
    folder = begun(whole, tmp_path / "r")
    grow(whole, folder, ONSET + SOON_SECONDS + 1)
    judge = attribution(folder)
    judge.record([replace(STEP, discovered_k=206)], judge.history.latest())
    folder.findings.mkdir()
    with pytest.raises(FindingsError):
        judge.judge()
    folder.findings.rmdir()
    while judge.judge():
        pass

    assert findings(folder)[0].cause == "retention_cliff"


def test_changes_that_a_dead_process_stored_are_judged_by_the_next(
    whole: RunFolder, tmp_path: Path
) -> None:
    """It died between the batch and the look for its cause."""
    folder = begun(whole, tmp_path / "r")
    grow(whole, folder, ONSET + SOON_SECONDS + 1)
    attribution(folder).record([replace(STEP, discovered_k=206)], {})
    advance(attribution(folder), [])

    assert findings(folder)[0].cause == "retention_cliff"
