"""Lock files of jars: what is read, what is refused."""

from __future__ import annotations

import pytest

from soak.core.errors import LabError
from soak.lab.artifacts import KAFKA_LOCK
from soak.lab.lock import Artifact, parse, render

SHA = "ab" * 32


def test_a_line_is_coordinate_and_checksum() -> None:
    """Comments and blank lines say nothing; a fourth part is the classifier."""
    text = f"# made by hand\n\norg.a:b:1.0 {SHA}\norg.a:b:1.0:linux-x86_64 {SHA} # for one system\n"

    found = parse(text, "x.lock")

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
        ("# nothing\n", "x.lock: lists no artefact"),
    ],
)
def test_a_malformed_lock_is_refused_with_its_line(text: str, message: str) -> None:
    """File and line come first, as in every other message about a file."""
    with pytest.raises(LabError) as caught:
        parse(text, "x.lock")

    assert str(caught.value).startswith(message)


def test_what_is_rendered_reads_back_sorted() -> None:
    """Two resolutions can be compared line by line."""
    artifacts = [Artifact("z", "z", "1", "", SHA), Artifact("a", "a", "1", "c", SHA)]

    text = render(artifacts, "how it was made\nin two lines")

    assert text.startswith("# how it was made\n# in two lines\n")
    assert parse(text, "x.lock") == sorted(artifacts)


def test_the_lock_of_kafka_names_the_broker_once_and_every_file_apart() -> None:
    """The file names must differ, or one jar would replace another."""
    artifacts = parse(KAFKA_LOCK.read_text(), KAFKA_LOCK.name)

    assert sum(one.name == "kafka_2.13" for one in artifacts) == 1
    assert len({one.file_name for one in artifacts}) == len(artifacts)
