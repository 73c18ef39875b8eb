"""A run folder that a test writes second by second, a snapshot of one, and hostile names and log lines."""

from __future__ import annotations

import json
import math
import os
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import strategies as st

from soak.app.live.follow import Bin, Latency
from soak.app.live.snapshot import PhaseSpan, ReportHead, Snapshot, Subscription, Totals
from soak.core.journal_format import columns_line, encode
from soak.core.model import Column, Event, Finding, Record
from soak.core.plan import text
from soak.core.plan.phases import decision_line
from soak.core.units import SECOND_NS
from soak.store.run_folder import Run, RunFolder, write_run

START_WALL_NS = 1_790_000_000 * SECOND_NS  # 2026-09-21T14:13:20Z, where `FakeClock` begins
_THRESHOLDS = ("0.001", "0.01", "0.1", "1", "10")

FOUND = Finding(
    key="r-100",
    run="r",
    raised_k=100,
    onset_k=101,
    interval=(100, 102),
    series='consume.0@h|end_to_end_latency_seconds{quantile="0.99"}',
    kind="step",
    before=0.004,
    after=0.061,
    state="confirmed",
    confidence=0.99,
    is_about_cluster=True,
)

_NASTY = st.sampled_from(
    [
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "</pre></main><h1>owned",
        "\x1b[2J\x1b]0;owned\x07",
        "\x9b31m",
        "\u202etxt.exe",
        "\u2066\u061c\u200f",
        "a\nb\r\nc\tSet-Cookie: x",
        "../../etc/passwd",
        "%2e%2e/",
        "[bold red]no markup[/]",
        "x" * 10_000,
        "\ud800",
    ]
)
NASTY_TEXTS = st.lists(st.one_of(_NASTY, st.text(max_size=20)), min_size=1, max_size=4).map("".join)
"""Names and log lines that are hostile to a terminal or a browser."""


@dataclass(slots=True)
class WrittenRun:
    """A run of one minute of warm-up and five of soak, as a test writes it."""

    folder: RunFolder
    _columns: dict[str, str] = field(default_factory=dict)

    def write(self, source: str, k: int, **values: float) -> None:
        """Append a record; `publish_p99` and `end_to_end_p99` are latencies, all others counts.

        `slow` is the number of acknowledged messages above 10 ms and below 100 ms.
        """
        slow = values.pop("slow", None)
        found = []
        for name, value in values.items():
            stem, is_latency, quantile = name.rpartition("_p")
            if is_latency and quantile.isdigit():
                label = ("quantile", f"0.{quantile}")
                found.append((Column(f"{stem}_latency_seconds", (label,), "seconds"), value))
            else:
                found.append((Column(f"{name}_messages", (), "messages"), value))
        if slow is not None:
            above = (values["acked"], slow, 0.0, 0.0, 0.0)
            found += [
                (Column("publish_latency_above_messages", (("threshold", at),), "messages"), count)
                for at, count in zip(_THRESHOLDS, above, strict=True)
            ]
        line = columns_line([column for column, _ in found])
        path = self.folder.journal / source / "000000.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        record = self._record(k, line.id, tuple(value for _, value in found))
        with path.open("ab") as file:
            if self._columns.get(source) != line.id:
                file.write(encode(line))
                self._columns[source] = line.id
            file.write(encode(record))

    def delete_old_data(self, k: int) -> None:
        """Append what the probe of retention records when the cluster deletes."""
        path = self.folder.journal / "probe@b1" / "000000.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        line = columns_line([])
        event = Event("retention_deletion", 1, 0, {"topic": "t"})
        with path.open("ab") as file:
            file.write(encode(line) + encode(self._record(k, line.id, (), event)))

    def forecast(self, early: float, late: float) -> None:
        body = {"first_deletion_seconds": [early, late]}
        self.folder.forecast.write_text(json.dumps(body))

    def decide(self, phase: str, from_k: int) -> None:
        with self.folder.phases.open("a") as file:
            file.write(decision_line(phase, from_k))  # type: ignore[arg-type]  # a phase

    def detect(self, batch: int, read_k: int) -> None:
        """Let the detector have read up to before interval `read_k` and be done with it."""
        checkpoint = self.folder.checkpoint
        for name in ("offsets", "commits"):
            path = checkpoint / name / str(batch)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        at_ns = START_WALL_NS + read_k * SECOND_NS
        os.utime(checkpoint / "offsets" / str(batch), ns=(at_ns, at_ns))

    def becomes(self, state: str) -> None:
        write_run(self.folder, Run("r", START_WALL_NS, "host", {}, state, "written"))

    @staticmethod
    def _record(k: int, columns: str, values: tuple[float, ...], *events: Event) -> Record:
        at_ns = START_WALL_NS + (k + 1) * SECOND_NS
        return Record(k, 1, at_ns, SECOND_NS, columns, values, events=events)


