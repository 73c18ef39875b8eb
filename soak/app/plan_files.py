"""The plan that a user names: its file or one that ships, scaled, with the table of its load profile."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from soak.core.errors import PlanError, combined
from soak.core.plan import plugins, scaling
from soak.core.plan import text as plan_text
from soak.core.plan.plan import Lab
from soak.core.plan.rates import Point
from soak.core.plan.text import PlanFile
from soak.core.units import duration_ns
from soak.service.files import shipped_configs
from soak.store.run_folder import RunFolder, read_profile
from soak.store.run_folder import copy_profile as copy_profile_file

_SCALE_PATTERN = re.compile(r"[+-]?[\d.]{1,30}(/\d{1,30}|[eE][+-]?\d{1,2})?", re.ASCII)
"""A number of few digits: the digits of 1e999999999 would fill the memory."""


def load_plan(path: Path) -> PlanFile:
    """Return the plan in a file; a plan without the address of a broker uses the lab.

    `path` as in `plan_path`.

    Raises:
        PlanError: the file cannot be read, or the plan is wrong; with file, line and key of every fault.
    """
    loaded, faults = load_plan_with_faults(path)
    if loaded is None or faults:
        raise combined(faults)
    return loaded


def load_plan_with_faults(path: Path) -> tuple[PlanFile | None, list[PlanError]]:
    """Return the plan in a file without its wrong keys, as far as there is one, and all faults of its text.

    `path` as in `plan_path`.

    Raises:
        PlanError: the file cannot be read, or is not YAML.
    """
    path = plan_path(path)
    loaded, faults = plan_text.load_with_faults(read_plan_text(path), str(path))
    return (None if loaded is None else _with_lab(loaded, faults)), faults


def plan_path(path: Path) -> Path:
    """Return the file of a plan: where there is none, `path` may name a plan that ships, as `demo-clean`.

    Raises:
        PlanError: it is neither.
    """
    is_name = path.parent == Path() and not path.suffix and not path.exists()
    if not is_name:
        return path
    folder = shipped_configs() / "plans"
    known = sorted(item.stem for item in folder.glob("*.yaml"))
    if path.name not in known:
        raise PlanError(
            f"there is no file {path}, and no plan of this name{plugins.nearest(path.name, known)}"
        )
    return folder / f"{path.name}.yaml"


def _with_lab(loaded: PlanFile, faults: Sequence[PlanError]) -> PlanFile:
    """Return the plan with a lab if it names no cluster, not even with an address that is wrong."""
    places = [fault.place or () for fault in faults]
    wrong = {key for place in places if place[:1] == ("broker",) for key in place[2:3]}
    has_address = named_addresses(loaded) or wrong & loaded.plan.broker_config.addresses.keys()
    if loaded.plan.lab is None and not has_address:
        plan = dataclasses.replace(loaded.plan, lab=Lab())
        return dataclasses.replace(loaded, plan=plan)
    return loaded


def read_plan_text(path: Path) -> str:
    """Return the text of a plan; of one that is too large, enough to be refused.

    Raises:
        PlanError: the file cannot be read.
    """
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(plan_text.MAX_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot read the plan: {error}") from error


def scaled_plan(plan_file: PlanFile, scale: str, duration: str) -> PlanFile:
    """Return the plan with its rate scaled and its load shortened; "" leaves either unchanged.

    Raises:
        PlanError: an option is not a number or a duration, or the plan cannot be scaled that far.
    """
    plan = plan_file.plan
    if duration:
        try:
            length_ns = duration_ns(duration)
        except ValueError as error:
            raise PlanError(f"--duration: {error}") from error
        plan = scaling.shortened(plan, length_ns)
    if scale:
        plan = scaling.scaled(plan, _factor(scale))
    return dataclasses.replace(plan_file, plan=plan)


def _factor(text: str) -> Fraction:
    match = _SCALE_PATTERN.fullmatch(text)
    try:
        return Fraction(match[0] if match else "")
    except (ValueError, ZeroDivisionError) as error:
        raise PlanError(f"--scale {text[:40]!r} is not a number; write 0.01 or 1/100") from error


def copy_profile(plan_file: PlanFile, folder: RunFolder) -> None:
    """Copy the file of the load profile, if there is one, into the run folder, where the daemons read it.

    Raises:
        PlanError: the file cannot be read.
    """
    path = profile_path(plan_file)
    if path is not None:
        copy_profile_file(path, folder)


def profile_table(plan_file: PlanFile) -> tuple[Point, ...]:
    """Return the rates of the file of the load profile; empty if the plan names no file.

    Raises:
        PlanError: with file, line and key of the plan: the file cannot be read, or one of its lines is wrong.
    """
    path = profile_path(plan_file)
    try:
        return read_profile(path) if path is not None else ()
    except PlanError as error:
        raise plan_file.document.error(("load", "profile", "file"), str(error)) from error


def profile_path(plan_file: PlanFile) -> Path | None:
    """Return the path of the load profile, which is relative to the folder of the plan."""
    file = plan_file.plan.load.profile.file
    return Path(plan_file.document.name).parent / file if file else None


def named_addresses(plan_file: PlanFile) -> list[str]:
    """Return the keys of the broker's section with which the plan names a cluster."""
    return [key for key, value in plan_file.plan.broker_config.addresses.items() if value]
