"""Commands that confirm a cause, with the names and numbers of the incident, and capitals for the others."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from detectors import attribution
from soak.alerting.confirmation import is_loopback, known_of
from soak.alerting.places import Places
from soak.core.model import Evidence, Explanation, Finding
from soak.core.plan.plan import Plan
from soak.core.plan.text import load
from tests.support.alerting.findings import finding
from tests.support.paths import RECORDED

PLACES = Places(mount_points={("b1", "nvme0n1"): "/var/lib/kafka"})
LOSSES = (
    "for i in 1 2 3 4 5 6; do date +%T; ss -tinH '( dport = :9092 or sport = :9092 )' | "
    "grep -o 'retrans:[0-9]*/[0-9]*'; sleep 5; done"
)
GC_PAUSES = r"grep -E 'Pause (Full|Young)|\[(Full )?GC [(p]' {} | tail"
SECURED = "{bootstrap_servers: 'b1:9093', common: {security.protocol: sasl_ssl}}"


def plan_of(broker: str) -> Plan:
    return load(f"name: p\nbroker: {{{broker}}}\ntopic: {{name: soak-1}}\n", "p.yaml").plan


PLANS = {
    "kafka": plan_of("kafka: {bootstrap_servers: 'b1:9092,b2:9092'}"),
    "pulsar": plan_of("pulsar: {service_url: 'pulsar://b1:6650', admin_url: 'http://b1:8080'}"),
}


def lines(
    cause: str,
    suspect: str,
    *evidence: Evidence,
    kind: str = "kafka",
    plan: Plan | None = None,
    rate: float = 1000.0,
) -> tuple[str, str, str]:
    """Return where to run the command of a cause, the command, and its sign."""
    return lines_of(
        finding(causes=(Explanation(cause, 0.9, evidence, suspect=suspect),)),
        kind=kind,
        plan=plan,
        rate=rate,
    )


def lines_of(
    found: Finding,
    *,
    kind: str = "kafka",
    plan: Plan | None = None,
    rate: float = 1000.0,
    places: Places = PLACES,
) -> tuple[str, str, str]:
    own = {"soak": "/opt/soak", "run_dir": "/runs/r1"}
    known = own | known_of(found, places, plan or PLANS[kind], rate)
    one = attribution.confirmation(found, kind)
    assert one is not None
    filled = one.filled(known)
    return filled.where, filled.command, filled.sign


def test_a_backlog_of_soakds_own_consumer_is_seen_in_its_run_and_no_quota_is_advised() -> None:
    """It is in no group, so no tool of the cluster lists it."""
    found = finding(causes=(Explanation("catch_up_read", 0.9, (), suspect="consume.0@load1"),))

    assert lines_of(found) == (
        "on load1",
        "/opt/soak watch /runs/r1",
        "a lag that falls to 0, and more received than sent until then",
    )
    assert attribution.next_step(found) == (
        "find out why it received nothing before the onset; what it missed drains by itself"
    )


NO_ANSWER = "a refused connection, or no answer within 3 s"
ASK_ALL = (
    "nc -zv -w 3 b1 9092; nc -zv -w 3 b2 9092; nc -zv -w 3 b3 9092; "
    "kafka-topics.sh --bootstrap-server b1:9092 --describe --unavailable-partitions"
)


@pytest.mark.parametrize(
    ("kind", "where", "command", "sign"),
    [
        (
            "kafka",
            "from a host with the cluster's tools",
            ASK_ALL,
            f"the brokers with {NO_ANSWER}, and the partitions without a leader",
        ),
        (
            "pulsar",
            "from the load host",
            "nc -zv -w 3 b1 6650; nc -zv -w 3 b2 9092; nc -zv -w 3 b3 9092",
            f"the addresses with {NO_ANSWER}",
        ),
    ],
)
def test_an_outage_without_a_known_cause_has_every_broker_asked(
    kind: str, where: str, command: str, sign: str
) -> None:
    """Each address that the plan or the journals tell."""
    outage = finding(kind="outage", causes=())
    step = finding(causes=())
    places = Places({"b2:9092": "2", "b3:9092": "3"})

    assert lines_of(outage, kind=kind, places=places) == (where, command, sign)
    assert attribution.next_step(outage) == (
        "see which brokers answer, then the log and the drive of the others"
    )
    assert attribution.confirmation(step, kind) is None


@pytest.mark.parametrize(
    ("broker", "command"),
    [
        ("kafka: {bootstrap_servers: 'b1,b2'}", "nc -zv -w 3 b1 9092; nc -zv -w 3 b2 9092"),
        ("kafka: {bootstrap_servers: 'b1, [::1]'}", "nc -zv -w 3 b1 9092; nc -zv -w 3 ::1 9092"),
        ("kafka: {bootstrap_servers: '-e,b2:9093'}", "nc -zv -w 3 b2 9093"),
        ("kafka: {}", "nc -zv -w 3 HOST PORT"),
        ("pulsar: {service_url: 'pulsar://b1'}", "nc -zv -w 3 b1 6650"),
        (
            "pulsar: {service_url: 'pulsar+ssl://b1,b2:6652'}",
            "nc -zv -w 3 b1 6651; nc -zv -w 3 b2 6652",
        ),
    ],
)
def test_an_address_without_a_port_is_asked_at_the_usual_one(broker: str, command: str) -> None:
    """Each address has a command of its own: not every shell splits a variable into words."""
    known = known_of(finding(kind="outage", causes=()), Places(), plan_of(broker), 0.0)

    assert known["ask_every_broker"] == command


@pytest.mark.parametrize(
    ("cause", "suspect", "command"),
    [
        ("broker_down", "-e:9092", "nc -zv -w 3 HOST PORT"),
        ("drive_gc", "-h on b1", "iostat -dxy 1 5 DEVICE"),
        ("gc_pause", "JVM of -f on b1", GC_PAUSES.format("GC_LOG")),
    ],
)
def test_a_name_that_looks_like_an_option_is_not_used_in_a_command(
    cause: str, suspect: str, command: str
) -> None:
    """Brokers and exporters report such names: their listeners, their drives."""
    assert lines(cause, suspect)[1] == command


def test_the_folder_of_the_brokers_log_is_that_which_a_probe_reads() -> None:
    plan = load(
        "name: p\nbroker: {kafka: {bootstrap_servers: 'b1:9092'}}\ntopic: {name: soak-1}\n"
        "probes: {broker_log: {log: /var/log/kafka/server.log}}\n",
        "p.yaml",
    ).plan

    commands = [lines("retention_cliff", "", plan=one)[1] for one in (plan, PLANS["kafka"])]

    assert [one.partition(" | ")[0] for one in commands] == [
        "grep -h 'Deleting segment files' /var/log/kafka/server.log*",
        "grep -h 'Deleting segment files' LOG_DIR/server.log*",
    ]


def shown(command: str, folder: Path) -> list[str]:
    """Return what a command prints in this folder."""
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(("log", "pauses"), [("gc-8.log", 5), ("gc-g1-21.log", 4)])
def test_the_pauses_of_every_jdk_are_found_by_the_bare_name_of_their_log(
    log: str, pauses: int
) -> None:
    """As the probe gives it; those of JDK 21 have a line at their begin, too."""
    where, command, _ = lines("gc_pause", f"JVM of {log} on b1")

    assert where == "on b1, in the folder of its GC log"
    assert len(shown(command, RECORDED / "logs")) == pauses


@pytest.mark.parametrize("cause", ["retention_cliff", "segment_roll"])
def test_what_redpanda_deletes_and_rolls_is_found_in_its_own_words(
    cause: str, tmp_path: Path
) -> None:
    """Its log is in the journal; one line a segment, without those of its indexes."""
    logged = (RECORDED / "logs" / "redpanda-24.log").read_text().splitlines()
    journal = tmp_path / "journal"
    journal.write_text("".join(f"2024-03-01T14:08:50+0000 b1 rpk[7]: {one}\n" for one in logged))

    where, command, _ = lines(cause, "topic soak", kind="redpanda", plan=PLANS["kafka"])
    printed, _, rest = command.partition(" | ")

    assert (where, printed) == (
        "on the broker's host, as root",
        "journalctl --utc -o short-iso -u UNIT",
    )
    assert shown(f"cat journal | {rest}", tmp_path) == ["      1 2024-03-01T14:08:50"]


def level(series: str, before: float) -> Evidence:
    return Evidence("It rose.", {"series": series, "before": before, "after": 1.0})


AWAIT = level('probe@b1|disk_write_await_seconds{device="nvme0n1"}', 0.000458)
WRITTEN = level('probe@b1|node_disk_written_bytes{device="nvme0n1"}', 8_233_000.0)


def test_a_drive_is_named_with_its_host_and_the_values_before() -> None:
    """As iostat shows them: milliseconds, and kilobytes of 1,024 bytes a second."""
    assert lines("drive_gc", "nvme0n1 on b1", AWAIT, WRITTEN) == (
        "on b1",
        "iostat -dxy 1 5 nvme0n1",
        "w_await above 0.687 ms (it was 0.458 ms), wkB/s no higher than 8,040, as before",
    )


def test_without_the_values_before_the_sign_is_that_of_the_runbook() -> None:
    other = level('probe@b1|disk_write_await_seconds{device="sdb"}', 1.0)

    assert lines("drive_gc", "nvme0n1 on b1", other) == (
        "on b1",
        "iostat -dxy 1 5 nvme0n1",
        "w_await at least 1.5 times what it was, wkB/s unchanged or lower",
    )


@pytest.mark.parametrize(
    ("cause", "suspect", "where", "command"),
    [
        ("broker_down", "10.0.0.4:9092", "from another host", "nc -zv -w 3 10.0.0.4 9092"),
        ("broker_down", "b1:9092, b2:9092", "from another host", "nc -zv -w 3 b1 9092"),
        ("broker_down", "", "from another host", "nc -zv -w 3 HOST PORT"),
        ("broker_down", "127.0.0.1:9092", "from h", "nc -zv -w 3 127.0.0.1 9092"),
        ("broker_down", "[::1]:9092", "from h", "nc -zv -w 3 ::1 9092"),
        (
            "broker_down",
            "[2001:db8::1]:9092",
            "from another host",
            "nc -zv -w 3 2001:db8::1 9092",
        ),
        ("broker_pause", "b1:9092", "on b1", "ps -o stat= -p PID"),
        ("broker_cpu", "127.0.0.1:9092", "on h", "vmstat 1 5"),
        ("broker_cpu", "", "on the broker's host", "vmstat 1 5"),
        ("client", "load1", "on load1", "vmstat 1 5"),
        (
            "network",
            "b1:9092",
            "on both hosts",
            LOSSES,
        ),
        ("disk_full", "/data on b1:9100", "on b1", "df -h /data"),
        ("disk_full", "/data on [2001:db8::1]:9100", "on 2001:db8::1", "df -h /data"),
        ("disk_full", "nvme0n1 on b1", "on b1", "df -h /var/lib/kafka"),
        ("noisy_neighbour", "nvme0n1 on b1", "on b1, as root", "iotop -oPa"),
        (
            "gc_pause",
            "JVM of /logs/gc.log on b1",
            "on b1, in the folder of its GC log",
            GC_PAUSES.format("/logs/gc.log"),
        ),
        (
            "leader_move",
            "",
            "from a host with the cluster's tools",
            "kafka-topics.sh --bootstrap-server b1:9092 --describe --topic soak-1",
        ),
    ],
)
def test_a_command_has_the_names_of_the_suspect(
    cause: str, suspect: str, where: str, command: str
) -> None:
    assert lines(cause, suspect)[:2] == (where, command)


def test_tools_of_a_cluster_at_a_local_address_run_on_the_load_host() -> None:
    """Elsewhere that address is another machine, or nothing."""
    plan = plan_of("kafka: {bootstrap_servers: '127.0.0.1:9092'}")

    where, command, _ = lines("under_replicated", "", plan=plan)

    assert where == "from h, with the cluster's tools"
    assert "--bootstrap-server 127.0.0.1:9092 " in command


KAFKA_TOOLS = [
    cause for cause, one in attribution.confirmations("kafka").items() if "kafka-" in one.command
]


@pytest.mark.parametrize("kind", ["kafka", "redpanda"])
@pytest.mark.parametrize("cause", KAFKA_TOOLS)
def test_a_tool_of_kafka_gets_the_login_of_an_administrator_where_clients_need_one(
    cause: str, kind: str
) -> None:
    """Without it a listener with TLS or a login gives no answer, and a count of 0."""
    command = lines(cause, "", kind=kind, plan=plan_of(f"{kind}: {SECURED}"))[1]

    assert " --bootstrap-server b1:9093 --command-config admin.properties --" in command


@pytest.mark.parametrize("cause", KAFKA_TOOLS)
def test_a_tool_of_kafka_needs_no_login_on_a_plain_listener(cause: str) -> None:
    assert " --bootstrap-server b1:9092 --" in lines(cause, "")[1]


BOOKIE = level('probe@h|bookie_journal_JOURNAL_SYNC_seconds{target="bk1:8000"}', 0.001)


@pytest.mark.parametrize(
    ("suspect", "evidence", "where"),
    [
        ("b1:6650", (), "on the bookie's host"),
        ("bk1:8000", (BOOKIE,), "on bk1"),
        ("nvme0n1 on bk1", (), "on bk1"),
    ],
)
def test_the_host_of_a_broker_is_not_taken_for_that_of_a_bookie(
    suspect: str, evidence: tuple[Evidence, ...], where: str
) -> None:
    assert lines("retention_cliff", suspect, *evidence, kind="pulsar")[0] == where


def test_the_host_of_a_drive_is_not_taken_for_the_load_host() -> None:
    assert lines("client", "nvme0n1 on b1")[0] == "on the load host"


def test_shares_of_the_step_and_of_the_rate_are_numbers() -> None:
    """The step is 56.9 ms, the rate before the onset 1000 messages a second."""
    assert lines("gc_pause", "")[2] == (
        "a pause of 14.2ms (0.0142 secs) or more, or any Pause Full or Full GC"
    )
    assert lines("foreign_load", "topic orders")[2].endswith("grows by 100 a second or more")


def test_a_rate_that_is_not_known_is_no_number() -> None:
    """Every topic grows by 0 or more."""
    sign = lines("foreign_load", "topic orders", rate=0.0)[2]

    assert sign.endswith("grows by 10% of the plan's rate or more")


def test_names_from_a_cluster_are_quoted_for_the_shell() -> None:
    _, command, _ = lines("foreign_load", "topic a;reboot", kind="pulsar")

    assert command == "pulsar-admin topics partitioned-stats 'a;reboot'"


@pytest.mark.parametrize("kind", ["kafka", "pulsar"])
@pytest.mark.parametrize(
    ("suspect", "known"),
    [
        ("", ""),
        ("b1:9092", "HOST PORT"),
        ("nvme0n1 on b1", "HOST DEVICE DATA_DIR"),
        ("/data on b1:9100", "HOST DATA_DIR"),
        ("JVM of /logs/gc.log on b1", "HOST GC_LOG"),
        ("topic orders", "TOPIC"),
        ("load1", "HOST"),
    ],
)
def test_no_command_has_capitals_for_what_the_suspect_or_the_plan_tells(
    kind: str, suspect: str, known: str
) -> None:
    filled = {"SERVER", "RUN_TOPIC", *known.split()}

    for cause in attribution.confirmations(kind):
        text = " ".join(lines(cause, suspect, kind=kind))

        assert filled.isdisjoint(re.findall(r"\b[A-Z][A-Z_]+\b", text)), text
        assert not {"{", "}"} & set(text), text


def test_addresses_that_only_their_own_host_reaches_are_known() -> None:
    suspects = ("127.0.0.1:9092", "localhost:9092", "b1:9092", "nvme0n1 on b1", "")

    assert [is_loopback(one) for one in suspects] == [True, True, False, False, False]