def written_run(path: Path, *, subscriptions: int = 1, name: str = "written") -> WrittenRun:
    """Return a run that has begun: plan, run.json and phases, no record yet."""
    run = WrittenRun(RunFolder(path))
    path.mkdir(parents=True, exist_ok=True)
    plan = text.load(
        f"name: {name}\nbroker: {{kafka: {{bootstrap_servers: '127.0.0.1:9'}}}}\n"
        f"load: {{rate: 1000/s}}\nconsumers: {{subscriptions: {subscriptions}}}\n"
        "phases: {warm_up: 60s, soak: 300s, drain: 20s}\n",
        "plan.yaml",
    ).plan
    run.folder.plan.write_text(text.dump(plan))
    run.becomes("running")
    for phase, from_k in (("warm-up", 0), ("soak", 60), ("drain", 360)):
        run.decide(phase, from_k)
    return run


OUTAGE = "nothing acknowledged for 40 s, 12,000 failed"
QUIET = Subscription(0, 998.0, 3.0, Latency(0.005, math.nan, 0.08), (0.01,) * 200 + (0.06,) * 40)


def snapshot(
    k: int = 130,
    findings: tuple[Finding, ...] = (FOUND,),
    *,
    name: str = "soak x",
    phase: str = "soak",
    troubles: tuple[str, ...] = (),
    subscriptions: tuple[Subscription, ...] = (QUIET,),
    state: str = "running",
    report: ReportHead | None = None,
    unread: str = "",
) -> Snapshot:
    bins = [Bin((0.0, 400.0, 550.0, 50.0, 0.0, 0.0))] * 200 + [Bin(silent_seconds=1)] * 40
    return Snapshot(
        name=name,
        run_id="r",
        state=state,
        start_wall_ns=1_790_000_000 * SECOND_NS,
        now_k=k,
        k=min(k, 225),
        total_seconds=225,
        end_k=None,
        phase=phase,
        phases=(
            PhaseSpan("warm-up", 0, 60),
            PhaseSpan(phase, 60, 200),
            PhaseSpan("drain", 200, 225),
        ),
        sent=1000.0,
        acknowledged=640.0,
        failed=360.0,
        publish=Latency(0.005, 0.06, 0.07),
        publish_history=(0.01,) * 240,
        subscriptions=subscriptions,
        totals=Totals(100_000.0, 99_000.0, 1000.0),
        troubles=troubles,
        retention="old data is deleted in 3:20",
        invalid="",
        detection="",
        bins=tuple(bins),
        bin_seconds=1,
        findings=findings,
        unread=unread,
        report=report,
        read_ratio=1.0,
    )


def is_harmless(text: str) -> bool:
    """True for a text without controls but newlines, marks of direction, and halves of characters."""
    return not any(
        (unicodedata.category(one) in {"Cc", "Cs", "Zl", "Zp"} and one != "\n")
        or unicodedata.bidirectional(one)
        in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
        or one in "\u061c\u200e\u200f"
        for one in text
    )
