"""Whatever a metrics page holds: bounded memory from reading to reading, or an error."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Mapping

import pytest

from probes.common.exposition import ExpositionParser
from probes.prometheus.sources import MetricsServer
from soak.core.errors import ProbeError
from tests.support.fakes import FakeClock
from tests.support.hostile_servers import rounds

SERIES = 60
WIDE = 64 * 1024 - 100


@pytest.mark.long
def test_wide_labels_that_change_keep_no_memory() -> None:
    """Pages within all limits on lines and series, each with other labels of 64 KiB."""
    parser = ExpositionParser({"a"})
    tracemalloc.start()
    for reading in range(4):
        page = "".join(f'a{{x="{reading}.{at}.{"y" * WIDE}"}} 1\n' for at in range(SERIES))
        found = parser.parse(page.encode())
    del page, found
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert kept_bytes < 8 * 2**20


def test_labels_that_are_too_wide_damage_their_metric() -> None:
    """The rest of it would be taken for the whole."""
    parser = ExpositionParser({"a", "b"})

    page = parser.parse(b'a{x="%s"} 1\na{x="1"} 2\nb{x="%s"} 3\n' % (b"y" * 3000, b"y" * 1500))

    assert page.damaged == {"a"}
    assert list(page.series["b"].values()) == [3.0]


class Answering:
    """A Prometheus server whose series have these values of the label `instance`."""

    def __init__(self, *instances: str) -> None:
        self._instances = instances

    def post_form(self, _url: str, _fields: Mapping[str, str]) -> bytes:
        result = [
            {"metric": {"__name__": name, "instance": one}, "values": [[1.0, "23"]]}
            for name in ("a", "unasked")
            for one in self._instances
        ]
        data = {"resultType": "matrix", "result": result}
        return json.dumps({"status": "success", "data": data}).encode()


def test_labels_of_a_server_have_the_same_bound() -> None:
    """A probe daemon keeps them for the rest of the run."""
    answer = Answering("h:1", "y" * 3000)
    server = MetricsServer("http://h", answer, {"a"}, FakeClock(), selector="")  # type: ignore[arg-type]  # it answers

    found = server.fetch()

    assert found.damaged == {"a"}
    assert list(found.points["a"]) == [(("instance", "h:1"),)]


def test_half_a_pair_in_a_label_of_a_server_fails_the_fetch() -> None:
    server = MetricsServer("http://h", Answering("\ud800"), {"a"}, FakeClock(), selector="")  # type: ignore[arg-type]  # it answers

    with pytest.raises(ProbeError, match="not an answer of a Prometheus server"):
        server.fetch()


@pytest.mark.long
def test_labels_of_moderate_width_are_forgotten_by_bytes() -> None:
    parser = ExpositionParser({"a"})
    tracemalloc.start()
    for reading in range(10):
        lines = (f'a{{x="{reading}.{at}.{"y" * 1900}"}} 1\n' for at in range(2000))
        parser.parse("".join(lines).encode())
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert kept_bytes < 100 * 2**20


PARTS = (
    *(
        b"a 1\n",
        b"a{} 1\n",
        b'a{x="y"} 2\n',
        b'a{x="y",} NaN\n',
        b"a 1e999\n",
        b"a -Inf 1\n",
        b"# EOF\n",
    ),
    *(
        b'{"a"} 1\n',
        b'{"a",x="y"} 1 1790000000\n',
        b'a{x="\\',
        b'a{x="y"',
        b"a" * 70_000,
        b"\xff\n",
    ),
    *(
        b"a{\x1b} 1\n",
        b'a{x="\xe2\x80\xae"} 1\n',
        b"\x00\n",
        b" \n",
        b"\t a 1\n",
        b"# HELP a \n",
        b"\r\n",
    ),
    *(
        b'a{x="y"} 1 # {t="z"} 1\n',
        b"a 0x1p3\n",
        b"a 1_000\n",
        b"<html>\n",
        b'a{x="y"}1\n',
        b"\xef\xbb\xbf",
    ),
)


def _page(source: random.Random) -> bytes:
    return b"".join(source.choices(PARTS, k=source.randint(0, 20))) + source.choice([b"", b"\n"])


def test_any_page_is_read_or_refused() -> None:
    for source in rounds("metrics pages", 500):
        try:
            page = ExpositionParser({"a", "b"}).parse(_page(source))
        except ProbeError:
            continue
        assert page.series.keys() | page.damaged <= {"a", "b"}
