"""Checks before a run: this machine, warnings about a plan, its limits and its load profile."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from typer.testing import CliRunner

from probes.clock import Timex
from soak.app import plan_files
from soak.app.check import masked_text, store_warnings
from soak.app.host import host_lines
from soak.app.plan_files import copy_profile
from soak.app.preflight.host import check_limits, load_faults
from soak.cli import main
from soak.core.clock import SystemClock
from soak.core.cluster.drives import DriveState
from soak.core.errors import NotAvailableError, PlanError
from soak.core.plan import text
from soak.core.plan import text as plan_text
from soak.core.plan.plan import Plan
from soak.core.plan.rates import exceeded_limits
from soak.core.plan.text import PlanFile
from soak.store.run_folder import RunFolder, profile_path, read_profile
from tests.support.checking import called, checked

KEPT = Timex(
    is_synchronised=True,
    offset_seconds=0.0,
    maxerror_seconds=0.023,
    estimated_error_seconds=0.001,
    frequency_adjustment_ratio=1.0,
)
STATE = DriveState(
    filesystem="ext4",
    options="rw,noatime",
    devices=("sda",),
    total_bytes=100,
    free_bytes=77,
    discard_bytes=2**30,
    write_cache="write back",
    trim_timer="disabled",
    trimmed_wall_ns=None,
)


def test_a_synchronised_clock_and_an_untrimmed_drive_are_printed() -> None:
    """The bound of the one, the setting of the other and what it leads to."""
    clock, drive, warning = host_lines(["/nowhere/data"], lambda: KEPT, lambda _: STATE)

    assert clock == "Clock: synchronised, off by at most 23 ms."
    assert drive == (
        "Drive of /nowhere/data: ext4 on sda; 23% full; fstrim.timer disabled; mounted rw,noatime."
    )
    assert "is never trimmed" in warning


@pytest.mark.parametrize(
    ("used", "free", "full"),
    [(18, 82, "18%"), (18, 12, "60%"), (0, 100, "0%"), (95, 5, "95%"), (0, 0, "0%")],
)
def test_a_drive_is_as_full_as_df_says(used: int, free: int, full: str) -> None:
    """Blocks that are kept for root are neither used nor free."""
    state = replace(STATE, used_bytes=used, free_bytes=free)

    assert f"; {full} full;" in state.words


def test_a_clock_whose_daemon_names_no_error_is_off_by_an_unknown_amount() -> None:
    """systemd-timesyncd sets both errors to 0, from where the kernel counts up."""
    (line,) = host_lines([], lambda: replace(KEPT, estimated_error_seconds=0.0))

    assert line == "Clock: synchronised; its time daemon does not say by how much it may be off."


def test_an_unsynchronised_clock_is_a_warning() -> None:
    """End-to-end latency between hosts would then mean little."""
    (line,) = host_lines([], lambda: replace(KEPT, is_synchronised=False))

    assert line.startswith("Warning: the clock of this host is not synchronised")


def test_what_cannot_be_read_is_printed_and_rejects_no_plan() -> None:
    """A load's host has no broker's drive; a container may have no adjtimex."""

    def refused() -> Timex:
        raise NotAvailableError("adjtimex is refused")

    def absent(_directory: str) -> DriveState:
        raise FileNotFoundError(2, "No such file or directory")

    assert host_lines(["/nowhere/data"], refused, absent) == [
        "Clock: unknown, adjtimex is refused.",
        "Drive of /nowhere/data: not on this host.",
    ]


PLAN = """\
load: {rate: 1k/s, message_size: 1000B}
phases: {warm_up: 5s, soak: 60s}
broker: {kafka: {}}
"""
SETTINGS = "settings: {retention.ms: 20000, segment.ms: 10000}"
SAID = "topic.settings (retention.ms, segment.ms) have no effect: an existing topic keeps its own settings"


@pytest.mark.parametrize(
    ("topic", "times"),
    [
        (f"{{name: t, use_existing: true, {SETTINGS}}}", 1),
        ("{name: t, use_existing: true}", 0),
        (f"{{{SETTINGS}}}", 0),
    ],
)
def test_settings_without_effect_on_an_existing_topic_are_a_warning(
    tmp_path: Path, topic: str, times: int
) -> None:
    said = checked(tmp_path, f"{PLAN}topic: {topic}\n")

    assert said.count(f"Warning: {SAID}.\n") == times


@pytest.mark.parametrize(
    ("sinks", "times"),
    [("", 1), ("sinks: {mail: {to: [a@example.org], sender: b@example.org}}", 0)],
)
def test_a_plan_without_sinks_is_a_warning(tmp_path: Path, sinks: str, times: int) -> None:
    said = checked(tmp_path, f"{PLAN}{sinks}\n")

    assert (
        said.count("Warning: sinks is empty: findings are only written to the run folder") == times
    )


@pytest.mark.parametrize("text", [PLAN, "probes: {fsync: {directory: /nowhere/data}}\n"])
def test_a_plan_that_is_shown_is_checked_all_the_same(tmp_path: Path, text: str) -> None:
    """Only the plan is on stdout, so that it can be stored; everything else is on stderr."""
    result = checked(tmp_path, text)

    shown = called(tmp_path, text, "--show")

    assert plan_text.dump(plan_text.load_any(shown.stdout, "shown")[0]) == shown.stdout
    assert "plan.yaml: good. " in shown.stderr
    assert _warnings(shown.stderr) == _warnings(result)


def test_where_a_secret_is_is_shown_and_never_the_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output is a valid plan, with references to secrets and no secrets."""
    monkeypatch.setenv("SOAK_TEST_PASSWORD", "hunter2")
    common = "{ssl.key.location: /k.pem, ssl.key.password: '${env:SOAK_TEST_PASSWORD}'}"
    text = f"{PLAN.replace('{kafka: {}}', f'{{kafka: {{common: {common}}}}}')}"

    said = called(tmp_path, text, "--show")

    assert "ssl.key.password: ${env:SOAK_TEST_PASSWORD}\n" in said.stdout
    assert "ssl.key.location: /k.pem\n" in said.stdout
    assert "hunter2" not in said.output


