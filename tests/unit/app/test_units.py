"""systemd units: installing, removing and checking them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from soak.app import units
from soak.app.unit_host import Host, host_from, host_notes, label_faults
from soak.app.units import Account, account_of, closed_below, closed_part, folder_faults, own_lines
from soak.core.errors import NotAvailableError, SoakError
from soak.core.plan import text as plan_text
from soak.core.units import duration_ns
from soak.supervisor.run import roles_of
from tests.support.paths import ROOT

FILES = units.rendered_files()
DOCS = ROOT / "docs" / "how-to" / "run-under-systemd.md"
SERVICES = [place for place in FILES if place.suffix == ".service"]


def wrong_below(root: Path) -> list[str]:
    """Return what is wrong there, whoever may read this checkout."""
    return [line for line in units.check_installed(root, {}) if line.startswith(f"{root}/")]


@pytest.mark.long
def test_installing_writes_what_uninstalling_removes(tmp_path: Path) -> None:
    """Plans, secrets and what others put there stay."""
    units.install(tmp_path, {}, is_dry=False)
    foreign = tmp_path / units.UNITS / "soak-mine.service"
    foreign.write_text("[Unit]\n")
    plan = tmp_path / units.PLANS / "x.yaml"
    plan.write_text("name: x\n")
    wrong = wrong_below(tmp_path)
    units.uninstall(tmp_path, is_dry=False)

    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert wrong == []
    assert sorted(left) == sorted([foreign, plan])


def test_uninstalling_leaves_no_boot_that_looks_for_a_unit(tmp_path: Path) -> None:
    """Links of plans that were enabled go too; those of others stay."""
    units.install(tmp_path, {}, is_dry=False)
    wants = tmp_path / units.UNITS / "multi-user.target.wants"
    wants.mkdir()
    (wants / "soak-resume@x.service").symlink_to("/etc/systemd/system/soak-resume@.service")
    (wants / "soak-other@x.service").symlink_to("/etc/systemd/system/soak-other@.service")
    result = units.uninstall(tmp_path, is_dry=False)

    assert f"remove {wants}/soak-resume@x.service" in result
    assert [link.name for link in wants.iterdir()] == ["soak-other@x.service"]


def test_a_daemon_may_be_silent_as_long_in_a_terminal_as_under_systemd() -> None:
    """Two watchdogs, one limit each daemon: what hangs for one hangs for the other."""
    text = "name: p\nbroker: {kafka: {}}\nprobes: {host: {}}\nship: {}\n"
    roles = roles_of(plan_text.load(text, "p").plan)
    ours = {role.name.partition(".")[0]: role.silence_ns for role in roles}
    theirs = {}
    for name in ours:
        unit = FILES[units.UNITS / f"soak-{name.removesuffix('-stream')}@.service"]
        asked = re.search(r"^WatchdogSec=(.+)$", unit, re.MULTILINE)
        theirs[name] = duration_ns(asked[1]) if asked else 0

    assert ours == theirs


@pytest.mark.long
def test_a_dry_run_writes_and_removes_nothing(tmp_path: Path) -> None:
    """It tells what would be done."""
    result = units.install(tmp_path, {}, is_dry=True)
    nothing = list(tmp_path.iterdir())
    units.install(tmp_path, {}, is_dry=False)
    units.uninstall(tmp_path, is_dry=True)

    assert nothing == []
    assert len([line for line in result if line.startswith("write ")]) == len(FILES)
    assert wrong_below(tmp_path) == []


@pytest.mark.long
def test_a_second_time_writes_only_what_differs(tmp_path: Path) -> None:
    """A changed unit is reported by the check and installed again."""
    units.install(tmp_path, {}, is_dry=False)
    (tmp_path / SERVICES[0]).write_text("[Unit]\n")
    wrong = wrong_below(tmp_path)
    result = units.install(tmp_path, {}, is_dry=False)

    assert wrong == [
        f"{tmp_path / SERVICES[0]} is missing or differs: run `soak install-units` again"
    ]
    assert [line for line in result if line.startswith("write ")] == [
        f"write {tmp_path / SERVICES[0]}"
    ]


def test_units_of_earlier_versions_are_removed_by_their_old_names(tmp_path: Path) -> None:
    """Installing over an earlier version leaves one unit for each purpose, and uninstalling none."""
    old = [tmp_path / units.UNITS / f"soak-{name}@.service" for name in ("begin", "failed", "owed")]
    (tmp_path / units.UNITS).mkdir(parents=True)
    for path in old:
        path.write_text("[Unit]\n")
    dry = units.install(tmp_path, {}, is_dry=True)
    still_there = [path.exists() for path in old]
    steps = units.install(tmp_path, {}, is_dry=False)
    is_removed = [not path.exists() for path in old]
    old[0].write_text("[Unit]\n")

    assert all(f"remove {path}" in dry and f"remove {path}" in steps for path in old)
    assert still_there == is_removed == [True] * 3
    assert f"remove {old[0]}" in units.uninstall(tmp_path, is_dry=False)


@pytest.mark.long
def test_drop_ins_of_renamed_units_are_moved_to_the_current_ones(tmp_path: Path) -> None:
    """Of two files of one name, that of the current unit stays, and the other is reported."""
    folder = tmp_path / units.UNITS
    names = ("soak-begin@x", "soak-owed@x", "soak-failed@soak-begin@x", "soak-pending@x")
    for name in names:
        (folder / f"{name}.service.d").mkdir(parents=True)
        (folder / f"{name}.service.d" / "a.conf").write_text(name)
    (folder / "soak-owed@x.service.d" / "b.conf").write_text("[Service]\n")
    dry = units.install(tmp_path, {}, is_dry=True)
    is_untouched = all((folder / f"{name}.service.d").is_dir() for name in names)
    steps = units.install(tmp_path, {}, is_dry=False)

    moved = [line for line in steps if line.startswith("move ")]
    assert is_untouched
    assert moved == [line for line in dry if line.startswith("move ")]
    assert len(moved) == 3
    assert sorted(f"{path.parent.name}/{path.name}" for path in folder.glob("*.d/*")) == [
        "soak-notify-failure@soak-start@x.service.d/a.conf",
        "soak-owed@x.service.d/a.conf",
        "soak-pending@x.service.d/a.conf",
        "soak-pending@x.service.d/b.conf",
        "soak-start@x.service.d/a.conf",
    ]
    assert (folder / "soak-pending@x.service.d" / "a.conf").read_text() == "soak-pending@x"
    (wrong,) = wrong_below(tmp_path)
    assert wrong.startswith(f"{folder}/soak-owed@x.service.d has no effect")
    assert wrong.endswith(f"to {folder}/soak-pending@x.service.d")


def test_pending_notifications_continue_under_the_current_name() -> None:
    running = ["soak-finish@x.service", "soak-owed@x.service", "soak-owed@y.service"]

    assert "systemctl start" not in units.request_to_stop(running[:1])
    assert "`systemctl start soak-pending@x.service soak-pending@y.service`" in (
        units.request_to_stop(running)
    )


def test_units_that_run_a_checkout_say_so(tmp_path: Path) -> None:
    """A `git pull` there would give a daemon that dies another program than its run began with."""
    installed = tmp_path / "share" / "soakd" / "systemd"
    installed.mkdir(parents=True)
    checkout = ROOT

    assert units.checkout_note(installed) == []
    assert f"{checkout}:" in units.checkout_note(checkout / "systemd")[0]


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "etc").write_text("")

    with pytest.raises(SoakError, match="cannot write"):
        units.install(tmp_path, {}, is_dry=False)


@pytest.mark.parametrize("place", SERVICES, ids=lambda place: place.name)
def test_every_service_is_closed_up(place: Path) -> None:
    """Every unit has the full sandbox."""
    text = FILES[place]

    for line in ("NoNewPrivileges=yes", "CapabilityBoundingSet=", "ProtectSystem=strict"):
        assert f"\n{line}\n" in text
    assert "User=soak\n" in text or "soak-resume" in place.name
    assert "/usr/bin/soak" not in text


def test_units_name_only_units_that_are_there() -> None:
    """A misspelt name would have no effect."""
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
    if "PartOf=soak@%i.target" in text and "soak-start" not in place.name:
        assert "\nRequisite=soak-start@%i.service\nAfter=soak-start@%i.service" in text


@pytest.mark.parametrize("place", SERVICES, ids=lambda place: place.name)
def test_a_service_that_ends_is_not_refused_for_what_it_has_in_common(place: Path) -> None:
    """A manager takes no `Type=oneshot` with exit codes that force another start."""
    lines = FILES[place].splitlines()
    forced = [line for line in lines if line.startswith("RestartForceExitStatus=")]

    if "Type=oneshot" in lines:
        assert forced[-1:] in ([], ["RestartForceExitStatus="])


def test_a_sink_is_tried_with_the_credentials_and_the_sight_of_a_daemon() -> None:
    """A command in a passing unit of one's own has neither, where the program lies in a home folder."""
    text = FILES[units.UNITS / "soak-alert-test@.service"]
    daemon = FILES[units.UNITS / "soak-alert@.service"]
    keys = ("LoadCredential=", "ProtectHome=", "BindReadOnlyPaths=", "User=")
    seen = {line for line in text.splitlines() if line.startswith(keys)}

    assert re.search(r"^ExecStart=\S+/soak alert /etc/soak/%i.yaml --test$", text, re.MULTILINE)
    assert seen == {line for line in daemon.splitlines() if line.startswith(keys)}
    assert len(seen) >= 3


