"""`soak check` of a plan with several faults: each is printed, with what to do, and nothing else."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from soak.app.check import small_drive_warnings
from soak.app.preflight.cluster import cluster_faults, target_faults
from soak.cli import main
from soak.core.cluster.forecast import Limits
from soak.core.errors import BrokerError, NotNowError, PlanError
from soak.core.plan import text as plan_text
from soak.core.plan.plan import Plan
from tests.support.alerting.mail_server import free_port
from tests.support.fakes import FakeBroker
from tests.support.vanishing import vanishing_cluster

FAULTY = """name: x
run_directory: {folder}
broker: {{kafka: {{bootstrap_servers: '127.0.0.1:{port}', timeout: 1s}}}}
bogus: 1
load:
  rate: fast
topic:
  name: a b
sinks:
  mail: {{to: [oncall@example.org], host: 127.0.0.1, port: {port}, timeout: 1s}}
  webhook: {{url: 'http://127.0.0.1:{port}', timeout: 1s}}
alerts: {{digest: often}}
probes:
  broker_log: {{log: {folder}/no-such.log}}
  prometheus:
    targets:
      broker1: {{url: 'http://127.0.0.1:{port}/metrics', maps: [jvm]}}
  fsync: {{}}
"""


def refused(folder: Path, text: str) -> tuple[list[str], list[str]]:
    """Return the faults of a plan and the warnings beside them, a line each."""
    plan = folder / "plan.yaml"
    plan.write_text(text)
    result = CliRunner().invoke(main.build(["check"]), ["check", str(plan)])
    assert isinstance(result.exception, PlanError), result.output
    faults = [line.strip() for line in str(result.exception).splitlines()]
    warnings = [line for line in result.output.splitlines() if line.startswith("Warning: ")]
    return faults, warnings


@pytest.mark.parametrize(
    ("load", "topic", "message"),
    [
        (
            "{rate: 10/s, message_size: 2MiB}",
            "{}",
            "load.message_size: a message of 2MiB is refused: .* 1,048,588",
        ),
        (
            "{rate: 10/s, message_size: 2MiB}",
            "{settings: {max.message.bytes: 2000000}}",
            "at most 2,000,000 bytes",
        ),
        (
            "{rate: 10/s, message_sizes: [{size: 1KiB, share: 9}, {size: 2MiB, share: 1}]}",
            "{}",
            "load.message_sizes: a message of 2MiB is refused",
        ),
        ("{rate: 10/s, message_size: 2MiB, compressible: 0.6}", "{}", ""),
        ("{rate: 10/s, message_size: 2MiB}", "{settings: {max.message.bytes: 3000000}}", ""),
        ("{rate: 10/s, message_size: 1MiB}", "{}", ""),
    ],
)
def test_a_message_larger_than_the_topic_takes_is_a_fault(
    load: str, topic: str, message: str
) -> None:
    """Every send of it would fail; what compression may make small enough is let through."""
    plan = f"name: x\nbroker: {{kafka: {{}}}}\nlab: {{}}\nload: {load}\ntopic: {topic}\n"
    faults = target_faults(plan_text.load(plan, "p.yaml"))

    assert len(faults) == bool(message)
    assert all(re.search(f"p.yaml:4: .*{message}", str(one)) for one in faults)


@pytest.mark.long
def test_every_fault_of_a_plan_is_printed_at_once(tmp_path: Path) -> None:
    """In its text, on this host and in the cluster, in order of the lines; then what does not answer."""
    first, *faults = refused(tmp_path, FAULTY.format(folder=tmp_path, port=free_port()))[0]

    keys = [line.split(": ")[1] for line in faults]
    assert first == f"{len(faults)} faults"
    assert keys == [
        "broker.kafka.bootstrap_servers",
        "bogus",
        "load.rate",
        "topic.name",
        "alerts.digest",
        "probes.fsync.directory",
    ]


@pytest.mark.long
def test_what_does_not_answer_is_printed_beside_the_faults(tmp_path: Path) -> None:
    """Servers for notifications with their line; logs and pages of brokers; each with what to do."""
    port = free_port()
    found = refused(tmp_path, FAULTY.format(folder=tmp_path, port=port))[1]
    warnings = [one for one in found if "the clock of this host" not in one]

    assert len(warnings) == 4
    assert [warning for warning in warnings if "plan.yaml:10: sinks.mail.host: " in warning]
    assert [warning for warning in warnings if "plan.yaml:11: sinks.webhook.url: " in warning]
    assert [warning for warning in warnings if "no-such.log" in warning]
    assert [warning for warning in warnings if "cannot read broker1" in warning]


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("lode: 1\nphases: {soak: long}\n", ["lode", "phases.soak"]),
        # a name that is not known hides nothing in its own section or another
        (
            "load: {rat: 1, message_size: 0}\nprobes: {hots: {}, host: {x: 1}}\n",
            ["load.rat", "load.message_size", "probes.hots", "probes.host.x"],
        ),
        # without the wrong host there is no mail server: that is no fault of the plan
        ("sinks: {mail: {to: [a@example.org], host: [h]}}\nlode: 1\n", ["sinks.mail.host", "lode"]),
        # a missing key takes its section along
        ("sinks: {mail: {host: h}}\nlode: 1\n", ["sinks.mail.to", "lode"]),
        (
            "topic: {partitions: few, replication: many}\n",
            ["topic.partitions", "topic.replication"],
        ),
    ],
)
def test_each_wrong_key_is_a_fault_and_its_consequences_are_none(
    tmp_path: Path, text: str, keys: list[str]
) -> None:
    """The rest of the plan is checked without the wrong keys."""
    start = f"name: x\nrun_directory: {tmp_path}\nbroker: {{kafka: {{}}}}\n"

    _, *faults = refused(tmp_path, start + text)[0]

    assert sorted(line.split(": ")[1] for line in faults) == sorted(keys)


def test_a_key_without_which_its_section_is_wrong_hides_no_other_fault(tmp_path: Path) -> None:
    """A user without the password that was left out: what is wrong without it is no fault of its own."""
    text = f"""name: x
