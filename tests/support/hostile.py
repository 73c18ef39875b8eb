"""Lines that somebody forged: a checksum that is right over a content that is not."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from soak.core.journal_format import columns_line, encode
from soak.core.model import Column, Record
from tests.support.paths import ROOT

INPUTS = Counter[str]()
"""How many inputs each gate has had in this process; shown at the end of the tests."""
SEED: list[int] = []
"""That of the newest input that was made at random."""
CORPUS = ROOT / "tests/data/hostile"
COLUMNS = (Column("sent_messages", (), "messages"), Column("acked_messages", (), "messages"))


@dataclass(frozen=True, slots=True)
class Forged:
    """One entry of the corpus; `line` has no line break."""

    kind: str
    line: bytes
    is_newer: (
        bool  # of a later version of the format: in a journal of ours that is an error, not damage
    )


def line_of(body: object) -> bytes:
    """Return the journal line that holds this JSON, its checksum right."""
    raw = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
    return b"%s\t%08x" % (raw, zlib.crc32(raw))


def body_of(line: bytes) -> dict[str, Any]:
    """Return the JSON of a journal line."""
    found: dict[str, Any] = json.loads(line.rpartition(b"\t")[0])
    return found


def record_body(
    k: int, at_ns: int, changes: Mapping[str, object], columns: tuple[Column, ...] = COLUMNS
) -> dict[str, Any]:
    """Return the JSON of a plain record, of the second epoch, with other values for some keys."""
    values = tuple(10.0 for _ in columns)
    plain = Record(k, 2, at_ns, 10**9, columns_line(columns).id, values)
    return {**body_of(encode(plain).rstrip(b"\n")), **changes}


def forged_records(k: int, at_ns: int, columns: tuple[Column, ...] = COLUMNS) -> list[Forged]:
    """Return the corpus as lines of one source, all of which claim interval `k` where they name none."""
    found = []
    for text in (CORPUS / "records.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(text)
        body = entry["body"] if "body" in entry else record_body(k, at_ns, entry["set"], columns)
        found.append(Forged(entry["kind"], line_of(body), entry.get("is_newer", False)))
    return found
