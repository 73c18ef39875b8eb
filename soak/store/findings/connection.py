"""A connection to `findings.db`, safe with a file from outside: its copy, tables, transactions and errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from soak.core import wording
from soak.core.errors import FindingsBusyError, FindingsError
from soak.store.findings.rows import checked_rows
from soak.store.findings.schema import VERSION, bring_up_to_date

MAX_COPY_BYTES = 2**29
"""Of a file that is read in memory; thousands of findings take some MB."""
_STEPS_AT_ONCE, _MAX_STEPS = 10**6, 1000
"""A thousand million instructions on a copy: some ten seconds, which no file of ours comes near."""
_COMPUTED = (
    "SELECT 1 FROM sqlite_master AS m JOIN pragma_table_xinfo(m.name) AS c WHERE c.hidden LIMIT 1"
)


def copy_in_memory(path: Path, busy_seconds: float) -> sqlite3.Connection:
    """Return a copy of a file in memory, which may be migrated; the file and its folder stay as they are."""
    # Without a log of writes no process writes now, and SQLite would create one to read it.
    log = path.with_name(f"{path.name}-wal")
    mode = "mode=ro" if log.exists() and log.stat().st_size else "immutable=1"
    uri = f"file:{quote(str(path.absolute()))}?{mode}"
    copy = sqlite3.connect(":memory:", isolation_level=None)
    steps = iter(range(_MAX_STEPS))
    copy.set_progress_handler(lambda: next(steps, None) is None, _STEPS_AT_ONCE)
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=busy_seconds)) as source:
            _check_size(source, path)
            source.backup(copy)
        _check_pages(copy, path)
    except BaseException:
        copy.close()
        raise
    return copy


def _check_size(source: sqlite3.Connection, path: Path) -> None:
    pages, page_bytes = (
        int(source.execute(f"PRAGMA {one}").fetchone()[0]) for one in ("page_count", "page_size")
    )
    if pages * page_bytes > MAX_COPY_BYTES:
        raise FindingsError(f"{path} has {pages * page_bytes} bytes, more than any of ours")


def _check_pages(copy: sqlite3.Connection, path: Path) -> None:
    """Refuse a file with a page in two places, or in itself: it could have rows without end."""
    copy.execute("PRAGMA ignore_check_constraints = ON")  # they would run
    found = copy.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise FindingsError(f"{path} is damaged: {wording.shortened(found, 200)}")


def refuse_programs(connection: sqlite3.Connection, path: Path) -> None:
    """Let no view, trigger or computed column of a file run: none of ours has one, and it may never end.

    Raises:
        FindingsError: a column is computed. A statement that needs a view or trigger raises it later.
    """
    connection.set_authorizer(
        lambda *about: sqlite3.SQLITE_OK if about[-1] is None else sqlite3.SQLITE_DENY
    )
    if connection.execute(_COMPUTED).fetchone() is not None:
        raise FindingsError(f"{path} has a computed column, as no file of ours")


def prepare_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Create or migrate the tables and refuse a newer layout; several processes may do so at once."""
    connection.row_factory = checked_rows()
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > VERSION:
        raise FindingsError(
            f"{path} has layout version {version}, this program reads up to {VERSION}: upgrade soakd"
        )
    # FULL: a confirmed finding survives a power cut; writes are rare.
    connection.execute("PRAGMA synchronous = FULL")
    if version == VERSION:
        return
    connection.execute("PRAGMA journal_mode = WAL")
    with transaction(connection, "BEGIN IMMEDIATE"):
        bring_up_to_date(connection)


@contextmanager
def transaction(connection: sqlite3.Connection, begin: str) -> Iterator[sqlite3.Connection]:
    """Begin a transaction with this statement; commit it, or undo it after an error."""
    connection.execute(begin)
    try:
        yield connection
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextmanager
def typed_errors(path: Path) -> Iterator[None]:
    """Raise the errors of SQLite and of damaged cells as `FindingsError` that names the file."""
    try:
        yield
    except sqlite3.OperationalError as error:
        code = getattr(error, "sqlite_errorcode", 0)  # missing when a text is not UTF-8
        if code & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            raise FindingsBusyError(f"{path} is locked by another process: {error}") from error
        raise FindingsError(f"cannot use {path}: {error}") from error
    except (sqlite3.Error, OSError) as error:
        raise FindingsError(f"cannot use {path}: {error}") from error
    except (
        ValueError,
        TypeError,
        KeyError,
    ) as error:  # a page that is intact but holds other bytes
        raise FindingsError(f"{path} is damaged: {error}") from error