def test_secrets_are_given_to_those_who_connect_or_tell() -> None:
    """The findings may be in a cluster; who reads files alone would only have them to lose."""
    given = {place.name for place in SERVICES if "\nLoadCredential=" in FILES[place]}
    kept = {"conduct", "finish", "resume"}

    assert {place.name for place in SERVICES} - given == {f"soak-{name}@.service" for name in kept}


@pytest.mark.parametrize("place", SERVICES, ids=lambda place: place.name)
def test_a_service_looks_for_a_run_where_runs_are_mounted(place: Path) -> None:
    """A state directory of its own makes a unit wait for the drive; what has none has to say so."""
    text = FILES[place]

    if "%S/" in text:
        assert "\nStateDirectory=soak" in text or "\nRequiresMountsFor=%S/soak\n" in text


@pytest.mark.parametrize("place", SERVICES, ids=lambda place: place.name)
def test_the_exposure_of_every_service_is_documented(place: Path) -> None:
    """Who lets it in has to know what it could do."""
    table = DOCS.read_text().partition("| unit | exposure |")[2].partition("\n\n")[0]

    assert f"`{place.name.removesuffix('.service')}`" in table


def test_a_host_that_only_probes_waits_for_the_next_run_after_each() -> None:
    """Its daemon ends with the run that it joined, and no run is named on its command line."""
    (text,) = (FILES[place] for place in SERVICES if place.name == "soak-host@.service")
    settings = text[text.index("[Service]") :].splitlines()
    (start,) = (line for line in settings if line.startswith("ExecStart="))

    assert [line for line in settings if line.startswith("Restart=")][-1] == "Restart=always"
    assert start.endswith(" probe /etc/soak/%i.yaml --run-dir %S/soak/%i/host")