def test_a_secret_that_stands_in_a_plan_is_not_shown() -> None:
    """However long it is, and whatever a reference stands beside."""
    secret = "hunter2 " * 40
    plan = plan_text.load(
        "name: x\nbroker: {kafka: {}}\nlab:\n  settings:\n"
        f"    ssl.keystore.password: '{secret}'\n    sasl.jaas.config: '${{env:A}} {secret}'\n",
        "p.yaml",
    ).plan

    said = masked_text(plan)

    assert "ssl.keystore.password: '***'\n" in said
    assert "hunter2" not in said


HOST = "probes: {pressure: {}}\n"
AWAY = "ship: {bootstrap_servers: '127.0.0.1:1', timeout: 1s}\n"


@pytest.mark.long
@pytest.mark.parametrize("text", [PLAN, HOST])
def test_a_cluster_that_accepts_no_records_is_a_warning(tmp_path: Path, text: str) -> None:
    """It ends no run: records wait. A plan that ships to what it measures has asked there already."""
    said = checked(tmp_path, text + AWAY)

    assert said.count("Warning: ship: no Kafka broker answered at 127.0.0.1:1: ") == 1


def test_a_setting_of_the_load_that_the_store_cannot_use_is_a_warning() -> None:
    """Where it takes those of the measured cluster: else the first finding would show it."""
    plan = plan_text.load(
        "name: x\nstore: kafka://127.0.0.1:1\nbroker: {kafka: {bootstrap_servers: '127.0.0.1:1', "
        "common: {socket.timeout.ms: '30000'}}}\n",
        "p.yaml",
    ).plan

    (said,) = store_warnings(plan, SystemClock())

    assert said.startswith("store: the client refuses its settings: ")
    assert "`socket.timeout.ms` must be set" in said


@pytest.mark.long
def test_a_cluster_that_keeps_no_findings_is_a_warning(tmp_path: Path) -> None:
    """The run may start before it."""
    said = checked(tmp_path, PLAN + "store: {url: 'kafka://127.0.0.1:1', timeout: 1s}\n")

    assert said.count("Warning: store: no Kafka broker answered at 127.0.0.1:1: ") == 1


@pytest.mark.parametrize(
    ("text", "options", "refused"),
    [
        (HOST, ("--scale", "0.1"), "--scale: the plan of a probe host has no load"),
        (HOST, ("--duration", "1min"), "--duration: the plan of a probe host has no load"),
        (f"{HOST}free_space_floor: 1000TiB\n", (), "plan.yaml:4: free_space_floor: "),
    ],
)
def test_what_a_host_cannot_do_is_refused(
    tmp_path: Path, text: str, options: tuple[str, ...], refused: str
) -> None:
    """As in the plan of a run; an option is not passed over."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(f"name: x\nrun_directory: {tmp_path}\n{text}")

    result = CliRunner().invoke(main.build(["check"]), ["check", str(plan), *options])

    assert isinstance(result.exception, PlanError)
    assert refused in str(result.exception)


@pytest.mark.parametrize("text", [PLAN, HOST])
def test_an_option_that_would_change_nothing_is_refused(tmp_path: Path, text: str) -> None:
    """Nothing is measured without --drives, so there is nothing to keep in the run's folder."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(f"name: x\nrun_directory: {tmp_path}\n{text}")
    words = ["check", str(plan), "--run-dir", str(tmp_path)]

    refused = CliRunner().invoke(main.build(words), words).exception

    assert isinstance(refused, PlanError)
    assert str(refused) == "--run-dir needs --drives, whose result it stores"


