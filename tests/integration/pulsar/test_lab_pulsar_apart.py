"""A Pulsar of three processes: their configuration, and a cluster with its own journal folder."""

from __future__ import annotations

from pathlib import Path

import psutil
import pulsar
import pytest

from soak.lab.brokers import pulsar_apart


@pytest.mark.broker
@pytest.mark.timeout(600)
def test_it_serves_and_its_journal_lies_where_it_was_put(tmp_path: Path) -> None:
    """A message is acknowledged; journal and ledgers lie apart; a killed bookie comes back to both."""
    drive = tmp_path / "drive"
    drive.mkdir()
    lab = pulsar_apart.start(tmp_path / "pulsar", {}, drives={1: drive, 2: tmp_path / "pulsar"})
    try:
        client = pulsar.Client(lab.service_url, operation_timeout_seconds=60)
        producer = client.create_producer("persistent://public/default/t")
        producer.send(b"x")
        listening = {
            found.laddr.ip
            for node in lab.nodes
            for found in psutil.Process(node.pid).net_connections("inet")
            if found.status == psutil.CONN_LISTEN
        }
        lab.nodes[0].kill()
        lab.nodes[0].restart()
        producer.send(b"y")
        client.close()

        assert listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
        assert list((drive / "journal").glob("**/*.txn"))
        assert not list((drive / "journal").glob("**/*.log"))
        assert (tmp_path / "pulsar" / "ledgers" / "current").is_dir()
    finally:
        lab.stop()
