"""A bookie is given something to compact, and is asked to compact it."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from soak.clients.pulsar_admin import NOT_FOUND, RefusedError, connect_admin, topic_path
from soak.core.clock import SystemClock
from soak.core.units import SECOND_NS
from soak.lab.brokers.pulsar import Pulsar
from soak.lab.faults.compaction import DELETED_TOPIC, KEPT_TOPIC, write_half_deleted_ledgers
from soak.lab.ports import Target
from tests.support.lab.faults import inject
from tests.support.pages import serving

LIMIT_SECONDS = 20.0
MIB = 2**20


def test_what_is_compacted_comes_from_a_slow_drive_until_it_is_lifted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this order: the drive slowed, the files forgotten by the kernel, the bookie asked."""
    did: list[object] = []
    has_asked = threading.Event()

    class Bookie(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            did.append(self.path)
            has_asked.set()
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's
            """Say nothing."""

    entries = tmp_path / "bookkeeper0" / "current" / "0.log"
    entries.parent.mkdir(parents=True)
    entries.write_bytes(b"entries")
    monkeypatch.setattr(
        "os.posix_fadvise", lambda file, *_: did.append(Path(f"/dev/fd/{file}").resolve())
    )
    drive: Any = SimpleNamespace(
        read_slowly=did.append, drop_page_cache=lambda: did.append("forgotten")
    )
    with serving(Bookie) as address:
        broker: Any = SimpleNamespace(addresses={"bookie_urls": address}, data_directory=tmp_path)
        target = Target(broker, lambda _: None, SystemClock(), drives={1: drive})
        active = inject("compaction", target, per_mib=SECOND_NS // 2, every=60 * SECOND_NS)
        assert has_asked.wait(LIMIT_SECONDS)
        active.lift()

    assert did == [0.5, entries, "forgotten", "/api/v1/bookie/gc", 0.0]
    assert active.onset_wall_ns is not None


@pytest.mark.broker
def test_half_of_what_a_bookie_is_filled_with_is_deleted_again(lab_pulsar: Pulsar) -> None:
    """Little here: other tests watch what this bookie frees."""
    write_half_deleted_ledgers(lab_pulsar.addresses, MIB // 4)

    admin = connect_admin(lab_pulsar.admin_url, LIMIT_SECONDS, "", {})
    kept = admin.get(f"{topic_path(KEPT_TOPIC)}/stats")
    assert kept["msgInCounter"] == 8
    with pytest.raises(RefusedError) as refused:
        admin.get(f"{topic_path(DELETED_TOPIC)}/stats")
    assert refused.value.status == NOT_FOUND
