"""Result files of the OpenMessaging Benchmark: four dialects in, the same numbers out again."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from soak.cli.main import build
from soak.core.errors import PlanError
from soak.core.plan import plugins
from soak.omb import result as profile
from soak.omb import result_file
from soak.omb.result import Result
from tests.support.examples import examples
from tests.support.omb.results import results, same
from tests.support.paths import DATA, ROOT

DIALECTS = plugins.names(profile.PACKAGE)
RECORDED = DATA / "recorded" / "omb"
PUBLISHED = ROOT.parent / "shared" / "data" / "omb-results"
OUTAGE = 2  # the sample of the recorded files in which nothing was measured


def load(path: Path) -> Result:
    body = result_file.parse_json(result_file.read_text(path), str(path))
    return result_file.parse_result(body, str(path))


def body_of(dialect: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / f"{dialect}.json").read_text())
    return found


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(build(["omb"]), ["omb", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: str) -> str:
    """Return what the command refuses this with; the exit code of such an error is 2."""
    result = CliRunner().invoke(build(["omb"]), ["omb", *arguments])
    assert isinstance(result.exception, PlanError), result.output
    assert result.stdout == ""
    return str(result.exception)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_recorded_file_is_recognised_by_its_keys_and_read_in_seconds(dialect: str) -> None:
    found = load(RECORDED / f"{dialect}.json")

    assert found.dialect == dialect
    assert found.samples["publish_latency_p50_seconds"][0] == 0.001372
    assert found.samples["end_to_end_latency_p99.9_seconds"][0] == 0.024049
    assert found.totals["publish_latency_p99_seconds"] == 0.006448


@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name != "confluent"])
def test_a_delay_is_in_microseconds_and_all_else_in_milliseconds(dialect: str) -> None:
    found = load(RECORDED / f"{dialect}.json")

    assert found.samples["publish_delay_p50_seconds"][0] == 61e-6
    assert found.totals["publish_delay_p50_seconds"] == 61e-6
    assert found.distributions["publish_delay_seconds"].seconds[1] == 61e-6


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_latency_of_zero_in_an_outage_is_missing(dialect: str) -> None:
    """An outage must not look perfect; its rate of 0 is a number, and the samples around it stand."""
    found = load(RECORDED / f"{dialect}.json")
    latencies = {name: values for name, values in found.samples.items() if "_latency_" in name}

    assert latencies
    assert all(np.isnan(values[OUTAGE]) for values in latencies.values())
    assert all(np.isfinite(np.delete(values, OUTAGE)).all() for values in latencies.values())
    assert found.samples["publish_rate_per_second"][OUTAGE] == 0.0
    assert "publish_latency: 1 of 4 samples missing" in found.remarks


def test_a_sample_without_end_to_end_values_is_missing_though_messages_came() -> None:
    """Values at or below 0, from clocks that disagree, were dropped while measuring."""
    body = body_of("upstream")
    for key in [name for name in body if name.startswith("endToEnd")]:
        body[key][0] = 0.0
    found = result_file.parse_result(body, "a")

    assert np.isnan(found.samples["end_to_end_latency_p99_seconds"][0])


def test_a_time_axis_comes_from_counts_and_rates_where_they_are() -> None:
    """5,037 messages at 500 a second took 10.074 s; an outage counts its nominal 10 s."""
    found = load(RECORDED / "vanlightly.json")

    assert found.seconds.tolist() == [10.074, 20.136, 30.136, 40.216]
    assert any("a step is 10.072 s, not the nominal 10 s" in text for text in found.remarks)
    assert any("before the warm-up" in text for text in found.remarks)


def test_without_counts_the_nominal_step_is_assumed_with_a_remark() -> None:
    found = load(RECORDED / "upstream.json")

    assert found.seconds.tolist() == [10.0, 20.0, 30.0, 40.0]
    assert any("no time axis in the file" in text for text in found.remarks)


def test_a_result_without_a_sample_is_read() -> None:
    body = {
        key: [] if isinstance(value, list) else value for key, value in body_of("upstream").items()
    }
    found = result_file.parse_result(body, "a")

    assert found.seconds.size == 0
    assert found.totals["publish_latency_p99_seconds"] == 0.006448


def test_another_sample_rate_is_used() -> None:
    body = {**body_of("redpanda"), "sampleRateMillis": 1000, "sent": [], "consumed": []}

    assert result_file.parse_result(body, "a").seconds.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_the_end_of_a_run_may_be_in_the_name_of_its_file() -> None:
    name = "results/1kb-Kafka-2026-03-01-10-02-08.json"
    found = result_file.parse_result(body_of("upstream"), name)

    assert found.facts["endTime"] == "2026-03-01-10-02-08"


def test_capped_values_negative_backlogs_and_unknown_keys_have_remarks() -> None:
    found = load(RECORDED / "upstream.json")

    assert any(
        "publish_latency: 1 samples reach the recorder's cap of 60 s" in text
        for text in found.remarks
    )
    assert "backlog_messages: 1 samples are negative, kept" in found.remarks
    assert "unknown keys, ignored: somethingNew" in found.remarks
    assert found.samples["backlog_messages"].tolist() == [0.0, -2.0, 0.0, 7.0]
    assert found.samples["publish_latency_p99.999_seconds"][0] == 0.0201


@pytest.mark.long
@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=12)
@given(data=st.data())
def test_a_written_result_reads_as_the_same_numbers(dialect: str, data: st.DataObject) -> None:
    result = data.draw(results(dialect))
    text = result_file.result_text(result, dialect)
    again = result_file.parse_result(result_file.parse_json(text, "a"), "a")

    assert again.dialect == dialect
    assert same(result, again)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_written_file_has_the_fields_of_the_read_one(dialect: str) -> None:
    """In the same order, with whole numbers where there were whole numbers."""
    body = body_of(dialect)
    for key in ("somethingNew", "publishLatency99999pct"):
        body.pop(key, None)
    again = result_file.result_body(result_file.parse_result(body, "a"), dialect)

    assert sorted(again) == sorted(body)
    for key, value in body.items():
        found: Any = again[key]
        if isinstance(value, list):
            assert [type(item) for item in found] == [type(item) for item in value], key
            assert found == pytest.approx(value, rel=1e-9), key


@pytest.mark.long
@pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason="the published results are not beside the project"
)
def test_all_published_results_import_and_survive_being_written() -> None:
    """20 files of two dialects, one with an outage of three minutes."""
    paths = sorted(PUBLISHED.glob("*.json.gz"))
    found = [load(path) for path in paths]

    assert len(found) == 20
    assert [one.dialect for one in found] == ["confluent"] * 12 + ["vanlightly"] * 8
    assert {one.seconds.size for one in found} == {60, 149}
    assert max(one.seconds[-1] for one in found) == pytest.approx(1502.6, abs=0.1)
    missing = [np.isnan(one.samples["publish_latency_p99_seconds"]).sum() for one in found]
    assert sum(missing) == missing[6] == 18
    for one in found:
        again = result_file.parse_result(result_file.result_body(one, one.dialect), "a")
        assert same(one, again)


def test_the_command_summarises_a_file(tmp_path: Path) -> None:
    packed = tmp_path / "a.json.gz"
    packed.write_bytes(gzip.compress((RECORDED / "redpanda.json").read_bytes()))
    text = printed("import", str(packed))

    assert f"{packed}: redpanda, workload 1-topic-4-partitions-1kb, driver Kafka, 4 samples" in text
    assert "publish latency: p50 1.37 ms, p99 6.45 ms" in text
    assert "note: publish_latency: 1 of 4 samples missing" in text


def test_the_command_prints_an_object_a_sample() -> None:
    paths = [str(RECORDED / f"{dialect}.json") for dialect in DIALECTS]
    rows = [
        json.loads(line) for line in printed("import", *paths, "--format", "jsonl").splitlines()
    ]

    assert [(row["file"], row["index"]) for row in rows] == [
        (path, at) for path in paths for at in range(4)
    ]
    assert rows[0]["publish_latency_p50_seconds"] == 0.001372
    assert rows[OUTAGE]["publish_latency_p50_seconds"] is None


def test_a_table_can_be_searched_for_level_shifts(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text(printed("import", str(RECORDED / "upstream.json"), "--format", "csv"))
    header, *rows = table.read_text().splitlines()
    result = CliRunner().invoke(
        build(["detect"]), ["detect", str(table), "--value", "publish_latency_p99_seconds"]
    )

    assert header.startswith("seconds,")
    assert len(rows) == 4
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1:1: not JSON: expecting value; the file seems to be cut off"),
        ('{"workload": "a", "publishRate": [1.0, 2.', "not JSON"),
        ('{"workload": "a', ":1:14: not JSON: unterminated string"),
        ("[1, 2]", "not a benchmark result: list, not an object"),
        ('{"a": 1}', "not a benchmark result: it has no publishRate"),
        ('{"publishRate": [1], "consumeRate": [1]}', "it has no publishLatency99pct"),
        (
            '{"publishRate": 1, "consumeRate": [1], "publishLatency99pct": [1]}',
            "publishRate: 1 is not a list",
        ),
        (
            '{"publishRate": [1], "consumeRate": ["x"], "publishLatency99pct": [1]}',
            "consumeRate[0]: 'x' is not a number",
        ),
        (
            '{"publishRate": [1], "consumeRate": [1e300], "publishLatency99pct": [1]}',
            "consumeRate[0]: 1e+300 is out of range",
        ),
        (
            '{"publishRate": [1, 2], "consumeRate": [1], "publishLatency99pct": [1]}',
            "consumeRate: 1 samples, but publishRate has 2",
        ),
        (
            (
                '{"publishRate": [1], "consumeRate": [1], "publishLatency99pct": [1], '
                '"aggregatedEndToEndLatencyQuantiles": {"x": 1}}'
            ),
            "aggregatedEndToEndLatencyQuantiles: 'x' is not a percentile",
        ),
        *(
            (
                json.dumps(
                    {key: [1] for key in ("publishRate", "consumeRate", "publishLatency99pct")}
                    | {"sampleRateMillis": millis}
                ),
                f"sampleRateMillis: {millis} is below 1",
            )
            for millis in (0, 0.4)
        ),
    ],
)
def test_a_bad_file_is_named_with_place_or_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    said = refused("import", str(RECORDED / "upstream.json"), str(path))

    assert said.startswith(str(path))
    assert message in said
    assert "\n" not in said


@pytest.mark.long
def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    """Packed or not; only a newline may be missing."""
    whole = (RECORDED / "upstream.json").read_bytes().rstrip()
    packed = gzip.compress(whole)
    path = tmp_path / "a.json"
    for raw in (
        *(whole[:size] for size in range(0, len(whole), 311)),
        *(packed[:size] for size in range(2, len(packed), 101)),
    ):
        path.write_bytes(raw)

        assert refused("import", str(path)).startswith(str(path))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_file_that_windows_wrote_reads_the_same(tmp_path: Path, encoding: str) -> None:
    """A byte-order mark, the encoding of redirected output, and its ends of lines."""
    text = (RECORDED / "upstream.json").read_text()
    path = tmp_path / "a.json"
    path.write_bytes(text.replace("\n", "\r\n").encode(encoding))

    assert same(load(path), load(RECORDED / "upstream.json"))


def test_half_a_character_of_windows_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes("{}".encode("utf-16")[:-1])

    assert "a.json: not text: byte 4 is not UTF-16" in refused("import", str(path))


def test_a_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert "cannot read" in refused("import", str(path))
    path.write_bytes(b"\x89PNG\r\n\xff\xfe")
    assert "not text" in refused("import", str(path))
    path.write_bytes(gzip.compress(b"x" * 100)[:-8] + b"y" * 8)
    assert "damaged" in refused("import", str(path))


@pytest.mark.long
@settings(max_examples=examples(80))
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "publishRate",
                        "consumeRate",
                        "publishLatency99pct",
                        "backlog",
                        "aggregatedPublishLatencyQuantiles",
                        "sampleRateMillis",
                        "workload",
                        "x",
                    ]
                ),
                inner,
                max_size=8,
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_is_a_result_or_a_clear_error(body: object) -> None:
    message = "a: "
    try:
        result_file.parse_result(body, "a")
    except PlanError as error:
        message = str(error)

    assert message.startswith("a: ")