def test_that_a_shell_is_given_no_credentials_is_said_with_where_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is right: a service would have them."""
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    plan = tmp_path / "plan.yaml"
    common = "common: {sasl.password: '${credential:soak_sasl}'}"
    kafka = f"{{bootstrap_servers: '127.0.0.1:1', {common}}}"
    plan.write_text(f"name: x\nrun_directory: {tmp_path}\nbroker: {{kafka: {kafka}}}\n")
    words = ["check", str(plan)]

    refused = CliRunner().invoke(main.build(words), words).exception

    assert "plan.yaml:3: broker.kafka: sasl.password: systemd gave this process no" in str(refused)
    assert str(refused).endswith(
        "; only a service is given any, see docs/how-to/run-under-systemd.md"
    )


@pytest.mark.long
def test_a_cluster_that_does_not_answer_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the message that ends the check: a client's own lines say no more."""
    plan = tmp_path / "plan.yaml"
    servers = "{kafka: {bootstrap_servers: '127.0.0.1:1', timeout: 1s}}"
    plan.write_text(f"name: x\nrun_directory: {tmp_path}\nbroker: {servers}\n")

    result = CliRunner().invoke(main.build(["check"]), ["check", str(plan)])

    assert "no Kafka broker answered" in str(result.exception)
    assert caplog.records == []


def _warnings(said: str) -> list[str]:
    return [line for line in said.splitlines() if line.startswith("Warning: ")]


CLUSTER = "name: x\nbroker: {kafka: {bootstrap_servers: '127.0.0.1:9'}}\n"


def plan_of(more: str) -> Plan:
    return text.load(CLUSTER + more, "p.yaml").plan


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ("load: {rate: 101k/s, message_size: 64B}", "load.rate"),
        (
            "load: {rate: 90k/s, message_size: 64B, profile: {sine_period: 1h}}",
            "load.profile.sine_amplitude",
        ),
        (
            "load: {message_size: 64B, profile: {steps: [{after: 1h, rate: 200k/s}]}}",
            "load.profile.steps.0.rate",
        ),
        ("load: {message_size: 64B}\nphases: {ramp: {max_rate: 200k/s}}", "phases.ramp.max_rate"),
        ("load: {rate: 50k/s}\ntopic: {replication: 3}", "load.rate"),
        ("topic: {partitions: 1001}", "topic.partitions"),
        ("topic: {count: 101}", "topic.count"),
    ],
)
def test_more_than_the_limits_is_named(more: str, place: str) -> None:
    """One place each: the highest rate, what it writes in a day, what is made."""
    ((found, why),) = exceeded_limits(plan_of(more))

    assert ".".join(map(str, found)) == place
    assert "limits." in why


@pytest.mark.parametrize(
    "more",
    [
        "load: {rate: 30k/s}\ntopic: {replication: 3, partitions: 1000}",
        "load: {rate: 1M/s}\nlimits: {rate: 1M/s, bytes_per_day: 100TiB}",
        "topic: {name: t, use_existing: true, partitions: 5000}",
    ],
)
def test_what_is_within_them_passes(more: str) -> None:
    """Also where the plan sets them higher; partitions that are there already cost nothing."""
    assert exceeded_limits(plan_of(more)) == []


def test_a_lab_is_limited_by_itself() -> None:
    plan = text.load("name: x\nbroker: {kafka: {}}\nlab: {}\ntopic: {partitions: 5000}\n", "p").plan

    assert exceeded_limits(plan) == []


def test_the_rates_of_a_file_count() -> None:
    ((place, _),) = exceeded_limits(
        plan_of("load: {message_size: 64B}"), [(0, Fraction(10)), (60, Fraction(200_000))]
    )

    assert place == ("load", "profile", "file")


def test_a_run_beyond_them_is_refused_before_the_cluster_is_asked(tmp_path: Path) -> None:
    """No broker listens there: the plan alone is the reason."""
    plan = tmp_path / "p.yaml"
    plan.write_text(CLUSTER + f"run_directory: {tmp_path}\ntopic: {{partitions: 1001}}\n")
    words = ["run", str(plan)]
    result = str(CliRunner().invoke(main.build(words), words).exception)

    assert "p.yaml:4: topic.partitions: 1001 partitions is more than limits.partitions" in result
    assert "start it anyway with `soak run --yes`" in result


def test_a_service_gets_no_hint_about_yes(tmp_path: Path) -> None:
    """Nobody is there who could say yes."""
    plan = tmp_path / "x.yaml"
    plan.write_text(CLUSTER + "topic: {partitions: 1001}\n")

    with pytest.raises(PlanError, match="raise that limit") as result:
        check_limits(plan_files.load_plan(plan))
    assert "--yes" not in str(result.value)


