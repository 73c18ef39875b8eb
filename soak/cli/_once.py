"""What this machine can give, for a person: each probe with its numbers, or why it has none."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from soak.core import plugins
from soak.core.errors import NotAvailableError, SoakError
from soak.core.model import Column
from soak.core.ports import Clock, Probe
from soak.core.units import SECOND_NS
from soak.daemons.probe_reader import Answer, Reader

READINGS = 3  # a second apart: rates need two, and a probe with a thread of its own one more
PATIENCE_SECONDS = 3.0
PLAIN_WIDTH = 100  # where there is no terminal


@dataclass(slots=True)
class Seen:
    """What one probe gave in all its readings; `trouble` is what it said last."""

    values: dict[Column, float] = field(default_factory=dict)
    trouble: Exception | None = None
    is_hanging: bool = True

    @property
    def word(self) -> str:
        """Return one word for the summary."""
        if self.is_hanging:
            return "hanging"
        if isinstance(self.trouble, NotAvailableError):
            return "not here"
        if self.trouble is not None:
            return "failed"
        return "here" if self.values else "silent"


def look(
    probes: Mapping[str, Probe], clock: Clock, patience_seconds: float = PATIENCE_SECONDS
) -> dict[str, Seen]:
    """Read every probe a few times, each on a thread of its own.

    A thread that hangs is left behind: end the process by `os._exit`.
    """
    answers: SimpleQueue[Answer] = SimpleQueue()
    turn = threading.Lock()
    readers = {name: Reader(name, probe, answers, turn, clock) for name, probe in probes.items()}
    seen = {name: Seen() for name in readers}
    out: set[str] = set()
    try:
        _read(readers, seen, out, answers, clock, patience_seconds)
    finally:  # an interrupt too must leave no file of a probe behind
        for reader in readers.values():
            reader.close()
        for name in readers.keys() - out:
            readers[name].wait(1.0)
    for name, found in seen.items():
        found.is_hanging = name in out
    return seen


def _read(
    readers: Mapping[str, Reader],
    seen: Mapping[str, Seen],
    out: set[str],
    answers: SimpleQueue[Answer],
    clock: Clock,
    patience_seconds: float,
) -> None:
    """Note what each reader answers; `out` holds the names of those that have not."""
    begin_ns = clock.mono_ns()
    for number in range(READINGS):
        clock.sleep_until(begin_ns + number * SECOND_NS)
        asked = readers.keys() - out
        for name in asked:
            readers[name].ask()
        out |= asked
        while out & asked:  # what hung before is not waited for again
            try:
                answer = answers.get(timeout=patience_seconds)
            except Empty:
                break
            out.discard(answer.name)
            _note(seen[answer.name], answer)


def _note(seen: Seen, answer: Answer) -> None:
    """Keep what an answer gave.

    Raises:
        Exception: a bug in the probe.
    """
    if isinstance(answer.result, SoakError):
        seen.trouble = answer.result
    elif isinstance(answer.result, Exception):
        raise answer.result
    else:
        seen.values.update(answer.result.samples)
        if answer.result.samples:
            seen.trouble = None


def show(seen: Mapping[str, Seen], console: Console) -> None:
    """Print a block a probe, and at the end which of them give something here."""
    columns = [column for one in seen.values() for column in one.values]
    widest = max((len(column.metric) for column in columns), default=0)
    for name, one in seen.items():
        shared = _shared_labels(one)
        about = f"{name}: {_about(name)}"
        console.print(Text(about, style="bold"))
        if shared:
            console.print(Text(f"  {_text(shared)}", style="dim"), soft_wrap=True)
        for line in _troubles(one):
            console.print(Padding(Text(line, style="yellow"), (0, 0, 0, 2), expand=False))
        for column, value in one.values.items():
            labels = _text(label for label in column.labels if label not in shared)
            line = f"  {column.metric:<{widest}}  {_number(value):>16}  {column.unit:<8}  {labels}"
            console.print(Text(line.rstrip()), soft_wrap=True)
        console.print()
    words: dict[str, list[str]] = {"here": []}
    for name, one in seen.items():
        words.setdefault(one.word, []).append(name)
    for word, names in words.items():
        console.print(Text(f"{word}: {', '.join(names) or 'none'}"))


def plain_console() -> Console:
    """Return a console as wide as the terminal, or wide enough for a file."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


def _about(name: str) -> str:
    return (plugins.load("probes", name).__doc__ or "").partition("\n")[0]


def _troubles(one: Seen) -> list[str]:
    if one.is_hanging:
        return ["it has not answered: something that it reads hangs"]
    if one.trouble is not None:
        return [f"{one.word}: {one.trouble}"]
    return [] if one.values else ["nothing to tell within these seconds"]


def _number(value: float) -> str:
    """Return six digits of a number, or all that stand before the point."""
    return f"{value:,.0f}" if abs(value) >= 10**6 else f"{value:,.6g}"


def _shared_labels(one: Seen) -> list[tuple[str, str]]:
    """Return the labels that all of a probe's numbers have, such as its folder: said once."""
    every = [column.labels for column in one.values]
    return (
        [label for label in every[0] if all(label in labels for labels in every)] if every else []
    )


def _text(labels: Iterable[tuple[str, str]]) -> str:
    return " ".join(f"{key}={text}" for key, text in labels)
