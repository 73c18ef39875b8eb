"""The text of journal lines: what was written by older versions is read by its present name."""

from __future__ import annotations

import json
import zlib

import pytest

from soak.core.journal_format import RENAMED_EVENTS, decode
from soak.core.model import Record


@pytest.mark.parametrize(("old", "new"), RENAMED_EVENTS.items())
def test_event_of_an_older_journal_has_its_new_name(old: str, new: str) -> None:
    """Journals outlive the names of events."""
    body = json.dumps(
        {
            "t": "r",
            "c": "x",
            "k": 1,
            "inc": 1,
            "at_ns": 0,
            "length_ns": 0,
            "v": [],
            "e": [{"kind": old, "at_ns": 3, "since_ns": 2, "fields": {"partition": 7}}],
        }
    ).encode()
    record = decode(b"%s\t%08x\n" % (body, zlib.crc32(body)))

    assert isinstance(record, Record)
    assert [event.kind for event in record.events] == [new]
