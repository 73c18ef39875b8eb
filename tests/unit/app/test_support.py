"""A bundle for a report of a fault: what is in it, and that a secret never is."""

from __future__ import annotations

import base64
import datetime as dt
import json
import tarfile
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from soak.app.support import Redaction, write_bundle
from soak.cli import main
from soak.core.errors import PlanError, RunFolderError
from soak.core.journal_format import Columns, columns_line, decode, encode
from soak.core.model import Column, Event, Record
from soak.core.units import SECOND_NS
from soak.store.run_folder import RunFolder
from tests.support.compared import START_WALL_NS, ComparedShape, write_compared_run

SECRET = 'p4ss/w"ord&x'


def plan_of(folder: RunFolder, client: str = "", sinks: str = "") -> None:
    folder.plan.write_text(
        "name: compared\nbroker: {kafka: {bootstrap_servers: '127.0.0.1:9', common: {"
        + client
        + "}}}\n"
        f"phases: {{warm_up: 60s, soak: 120s}}\n{sinks}"
    )


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Return a run of 1,300 seconds, with an incident after 1,000."""
    folder = RunFolder(
        write_compared_run(tmp_path / "night", ComparedShape(incidents=["drive_gc"]))
    )
    columns = columns_line((Column("sent_messages", (), "messages"),))
    lines = [encode(columns)] + [
        encode(Record(k, 1, START_WALL_NS + k * SECOND_NS, SECOND_NS, columns.id, (1.0,)))
        for k in range(1300)
    ]
    (folder.journal / "produce.0@host" / "000000.jsonl").write_bytes(b"".join(lines))
    summary = json.loads(folder.summary.read_text())
    summary["findings"][0] |= {"at": at(1000), "rank": 1}
    folder.summary.write_text(json.dumps(summary))
    folder.logs.mkdir()
    return folder


def at(second: int) -> str:
    begin = dt.datetime.fromtimestamp(START_WALL_NS / SECOND_NS, dt.UTC)
    return (begin + dt.timedelta(seconds=second)).isoformat()


def packed(folder: RunFolder, **asked: str) -> dict[str, bytes]:
    """Return the files of a bundle by their names in it."""
    target = folder.path.parent / f"bundle{len(list(folder.path.parent.iterdir()))}.tar.gz"
    write_bundle(folder, target, **asked)
    with tarfile.open(target) as tar:
        files = {member.name: tar.extractfile(member) for member in tar.getmembers()}
        return {name.partition("/")[2]: file.read() for name, file in files.items() if file}


def seconds(files: dict[str, bytes]) -> list[int]:
    raw = files["journal/produce.0@host/000001.jsonl"].splitlines()
    found = [decode(line) for line in raw]
    assert isinstance(found[0], Columns)
    return [one.k for one in found if isinstance(one, Record)]


@pytest.mark.long
def test_it_has_versions_plan_report_logs_and_ten_minutes_around_the_worst_incident(
    folder: RunFolder,
) -> None:
    (folder.logs / "produce.0.log").write_text("started\n")

    files = packed(folder)

    assert {"versions.txt", "plan.yaml", "run.json", "report/summary.json"} <= set(files)
    assert files["logs/produce.0.log"] == b"started\n"
    assert b"soakd " in files["versions.txt"]
    assert b"around incident run-night-drive_gc" in files["versions.txt"]
    assert seconds(files) == list(range(700, 1300))


@pytest.mark.long
def test_a_time_and_the_end_of_a_run_without_incidents_can_be_packed(folder: RunFolder) -> None:
    around = seconds(packed(folder, at=at(400)))
    folder.summary.unlink()
    last = seconds(packed(folder))

    assert around == list(range(100, 700))
    assert last == list(range(700, 1300))


def test_an_incident_that_is_none_and_a_time_without_a_zone_are_refused(folder: RunFolder) -> None:
    with pytest.raises(RunFolderError, match="no incident 'x'; its incidents: run-night-drive_gc"):
        packed(folder, incident="x")
    with pytest.raises(PlanError, match="no time zone"):
        packed(folder, at="2026-01-31T12:00:00")


@pytest.mark.long
def test_a_bundle_is_its_owners_alone_and_replaces_no_file(
    folder: RunFolder, tmp_path: Path
) -> None:
    path = write_bundle(folder, tmp_path / "b.tar.gz").path

    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(RunFolderError, match="cannot write"):
        write_bundle(folder, tmp_path / "b.tar.gz")


def places(secret: str) -> list[str]:
    """Return a secret in the forms in which programs write it."""
    return [
        f"login with {secret} refused",
        json.dumps({"value": secret}),
        f"GET /?x={quote(secret, safe='')}",
        f"header {base64.b64encode(secret.encode()).decode()}",
        f"config {secret!r}",
    ]


def assert_has_none(files: dict[str, bytes], secret: str) -> None:
    for name, body in files.items():
        for form in (secret, json.dumps(secret)[1:-1], quote(secret, safe="")):
            assert form.encode() not in body, name
        assert base64.b64encode(secret.encode()).rstrip(b"=") not in body, name


@pytest.mark.long
@pytest.mark.parametrize("where", ["file", "env", "credential"])
def test_a_secret_that_the_plan_names_is_in_no_file_in_no_form(
    where: str, folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log, a reason of the client in an event, the report and run.json hold it."""
    (tmp_path / "kafka").write_text(f"{SECRET}\n")
    monkeypatch.setenv("KAFKA_PASSWORD", SECRET)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    name = {"file": tmp_path / "kafka", "env": "KAFKA_PASSWORD", "credential": "kafka"}[where]
    plan_of(folder, f"sasl.password: '${{{where}:{name}}}'")
    (folder.logs / "produce.0.log").write_text("\n".join(places(SECRET)))
    summary = json.loads(folder.summary.read_text()) | {"headline": f"refused: {SECRET}"}
    folder.summary.write_text(json.dumps(summary))
    columns = columns_line((Column("sent_messages", (), "messages"),))
    event = Event("send_errors", 2, 1, {"reason": f"refused {SECRET}", "messages": 1})
    record = Record(1000, 1, START_WALL_NS, SECOND_NS, columns.id, (1.0,), events=(event,))
    (folder.journal / "produce.0@host" / "000000.jsonl").write_bytes(
        encode(columns) + encode(record)
    )

    files = packed(folder)

    assert_has_none(files, SECRET)
    assert seconds(files) == [1000]
    assert b"login with *** refused" in files["logs/produce.0.log"]
    assert f"${{{where}:".encode() in files["plan.yaml"]


