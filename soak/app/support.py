"""What a report of a fault needs: versions, and a bundle of a run in which no secret is.

Every text of a bundle passes `Redaction`: the values of the secrets that the plan refers to or holds are
replaced, in the forms that texts give them, and so is whatever stands where passwords stand. Only regular
files with names of ours are read, and of large ones the end.
"""

from __future__ import annotations

import base64
import io
import json
import platform
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from soak.app.units import CREDENTIALS
from soak.clients.client_settings import is_secret_reference, secrets_named_in
from soak.core.errors import NotAvailableError, PlanError, RunFolderError, SoakError
from soak.core.journal_format import Columns, DamagedLineError, decode
from soak.core.model import Record
from soak.core.units import SECOND_NS
from soak.service.files import read_json, read_small_text, user_cache
from soak.service.java import spark_java_home, version_of
from soak.store.journal.history import position_of_interval
from soak.store.journal.reader import complete_size, last_record, lines, segments, sources
from soak.store.run_folder import Run, RunFolder, read_any_plan, read_run

_PACKAGES = ("confluent-kafka", "pulsar-client", "pyspark", "pyarrow", "numpy")
WINDOW_SECONDS = 600
_FILES = (
    "run.json", "phases.jsonl", "durability.json", "forecast.json", "topics.json", "begin.json",
    "ship.json", "receive.json", "receive-work.json", "restarts.jsonl", "acknowledged.json", "drives/*.json",
    "refused/*.json", "report/summary.json", "logs/*",
)  # fmt: skip
_MAX_FILE_BYTES = 4 * 2**20
_MASK = "***"
_AS_PASSWORD = re.compile(
    r"""((?:passw(?:or)?d|passphrase|secret|token|credentials?|api[_-]?key|jaas\.config)\\?["']?\s*[=:]\s*)"""
    r"""(?!\\?["']?\$\{(?:env|file|credential):[^}]*\}(?:[\s,"'}\]]|\Z))"""  # the name of a secret is none
    r"""(\\?"(?:[^"\\]|\\[^"])*\\?"|'[^']*'|[^\s,;&"'}\]]+)""",
    re.IGNORECASE,
)
_AS_HEADER = re.compile(
    r"(\b(?:authorization\s*[=:]\s*)?(?:bearer|basic)\s+)[\w.+/=~-]{6,}", re.IGNORECASE
)
_AS_USER = re.compile(r"(://)[^/\s@\"']+@")
_AS_KEY = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?=-----END|\Z)", re.DOTALL)
_IN_PLAN = re.compile(
    r"""([\w.-]+)["']?[ \t]*:[ \t]*("[^"\n]*"|'[^'\n]*'|[^\s,{}\[\]][^\s,}\]]*)"""
)
_SHORT = 4  # characters: a shorter secret is replaced where it stands alone


def versions() -> Iterator[tuple[str, str]]:
    """Give name and version of soakd, Python, the Kafka and Pulsar clients, Spark and its Java."""
    yield "soakd", _installed("soakd")
    yield "Python", platform.python_version()
    for package in _PACKAGES:
        yield package, _installed(package)
    try:
        import confluent_kafka

        yield "librdkafka", confluent_kafka.libversion()[0]
    except ImportError as error:
        yield "librdkafka", f"not usable: {error}"
    try:
        home = spark_java_home(user_cache())
        yield "Java", f"{version_of(home) or 'of unknown version'} ({home})"
    except NotAvailableError as error:
        yield "Java", f"not usable: {error}"


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


