"""The objectives of a plan in the report: a table whether they are kept or not, and breaches as findings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from detectors.objectives import breach_series
from soak.brokers.kafka.config import Config
from soak.core.model import Evidence, Explanation, Finding
from soak.core.plan.objectives import parse_objective
from soak.store.run_folder import RunFolder
from spark.batch.timeline import Timeline, assemble
from spark.report import job as report
from spark.report.busy_hosts import busy_hosts_of
from tests.support.spark.report_run import finding_of, read, summary
from tests.support.spark.synthetic_run import Shape, write_synthetic_run

pytestmark = pytest.mark.long

P99 = "p99 publish <= 10ms for 90% of minutes"
RECEIVED = "p99.9 end-to-end <= 1s for 90% of minutes"
STRICT = "p99 publish <= 100us for 90% of minutes"
AVAILABLE = "99.9% of messages acknowledged within 1s"
SHAPE = Shape(objectives=f"[{P99}, {RECEIVED}, {AVAILABLE}]")
"""From second 112 of 240 on, 3 % of the messages take 36 ms to be acknowledged."""


def written(path: Path, shape: Shape, *online: Finding) -> tuple[RunFolder, int]:
    """Return the run and the exit code of its report."""
    folder = write_synthetic_run(path / "run", shape)
    return folder, report.write(assemble(folder, read), online, None)


def test_objectives_that_are_kept_have_a_table_with_what_is_left(tmp_path: Path) -> None:
    folder, code = written(tmp_path, replace(SHAPE, fault_k=None))

    publish, received, available = summary(folder)["objectives"]
    assert code == 0
    assert [one["state"] for one in (publish, received, available)] == ["kept"] * 3
    assert (publish["bad"], publish["judged"], publish["budget_left"]) == (0, 4, 0.4)
    assert (available["judged"], available["budget_left"]) == (86_000, 86.0)
    assert (publish["quantile"], publish["limit_seconds"]) == (0.99, 0.01)
    page = folder.report.read_text()
    assert "p99 publish &lt;= 10ms for 90% of minutes" in page
    assert "0.4 minutes" in page


def test_a_missed_objective_is_a_finding_of_its_own(tmp_path: Path) -> None:
    """Minutes 2 and 3 are bad; the run was over before a stream could say so."""
    folder, code = written(tmp_path, SHAPE)

    body = summary(folder)
    publish, received, _ = body["objectives"]
    (missed,) = [one for one in body["findings"] if one["kind"] == "objective"]
    assert code == 3
    assert (publish["state"], publish["bad"], publish["budget_left"]) == ("missed", 2, -1.6)
    assert publish["missed_at"] == missed["at"] == "2026-09-21T14:15:20Z"
    assert received["state"] == "kept"
    assert missed["what"] == f"objective missed: {P99}: 2 of 4 minutes were bad, 0.4 allowed"
    assert (missed["found"], missed["state"]) == ("offline", "confirmed")
    page = folder.report.read_text()
    assert "missed since 14:15:20Z" in page
    assert "exceeded by 1.6 minutes" in page


def test_the_incident_that_lasted_longest_before_is_the_cause(tmp_path: Path) -> None:
    folder, _ = written(tmp_path, SHAPE)

    findings = summary(folder)["findings"]
    (missed,) = [one for one in findings if one["kind"] == "objective"]
    (step,) = [one for one in findings if one["kind"] == "step"]
    assert missed["cause"] == step["cause"]
    assert missed["evidence"][0]["text"].startswith("Before the budget was spent, this lasted")


def test_a_breach_that_the_stream_saw_is_the_same_one_with_the_figures_of_the_whole_run(
    tmp_path: Path,
) -> None:
    online = Finding(
        key="synthetic-1-180",
        run="synthetic-1",
        raised_k=180,
        onset_k=120,
        interval=(120, 179),
        series=breach_series(parse_objective(P99)),
        kind="objective",
        before=0.4,
        after=1.0,
        state="confirmed",
        confidence=1.0,
        is_about_cluster=True,
    )
    folder, _ = written(tmp_path, SHAPE, online)

    (missed,) = [one for one in summary(folder)["findings"] if one["kind"] == "objective"]
    assert (missed["key"], missed["found"], missed["after"]) == ("synthetic-1-180", "both", 2.0)


def test_an_objective_that_our_own_side_missed_leaves_nothing_to_call_clean(tmp_path: Path) -> None:
    series = 'produce.0@host|publish_latency_seconds{quantile="0.99"}'
    online = Finding(
        key="synthetic-1-130",
        run="synthetic-1",
        raised_k=122,
        onset_k=112,
        interval=(111, 113),
        series=series,
        kind="step",
        before=0.004,
        after=0.04,
        state="confirmed",
        confidence=1.0,
        is_about_cluster=False,
        causes=(Explanation("client", 0.9, (Evidence("The load host was busy."),)),),
    )
    folder, code = written(tmp_path, SHAPE, online)

    found = summary(folder)
    assert (found["verdict"], code) == ("inconclusive", 4)
    assert "Inconclusive: objective missed: p99 publish" in found["headline"]
    missed, _, other = found["headline"].partition("; not counted: ")
    assert missed.endswith("and the cause is not the cluster: client")
    assert other.endswith("messages hit, cause client.")


REMOTE = Config(bootstrap_servers="b1:9092")


def busy(found: Timeline, seconds: range = range(240), servers: Config = REMOTE) -> Timeline:
    """Return the run with all CPU of its host in use in these seconds, and brokers elsewhere."""
    name = "probe@host|host_cpu_ratio"
    k, values = found.series[name]
    used = np.where(np.isin(k, seconds), 1.0, values)
    plan = replace(found.plan, broker={"kafka": servers})
    return replace(found, series={**found.series, name: (k, used)}, plan=plan)


def strict_run(path: Path, objective: str = STRICT) -> Timeline:
    """Return a run without a fault whose objective no cluster could keep: the cause is unknown."""
    shape = replace(SHAPE, fault_k=None, objectives=f"[{objective}]")
    return assemble(write_synthetic_run(path / "run", shape), read)


def test_an_objective_missed_for_unknown_reason_on_a_busy_host_is_inconclusive(
    tmp_path: Path,
) -> None:
    """Its clients waited for the CPU or for the cluster: nothing tells which."""
    calm = strict_run(tmp_path)

    assert report.write(calm, [], None) == 3
    assert report.write(busy(calm), [], None) == 4
    body, page = summary(calm.folder), calm.folder.report.read_text()
    (missed,) = body["findings"]
    assert missed["is_about_cluster"]
    assert body["headline"].startswith("Inconclusive: objective missed")
    assert (
        "cause unknown, and hardly any CPU was left on host, which made the load"
        in body["headline"]
    )
    assert "Free the load host host of other work, or use more cores, and soak again." in page
    assert "Left out of the verdict: the cause is unknown" in page


@pytest.mark.parametrize("servers", ["localhost:9092", "b1:9092,host.example.com:9092"])
def test_a_host_that_has_a_broker_too_explains_no_missed_objective(
    tmp_path: Path, servers: str
) -> None:
    """What uses its CPU may be the cluster's own work."""
    found = busy(strict_run(tmp_path), servers=Config(bootstrap_servers=servers))

    assert report.write(found, [], None) == 3


