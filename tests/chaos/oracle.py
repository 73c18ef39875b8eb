"""What must be true of a run whatever was done to it: nothing lost, all findings sent, none of them false."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from soak.core.units import SECOND_NS
from soak.store.findings.rows import RANK
from soak.store.findings.store import FindingsStore
from soak.store.run_folder import RunFolder, read_run
from tests.chaos.kept import Kept
from tests.chaos.planted import PREFIX, Planted

NEAR_SECONDS = 30  # so long after the cluster was ill a step may still be its own
BACK_SECONDS = (
    3  # before it: a client that is just back from another trouble had nothing acknowledged yet
)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a run in addition to what the run reports itself."""

    kept: Kept
    planted: Planted
    came: Mapping[str, int]  # by message: how often a mail server took it
    in_topic: int  # messages, as the broker counts them
    excused: Sequence[tuple[int, int]] = ()  # seconds in which the cluster itself was ill


def complaints(folder: RunFolder, summary: Mapping[str, Any], known: Known) -> list[str]:
    """Return what is not as it must be, each as a sentence; empty when all is well."""
    return [
        *(f"{path}: something that was written is not there" for path in known.kept.changed()),
        *_audit(summary["audit"], known),
        *_gaps(folder, summary["coverage"]["gaps"], known.kept),
        *_findings(folder, known.planted),
        *(f"mail {name} never came" for name in sorted(known.planted.messages - known.came.keys())),
        *_false(folder, summary["findings"], known),
    ]


def _audit(audit: Mapping[str, int], known: Known) -> Iterator[str]:
    in_topic, cut = known.in_topic, sum(one.received for one in known.kept.cut)
    for name in ("lost", "duplicated", "expired"):
        if audit[name]:
            yield f"audit: {audit[name]} {name}"
    if audit["received"] + cut != in_topic:
        yield f"audit: {audit['received']} received, {cut} cut out, and the broker holds {in_topic}"
    if audit["acked"] > in_topic:
        yield f"audit: {audit['acked']} acknowledged, and the broker holds {in_topic}"


def _gaps(folder: RunFolder, gaps: Sequence[Mapping[str, Any]], kept: Kept) -> Iterator[str]:
    """What was cut out is marked; the run has an end, and its detector read all."""
    start_ns = read_run(folder).start_wall_ns
    spans = [(gap, _k(gap["from"], start_ns)) for gap in gaps]
    for cut in kept.cut:
        if not any(
            gap["source"] == cut.source
            and (k <= cut.k < k + gap["seconds"] or (cut.place and cut.place in gap["why"]))
            for gap, k in spans
        ):
            yield f"{cut.source}: second {cut.k} was cut out and is no gap"
    for gap in gaps:
        if gap["source"] in {"run", "detector"}:
            yield f"{gap['source']}: {gap['why']}"


def _findings(folder: RunFolder, planted: Planted) -> Iterator[str]:
    with FindingsStore(folder.findings) as store:
        there = {finding.key: finding for finding in store.findings(planted.run)}
    for key, finding in planted.saved.items():
        if key not in there:
            yield f"finding {key} was saved and is lost"
        elif RANK[there[key].state] < RANK[finding.state]:
            yield f"finding {key} is {there[key].state}, it was {finding.state}"


def _false(folder: RunFolder, findings: Sequence[Mapping[str, Any]], known: Known) -> Iterator[str]:
    """Nothing but what was planted is reported, unless the cluster was ill."""
    start_ns = read_run(folder).start_wall_ns
    true: set[str] = set()
    for one in findings:
        k = _k(one["at"], start_ns)
        if any(first - BACK_SECONDS <= k <= last + NEAR_SECONDS for first, last in known.excused):
            true.add(one["key"])
        elif one["is_about_cluster"] and not one["key"].startswith(PREFIX):
            yield f"false alert {one['key']}: {one['metric']} from second {k}, {one['cause']}"
    for name in known.came:
        key = name.rpartition(".")[0]
        if not key.startswith(PREFIX) and key not in true:
            yield f"mail {name} tells of what was not"


def _k(at: str, start_ns: int) -> int:
    """Return the second that begins at an instant which was written without its fraction."""
    return -((start_ns - round(datetime.fromisoformat(at).timestamp()) * SECOND_NS) // SECOND_NS)