run_directory: {tmp_path}
broker: {{kafka: {{producer: {{acks: 2}}}}}}
sinks:
  webhook: {{url: 'https://127.0.0.1:1', username: me, password: plain}}
  mail: {{to: [oncall@example.org], security: tls, username: me, password: plain}}
load: {{rate: fast}}
"""

    (_, *faults), _ = refused(tmp_path, text)

    assert [fault.partition("plan.yaml:")[2].split(": ")[1] for fault in faults] == [
        "broker.kafka.producer.acks",
        "sinks.webhook.password",
        "sinks.mail.password",
        "load.rate",
    ]


def test_without_a_broker_that_is_known_the_rest_of_the_text_is_checked(tmp_path: Path) -> None:
    """There is then no plan whose cluster could be asked."""
    faults, warnings = refused(tmp_path, "name: x\nbroker: {kafak: {}}\nlode: 1\n")

    assert [line.split(": ")[1] for line in faults[1:]] == ["broker.kafak", "lode"]
    assert warnings == []


OF_CLUSTER = """name: x
broker: {vanishing: {bootstrap_servers: '127.0.0.1:1'}}
topic: {name: bench, replication: 3}
load: {message_size: 2MiB}
"""


def test_no_fault_that_the_cluster_finds_hides_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of the topic, its copies, a right that is missing, and the size of the messages."""
    cluster = vanishing_cluster(tmp_path, monkeypatch)
    cluster.make("bench")
    cluster.guarantees = SimpleNamespace(retention=lambda _: Limits(max_message_bytes=1_048_588))
    monkeypatch.setattr(cluster, "replication_error", lambda _: "the cluster has 1 broker")
    monkeypatch.setattr(cluster, "topic_error", lambda _: "user soakd may not create topic bench")

    faults = cluster_faults(plan_text.load(OF_CLUSTER, "p.yaml"))

    keys = [str(one).split(": ")[1] for one in faults]
    assert keys == ["topic.name", "topic.replication", "topic", "load.message_size"]


