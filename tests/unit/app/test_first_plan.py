"""`soak init`: the plan that it writes can be run, and nothing is overwritten."""

from __future__ import annotations

import io
import re
import socket
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from soak.app.first_plan import PASSWORD, Answers, ask, init, plan_text
from soak.app.host import is_own_address, own_addresses
from soak.core.errors import NotNowError, PlanError
from soak.core.plan import text
from soak.core.plan.plan import Plan
from soak.lab.ports import Running
from tests.support.listener import answering
from tests.support.pages import pages

KAFKA = Answers("kafka", "b1:9092,b2:9092")
PULSAR = Answers("pulsar", "pulsar://b1:6650", admin_url="http://b1:8080")
SASL = replace(
    KAFKA, security="SASL_SSL", mechanism="SCRAM-SHA-256", user="soak: me", ca_file="/etc/ca.pem"
)
SECRET = "${env:" + PASSWORD + "}"


def plan(answers: Answers, brokers: int = 3, path: Path = Path("my-soak.yaml")) -> Plan:
    return text.load(plan_text(path, answers, brokers), str(path)).plan


@pytest.mark.parametrize(
    "answers",
    [KAFKA, replace(KAFKA, kind="redpanda"), SASL, PULSAR, replace(KAFKA, mail_to="a@b.c")],
)
def test_what_it_writes_is_a_plan_of_15_minutes(answers: Answers) -> None:
    found = plan(answers)

    assert (found.broker_kind, found.name) == (answers.kind, "my-soak")
    assert found.phases.warm_up + found.phases.soak == 15 * 60 * 10**9
    assert list(found.sinks) == (["mail"] if answers.mail_to else [])


@pytest.mark.parametrize(("brokers", "partitions", "copies"), [(1, 4, 1), (3, 12, 3), (9, 36, 3)])
def test_partitions_and_copies_follow_the_number_of_brokers(
    brokers: int, partitions: int, copies: int
) -> None:
    topic = plan(KAFKA, brokers).topic

    assert (topic.partitions, topic.replication) == (partitions, copies)


@pytest.mark.parametrize(("brokers", "segment"), [(1, 15), (3, 5), (9, 2), (200, 1)])
def test_retention_is_set_and_reached_within_the_run(brokers: int, segment: int) -> None:
    """In whole MiB: some brokers refuse segments below one."""
    settings = plan(KAFKA, brokers).topic.settings

    assert settings == {
        "retention.bytes": str(4 * segment * 2**20),
        "segment.bytes": str(segment * 2**20),
    }


@pytest.mark.long
def test_nothing_is_written_where_no_broker_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says at once who is asked, and the next call is not refused for a file of this one."""
    path = tmp_path / "my-soak.yaml"
    with pytest.raises(NotNowError, match="no plan was written: no Kafka broker answered at 127"):
        init(path, replace(KAFKA, servers="127.0.0.1:1"))

    printed = capsys.readouterr()
    assert not path.exists()
    assert (printed.err, printed.out) == ("asking 127.0.0.1:1 ...\n", "")


@pytest.mark.parametrize("status", [401, 403])
def test_a_plan_is_written_where_a_cluster_asks_for_a_login_that_no_answer_gives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    """The check that follows names the fault with its line; the command has the path for a shell."""
    path = tmp_path / "my soak.yaml"
    with (
        pages({"/admin/v2/clusters": status}) as url,
        pytest.raises(PlanError, match=f"HTTP {status}") as fault,
    ):
        init(path, replace(PULSAR, admin_url=url))

    written = text.load(path.read_text(), str(path)).plan
    assert (written.topic.partitions, written.topic.replication) == (12, 3)
    assert str(fault.value).endswith(f"\nThen: soak check '{path}'")
    printed = capsys.readouterr().out
    assert "is written for 3 brokers, a guess: the cluster asks for a login or" in printed
    assert "soak run" not in printed


def test_no_plan_is_written_where_something_else_answers(tmp_path: Path) -> None:
    """A page that is not there is no lack of a login."""
    path = tmp_path / "my-soak.yaml"
    with pages({}) as url, pytest.raises(NotNowError, match=r"no plan was written: .*HTTP 404"):
        init(path, replace(PULSAR, admin_url=url))

    assert not path.exists()


@pytest.mark.long
def test_a_hint_before_there_is_a_plan_names_the_option(tmp_path: Path) -> None:
    """A listener that wants a login: the user has typed options, and no key of a plan."""
    names = b"\0\0\0\1\0\5PLAIN"
    answer = b"\0\0\0\1" + (33).to_bytes(2, "big") + names
    with (
        answering(len(answer).to_bytes(4, "big") + answer) as address,
        pytest.raises(NotNowError, match="give --security SASL_PLAINTEXT"),
    ):
        init(tmp_path / "p.yaml", replace(KAFKA, servers=address))


@pytest.mark.long
def test_no_plan_is_written_for_a_login_that_the_client_cannot_do(tmp_path: Path) -> None:
    """The Kafka client of Python is built without Kerberos."""
    answer = b"\0\0\0\1" + (33).to_bytes(2, "big") + b"\0\0\0\1\0\6GSSAPI"
    with (
        answering(len(answer).to_bytes(4, "big") + answer) as address,
        pytest.raises(PlanError, match=r"asks for a login \(GSSAPI\).*; Kerberos is not supported"),
    ):
        init(tmp_path / "p.yaml", replace(KAFKA, servers=address))

    assert not (tmp_path / "p.yaml").exists()


@pytest.mark.broker
def test_the_bytes_that_the_brokers_hold_are_those_of_the_check(
    tmp_path: Path, lab_kafka: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cluster deletes sooner than Kafka does by default, so less is held."""
    init(tmp_path / "my-soak.yaml", replace(KAFKA, servers=lab_kafka.bootstrap_servers))

    printed = capsys.readouterr().out
    said = re.search(r"writes (.+); the brokers hold at most (.+) of it", printed)
    forecast = re.search(r"Storage: (.+) are written, at most (.+) held", printed)
    assert said is not None
    assert forecast is not None
    assert said.groups() == forecast.groups()