PROFILE_PLAN = """name: x
broker: {{kafka: {{}}}}
load:
  profile: {{file: '{file}'}}
phases:
  windows:
    - {{cron: '{cron}', catch_up: {{backlog_age: 10s}}}}
"""


def _plan(folder: Path, file: str = "", cron: str = "0 * * * *") -> PlanFile:
    return plan_text.load(PROFILE_PLAN.format(file=file, cron=cron), str(folder / "plan.yaml"))


def test_a_table_beside_the_plan_is_found_checked_and_kept(tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text("seconds,rate\n0,500\n")
    folder = RunFolder(tmp_path / "run")

    faults = load_faults(_plan(tmp_path, "rates.csv"))
    copy_profile(_plan(tmp_path, "rates.csv"), folder)

    assert faults == []
    assert list(read_profile(profile_path(folder))) == [(0, Fraction(500))]


def test_without_a_table_there_is_nothing_to_keep(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")

    copy_profile(_plan(tmp_path), folder)

    assert not profile_path(folder).exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "rates.csv: cannot read the load profile: "),
        ("seconds,rate\n0,5/s\n0,6/s\n", "rates.csv:3: second 0 does not come after second 0"),
    ],
)
def test_a_bad_table_is_reported_with_both_files(
    tmp_path: Path, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / "rates.csv").write_text(text)

    (fault,) = load_faults(_plan(tmp_path, "rates.csv"))

    assert "plan.yaml:4: load.profile.file: " in str(fault)
    assert message in str(fault)


def test_a_wrong_cron_expression_is_reported_with_its_line_beside_a_bad_table(
    tmp_path: Path,
) -> None:
    table, cron = load_faults(_plan(tmp_path, "rates.csv", cron="noon"))

    assert "rates.csv: cannot read the load profile: " in str(table)
    assert "plan.yaml:7: phases.windows.0.cron: 'noon' is not a cron" in str(cron)


def test_a_start_names_every_limit_that_its_plan_exceeds() -> None:
    plan_file = text.load(CLUSTER + "topic: {partitions: 10, count: 101}\n", "p.yaml")

    with pytest.raises(PlanError) as error:
        check_limits(plan_file)

    keys = [line.split(": ")[1] for line in str(error.value).splitlines()[1:]]
    assert keys == ["topic.partitions", "topic.count"]


def test_check_names_a_window_for_which_the_soak_is_too_short(tmp_path: Path) -> None:
    windows = [f"{{every: {every}, catch_up: {{backlog_age: 10s}}}}" for every in ("30s", "9min")]
    phases = f"{{soak: 9min, windows: [{', '.join(windows)}]}}"
    text = f"name: x\nbroker: {{kafka: {{}}}}\nlab: {{}}\nrun_directory: {tmp_path}\nfree_space_floor: 1MiB\n"
    (tmp_path / "plan.yaml").write_text(f"{text}phases: {phases}\n")

    result = (
        CliRunner().invoke(main.build(["check"]), ["check", str(tmp_path / "plan.yaml")]).output
    )

    assert "phases.windows.1 never begins" in result
    assert "phases.windows.0" not in result


FLEET = (
    "name: fleet\nship: {{bootstrap_servers: '{servers}'{more}}}\nstore: kafka://127.0.0.1:9092\n"
)


@pytest.mark.parametrize(
    ("servers", "more", "refused"),
    [
        ("kafka.example:9092", "", "name the secret that the hosts share"),
        ("kafka.example", "", "name the secret that the hosts share"),
        ("127.0.0.1:9092", ", client: {plugin.library.paths: /evil.so}", "plugin.library.paths"),
        ("127.0.0.1:9092", ", client: {sasl.password: letmein}", "sasl.password"),
    ],
)
def test_the_plan_of_a_fleet_is_checked_before_a_client_gets_it(
    tmp_path: Path, servers: str, more: str, refused: str
) -> None:
    plan = tmp_path / "fleet.yaml"
    plan.write_text(FLEET.format(servers=servers, more=more))

    result = CliRunner().invoke(main.build(["detect-fleet"]), ["detect-fleet", str(plan)])

    assert isinstance(result.exception, PlanError)
    assert refused in str(result.exception)


def test_a_soak_that_is_too_short_for_a_verdict_is_warned_of(tmp_path: Path) -> None:
    """Shortened in the plan or by --duration; the report would say so only at the end."""
    plan = "broker: {kafka: {}}\nphases: {warm_up: 10s, soak: 10min}\n"
    warning = "phases.soak: 90s are too short to call a run clean: at least 130s are needed"

    assert warning in called(tmp_path, plan.replace("10min", "90s")).output
    assert "too short" not in called(tmp_path, plan).output
    assert "too short to call a run clean" in called(tmp_path, plan, "--duration", "100s").output
