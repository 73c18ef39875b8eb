"""The units as files: what is installed, what is left alone, and what the check sees."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from soak.cli import _units, _units_check
from soak.core import plan_text
from soak.core.errors import SoakError
from soak.core.units import duration_ns
from soak.daemons.supervise import roles_of

FILES = _units.rendered()
DOCS = Path(__file__).resolve().parents[1] / "docs" / "service.md"
SERVICES = [place for place in FILES if place.suffix == ".service"]


def wrong_below(root: Path) -> list[str]:
    """Return what is wrong there, whoever may read this checkout."""
    return [line for line in _units_check.check(root) if line.startswith(f"{root}/")]


def test_installing_writes_what_uninstalling_removes(tmp_path: Path) -> None:
    """Plans, secrets and what others put there stay."""
    _units.installed(tmp_path, is_dry=False)
    foreign = tmp_path / _units.UNITS / "soak-mine.service"
    foreign.write_text("[Unit]\n")
    plan = tmp_path / _units.PLANS / "x.yaml"
    plan.write_text("name: x\n")
    wrong = wrong_below(tmp_path)
    _units.removed(tmp_path, is_dry=False)

    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert wrong == []
    assert sorted(left) == sorted([foreign, plan])


def test_uninstalling_leaves_no_boot_that_looks_for_a_unit(tmp_path: Path) -> None:
    """Links of plans that were enabled go too; those of others stay."""
    _units.installed(tmp_path, is_dry=False)
    wants = tmp_path / _units.UNITS / "multi-user.target.wants"
    wants.mkdir()
    (wants / "soak-resume@x.service").symlink_to("/etc/systemd/system/soak-resume@.service")
    (wants / "soak-other@x.service").symlink_to("/etc/systemd/system/soak-other@.service")
    told = _units.removed(tmp_path, is_dry=False)

    assert f"remove {wants}/soak-resume@x.service" in told
    assert [link.name for link in wants.iterdir()] == ["soak-other@x.service"]


def test_a_daemon_may_be_silent_as_long_in_a_terminal_as_under_systemd() -> None:
    """Two watchdogs, one limit each daemon: what hangs for one hangs for the other."""
    text = "name: p\nbroker: {kafka: {}}\nprobes: {host: {}}\nship: {}\n"
    roles = roles_of(plan_text.load(text, "p").plan)
    ours = {role.name.partition(".")[0]: role.silence_ns for role in roles}
    theirs = {}
    for name in ours:
        unit = FILES[_units.UNITS / f"soak-{name.removesuffix('-stream')}@.service"]
        asked = re.search(r"^WatchdogSec=(.+)$", unit, re.MULTILINE)
        theirs[name] = duration_ns(asked[1]) if asked else 0

    assert ours == theirs


def test_a_dry_run_writes_and_removes_nothing(tmp_path: Path) -> None:
    """It tells what would be done."""
    told = _units.installed(tmp_path, is_dry=True)
    nothing = list(tmp_path.iterdir())
    _units.installed(tmp_path, is_dry=False)
    _units.removed(tmp_path, is_dry=True)

    assert nothing == []
    assert len([line for line in told if line.startswith("write ")]) == len(FILES)
    assert wrong_below(tmp_path) == []


def test_a_second_time_writes_only_what_differs(tmp_path: Path) -> None:
    """A unit that somebody changed is seen by the check and made ours again."""
    _units.installed(tmp_path, is_dry=False)
    (tmp_path / SERVICES[0]).write_text("[Unit]\n")
    wrong = wrong_below(tmp_path)
    told = _units.installed(tmp_path, is_dry=False)

    assert wrong == [f"{tmp_path / SERVICES[0]} is not what was to be installed"]
    assert [line for line in told if line.startswith("write ")] == [
        f"write {tmp_path / SERVICES[0]}"
    ]


def test_units_that_run_a_checkout_say_so(tmp_path: Path) -> None:
    """A `git pull` there would give a daemon that dies another program than its run began with."""
    installed = tmp_path / "share" / "soakd" / "systemd"
    installed.mkdir(parents=True)
    checkout = Path(__file__).resolve().parents[1]

    assert _units.about_checkout(installed) == []
    assert f"{checkout}:" in _units.about_checkout(checkout / "systemd")[0]


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "etc").write_text("")

    with pytest.raises(SoakError, match="cannot write"):
        _units.installed(tmp_path, is_dry=False)


@pytest.mark.parametrize("place", SERVICES, ids=lambda place: place.name)
def test_every_service_is_closed_up(place: Path) -> None:
    """No unit is left with more than it needs because somebody forgot a line."""
    text = FILES[place]

    for line in ("NoNewPrivileges=yes", "CapabilityBoundingSet=", "ProtectSystem=strict"):
        assert f"\n{line}\n" in text
    assert "User=soak\n" in text or "soak-resume" in place.name
    assert "/usr/bin/soak" not in text


def test_units_name_only_units_that_are_there() -> None:
    """A name that is misspelt would be waited for by nobody."""
    there = {place.name for place in FILES}
    named = {
        found.replace("@%i.", "@.")
        for text in FILES.values()
        for found in re.findall(r"soak[a-z-]*@%i\.[a-z]+", text)
        if found != "soak@%i.yaml"
    }

    assert named <= there


@pytest.mark.parametrize("place", SERVICES, ids=lambda place: place.name)
def test_a_daemon_never_stops_trying_and_starts_only_in_a_run(place: Path) -> None:
    """A drive may be full for an hour; without a run that began there is nothing to go on with."""
    text = FILES[place]

    if "Type=notify" in text:
        assert "StartLimitIntervalSec=0\n" in text
    if "PartOf=soak@%i.target" in text and "soak-begin" not in place.name:
        assert "\nRequisite=soak-begin@%i.service\nAfter=soak-begin@%i.service" in text


@pytest.mark.parametrize("place", SERVICES, ids=lambda place: place.name)
def test_a_service_that_ends_is_not_refused_for_what_it_has_in_common(place: Path) -> None:
    """A manager takes no `Type=oneshot` with exit codes that force another start."""
    lines = FILES[place].splitlines()
    forced = [line for line in lines if line.startswith("RestartForceExitStatus=")]

    if "Type=oneshot" in lines:
        assert forced[-1:] in ([], ["RestartForceExitStatus="])


def test_a_sink_is_tried_with_the_credentials_and_the_sight_of_a_daemon() -> None:
    """A command in a passing unit of one's own has neither, where the program lies in a home folder."""
    text = FILES[_units.UNITS / "soak-alert-test@.service"]
    daemon = FILES[_units.UNITS / "soak-alert@.service"]
    keys = ("LoadCredential=", "ProtectHome=", "BindReadOnlyPaths=", "User=")
    seen = {line for line in text.splitlines() if line.startswith(keys)}

    assert re.search(r"^ExecStart=\S+/soak alert /etc/soak/%i.yaml --test$", text, re.MULTILINE)
    assert seen == {line for line in daemon.splitlines() if line.startswith(keys)}
    assert len(seen) >= 3


