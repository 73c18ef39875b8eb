"""Regular expressions on text from outside: a long line takes as long as its length, whatever it repeats.

An expression that tries each of many places again holds the interpreter meanwhile, so that every thread of a
daemon waits. What is measured is processor time: other programs of the machine do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from probes.broker_log import patterns
from probes.broker_log.timestamps import TimestampReader, continues_previous
from probes.common.exposition import ExpositionParser
from soak.brokers.pulsar.client import parse_error
from soak.clients.kafka_log import without_details
from soak.core.errors import ProbeError
from tests.support.fakes import FakeClock

LENGTH = 30_000
LIMIT_SECONDS = 0.4  # all take some milliseconds


def read_page(text: str) -> None:
    with suppress(ProbeError):
        ExpositionParser({"up"}).parse(f"up 1\n{text}\n".encode())


def read_log(text: str) -> None:
    TimestampReader().wall_ns(text, FakeClock().wall_ns(), is_fresh=True)
    continues_previous(text)


SCANNER = patterns.Scanner(patterns.load(["kafka", "pulsar", "redpanda", "jvm_gc"]))


def scan_log(text: str) -> None:
    SCANNER.found(text.encode())


PUMPS: list[tuple[Callable[[str], object], str, str]] = [
    (read_page, "up ", "1"),
    (read_page, "up 1e", "1"),
    (read_page, "up .", "1"),
    (read_page, "up 1 1234567890.", "1"),
    (read_page, "up 1 1234567890.1 st@1234567890.", "1"),
    (read_page, "up 1 # {} ", "1"),
    (read_page, "up 1 # {} 1 1234567890.", "1"),
    (read_page, "up{", 'a="b",'),
    (read_page, 'up{a="', "\\"),
    (read_page, '{"up"', '"'),
    (read_page, "up 1", " "),
    (parse_error, "", "["),
    (parse_error, "", "-> a:1"),
    (parse_error, "persistent://a/b/", "-partition-1"),
    (without_details, "", "["),
    (without_details, "", "offset -1"),
    (read_log, "", "a."),
    (read_log, "", "[1"),
    (scan_log, '{"log":"', "GC(0) Pause Full "),
    (scan_log, '{"Pause ":[', "1,"),
    (scan_log, '{"Pause ":', "["),
]


@pytest.mark.parametrize(("read", "start", "pump"), PUMPS)
def test_a_long_line_takes_no_longer_than_its_length(
    read: Callable[[str], object], start: str, pump: str
) -> None:
    begin = time.process_time()
    read(f"{start}{pump * (LENGTH // len(pump))}!")

    assert time.process_time() - begin < LIMIT_SECONDS