@pytest.mark.parametrize(
    ("answers", "probes"),
    [*((one, {"round_trip", "retention_kafka"}) for one in (KAFKA, SASL)), (PULSAR, set())],
)
def test_brokers_are_asked_by_the_probes_that_can(answers: Answers, probes: set[str]) -> None:
    """With a login, too."""
    assert set(plan(answers).probes) == {"host", "pressure"} | probes


def test_a_broker_on_this_host_has_its_probes_as_comments() -> None:
    """The plan can be run as it is, and with the comments in place of the line above them."""
    written = plan_text(Path("my-soak.yaml"), KAFKA, 1, "127.0.0.1:9092")
    with_drive = (
        written.replace("  retention_kafka: {directory: null}\n", "")
        .replace("  # retention_kafka:", "  retention_kafka:")
        .replace("  # disk_io:", "  disk_io:")
        .replace("  # fsync:", "  fsync:")
        .replace("{directory: LOG_DIRS}", "{directory: /data}")
    )

    assert "The broker 127.0.0.1:9092 is on this host." in written
    assert text.load(written, "my-soak.yaml").plan.probes == plan(KAFKA, 1).probes
    probes = text.load(with_drive, "my-soak.yaml").plan.probes
    assert {"retention_kafka", "disk_io", "fsync"} <= set(probes)
    assert "is on this host" not in plan_text(Path("my-soak.yaml"), KAFKA, 1)


@pytest.mark.parametrize(
    ("name", "is_own"),
    [("127.0.0.1", True), ("localhost", True), ("192.0.2.1", False), ("", False)],
)
def test_an_address_of_this_host_is_known(name: str, *, is_own: bool) -> None:
    """192.0.2.0/24 is for documentation, and on no host."""
    assert is_own_address(name) is is_own


def test_addresses_of_brokers_on_this_host_are_found_by_its_interfaces() -> None:
    """By an address that other hosts reach, where it has one."""
    interfaces = [one for many in psutil.net_if_addrs().values() for one in many]
    own = [one.address for one in interfaces if one.family == socket.AF_INET]

    for address in own:
        listed = f"192.0.2.1:9092, {address}:9092,pulsar://{address}:6650,http://{address}:8080/"
        assert own_addresses(listed) == tuple(listed.replace(" ", "").split(",")[1:])
    assert own_addresses("[::1]:9092,192.0.2.1:9092") == ("[::1]:9092",)


def test_a_password_is_a_reference_and_never_asked_for() -> None:
    assert plan(SASL).broker_config.common == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "soak: me",
        "sasl.password": SECRET,
        "ssl.ca.location": "/etc/ca.pem",
    }


def test_the_name_of_a_file_with_other_characters_gives_a_name_that_a_plan_may_have() -> None:
    assert plan(KAFKA, path=Path("first soak (b1).yaml")).name == "first-soak--b1-"
    assert plan(KAFKA, path=Path("\u00fcber.yaml")).name == "ber"
    assert plan(KAFKA, path=Path(".night.yaml")).name == "night"