def test_what_measures_a_drive_may_write_where_the_broker_does() -> None:
    """Only the fsync probe and the drive checks at both ends of a run."""
    may = {place.name for place in SERVICES if "ReadWritePaths=-/var/lib/kafka" in FILES[place]}

    assert may == {f"soak-{name}@.service" for name in ("start", "finish", "host", "probe")}


def test_each_daemon_that_measures_is_watched() -> None:
    """A daemon without a watchdog hangs for ever."""
    unwatched = [
        place.name
        for place in SERVICES
        if "Type=notify" in FILES[place] and "WatchdogSec=" not in FILES[place]
    ]

    assert unwatched == []


OTHER = Account()
UNITS = {"soak@", "soak-start@", "soak-alert@"}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Return a program in a folder that everybody may pass; the test's own folders are for its user alone."""
    path = tmp_path / "opt" / "bin" / "soak"
    path.parent.mkdir(parents=True)
    path.touch()
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("change", "closed"),
    [
        (lambda _: None, ""),
        (lambda path: path.chmod(0o700), "opt/bin/soak"),
        (lambda path: path.chmod(0o711), "opt/bin/soak"),
        (lambda path: path.parent.chmod(0o700), "opt/bin"),
        (lambda path: path.parents[1].chmod(0o700), "opt"),
        (lambda path: path.parents[1].chmod(0o711), ""),
    ],
)
def test_what_is_closed_on_the_way_to_a_program_is_named(
    program: Path,
    change: Callable[[Path], None],
    closed: str,
) -> None:
    change(program)
    top = program.parents[2]
    found = closed_part(program, OTHER, [top / "opt"], hidden_above(top))

    assert found == (str(top / closed) if closed else "")