class Redaction:
    """Replaces secrets in texts."""

    def __init__(self, secrets: set[str]) -> None:
        forms = {form for secret in secrets for form in _forms(secret) if form}
        longest_first = sorted(forms, key=lambda form: (-len(form), form))
        parts = [
            re.escape(one) if len(one) >= _SHORT else rf"(?<!\w){re.escape(one)}(?!\w)"
            for one in longest_first
        ]
        self._known = re.compile("|".join(parts)) if parts else None

    def text(self, text: str) -> str:
        """Return the text without secrets."""
        text = self._known.sub(_MASK, text) if self._known else text
        text = _AS_PASSWORD.sub(_without_value, text)
        text = _AS_HEADER.sub(rf"\1{_MASK}", text)
        return _AS_KEY.sub(rf"\1 {_MASK} ", _AS_USER.sub(rf"\1{_MASK}@", text))

    def line(self, raw: bytes) -> bytes:
        """Return a line of a journal without secrets, with the checksum of what it holds then."""
        body, _, _ = raw.rstrip(b"\n").rpartition(b"\t")
        text = body.decode("utf-8", "replace")
        found = self.text(text)
        return (
            raw if found == text else b"%s\t%08x\n" % (found.encode(), zlib.crc32(found.encode()))
        )


def _without_value(found: re.Match[str]) -> str:
    quotes = re.match(r"\\?[\"']", found[2])
    return f"{found[1]}{quotes[0]}{_MASK}{quotes[0]}" if quotes else f"{found[1]}{_MASK}"


