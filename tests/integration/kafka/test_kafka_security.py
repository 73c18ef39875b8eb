"""The Kafka broker port against a real Kafka with TLS and passwords."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # their stubs
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from probes.round_trip.probe import Config, RoundTrip
from soak.app.plan_files import load_plan
from soak.app.preflight.cluster import cluster_faults
from soak.brokers import kafka
from soak.core.clock import SystemClock
from soak.core.errors import BrokerError, PlanError, ProbeError
from soak.core.model import Reading
from soak.core.plan.plan import Ship
from soak.core.ports import EARLIEST, FAILED_OFFSET, Outgoing, Topics
from soak.core.units import SECOND_NS
from soak.lab.broker_setup import free_ports
from soak.lab.brokers import kafka as lab
from soak.store.samples_topic import SamplesWriter, ShippedLine
from spark.sources.samples_topic import TopicOptions
from spark.sources.topic_log import KafkaTopicLog
from tests.support.certificate import certificate
from tests.support.load.load_run import LoadRun

pytestmark = pytest.mark.broker
MECHANISM = "SCRAM-SHA-512"
PLAN = """
name: guarded
broker:
  kafka:
    bootstrap_servers: {servers}
    common: {{{common}}}
topic: {{partitions: 2}}
load: {{rate: 1k/s, message_size: 256B}}
"""


@dataclass(frozen=True)
class Guarded:
    bootstrap_servers: str
    certificate: Path
    password: str
    password_file: Path
    admin: AdminClient
    listeners: Mapping[str, str]  # address by protocol

    @property
    def common(self) -> dict[str, str]:
        """Return what a plan says under `common`: where the password is, and no more."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.username": "soakd",
            "sasl.password": f"${{file:{self.password_file}}}",
            "ssl.ca.location": str(self.certificate),
        }

    def config(self, servers: str = "", **more: str) -> kafka.Config:
        common = {**self.common, **{name.replace("_", "."): value for name, value in more.items()}}
        return kafka.Config(
            bootstrap_servers=servers or self.bootstrap_servers,
            timeout=5 * SECOND_NS,
            common=common,
        )

    def broker(self, servers: str = "", **more: str) -> kafka.KafkaBroker:
        return kafka.connect(self.config(servers, **more), SystemClock())


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A broker for this module only: with TLS it takes two seconds longer to start."""
    folder = tmp_path_factory.mktemp("guarded-kafka")
    public, private = certificate(folder)
    both = folder / "both.pem"
    both.write_text(private.read_text() + public.read_text())
    password = secrets.token_hex(16)
    password_file = folder / "password"
    password_file.write_text(password + "\n")
    address, with_login, with_tls = (f"127.0.0.1:{port}" for port in free_ports(3))
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    broker = lab.start(
        folder / "kafka",
        {
            "listeners": f"GUARDED://{address},LOGIN://{with_login},TLS://{with_tls}",
            "listener.security.protocol.map": "GUARDED:SASL_SSL,LOGIN:SASL_PLAINTEXT,TLS:SSL",
            "listener.name.login.sasl.enabled.mechanisms": MECHANISM,
            f"listener.name.login.{MECHANISM.lower()}.sasl.jaas.config": login,
            "listener.name.tls.ssl.keystore.type": "PEM",
            "listener.name.tls.ssl.keystore.location": str(both),
            "listener.name.guarded.sasl.enabled.mechanisms": MECHANISM,
            f"listener.name.guarded.{MECHANISM.lower()}.sasl.jaas.config": login,
            "listener.name.guarded.ssl.keystore.type": "PEM",
            "listener.name.guarded.ssl.keystore.location": str(both),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:soakd",
        },
    )
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    how = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    users: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(name, how, password.encode()) for name in ("soakd", "limited")
    ]
    for future in admin.alter_user_scram_credentials(users).values():
        future.result(30)
    others = {
        "PLAINTEXT": broker.bootstrap_servers,
        "SASL_PLAINTEXT": with_login,
        "SSL": with_tls,
        "SASL_SSL": address,
    }
    yield Guarded(address, public, password, password_file, admin, others)
    broker.kill()  # nothing in it is needed any more


def test_messages_go_through_tls_with_a_password_from_a_file(guarded: Guarded) -> None:
    """Every request of the port, and a message sent and received."""
    broker = guarded.broker()
    topics = Topics((f"soak-test-{secrets.token_hex(4)}",), 1)

    broker.check()
    broker.create_topics(topics, 1, {})
    producer = broker.producer(topics)
    producer.send(Outgoing([0], [b"guarded"], 0))
    acks = producer.close(30)
    consumer = broker.consumer(topics, "audit", {0: EARLIEST})
    batch = consumer.receive(1, 30)
    bounds = consumer.log_bounds([0])
    consumer.close()

    assert [bytes(head).rstrip(b"\0") for head in batch.heads] == [b"guarded"]
    assert batch.offset.tolist() == acks.offset.tolist() == [0]
    assert bounds == {0: (0, 1)}
    assert broker.existing([*topics.names, "soak-not"]) == list(topics.names)
    assert broker.leaders(topics).tolist() == [1]


def test_the_daemons_measure_a_guarded_cluster_and_write_the_password_nowhere(
    guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The password is in the environment; every file of the run is searched for it."""
    monkeypatch.setenv("SOAKD_TEST_PASSWORD", guarded.password)
    common = {**guarded.common, "sasl.password": "${env:SOAKD_TEST_PASSWORD}"}
    words = ", ".join(f"{name}: '{value}'" for name, value in common.items())
    topic = f"soak-test-{secrets.token_hex(4)}"
    guarded.broker().create_topics(Topics((topic,), 2), 1, {})
    text = PLAN.format(servers=guarded.bootstrap_servers, common=words)
    run = LoadRun(tmp_path / "run", text, topic)

    try:
        acked = run.produce(101)
        run.consume(acked)
    finally:
        run.close()

    assert run.verdict() == {"received": acked}
    written = [path for path in run.folder.path.rglob("*") if path.is_file()]
    assert run.folder.plan in written
    assert not [path for path in written if guarded.password.encode() in path.read_bytes()]


