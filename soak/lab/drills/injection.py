"""Inject and lift the fault of a drill during its run, with a log that no detector can read."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from soak.core.errors import LabError
from soak.lab.drills.drill import Drill
from soak.lab.faults import find_fault
from soak.lab.faults.active import FAULT_ERRORS, Fault
from soak.lab.ports import Active, Target


class FaultLog:
    """JSON lines in a nameless file on the filesystem of `folder`; one writer."""

    def __init__(self, folder: Path, *, limit_lines: int = 100_000) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - see close
        self._lines = 0
        self._limit_lines = limit_lines

    def record(self, line: Mapping[str, object]) -> None:
        """Append one line; beyond the limit one line says that the log is truncated."""
        if self._lines >= self._limit_lines:
            return
        self._lines += 1
        if self._lines == self._limit_lines:
            line = {"truncated": True}
        self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def publish(self, path: Path) -> None:
        """Give the file its name; call this only when the detectors of the run have ended.

        Raises:
            LabError: the name is taken, or the file cannot be written there.
        """
        try:
            os.fsync(self._file.fileno())
            if path.exists():
                raise LabError(f"{path} exists already; it was not overwritten")
            if not self._link(path):
                self._copy(path)
        except OSError as error:
            raise LabError(f"cannot write {path}: {error.strerror}") from error

    def close(self) -> None:
        """Discard the log if it was not published."""
        self._file.close()

    def _link(self, path: Path) -> bool:
        """Link the nameless file as open(2) describes under O_TMPFILE; return False if that fails."""
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            # Only with a folder descriptor does Python call linkat, which follows /proc's link.
            os.link(
                f"/proc/self/fd/{self._file.fileno()}",
                path.name,
                src_dir_fd=folder,
                dst_dir_fd=folder,
                follow_symlinks=True,
            )
        except OSError:
            return False
        finally:
            os.close(folder)
        path.chmod(0o644)
        return True

    def _copy(self, path: Path) -> None:
        """Copy it on filesystems without nameless files (NFS, old overlays)."""
        draft = path.with_name(f".{path.name}.part")
        self._file.seek(0)
        with draft.open("wb") as target:
            shutil.copyfileobj(self._file, target)
        draft.replace(path)


class Injection:
    """The fault of a drill in its run, and the faults that are active from before the load to the end.

    Call `poll` about once a second, and `close` when the run is over for any reason; from the main thread,
    because brokers may be started.
    """

    def __init__(
        self,
        drill: Drill,
        target: Target,
        start_wall_ns: int,
        find: Callable[[str], Fault] = find_fault,
    ) -> None:
        self._drill = drill
        self._target = target
        self._start_wall_ns = start_wall_ns
        self._find = find
        self._active: Active | None = None
        self._given: list[Active] = []
        self.lifted_wall_ns: int | None = None
        self.failure = ""

    @property
    def onset_wall_ns(self) -> int | None:
        """Return when the fault first had its effect; None before that."""
        return None if self._active is None else self._active.onset_wall_ns

    def poll(self) -> None:
        """Inject or lift the fault if it is time.

        Raises:
            LabError: the lab lacks something that the fault needs, or the machine refused it.
        """
        if self.lifted_wall_ns is not None:
            return
        for kind, config in self._drill.given[len(self._given) :]:
            self._given.append(self._inject(kind, config))
        begin_ns, length_ns = self._drill.begin_ns, self._drill.length_ns
        now_ns = self._target.clock.wall_ns() - self._start_wall_ns
        if self._active is None:
            if not begin_ns or now_ns >= begin_ns:
                self._active = self._inject(self._drill.fault_kind, self._drill.fault)
        elif length_ns and now_ns >= begin_ns + length_ns:
            self.lift()

    def lift(self) -> None:
        """Undo the fault; may be called twice. An error is kept in `failure`, and the run goes on."""
        if self.lifted_wall_ns is not None:
            return
        self.lifted_wall_ns = self._target.clock.wall_ns()
        if self._active is None:
            return
        self._undo(self._active.lift)
        self._target.record({"at_wall_ns": self.lifted_wall_ns, "lifted": not self.failure})

    def close(self) -> None:
        """Undo the fault, effects that outlast it, and all other faults; may be called twice."""
        with contextlib.ExitStack() as steps:  # an error in one step does not skip the others
            for given in self._given:
                steps.callback(self._undo, given.close)
            if self._active is not None:
                steps.callback(self._undo, self._active.close)
            steps.callback(self.lift)

    def _inject(self, kind: str, config: Any) -> Active:  # noqa: ANN401  # of any fault
        try:
            return self._find(kind).inject(self._target, config)
        except FAULT_ERRORS as error:
            raise LabError(f"cannot inject the fault {kind}: {error}") from error

    def _undo(self, step: Callable[[], None]) -> None:
        try:
            step()
        except LabError as error:
            self.failure = self.failure or str(error)
            at_wall_ns = self._target.clock.wall_ns()
            self._target.record({"at_wall_ns": at_wall_ns, "not_undone": str(error)})
