"""The changes that the query has found and attribution has not come to, and the moment to which it has come.

They are kept in a file next to the checkpoint, so a process that starts again goes on from there. A batch
that is delivered again adds its changes again; recording a change twice gives what recording it once gives.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from soak.core import json_text
from soak.core.errors import FindingsError
from soak.core.model import Change

BUSY_SECONDS = 5.0
_VERSION = 1  # of the rows: another one's are not read
_TABLES = """
    CREATE TABLE IF NOT EXISTS found (at INTEGER PRIMARY KEY, k INTEGER NOT NULL, body TEXT NOT NULL);
    CREATE INDEX IF NOT EXISTS found_by_k ON found (k);
    CREATE TABLE IF NOT EXISTS moment (only INTEGER PRIMARY KEY CHECK (only = 0), k INTEGER NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Discoveries:
    """A file that is opened for each use; one thread may add while another takes.

    Each method raises `FindingsError` when the file cannot be used.
    """

    path: Path

    def add(self, changes: Sequence[Change]) -> None:
        """Keep changes, each with the interval in which it was discovered, until they are taken."""
        rows = [(one.discovered_k, json.dumps(one.to_row())) for one in changes]
        with self._opened() as connection:
            connection.executemany("INSERT INTO found (k, body) VALUES (?, ?)", rows)

    def first_k(self) -> int | None:
        """Return the interval of the earliest discovery that is kept."""
        with self._opened() as connection:
            (found,) = connection.execute("SELECT min(k) FROM found").fetchone()
        return None if found is None else int(found)

    def up_to(self, k: int) -> dict[int, Change]:
        """Return the discoveries up to an interval by their number, in the order in which they were made."""
        with self._opened() as connection:
            rows = connection.execute(
                "SELECT at, body FROM found WHERE k <= ? ORDER BY k, at", (k,)
            )
            return {at: Change.from_row(json_text.loads(body)) for at, body in rows}

    def moment_k(self) -> int:
        """Return the last moment that was judged, -1 before the first."""
        with self._opened() as connection:
            found = connection.execute("SELECT k FROM moment").fetchone()
        return -1 if found is None else int(found[0])

    def settle(self, k: int, taken: Iterable[int]) -> None:
        """Note that a moment was judged, and forget the discoveries with these numbers."""
        with self._opened() as connection:
            connection.executemany("DELETE FROM found WHERE at = ?", [(at,) for at in taken])
            connection.execute("INSERT OR REPLACE INTO moment VALUES (0, ?)", (k,))

    def forget(self) -> None:
        """Remove the file: the query begins with the first interval again."""
        self.path.unlink(missing_ok=True)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the file for one transaction."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS)
            try:
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                if version not in (0, _VERSION):
                    raise ValueError(f"it has version {version}, this soakd writes {_VERSION}")
                if version == 0:
                    connection.executescript(f"{_TABLES} PRAGMA user_version = {_VERSION};")
                with connection:
                    yield connection
            finally:
                connection.close()
        except (sqlite3.Error, OSError, ValueError, LookupError, TypeError) as error:
            raise FindingsError(f"cannot use {self.path}: {error}") from error