def test_a_wrong_setting_of_the_topic_is_one_fault_and_hides_none_of_the_cluster_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster would refuse the setting as well; it is asked about the others."""
    cluster = vanishing_cluster(tmp_path, monkeypatch)
    monkeypatch.setattr(cluster, "topic_error", lambda topic: f"no right, {[*topic.settings]}")
    text = f"""name: x
run_directory: {tmp_path}
broker: {{vanishing: {{bootstrap_servers: '127.0.0.1:1'}}}}
topic: {{settings: {{retention.ms: 7d, cleanup.policy: delete}}}}
"""

    (_, *faults), _ = refused(tmp_path, text)

    assert [fault.partition("plan.yaml:4: ")[2].partition(": ")[::2] for fault in faults] == [
        ("topic.settings.retention.ms", "must be a whole number, not '7d'"),
        ("topic", "no right, ['cleanup.policy']"),
    ]


def test_a_cluster_that_is_gone_during_the_check_is_one_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the questions that follow fails alike."""
    cluster = vanishing_cluster(tmp_path, monkeypatch)

    def gone(_: object) -> str:
        raise BrokerError("127.0.0.1:1 does not answer")

    monkeypatch.setattr(cluster, "replication_error", gone)
    monkeypatch.setattr(cluster, "topic_error", gone)

    (fault,) = cluster_faults(plan_text.load(OF_CLUSTER, "p.yaml"))

    assert isinstance(fault, NotNowError)
    assert str(fault).startswith("p.yaml:2: broker.vanishing.bootstrap_servers: ")


def test_no_fault_of_a_lab_hides_another() -> None:
    """Nor one of the topic's settings."""
    text = """name: x
broker: {pulsar: {}}
lab: {nodes: 2, drive: {capacity: 1MiB}}
load: {rate: 10M/s}
topic: {name: a b, replication: 3, settings: {bogus: x, bookkeeperEnsemble: three}}
"""

    faults = target_faults(plan_text.load(text, "p.yaml"))

    assert sorted(str(one).split(": ")[1] for one in faults) == [
        "lab.drive.capacity",
        "lab.nodes",
        "load.rate",
        "topic.name",
        "topic.replication",
        "topic.settings.bogus",
        "topic.settings.bookkeeperEnsemble",
    ]


OF_EVERY_SECTION = """name: x
run_directory: {folder}
broker: {{vanishing: {{bootstrap_servers: '127.0.0.1:1'}}}}
lab: {{}}
lode: 1
topic: {{name: bench, replication: 3, settings: {{retention.ms: 7d, max.mesage.bytes: 5}}}}
load: {{profile: {{file: none.csv}}}}
detection: {{trigger: 5min}}
sinks:
  mail:
    to: [oncall@example.org]
    host: 127.0.0.1
    port: {port}
    security: starttls
    username: soakd
    password: ${{env:SOAK_TEST_NO_SUCH_SECRET}}
  webhook: {{url: 'http://127.0.0.1:{port}', timeout: 1s}}
alerts: {{digest: often, maintenance: [{{cron: never, length: 1h}}]}}
probes:
  broker_log: {{log: {folder}/no-such.log}}
  fsync: {{}}
  prometheus:
    targets:
      a: {{url: 'http://127.0.0.1:{port}/metrics', maps: [jmv]}}
      b: {{url: 'http://127.0.0.1:{port}/metrics', maps: [jvm], client: {{pasword: x, usename: x}}}}
"""