def test_a_file_that_exists_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "my-soak.yaml"
    path.write_text("mine")

    with pytest.raises(PlanError, match="exists already; it was not overwritten"):
        init(path, KAFKA)
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (replace(KAFKA, kind="kafak"), "--kind kafak: known are kafka, redpanda, pulsar"),
        (replace(KAFKA, security="TLS"), "--security TLS: known are PLAINTEXT, SSL, SASL_"),
        (
            replace(SASL, mechanism="X"),
            "--mechanism X: known are PLAIN, SCRAM-SHA-256, SCRAM-SHA-512",
        ),
    ],
)
def test_an_unknown_answer_names_its_option(tmp_path: Path, answers: Answers, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        init(tmp_path / "my-soak.yaml", answers)
    assert not (tmp_path / "my-soak.yaml").exists()


def test_nothing_is_written_before_the_password_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PASSWORD, raising=False)

    with pytest.raises(PlanError, match=f"export {PASSWORD}=... first"):
        init(tmp_path / "my-soak.yaml", SASL)
    assert not (tmp_path / "my-soak.yaml").exists()


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (replace(SASL, user=""), "--security SASL_SSL needs the name of a user: give --user"),
        (replace(KAFKA, user="soak"), "--user soak is for a login, and --security is PLAINTEXT"),
        (replace(KAFKA, mechanism="PLAIN"), "--mechanism PLAIN is for a login"),
        (replace(KAFKA, security="SSL", user="soak"), "give --security SASL_SSL or SASL_PLAINTEXT"),
    ],
)
def test_half_a_login_is_refused_before_anything_is_asked_or_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: Answers, message: str
) -> None:
    monkeypatch.setenv(PASSWORD, "x")

    with pytest.raises(PlanError, match=message):
        init(tmp_path / "my-soak.yaml", answers)
    assert not (tmp_path / "my-soak.yaml").exists()


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (
            replace(PULSAR, security="SASL_SSL"),
            "--security SASL_SSL: a cluster of the kind pulsar has",
        ),
        (
            replace(PULSAR, user="soak"),
            "--user soak: a cluster of the kind pulsar has no such option",
        ),
        (
            replace(PULSAR, admin_url=""),
            "--kind pulsar needs --admin-url, such as http://host:8080",
        ),
        (
            replace(PULSAR, ca_file="ca.pem"),
            r"--ca-file ca.pem is for TLS: give --servers pulsar\+ssl:",
        ),
        (
            replace(KAFKA, ca_file="ca.pem"),
            "--ca-file ca.pem is for TLS: give --security SSL or SASL_SSL",
        ),
        (
            replace(KAFKA, admin_url="http://b1"),
            "--admin-url http://b1: a cluster of the kind kafka has",
        ),
    ],
)
def test_an_option_that_would_be_in_no_plan_is_refused(
    tmp_path: Path, answers: Answers, message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        init(tmp_path / "my-soak.yaml", answers)
    assert not (tmp_path / "my-soak.yaml").exists()


def test_the_certificate_of_a_pulsar_is_in_its_plan() -> None:
    """And the token, where one is needed, goes below the same key."""
    answers = replace(PULSAR, servers="pulsar+ssl://b1:6651", ca_file="/etc/ca.pem")
    written = plan_text(Path("p.yaml"), answers, 1)
    with_token = written.replace("# authentication: token", "authentication: token")
    with_token = with_token.replace("# token: ", "token: ")

    tls = {"tls_trust_certs_file_path": "/etc/ca.pem", "tls_validate_hostname": "true"}
    token = {"authentication": "token", "token": "${file:/etc/soak/token}"}
    assert plan(answers).broker_config.client == tls
    assert text.load(with_token, "p.yaml").plan.broker_config.client == tls | token


def test_without_a_terminal_the_servers_must_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)

    with pytest.raises(PlanError, match="give --servers"):
        ask(replace(KAFKA, servers=""))
    assert ask(KAFKA) == KAFKA


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_wrong_answer_is_asked_again_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the mechanism comes before the user, whose password it decides about."""
    answers = "b1:9092", "sasl_ssl", "SCRAM-SHA-521", "scram-sha-256", "soak", ""
    monkeypatch.setattr("sys.stdin", Terminal("".join(f"{one}\n" for one in answers)))

    found = ask(Answers("kafka", ""))

    assert (found.security, found.mechanism, found.user) == ("SASL_SSL", "SCRAM-SHA-256", "soak")
    assert "SCRAM-SHA-521" in capsys.readouterr().out