@pytest.mark.parametrize(("host", "code"), [("host", 3), ("another", 4)])
def test_a_broker_that_had_an_address_of_the_host_is_one_of_its_brokers(
    tmp_path: Path, host: str, code: int
) -> None:
    """Its address need not be the name of the host: it was compared when the run began."""
    found = busy(strict_run(tmp_path))
    run = replace(found.run, host=host, own_brokers=("b1:9092",))

    assert report.write(replace(found, run=run), [], None) == code


def test_the_cpu_of_other_minutes_explains_no_missed_objective(tmp_path: Path) -> None:
    """Minutes 2 and 3 are slow: a host busy before them excuses nothing, a host busy in them does."""
    found = assemble(
        write_synthetic_run(tmp_path / "run", replace(SHAPE, objectives=f"[{P99}]")), read
    )
    missed = finding_of(
        kind="objective",
        series=breach_series(parse_objective(P99)),
        before=0.4,
        after=2.0,
        causes=(),
    )

    assert busy_hosts_of(busy(found, range(120)), missed) == {}
    assert busy_hosts_of(busy(found, range(120, 240)), missed) == {"host": 1.0}


@pytest.mark.parametrize(("latency", "hosts"), [("publish", {}), ("end-to-end", {"host": 1.0})])
def test_only_hosts_of_clients_that_measure_the_latency_explain_it(
    tmp_path: Path, latency: str, hosts: dict[str, float]
) -> None:
    """Here the producers are on another host: their latency does not wait for this one."""
    text = STRICT.replace("publish", latency)
    found = busy(strict_run(tmp_path, text))
    seconds = {
        name.replace("produce.0@host", "produce.0@h2"): k for name, k in found.seconds.items()
    }
    series = breach_series(parse_objective(text))
    missed = finding_of(kind="objective", series=series, before=0.4, after=4.0, causes=())

    assert busy_hosts_of(replace(found, seconds=seconds), missed) == hosts


def test_messages_that_failed_are_not_explained_by_a_busy_host(tmp_path: Path) -> None:
    """In minutes 0 to 3, 5 of 400 messages a second are missed: more than the 1 % that may be slow."""
    found = busy(strict_run(tmp_path))
    k = np.arange(20, 235)
    short = {"produce.0@host": np.stack([k, np.full_like(k, 5), np.zeros_like(k)], axis=1)}

    assert report.write(found, [], None) == 4
    assert report.write(replace(found, short=short), [], None) == 3


def test_an_objective_about_messages_counts_on_a_busy_host_too(tmp_path: Path) -> None:
    found = busy(strict_run(tmp_path, "99.9% of messages acknowledged within 100us"))

    assert report.write(found, [], None) == 3


def test_an_objective_missed_for_a_named_cause_counts_on_a_busy_host_too(tmp_path: Path) -> None:
    found = busy(strict_run(tmp_path))
    series = breach_series(parse_objective(STRICT))
    online = finding_of(kind="objective", series=series, before=0.4, after=2.0)

    assert report.write(found, [online], None) == 3


def test_seconds_that_are_missing_or_invalid_are_not_judged(tmp_path: Path) -> None:
    shape = replace(SHAPE, gaps=(("produce.0@host", range(120, 180)),), invalid=range(180, 235))
    folder, _ = written(tmp_path, shape)

    publish = summary(folder)["objectives"][0]
    assert (publish["state"], publish["judged"], publish["bad"]) == ("kept", 2, 0)


def test_a_plan_without_objectives_says_so(tmp_path: Path) -> None:
    folder, _ = written(tmp_path, Shape())

    assert summary(folder)["objectives"] == []
    assert "The plan states no objectives." in folder.report.read_text()