def test_faults_of_every_section_are_printed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the text, of this host and of the cluster; beside them what is certain all the same."""
    cluster = vanishing_cluster(tmp_path, monkeypatch)
    cluster.make("bench")
    monkeypatch.setattr(cluster, "replication_error", lambda _: "the cluster has 1 broker")
    monkeypatch.setattr(cluster, "topic_error", lambda _: "user soakd may not create topic bench")
    port = free_port()

    (_, *faults), warnings = refused(tmp_path, OF_EVERY_SECTION.format(folder=tmp_path, port=port))

    assert sorted(line.split(": ")[1] for line in faults) == [
        "alerts.digest",
        "alerts.maintenance.0.cron",
        "detection.trigger",
        "lab",
        "load.profile.file",
        "lode",
        "probes.fsync.directory",
        "probes.prometheus.targets.a.maps",
        "probes.prometheus.targets.b.client.pasword",
        "probes.prometheus.targets.b.client.usename",
        "topic",
        "topic.name",
        "topic.replication",
        "topic.settings.retention.ms",
    ]
    for part in (
        "no-such.log",
        "sinks.mail.host: ",
        "sinks.mail.password: there is no environment variable SOAK_TEST_NO_SUCH_SECRET; set it",
        "sinks.webhook.url: ",
        "topic.settings.max.mesage.bytes is no setting known here; did you mean 'max.message.bytes'?",
    ):
        assert len([warning for warning in warnings if part in warning]) == 1


def test_warnings_that_no_fault_makes_doubtful_are_printed_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits, settings that are not known, retention, and a plan without sinks."""
    vanishing_cluster(tmp_path, monkeypatch)
    text = f"""name: x
run_directory: {tmp_path}
broker: {{vanishing: {{bootstrap_servers: '127.0.0.1:1'}}}}
topic: {{partitions: 2000, settings: {{retension.ms: 5}}}}
lode: 1
"""

    (fault,), warnings = refused(tmp_path, text)

    assert ": lode: " in fault
    for part in (
        "topic.partitions: 2000 partitions is more than limits.partitions",
        "topic.settings.retension.ms is no setting known here",
        "no limit of retention is reached",
        "sinks is empty",
    ):
        assert len([warning for warning in warnings if part in warning]) == 1


@pytest.mark.parametrize("load", ["rate: fast", "mesage_size: 1KiB"])
def test_a_warning_about_a_section_with_a_key_left_out_is_not_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: str
) -> None:
    """The load is another than the plan means: nothing is known of its rate and of retention."""
    vanishing_cluster(tmp_path, monkeypatch)
    text = f"""name: x
run_directory: {tmp_path}
broker: {{vanishing: {{bootstrap_servers: '127.0.0.1:1'}}}}
topic: {{partitions: 2000}}
load: {{{load}}}
"""

    _, warnings = refused(tmp_path, text)

    assert not [one for one in warnings if "limits." in one or "no limit of retention" in one]


def test_of_a_topic_with_a_wrong_key_only_what_does_not_depend_on_it_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be meant to exist: its name is no fault then, and its copies are not the run's."""
    cluster = vanishing_cluster(tmp_path, monkeypatch)
    cluster.make("bench")
    monkeypatch.setattr(cluster, "replication_error", lambda _: "the cluster has 1 broker")
    start = (
        f"name: x\nrun_directory: {tmp_path}\nbroker: {{vanishing: {{bootstrap_servers: 'h:1'}}}}\n"
    )

    (misspelt,), _ = refused(tmp_path, f"{start}topic: {{name: bench, use_exsting: true}}\n")
    (_, *others), _ = refused(tmp_path, f"{start}topic: {{name: bench, partitions: few}}\n")

    assert ": topic.use_exsting: " in misspelt
    assert [line.split(": ")[1] for line in others] == [
        "topic.partitions",
        "topic.name",
        "topic.replication",
    ]


def test_a_wrong_address_does_not_make_it_the_plan_of_a_lab(tmp_path: Path) -> None:
    """What is too large for a lab may suit the cluster, which is not asked."""
    text = f"""name: x
run_directory: {tmp_path}
broker: {{kafka: {{bootstrap_servers: [b1, b2]}}}}
load: {{rate: 10M/s}}
"""

    (fault,), warnings = refused(tmp_path, text)

    assert ": broker.kafka.bootstrap_servers: must be text" in fault
    assert [one for one in warnings if "the cluster is not checked before" in one]