@pytest.mark.long
def test_a_secret_that_the_plan_holds_is_in_no_file(folder: RunFolder) -> None:
    """A sink's password that somebody wrote into the plan; it may be in a log as well."""
    plan_of(folder, sinks="ship: {unsigned: true, kafka: {ssl.key.pem: hunter2hunter2}}\n")
    (folder.logs / "alert.log").write_text("login hunter2hunter2 refused\n")

    assert_has_none(packed(folder), "hunter2hunter2")


@pytest.mark.long
def test_a_plan_that_cannot_be_read_is_left_out_with_what_it_holds(folder: RunFolder) -> None:
    folder.plan.write_text("sasl.password: hunter2hunter2\nname: [\n")

    files = packed(folder)

    assert_has_none(files, "hunter2hunter2")
    assert b"left out" in files["plan.yaml"]


@pytest.mark.long
@pytest.mark.parametrize(
    "line",
    [
        "sasl.password=hunter2",
        'config {"password": "hunter2", "user": "x"}',
        "config {'ssl.key.password': 'hunter2'}",
        'sasl.jaas.config=x required username="u" password="hunter2";',
        "Authorization: Bearer hunter2hunter2",
        "authorization=Basic dXNlcjpodW50ZXIy",
        "GET http://admin:hunter2@broker:9644/metrics",
        "token: hunter2",
        "client_secret=hunter2&scope=x",
        "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----\nhunter2",
    ],
)
def test_what_stands_where_passwords_stand_is_left_out_though_the_plan_does_not_name_it(
    line: str, folder: RunFolder
) -> None:
    """A broker's own credentials, in a line that a client printed."""
    (folder.logs / "produce.0.log").write_text(f"before\n{line}\n")

    log = packed(folder)["logs/produce.0.log"]

    assert b"hunter2" not in log
    assert b"dXNlcjpodW50ZXIy" not in log
    assert log.startswith(b"before\n")


@pytest.mark.long
@given(st.text(min_size=1, max_size=30), st.text(max_size=60), st.text(max_size=60))
def test_no_text_holds_a_secret_of_any_characters(secret: str, before: str, after: str) -> None:
    """Of four characters and more; a shorter one is one only where it stands alone."""
    found = Redaction({secret}).text(f"{before} {secret} {after}")

    if len(secret) >= 4 and secret not in "***" * 4:
        assert secret not in found
    elif secret.strip() and secret.isalnum():
        assert f" {secret} " not in found


@pytest.mark.long
def test_a_link_in_the_folder_of_a_run_leads_to_no_other_file(
    folder: RunFolder, tmp_path: Path
) -> None:
    (tmp_path / "shadow").write_text("root:x")
    (folder.logs / "shadow.log").symlink_to(tmp_path / "shadow")
    (folder.path / "drives").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "x.json").write_text("{}")

    assert not {"logs/shadow.log", "drives/x.json"} & set(packed(folder))


@pytest.mark.long
def test_of_a_large_log_the_end_is_packed(folder: RunFolder) -> None:
    (folder.logs / "probe.log").write_text("0123456789abcde\n" * 300_000 + "last\n")

    log = packed(folder)["logs/probe.log"]

    assert len(log) <= 4 * 2**20
    assert log.startswith(b"0123456789abcde\n")
    assert log.endswith(b"last\n")


@pytest.mark.long
def test_the_command_says_where_the_bundle_is(folder: RunFolder, tmp_path: Path) -> None:
    words = ["support-bundle", str(folder.path), "--output", str(tmp_path / "b.tar.gz")]
    done = CliRunner().invoke(main.build(words), words)

    assert done.exit_code == 0
    assert done.output.startswith(f"{tmp_path / 'b.tar.gz'}: ")
    assert "journals of ten minutes, around incident run-night-drive_gc" in done.output