def test_secrets_are_given_to_those_who_connect_or_tell() -> None:
    """Who reads files alone would only have them to lose."""
    given = {place.name for place in SERVICES if "\nLoadCredential=" in FILES[place]}
    kept = {"conduct", "detect", "finish", "report", "resume"}

    assert {place.name for place in SERVICES} - given == {f"soak-{name}@.service" for name in kept}


@pytest.mark.parametrize("place", SERVICES, ids=lambda place: place.name)
def test_a_service_looks_for_a_run_where_runs_are_mounted(place: Path) -> None:
    """A state directory of its own makes a unit wait for the drive; what has none has to say so."""
    text = FILES[place]

    if "%S/" in text:
        assert "\nStateDirectory=soak" in text or "\nRequiresMountsFor=%S/soak\n" in text


@pytest.mark.parametrize("place", SERVICES, ids=lambda place: place.name)
def test_the_exposure_of_every_service_is_told(place: Path) -> None:
    """Who lets it in has to know what it could do."""
    table = DOCS.read_text().partition("| unit | exposure |")[2].partition("\n\n")[0]

    assert f"`{place.name.removesuffix('.service')}`" in table


def test_a_host_that_only_probes_waits_for_the_next_run_after_each() -> None:
    """Its daemon ends with the run that it joined, and is told no run, which would be the only one."""
    (text,) = (FILES[place] for place in SERVICES if place.name == "soak-host@.service")
    settings = text[text.index("[Service]") :].splitlines()
    (start,) = (line for line in settings if line.startswith("ExecStart="))

    assert [line for line in settings if line.startswith("Restart=")][-1] == "Restart=always"
    assert start.endswith(" probe /etc/soak/%i.yaml --run-dir %S/soak/%i/host")


def test_what_measures_a_drive_may_write_where_the_broker_does() -> None:
    """The fsync probe, and the drive check at both ends of a run; nobody else."""
    may = {place.name for place in SERVICES if "ReadWritePaths=-/var/lib/kafka" in FILES[place]}

    assert may == {f"soak-{name}@.service" for name in ("begin", "finish", "host", "probe")}


def test_each_daemon_that_measures_is_watched() -> None:
    """A daemon without a watchdog hangs for ever."""
    unwatched = [
        place.name
        for place in SERVICES
        if "Type=notify" in FILES[place] and "WatchdogSec=" not in FILES[place]
    ]

    assert unwatched == []