@pytest.mark.long
def test_wrong_settings_of_the_load_s_clients_do_not_hide_the_cluster(tmp_path: Path) -> None:
    """It is asked with those that are right."""
    text = f"""name: x
run_directory: {tmp_path}
broker:
  kafka:
    bootstrap_servers: '127.0.0.1:1'
    timeout: 1s
    producer: {{lingr.ms: 5, acks: 7}}
    consumer: {{fetch.wait.max: 5}}
"""

    _, *faults = refused(tmp_path, text)[0]

    assert [line.split(": ")[1] for line in faults] == [
        "broker.kafka.bootstrap_servers",
        "broker.kafka.producer.lingr.ms",
        "broker.kafka.producer.acks",
        "broker.kafka.consumer.fetch.wait.max",
    ]


def test_a_load_profile_that_cannot_be_read_is_one_fault(tmp_path: Path) -> None:
    """The load and the limits of the lab are both checked with it."""
    text = f"name: x\nrun_directory: {tmp_path}\nbroker: {{kafka: {{}}}}\n"

    (fault,) = refused(tmp_path, text + "load: {profile: {file: rates.csv}}\n")[0]

    assert "plan.yaml:4: load.profile.file: " in fault


def test_each_fault_of_shipping_is_printed(tmp_path: Path) -> None:
    """Its topic, a secret, and records that anybody could write."""
    ship = "{bootstrap_servers: 'k.example:9092', topic: a b, client: {sasl.password: letmein}}"
    text = f"name: x\nrun_directory: {tmp_path}\nprobes: {{pressure: {{}}}}\nship: {ship}\n"

    _, *faults = refused(tmp_path, text)[0]

    keys = sorted(line.split(": ")[1] for line in faults)
    assert keys == ["ship", "ship.client.sasl.password", "ship.topic"]


def test_each_unknown_key_of_a_probe_host_is_printed(tmp_path: Path) -> None:
    _, *faults = refused(tmp_path, "name: x\nprobes: {pressure: {}}\nlode: 1\nmode: 2\n")[0]

    assert [line.split(": ")[1] for line in faults] == ["lode", "mode"]


def test_a_start_names_every_fault_of_the_text(tmp_path: Path) -> None:
    """As the check does."""
    plan = tmp_path / "plan.yaml"
    plan.write_text("name: x\nbroker: {kafka: {}}\nlode: 1\nphases: {soak: long}\n")
    words = ["run", str(plan)]

    error = CliRunner().invoke(main.build(words), words).exception

    assert isinstance(error, PlanError)
    assert [line.split(": ")[1] for line in str(error).splitlines()[1:]] == ["lode", "phases.soak"]


def plan_with_folders(*folders: Path, servers: str = "192.0.2.1:9092") -> Plan:
    """Return a plan that names these folders of brokers on this host; the address is of no host."""
    named = ", ".join(map(str, folders))
    text = f"""name: x
broker: {{kafka: {{bootstrap_servers: '{servers}'}}}}
probes: {{disk_io: {{directory: [{named}]}}}}
"""
    return plan_text.load(text, "plan.yaml").plan


def data_folder(folder: Path, broker: int) -> Path:
    """Make a folder with the description that a broker leaves in its data folders."""
    folder.mkdir()
    (folder / "meta.properties").write_text(f"#\nversion=1\nnode.id={broker}\n")
    return folder


def small_drives(plan: Plan, held_bytes: float, devices: dict[str, int]) -> list[str]:
    """Return the warnings for a cluster of three brokers and drives with 100 bytes free each."""
    return small_drive_warnings(
        plan, held_bytes, FakeBroker(range(3)), device=devices.__getitem__, free=lambda _: 100
    )


@pytest.mark.parametrize("is_known", [False, True])
def test_a_broker_spreads_its_part_over_its_folders(tmp_path: Path, *, is_known: bool) -> None:
    """Of 480 bytes each of three brokers holds 160, and each of its two drives 80."""
    folders = [tmp_path / name for name in "ab"]
    if is_known:
        folders = [data_folder(one, broker=2) for one in folders]
    plan, devices = plan_with_folders(*folders), {str(one): at for at, one in enumerate(folders)}

    assert small_drives(plan, 480.0, devices) == []
    assert len(small_drives(plan, 690.0, devices)) == 2


