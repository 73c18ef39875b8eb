"""Findings in a real Alertmanager."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from soak.core.units import SECOND_NS
from soak.service import children
from soak.sinks.webhook import Config, build
from tests.support.alerting.alert_receiver import LABELS, message

ALERTMANAGER = shutil.which("prometheus-alertmanager") or os.environ.get("ALERTMANAGER", "")
pytestmark = pytest.mark.slow


@pytest.fixture
def alertmanager(tmp_path: Path) -> Iterator[str]:
    """A real Alertmanager without receivers."""
    settings = tmp_path / "alertmanager.yml"
    settings.write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    command = [
        ALERTMANAGER,
        f"--config.file={settings}",
        f"--storage.path={tmp_path / 'kept'}",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",
    ]
    process = subprocess.Popen(children.with_death_signal(command), stderr=subprocess.DEVNULL)
    try:
        yield f"http://{address}"
    finally:
        process.kill()
        process.wait(30)


@pytest.mark.skipif(not ALERTMANAGER, reason="no prometheus-alertmanager here")
def test_alertmanager_shows_a_finding_until_it_is_resolved(
    alertmanager: str,
) -> None:
    """Sent twice it is one alert; its end resolves it, and it may come back."""
    sink = build(Config(url=alertmanager))
    now_ns = time.time_ns()
    end = time.monotonic() + 60
    while (outcome := sink.send(message(begin_ns=now_ns))).result == "retry":
        assert time.monotonic() < end, outcome.detail
    sink.send(message(begin_ns=now_ns))
    shown = _alerts(alertmanager)
    gone = sink.send(message("gone", begin_ns=now_ns, end_ns=time.time_ns()))
    after = _alerts(alertmanager)
    set_back = sink.send(message(begin_ns=now_ns + 7200 * SECOND_NS))
    sink.send_again([message(begin_ns=now_ns)])

    (alert,) = shown
    assert alert["status"]["state"] == "active"
    assert {key: alert["labels"][key] for key in LABELS} == LABELS
    assert alert["annotations"]["summary"] == "p99 end-to-end latency confirmed"
    assert (gone.result, set_back.result) == ("delivered", "delivered")
    assert after == []
    assert len(_alerts(alertmanager)) == 1


def _alerts(address: str) -> list[dict[str, Any]]:
    with urlopen(f"{address}/api/v2/alerts?active=true", timeout=10) as answer:
        found: list[dict[str, Any]] = json.loads(answer.read())
    return found