def hidden_above(path: Path) -> tuple[str]:
    """Return what hides a folder of a test, as ProtectHome= does one below /root."""
    return (str(path.parents[-2]),)


def test_what_units_do_not_see_of_a_home_folder_does_not_matter(program: Path) -> None:
    """They are shown the checkout alone: who may enter /root is nothing to them."""
    top = program.parents[2]
    top.chmod(0o700)
    found = closed_part(program, OTHER, [top / "opt"], hidden_above(top))

    assert found == ""


def test_a_folder_that_is_shown_has_to_be_open_itself(program: Path) -> None:
    """A checkout of mode 0700 below /root passed, and no daemon started."""
    shown = program.parents[1]
    shown.chmod(0o700)

    assert closed_part(program, OTHER, [shown], hidden_above(shown)) == str(shown)


def test_code_that_was_checked_out_for_one_user_alone_is_found(tmp_path: Path) -> None:
    """By a umask of 077; what Python compiled itself it can do without."""
    (tmp_path / "soak" / "__pycache__").mkdir(parents=True)
    (tmp_path / "soak").chmod(0o755)
    (tmp_path / "soak" / "__pycache__" / "x.pyc").touch(0o600)
    (tmp_path / "soak" / "gone").symlink_to("nowhere")
    module = tmp_path / "soak" / "x.py"
    module.touch()
    module.chmod(0o644)
    before = closed_below(tmp_path, OTHER)
    module.chmod(0o600)

    assert (before, closed_below(tmp_path, OTHER)) == ("", str(module))


@pytest.mark.parametrize(
    ("mode", "uid", "gids", "may"),
    [
        (0o705, -1, set(), True),
        (0o750, -1, set(), False),
        (0o750, -1, {"own"}, True),
        (0o705, -1, {"own"}, False),
        (0o500, None, set(), True),
        (0o077, None, {"own"}, False),
    ],
)
def test_owner_group_and_others_are_distinguished_as_by_the_kernel(
    tmp_path: Path, mode: int, uid: int | None, gids: set[str], *, may: bool
) -> None:
    """The first of them that fits decides."""
    path = tmp_path / "x"
    path.mkdir()
    path.chmod(mode)
    found = path.stat()
    account = Account(
        found.st_uid if uid is None else uid, frozenset({found.st_gid} if gids else ())
    )

    assert account.may(path, 0o5) == may
    path.chmod(0o700)


def folders(root: Path, plans: int = 0o755, secrets: int = 0o700) -> Path:
    for place, mode in ((units.PLANS, plans), (units.CREDENTIALS, secrets)):
        (root / place).mkdir(parents=True, exist_ok=True)
        (root / place).chmod(mode)
    return root


@pytest.mark.parametrize(
    ("plans", "secrets", "said"),
    [
        (0o755, 0o700, ""),
        (0o750, 0o500, ""),
        (0o775, 0o700, "can be written by users other than root"),
        (0o757, 0o700, "can be written by users other than root"),
        (0o750, 0o750, "can be read by users other than root"),
        (0o750, 0o701, "can be read by users other than root"),
    ],
)
def test_folders_with_too_many_permissions_are_reported(
    tmp_path: Path, plans: int, secrets: int, said: str
) -> None:
    """Below another root too, as in a package."""
    wrong = folder_faults(folders(tmp_path, plans, secrets), None)

    assert [said in line for line in wrong] == ([True] if said else [])


