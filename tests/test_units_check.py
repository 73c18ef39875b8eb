"""What is wrong with installed units is told at once, and not by a daemon that does not start."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from soak.cli import _units
from soak.cli._units_check import (
    Account,
    about_ours,
    account_of,
    closed_below,
    closed_part,
    folder_faults,
)

OTHER = Account()
UNITS = {"soak@", "soak-begin@", "soak-alert@"}


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
def test_owner_group_and_others_are_told_apart_as_by_the_kernel(
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
    for place, mode in ((_units.PLANS, plans), (_units.CREDENTIALS, secrets)):
        (root / place).mkdir(parents=True, exist_ok=True)
        (root / place).chmod(mode)
    return root


@pytest.mark.parametrize(
    ("plans", "secrets", "said"),
    [
        (0o755, 0o700, ""),
        (0o750, 0o500, ""),
        (0o775, 0o700, "others than root may write plans"),
        (0o757, 0o700, "others than root may write plans"),
        (0o750, 0o750, "is open to others than root"),
        (0o750, 0o701, "is open to others than root"),
    ],
)
def test_folders_that_are_too_open_are_told(
    tmp_path: Path, plans: int, secrets: int, said: str
) -> None:
    """Below another root too, as in a package."""
    wrong = folder_faults(folders(tmp_path, plans, secrets), None)

    assert [said in line for line in wrong] == ([True] if said else [])


def test_folders_that_are_not_there_are_told(tmp_path: Path) -> None:
    assert [line.rpartition(" is ")[2] for line in folder_faults(tmp_path, None)] == [
        "not a folder",
        "not a folder",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give folders away")
def test_plans_belong_to_root_and_are_open_to_the_daemons(tmp_path: Path) -> None:
    """A folder that was there before has whatever owner and mode it had."""
    daemon = Account(4711, frozenset({4712}))
    plans = folders(tmp_path, plans=0o750) / _units.PLANS
    closed = folder_faults(tmp_path, daemon)
    os.chown(plans, 0, 4712)
    well = folder_faults(tmp_path, daemon)
    os.chown(plans, 4711, 4712)
    given = folder_faults(tmp_path, daemon)

    assert closed == [f"{plans} is closed to the daemons: chgrp soak {plans}; chmod 750 {plans}"]
    assert well == []
    assert given == [f"{plans} does not belong to root: chown root {plans}"]


def test_a_machine_without_the_user_of_the_units_is_told() -> None:
    """Where systemd-sysusers is missing, or a name service has another opinion."""
    account, missing = account_of("soak-nobody-has-this-name")

    assert (account, len(missing)) == (Account(), 2)


def test_of_what_systemd_says_only_our_units_are_wrong() -> None:
    """A machine's other units have warnings of their own, which held up our installation."""
    said = [
        "/lib/systemd/system/plymouth-start.service:15: Unit configured to use KillMode=none.",
        "/etc/systemd/system/soak-begin@check.service:4: Unknown key name 'Bogus'",
        "soak-alert@check.service: Command /opt/soakd/bin/soak is not executable: No such file",
        "/etc/systemd/system/my-soak-begin@x.service:3: Unknown key name 'Mine'",
        "soak-mine@x.service: Unit of somebody else",
        "Failed to initialize manager: Permission denied",
        "",
    ]

    assert about_ours(said, UNITS) == [said[1], said[2], said[5]]


def test_a_unit_that_failed_does_not_hold_up_its_removal() -> None:
    """It does not run, and `systemctl stop` does not take it off the list."""
    listed = """
soak-begin@x.service  loaded failed   failed  Soak x: begin a run, or go on with one
soak-mine@x.service   loaded active   running Of somebody else
soak-alert@y.service  loaded activating auto-restart Soak y: tell people what was found
soak@y.target         loaded active   active  Soak run of the plan y
"""

    running, failed = _units.there(listed, UNITS)

    assert running == ["soak-alert@y.service", "soak@y.target"]
    assert failed == ["soak-begin@x.service"]
