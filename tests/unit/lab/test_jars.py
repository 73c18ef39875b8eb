"""Fetching jars: once, checked, all or nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from soak.core.errors import LabError
from soak.lab.jars import cache, ivy
from soak.lab.jars.cache import KAFKA_LOCK
from soak.lab.jars.lock import Artifact, parse_lock, render_lock


def content_of(artifact: Artifact) -> bytes:
    return artifact.coordinate.encode()


class Repository:
    """Stands in for the download: writes what a good one would, and counts the calls."""

    def __init__(self, *, breaks: str = "", forges: str = "") -> None:
        self.calls = 0
        self.breaks = breaks
        self.forges = forges

    def download(self, wanted: Sequence[Artifact], folder: Path, work: Path) -> None:
        self.calls += 1
        assert work.is_dir()
        for one in wanted:
            if one.name == self.breaks:
                raise LabError(f"cannot fetch {one.coordinate}")
            forged = b"<html>please log in</html>" if one.name == self.forges else content_of(one)
            (folder / one.file_name).write_bytes(forged)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "three.lock"
    ones = [Artifact("org.x", name, "1.0") for name in ("alpha", "beta", "gamma")]
    lines = [f"{one.coordinate} {hashlib.sha256(content_of(one)).hexdigest()}" for one in ones]
    path.write_text("\n".join(lines))
    return path


def jars_in(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.jar")}


def test_jars_are_fetched_once_and_said_once(lock: Path, tmp_path: Path) -> None:
    """The second call finds the folder and downloads nothing."""
    repository, said = Repository(), list[str]()

    for _ in range(2):
        folder = cache.fetch(
            lock, cache=tmp_path / "c", report=said.append, download=repository.download
        )

    assert repository.calls == 1
    assert said == ["fetching 3 jars of three, once"]
    assert jars_in(folder) == {f"org.x_{name}_1.0.jar" for name in ("alpha", "beta", "gamma")}


def test_a_jar_that_is_not_the_pinned_one_is_refused_and_nothing_is_kept(
    lock: Path, tmp_path: Path
) -> None:
    """The message names the artefact and both checksums."""
    repository = Repository(forges="beta")

    with pytest.raises(LabError, match=r"org\.x:beta:1\.0 is not the file in the lock") as caught:
        cache.fetch(lock, cache=tmp_path / "c", download=repository.download)

    assert hashlib.sha256(b"<html>please log in</html>").hexdigest() in str(caught.value)
    assert [path.name for path in (tmp_path / "c" / "jars").iterdir() if path.is_dir()] == []


def test_a_failed_download_leaves_nothing_and_the_next_one_begins_anew(
    lock: Path, tmp_path: Path
) -> None:
    """Half of the files came before the failure; none of them is seen later."""
    repository = Repository(breaks="gamma")
    with pytest.raises(LabError, match=r"cannot fetch org\.x:gamma:1\.0"):
        cache.fetch(lock, cache=tmp_path / "c", download=repository.download)
    assert [path.name for path in (tmp_path / "c" / "jars").iterdir() if path.is_dir()] == []

    repository.breaks = ""
    folder = cache.fetch(lock, cache=tmp_path / "c", download=repository.download)

    assert len(jars_in(folder)) == 3


def test_a_truncated_jar_in_the_cache_is_noticed_and_fetched_again(
    lock: Path, tmp_path: Path
) -> None:
    """Somebody, or a full disk, cut a file short after it was checked."""
    repository = Repository()
    folder = cache.fetch(lock, cache=tmp_path / "c", download=repository.download)
    (folder / "org.x_beta_1.0.jar").write_bytes(b"")

    cache.fetch(lock, cache=tmp_path / "c", download=repository.download)

    assert (folder / "org.x_beta_1.0.jar").stat().st_size > 0


def test_two_that_start_together_fetch_once(lock: Path, tmp_path: Path) -> None:
    """The slower one waits and finds what the faster one fetched."""
    repository, start = Repository(), Barrier(2, timeout=10)

    def fetch() -> Path:
        start.wait()
        return cache.fetch(lock, cache=tmp_path / "c", download=repository.download)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(fetch), pool.submit(fetch)

    assert first.result() == second.result()
    assert repository.calls == 1


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (
            "\tHost repo.invalid not found. url=x\n:: UNRESOLVED DEPENDENCIES ::\n:: org.a#b_2.13;4.3: x\n",
            "cannot fetch org.a:b_2.13:4.3 from Maven Central: Host repo.invalid not found.",
        ),
        (
            "::  FAILED DOWNLOADS  ::\n:: ^ see resolution messages  ^ ::\n:: org.a#b;1.7!b.jar\n",
            "cannot fetch org.a:b:1.7 from Maven Central: not found.",
        ),
        (
            ":: UNRESOLVED DEPENDENCIES ::\n:: org.a#b;1: x\n (javax.net.ssl.SSLException: no path)\n",
            "cannot fetch org.a:b:1 from Maven Central: no path.",
        ),
    ],
)
def test_a_failure_of_ivy_becomes_artefact_reason_and_advice(log: str, message: str) -> None:
    """Recorded from Ivy 2.5.3, shortened."""
    text = ivy.failure_message(log)

    assert text.startswith(message)
    assert "https_proxy" in text


SHA = "ab" * 32


def test_a_line_is_coordinate_and_checksum() -> None:
    """Comments and blank lines say nothing; a fourth part is the classifier."""
    text = f"# made by hand\n\norg.a:b:1.0 {SHA}\norg.a:b:1.0:linux-x86_64 {SHA} # for one system\n"

    found = parse_lock(text, "x.lock")

    assert found == [
        Artifact("org.a", "b", "1.0", "", SHA),
        Artifact("org.a", "b", "1.0", "linux-x86_64", SHA),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("org.a:b:1.0 1234", "x.lock:1: 'org.a:b:1.0 1234' is not"),
        (f"org.a:b {SHA}", "x.lock:1: "),
        (f"org.a:b:1:c:d {SHA}", "x.lock:1: "),
        (f"org.a:../b:1 {SHA}", "x.lock:1: "),
        (f"a:b:1 {SHA}\na:b:1 {SHA}", "x.lock:2: a:b:1 is listed twice"),
        ("# nothing\n", "x.lock: lists no jar"),
    ],
)
def test_a_malformed_lock_is_refused_with_its_line(text: str, message: str) -> None:
    """File and line come first, as in every other message about a file."""
    with pytest.raises(LabError) as caught:
        parse_lock(text, "x.lock")

    assert str(caught.value).startswith(message)


def test_what_is_rendered_reads_back_sorted() -> None:
    """Two resolutions can be compared line by line."""
    artifacts = [Artifact("z", "z", "1", "", SHA), Artifact("a", "a", "1", "c", SHA)]

    text = render_lock(artifacts, "how it was made\nin two lines")

    assert text.startswith("# how it was made\n# in two lines\n")
    assert parse_lock(text, "x.lock") == sorted(artifacts)


def test_the_lock_of_kafka_names_the_broker_once_and_every_file_apart() -> None:
    """The file names must differ, or one jar would replace another."""
    artifacts = parse_lock(KAFKA_LOCK.read_text(), KAFKA_LOCK.name)

    assert sum(one.name == "kafka_2.13" for one in artifacts) == 1
    assert len({one.file_name for one in artifacts}) == len(artifacts)