def test_missing_folders_are_reported(tmp_path: Path) -> None:
    assert [line.rpartition(" is ")[2] for line in folder_faults(tmp_path, None)] == [
        "not a folder",
        "not a folder",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give folders away")
def test_plans_belong_to_root_and_are_open_to_the_daemons(tmp_path: Path) -> None:
    """A folder that was there before has whatever owner and mode it had."""
    daemon = Account(4711, frozenset({4712}))
    plans = folders(tmp_path, plans=0o750) / units.PLANS
    closed = folder_faults(tmp_path, daemon)
    os.chown(plans, 0, 4712)
    well = folder_faults(tmp_path, daemon)
    os.chown(plans, 4711, 4712)
    given = folder_faults(tmp_path, daemon)

    assert closed == [
        f"{plans} cannot be read by the daemons: chgrp soak {plans}; chmod 750 {plans}"
    ]
    assert well == []
    assert given == [f"{plans} is not owned by root: chown root {plans}"]


def test_a_missing_user_of_the_units_is_reported() -> None:
    """Where systemd-sysusers is missing, or a name service has another opinion."""
    account, missing = account_of("soak-nobody-has-this-name")

    assert (account, len(missing)) == (Account(), 2)


def test_of_what_systemd_says_only_our_units_are_wrong() -> None:
    """A machine's other units have warnings of their own, which held up our installation."""
    said = [
        "/lib/systemd/system/plymouth-start.service:15: Unit configured to use KillMode=none.",
        "/etc/systemd/system/soak-start@check.service:4: Unknown key name 'Bogus'",
        "soak-alert@check.service: Command /opt/soakd/bin/soak is not executable: No such file",
        "/etc/systemd/system/my-soak-start@x.service:3: Unknown key name 'Mine'",
        "soak-mine@x.service: Unit of somebody else",
        "Failed to initialize manager: Permission denied",
        "",
    ]

    assert own_lines(said, UNITS) == [said[1], said[2], said[5]]


def test_a_unit_that_failed_does_not_hold_up_its_removal() -> None:
    """It does not run, and `systemctl stop` does not take it off the list."""
    listed = """
soak-start@x.service  loaded failed   failed  Soak x: begin a run, or go on with one
soak-mine@x.service   loaded active   running Of somebody else
soak-alert@y.service  loaded activating auto-restart Soak y: tell people what was found
soak@y.target         loaded active   active  Soak run of the plan y
"""

    running, failed = units.loaded_units(listed, UNITS)

    assert running == ["soak-alert@y.service", "soak@y.target"]
    assert failed == ["soak-start@x.service"]


def test_a_dot_in_front_of_a_failed_unit_is_no_name() -> None:
    """Some versions of systemd print one also for a program."""
    dotted = "● soak-start@x.service  loaded failed failed Soak x: start or resume a run\n"

    assert units.loaded_units(dotted, UNITS) == ([], ["soak-start@x.service"])


@pytest.mark.parametrize(
    ("label", "is_wrong"),
    [
        ("system_u:object_r:bin_t:s0", False),
        ("", False),  # a file system without labels
        ("unconfined_u:object_r:usr_t:s0", False),
        ("unconfined_u:object_r:user_tmp_t:s0", True),  # moved from there to /opt
        ("unconfined_u:object_r:user_home_t:s0:c0.c1023", True),
    ],
)
def test_a_program_that_selinux_keeps_from_services_is_reported(
    label: str, *, is_wrong: bool
) -> None:
    """It ended with 203/EXEC, while the same program ran in a shell."""
    found = label_faults([Path("/opt/soakd/bin/soak")], lambda _: label)

    assert ["restorecon -R /opt/soakd/bin" in line for line in found] == [True] * is_wrong


@pytest.mark.parametrize(
    ("systemd", "namespaces", "notes"),
    [
        ("systemd 252 (252.39-1~deb12u1)\n+PAM", "95563", []),
        (
            "systemd 250 (250)",
            "1",
            ["before 251 a unit that fails again and again is notified each time"],
        ),
        (
            "systemd 249 (249.11-0ubuntu3)",
            "1",
            ["units with secrets in /etc/soak/credentials do not"],
        ),
        ("systemd 257 (257)", "0\n", ["PrivateUsers=no"]),
    ],
)
def test_what_a_host_lacks_is_said_when_units_are_installed(
    systemd: str, namespaces: str, notes: list[str]
) -> None:
    found = host_notes(host_from(systemd, namespaces))

    assert len(found) == len(notes)
    assert all(note in text for note, text in zip(notes, found, strict=True))


@pytest.mark.parametrize("printed", ["systemd 239 (239-82.el8)", "", "busybox"])
def test_a_systemd_that_would_end_a_run_without_its_report_is_refused(printed: str) -> None:
    with pytest.raises(NotAvailableError, match="the units need systemd 249 or newer"):
        host_from(printed, "1")


def test_units_ask_for_no_user_namespace_where_the_host_forbids_them() -> None:
    """They failed with 217/USER."""
    usual, without = units.rendered_files(), units.rendered_files(Host(has_user_namespaces=False))
    changed = {place for place in usual if usual[place] != without[place]}

    assert changed == {place for place, text in usual.items() if "\nPrivateUsers=yes\n" in text}
    assert not any("PrivateUsers=yes" in text for text in without.values())