def test_the_parts_of_two_brokers_on_one_drive_add_up(tmp_path: Path) -> None:
    """Each is to hold 80 bytes of 240: their drive has no room for both."""
    folders = [data_folder(tmp_path / str(broker), broker) for broker in (1, 2)]

    (warning,) = small_drives(
        plan_with_folders(*folders), 240.0, dict.fromkeys(map(str, folders), 7)
    )

    assert warning == (
        f"160 B of the run's data are to be held on the drive of {folders[0]} and {folders[1]}, which has"
        " 100 B free: lower the rate or the retention"
    )


def test_brokers_at_addresses_of_this_host_have_a_folder_each(tmp_path: Path) -> None:
    """Their folders do not say of whom they are, or may not be read."""
    folders = [tmp_path / "a", tmp_path / "b"]
    devices = dict.fromkeys(map(str, folders), 7)
    two, one = (
        plan_with_folders(*folders, servers=servers)
        for servers in ("127.0.0.1:9092,127.0.0.1:9093", "127.0.0.1:9092")
    )

    assert len(small_drives(two, 240.0, devices)) == 1
    assert small_drives(one, 240.0, devices) == []


def test_the_journal_of_a_bookie_holds_none_of_the_data(tmp_path: Path) -> None:
    """Its drive may be small; that of the ledgers is to hold all 160 bytes of 480."""
    folders = [tmp_path / name for name in ("journal", "ledgers")]
    (folders[0] / "current").mkdir(parents=True)
    (folders[0] / "current" / "172315ffad6.txn").touch()
    devices = {str(one): at for at, one in enumerate(folders)}

    (warning,) = small_drives(plan_with_folders(*folders), 480.0, devices)

    assert f"160 B of the run's data are to be held on the drive of {folders[1]}, which" in warning


def test_a_folder_with_journal_and_ledgers_holds_data(tmp_path: Path) -> None:
    """As that of a standalone Pulsar: it has entry logs, too."""
    (tmp_path / "current").mkdir()
    for name in ("172315ffad6.txn", "0.log"):
        (tmp_path / "current" / name).touch()
    plan = plan_with_folders(tmp_path)

    assert len(small_drives(plan, 480.0, {str(tmp_path): 7})) == 1


def test_a_drive_and_the_folder_on_it_are_one(tmp_path: Path) -> None:
    """A probe may name where the drive is mounted, and another one the data."""
    folders = [tmp_path, tmp_path / "data", tmp_path.parent / "other"]
    devices = {str(one): at for at, one in enumerate((folders[1], folders[2]))}

    assert small_drives(plan_with_folders(*folders), 480.0, devices) == []
    assert len(small_drives(plan_with_folders(*folders), 690.0, devices)) == 2


@pytest.mark.parametrize("brokers", [1, 3])
def test_a_drive_that_is_too_small_is_reported(brokers: int, tmp_path: Path) -> None:
    """Each of the brokers holds its part; the drive of one is on this host."""
    plan = plan_with_folders(tmp_path)
    broker = FakeBroker(range(brokers))
    free = shutil.disk_usage(tmp_path).free

    fits = small_drive_warnings(plan, 0.5 * free * brokers, broker)
    (warning,) = small_drive_warnings(plan, 4.0 * free * brokers, broker)

    assert fits == []
    assert f"the drive of {tmp_path}, which has " in warning


def test_the_drives_of_a_lab_may_be_filled(tmp_path: Path) -> None:
    text = f"name: x\nbroker: {{kafka: {{}}}}\nlab: {{}}\nprobes: {{disk_io: {{directory: {tmp_path}}}}}\n"

    assert small_drive_warnings(plan_text.load(text, "p").plan, 1e30, FakeBroker()) == []
