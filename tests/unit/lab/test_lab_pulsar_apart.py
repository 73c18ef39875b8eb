"""A Pulsar of three processes: their configuration, and a cluster with its own journal folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.core.errors import LabError
from soak.lab.brokers import pulsar_apart
from soak.lab.brokers import pulsar_apart as files

PORTS = files.ApartPorts(2181, 3181, 8000, 6650, 8080)


def test_all_three_listen_on_loopback_alone(tmp_path: Path) -> None:
    """And each finds the metadata at one place."""
    folders = files.Folders(tmp_path / "m", tmp_path / "j", tmp_path / "l")

    zookeeper = files.zookeeper_properties(PORTS, folders)
    bookie = files.bookie_properties(PORTS, folders, {})
    broker = files.broker_properties(PORTS, {})

    assert "clientPortAddress=127.0.0.1\n" in zookeeper
    assert "listeningInterface=lo\n" in bookie
    assert "bindAddress=127.0.0.1\n" in broker
    assert "metadataServiceUri=metadata-store:zk:127.0.0.1:2181\n" in bookie
    assert "metadataStoreUrl=zk:127.0.0.1:2181\n" in broker
    assert f"journalDirectories={tmp_path}/j\n" in bookie
    assert f"ledgerDirectories={tmp_path}/l\n" in bookie


def test_settings_reach_them_but_not_those_that_the_lab_decides(tmp_path: Path) -> None:
    """As with a standalone."""
    folders = files.Folders(tmp_path, tmp_path, tmp_path)

    assert "gcWaitTime=7\n" in files.bookie_properties(PORTS, folders, {"gcWaitTime": "7"})
    with pytest.raises(LabError, match="sets journalDirectories"):
        files.bookie_properties(PORTS, folders, {"journalDirectories": "/"})
    with pytest.raises(LabError, match="line break"):
        files.broker_properties(PORTS, {"a": "1\nbindAddress=0.0.0.0"})


def test_more_than_one_broker_is_refused(tmp_path: Path) -> None:
    """Before anything is started."""
    with pytest.raises(LabError, match="has one broker, and no relay"):
        pulsar_apart.start(tmp_path, {}, nodes=2)


@pytest.mark.parametrize("before", [[], ["theirs"]], ids=["new", "not new"])
def test_what_a_first_start_left_that_was_cut_short_is_removed(
    before: list[str], tmp_path: Path
) -> None:
    """It knows other ports; but nothing that lay there before, and nothing of one that came up."""
    found: list[tuple[bool, list[str]]] = []

    class Apart(pulsar_apart.Apart):
        def begin(self, *, is_new: bool) -> None:
            ledgers = self.data_directory
            found.append((is_new, sorted(path.name for path in ledgers.iterdir())))
            (ledgers / "cookie").touch()
            if len(found) == 1:
                raise KeyboardInterrupt

    def start() -> None:
        pulsar_apart.start(tmp_path, {}, jars=Path("jars"), apart=Apart)

    (tmp_path / "ledgers").mkdir()
    for name in before:
        (tmp_path / "ledgers" / name).touch()
    with pytest.raises(KeyboardInterrupt):
        start()
    for _ in range(2):
        start()

    left = ["cookie", *before] if before else []
    assert found == [(True, before), (True, left), (False, ["cookie", *before])]