GRANTED = re.compile(r"--operation (\w+)")


def missing_rights(error: pytest.ExceptionInfo[Exception]) -> list[str]:
    assert re.search(
        r"kafka-acls\.sh --bootstrap-server \S+ --command-config \S+ --add --allow-principal User:limited",
        str(error.value),
    )
    return GRANTED.findall(str(error.value))


def grant(guarded: Guarded, topic: str, *names: str) -> None:
    """As the command of the error does."""
    prefixed = ResourcePatternType.PREFIXED
    rules = [
        AclBinding(
            ResourceType.TOPIC,
            topic,
            prefixed,
            "User:limited",
            "*",
            AclOperation[name.upper()],
            AclPermissionType.ALLOW,
        )
        for name in names
    ]
    for made in guarded.admin.create_acls(rules).values():
        made.result(30)


def test_each_missing_right_is_named_with_what_grants_it(
    guarded: Guarded, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`soak check` asks before the run; what may be done with a new topic is known once it exists."""
    prefix = f"soak-test-{secrets.token_hex(4)}"
    limited = guarded.broker(sasl_username="limited")
    common = {**guarded.common, "sasl.username": "limited"}
    words = ", ".join(f"{name}: '{value}'" for name, value in common.items())
    path = tmp_path / "plan.yaml"
    plan = PLAN.format(servers=guarded.bootstrap_servers, common=words)
    path.write_text(plan.replace("topic: {", f"topic: {{name: {prefix}-plan, "))

    def check() -> list[PlanError]:
        found = load_plan(path)
        return cluster_faults(found)

    def create() -> str:
        name = f"{prefix}-{secrets.token_hex(4)}"
        limited.create_topics(Topics((name,), 1), 1, {})
        return name

    (fault,) = check()
    assert str(fault).startswith(
        f"{path}:7: topic: user limited may not create topic {prefix}-plan"
    )
    of_topics, of_cluster = str(fault).splitlines()[1:]
    assert of_topics.startswith("kafka-acls.sh ")
    assert GRANTED.findall(of_topics) == [
        *("Create", "Describe", "Read", "Write", "Delete", "DescribeConfigs")
    ]
    assert of_cluster.endswith(" --operation DescribeConfigs --cluster")

    grant(guarded, prefix, "Create")
    assert check() == []
    with pytest.raises(BrokerError, match="may not see topic") as error:
        create()
    assert missing_rights(error) == ["Describe", "Read", "Write"]

    grant(guarded, prefix, "Describe", "Write")
    with pytest.raises(BrokerError, match="may not read topic") as error:
        create()
    assert missing_rights(error) == ["Read"]

    grant(guarded, prefix, "Read")
    topics = Topics((create(),), 1)
    with pytest.raises(BrokerError, match="may not delete topic") as error:
        limited.delete_topics(topics.names)
    assert missing_rights(error) == ["Delete"]

    producer = limited.producer(topics)
    producer.send(Outgoing([0], [b"granted"], 0))
    producer.close(30)
    consumer = limited.consumer(topics, "audit", {0: EARLIEST})
    batch = consumer.receive(1, 30)
    consumer.close()
    assert len(batch.heads) == 1
    assert (
        "consume_failed" not in caplog.text
    )  # it needs no right on a group, which it joins none of


@pytest.mark.parametrize("library", ["batched calls", "public API"])
def test_messages_that_the_user_may_no_longer_write_fail_for_that_reason(
    guarded: Guarded, library: str
) -> None:
    """With batched calls and without: it may see the topic, and its right to write is gone."""
    topics = Topics((f"soak-test-{secrets.token_hex(4)}",), 1)
    guarded.broker().create_topics(topics, 1, {})
    grant(guarded, topics.names[0], "Describe")
    limited = guarded.broker(sasl_username="limited")
    if library == "public API":
        config = guarded.config(sasl_username="limited")
        limited = kafka.KafkaBroker(config, SystemClock(), limited.guarantees)
    producer = limited.producer(topics)

    producer.send(Outgoing([0] * 3, [b"refused"] * 3, 0))
    acks = producer.close(30)

    assert acks.offset.tolist() == [FAILED_OFFSET] * 3
    assert acks.failures == {"Broker: Topic authorization failed": 3}


def test_an_existing_topic_that_the_user_may_not_see_is_not_called_missing(
    guarded: Guarded, tmp_path: Path
) -> None:
    name = f"soak-hidden-{secrets.token_hex(4)}"
    guarded.broker().create_topics(Topics((name,), 1), 1, {})
    common = {**guarded.common, "sasl.username": "limited"}
    words = ", ".join(f"{key}: '{value}'" for key, value in common.items())
    path = tmp_path / "plan.yaml"
    plan = PLAN.format(servers=guarded.bootstrap_servers, common=words)
    path.write_text(plan.replace("topic: {", f"topic: {{name: {name}, use_existing: true, "))

    (fault,) = cluster_faults(load_plan(path))

    assert f"topic.use_existing: user limited may not see topic {name}" in str(fault)


def test_a_wrong_password_is_named_as_the_cause_and_not_shown(
    guarded: Guarded, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By where the plan has it; the error of the request itself is only that no broker answers."""
    wrong = tmp_path / "wrong"
    wrong.write_text("hunter2\n")
    broker = guarded.broker(sasl_password=f"${{file:{wrong}}}")

    with pytest.raises(BrokerError, match=r"the broker refused user .*: wrong password") as raised:
        broker.check()

    assert str(wrong) in str(raised.value)
    assert "hunter2" not in str(raised.value) + caplog.text


def test_an_untrusted_certificate_is_refused(guarded: Guarded, tmp_path: Path) -> None:
    """A second self-signed certificate does not vouch for the first."""
    stranger, _ = certificate(tmp_path)

    with pytest.raises(BrokerError, match="certificate verify failed"):
        guarded.broker(ssl_ca_location=str(stranger)).check()


@pytest.mark.parametrize(
    ("said", "is_", "hint"),
    [
        ("PLAINTEXT", "SASL_SSL", "speaks TLS: set security.protocol to SASL_SSL"),
        ("SASL_PLAINTEXT", "SASL_SSL", "speaks TLS: set security.protocol to SASL_SSL"),
        ("SSL", "SASL_SSL", "asks for a login (SCRAM-SHA-512): set security.protocol to SASL_SSL"),
        ("PLAINTEXT", "SSL", "speaks TLS: set security.protocol to SSL"),
        ("SASL_SSL", "SSL", "has no logins: set security.protocol to SSL"),
        ("SSL", "PLAINTEXT", "does not speak TLS: set security.protocol to PLAINTEXT"),
        ("SASL_SSL", "SASL_PLAINTEXT", "not speak TLS: set security.protocol to SASL_PLAINTEXT"),
        ("SASL_PLAINTEXT", "PLAINTEXT", "has no logins: set security.protocol to PLAINTEXT"),
    ],
)
def test_a_wrong_protocol_is_named_with_the_right_one(
    guarded: Guarded, said: str, is_: str, hint: str
) -> None:
    """The client itself is only disconnected."""
    wrong = guarded.broker(guarded.listeners[is_], security_protocol=said)
    with pytest.raises(BrokerError, match=re.escape(hint)):
        wrong.check()

    guarded.broker(guarded.listeners[is_], security_protocol=is_).check()


def test_a_login_that_the_listener_has_not_is_named(guarded: Guarded) -> None:
    with pytest.raises(BrokerError, match="has no SCRAM-SHA-256, but SCRAM-SHA-512"):
        guarded.broker(sasl_mechanism="SCRAM-SHA-256").check()


def test_a_certificate_for_another_name_is_said_to_be_one(guarded: Guarded) -> None:
    """Not that the CA is unknown."""
    by_name = guarded.bootstrap_servers.replace("127.0.0.1", "localhost")

    with pytest.raises(BrokerError, match="certificate is not valid for 'localhost'"):
        guarded.broker(by_name).check()


def first_values(probe: RoundTrip) -> Reading:
    """Return the first reading with an answer."""
    while not (reading := probe.read()).samples:
        time.sleep(0.1)
    return reading


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_round_trips_are_measured_as_the_listener_wants_it(guarded: Guarded, protocol: str) -> None:
    """With TLS, with a login, with both, and with neither."""
    client = {**guarded.common, "security.protocol": protocol}
    servers = guarded.listeners[protocol]
    probe = RoundTrip(Config(bootstrap_servers=servers, client=client), SystemClock())
    try:
        reading = first_values(probe)
    finally:
        probe.close()

    seconds = {column.metric: value for column, value in reading.samples}
    assert 0.0 < seconds["broker_round_trip_seconds"] < 5.0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sasl.username": "stranger"}, "cannot log in at .* the login is refused"),
        ({"ssl.ca.location": ""}, "certificate verify failed"),
    ],
    ids=["login", "certificate"],
)
def test_a_refusal_in_a_round_trip_is_a_failure_with_its_reason(
    guarded: Guarded, changes: Mapping[str, str], why: str
) -> None:
    client = {**guarded.common, **changes}
    probe = RoundTrip(
        Config(bootstrap_servers=guarded.bootstrap_servers, client=client), SystemClock()
    )
    try:
        with pytest.raises(ProbeError, match=why):
            first_values(probe)
    finally:
        probe.close()


def test_the_samples_topic_is_read_with_tls_and_a_password(guarded: Guarded) -> None:
    """By who may read it only; the password is where the options say, and not in them."""
    ship = Ship(
        bootstrap_servers=guarded.bootstrap_servers,
        topic="guarded-samples",
        client=guarded.common,
        timeout=10 * SECOND_NS,
    )
    writer = SamplesWriter(ship, "r1", 0, SystemClock())
    writer.send([ShippedLine("probe@b", b"x")])
    writer.close()
    options = TopicOptions(ship=ship).to_options()
    log = KafkaTopicLog(TopicOptions.of(options).ship, SystemClock())
    begins, ends = log.begins(None), log.ends()
    assert ends is not None
    found = [
        record
        for partition, end in ends.ends.items()
        for record in log.read(partition, begins.ends[partition], end)
    ]

    assert [one[3] for one in found] == [b"x"]
    assert guarded.password not in str(options)
