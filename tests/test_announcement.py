"""What is said of a run on the topic: whole or refused, and when it is a run that one can join."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from soak.core.announcement import parse
from soak.core.units import SECOND_NS
from tests.spoken_runs import START_NS, word


def test_what_is_said_comes_back() -> None:
    """A key of a later program is no reason to refuse the rest."""
    said = word(end_k=23)

    assert parse(said.to_text().encode()) == said
    assert parse(json.dumps({**asdict(said), "colour": "red"}).encode()) == said


@pytest.mark.parametrize(
    "changed",
    [
        {"run_id": "../../etc"},
        {"run_id": ""},
        {"run_id": 23},
        {"plan": None},
        {"start_wall_ns": "23"},
        {"start_wall_ns": True},
        {"end_k": ""},
        {"end_k": 2.5},
        {"is_over": 1},
    ],
)
def test_what_is_of_no_such_form_is_refused(changed: dict[str, object]) -> None:
    """Anybody may write to a topic, and an id becomes a folder's name."""
    text = json.dumps({**asdict(word()), **changed}).encode()

    with pytest.raises(ValueError, match="no announcement"):
        parse(text)


@pytest.mark.parametrize("text", [b"", b"[]", b"23", b"{}", b"\xff", b'{"plan": "x"'])
def test_what_is_no_announcement_is_refused(text: bytes) -> None:
    """As a line of a journal, or a half of one."""
    with pytest.raises(ValueError, match=r"\w"):
        parse(text)


@pytest.mark.parametrize(
    ("start_k", "end_k", "is_over", "goes_on"),
    [
        (0, None, False, True),
        (-23, 24, False, True),
        (-23, 23, False, False),  # the end is past
        (-23, 99, True, False),
        (60, None, False, True),  # begins in a minute
        (61, None, False, False),
    ],
)
def test_a_run_goes_on_from_a_minute_before_it_to_its_end(
    start_k: int, end_k: int | None, *, is_over: bool, goes_on: bool
) -> None:
    """One that is planned for tomorrow must end none of today."""
    said = word(start_k=start_k, end_k=end_k, is_over=is_over)

    assert said.goes_on(START_NS) is goes_on
    assert said.order == (START_NS + start_k * SECOND_NS, "r1")