def _forms(secret: str) -> Iterator[str]:
    """Give the forms that texts give a secret: as it is, each line of it, in JSON, in a URL, in base64."""
    for one in {secret, secret.strip(), *(line.strip() for line in secret.splitlines())}:
        yield one
        yield json.dumps(one)[1:-1]
        yield json.dumps(one, ensure_ascii=False)[1:-1]
        yield quote(one)
        yield quote(one, safe="")
        yield quote_plus(one)
        yield repr(one)[1:-1]
    yield base64.b64encode(secret.encode()).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that was written, and what is in it."""

    path: Path
    files: int
    window: str


def write_bundle(
    folder: RunFolder, target: Path | None, incident: str = "", at: str = ""
) -> Bundle:
    """Write the bundle of a run, readable by its owner alone; it must not exist yet.

    The journals are those of ten minutes: around an incident (its key, or the number at its end), or around a
    time; by default around the worst incident of the report, or the last ten of the run.

    Raises:
        RunFolderError: this is no run folder, it has no such incident, or the bundle cannot be written.
        PlanError: the time cannot be read.
    """
    run = read_run(folder)
    k, why = _middle(folder, run, incident, at)
    window = (k - WINDOW_SECONDS // 2, k + WINDOW_SECONDS // 2)
    plan, redaction = _plan(folder)
    name = f"support-{run.id}"
    path = target or Path(f"{name}.tar.gz")
    packed, files = io.BytesIO(), 0
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for place, content in _contents(folder, plan, redaction, window, why):
            about = tarfile.TarInfo(f"{name}/{place}")
            about.size, about.mode = len(content), 0o640
            about.mtime = run.start_wall_ns // SECOND_NS
            tar.addfile(about, io.BytesIO(content))
            files += 1
    try:
        path.touch(0o600, exist_ok=False)
        path.write_bytes(packed.getvalue())
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {error.strerror}") from error
    return Bundle(path, files, why)


def _middle(folder: RunFolder, run: Run, incident: str, at: str) -> tuple[int, str]:
    """Return the second in the middle of the window, and why it is that one."""
    if at:
        return _second(run, at, "--at"), f"around {at}"
    findings = _findings(folder)
    keys = [str(one["key"]) for one in findings]
    if incident:
        found = [one for one, key in zip(findings, keys, strict=True)
                 if incident in {key, key.removeprefix(f"{run.id}-")}]  # fmt: skip
        if not found:
            known = ", ".join(keys) or "none; `soak report` finds them"
            raise RunFolderError(
                f"{folder.path} has no incident {incident!r}; its incidents: {known}"
            )
        findings = found
    if findings:
        worst = min(findings, key=lambda one: one.get("rank") or len(findings) + 1)
        return _second(run, str(worst["at"]), str(worst["key"])), f"around incident {worst['key']}"
    newest = [
        one[0].k
        for source in sources(folder.journal)
        if (one := last_record(folder.journal, source))
    ]
    return max(
        newest, default=0
    ) - WINDOW_SECONDS // 2 + 1, "the last of the run, which has no incident"


def _findings(folder: RunFolder) -> list[dict[str, Any]]:
    try:
        found = read_json(folder.summary)["findings"]
        return [one for one in found if one.get("key") and one.get("at")]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def _second(run: Run, at: str, what: str) -> int:
    try:
        time = datetime.fromisoformat(at)
    except ValueError as error:
        raise PlanError(f"{what}: {at!r} is not a time; write 2026-01-31T12:00:00Z") from error
    if time.tzinfo is None:
        raise PlanError(f"{what}: {at!r} has no time zone; write {at}Z for UTC")
    return int(time.timestamp() - run.start_wall_ns / SECOND_NS)


def _plan(folder: RunFolder) -> tuple[str, Redaction]:
    """Return the plan without secrets, and what keeps those that it names or holds out of all texts."""
    from soak.app.check import SECRET_KEY, literal_secrets, masked_text  # versions need none of it

    try:
        raw = read_small_text(folder.plan)
    except (OSError, UnicodeDecodeError):
        raw = ""
    secrets = secrets_named_in(raw, CREDENTIALS)
    for key, value in _IN_PLAN.findall(raw):
        if SECRET_KEY.search(key) and not is_secret_reference(value.strip("\"'")):
            secrets.add(value.strip("\"'"))
    try:
        plan = read_any_plan(folder)
    except SoakError as error:
        left_out = f"# it cannot be read, and is left out: {type(error).__name__}\n"
        return left_out, Redaction(secrets)
    return masked_text(plan), Redaction(secrets | literal_secrets(plan))


def _contents(
    folder: RunFolder, plan: str, redaction: Redaction, window: tuple[int, int], why: str
) -> Iterator[tuple[str, bytes]]:
    """Give the name and content of each file of the bundle."""
    about = [f"{name} {version}" for name, version in versions()]
    about += [f"{platform.system()} {platform.release()} {platform.machine()}", ""]
    about += [f"journals: seconds {window[0]} to {window[1]} of the run, {why}"]
    about += ["logs under systemd: journalctl -u 'soak*' --since TIME --until TIME"]
    yield "versions.txt", redaction.text("\n".join([*about, ""])).encode()
    yield "plan.yaml", redaction.text(plan).encode()
    for pattern in _FILES:
        for path in sorted(folder.path.glob(pattern)):
            if path.is_file() and not path.is_symlink() and not path.parent.is_symlink():
                text = _end_of(path).decode("utf-8", "replace")
                yield str(path.relative_to(folder.path)), redaction.text(text).encode()
    for source in sources(folder.journal):
        body = b"".join(redaction.line(raw) for raw in _journal(folder.journal / source, window))
        if body:
            yield f"journal/{source}/000001.jsonl", body


def _end_of(path: Path) -> bytes:
    """Return a file; of a large one the whole lines at its end."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _MAX_FILE_BYTES))
        if size > _MAX_FILE_BYTES:
            file.readline()
        return file.read(_MAX_FILE_BYTES)


def _journal(folder: Path, window: tuple[int, int]) -> Iterator[bytes]:
    """Give the lines of a source with records of these seconds, and the columns that they refer to."""
    found = None if folder.is_symlink() else position_of_interval(folder, window[0])
    if found is None:
        return
    first, position = found
    for path in segments(folder):
        if path < first or path.is_symlink():
            continue
        begin = position if path == first else 0
        if begin:
            yield from (raw for raw in lines(path, 0, begin) if b'"t":"c"' in raw[:200])
        for raw in lines(path, begin, complete_size(path)):
            try:
                line = decode(raw)
            except DamagedLineError:
                continue
            if isinstance(line, Record) and line.k >= window[1]:
                return
            if isinstance(line, Columns) or (isinstance(line, Record) and line.k >= window[0]):
                yield raw
