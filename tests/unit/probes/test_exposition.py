"""Reading the wanted lines of a metrics page: against a slow reader, on complete and damaged pages."""

from __future__ import annotations

import codecs
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from probes.common.exposition import MAX_SERIES, ExpositionParser
from probes.prometheus import name_map
from soak.core.errors import ProbeError
from tests.support.probes.metrics_pages import Series, Watched, recorded, same, slow_page

MAP_OF = {
    "bookie-4.17.3": "bookkeeper",
    "pulsar-4.2.4": "pulsar",
    "node_exporter-1.5.0": "node_exporter",
    "redpanda_internal": "redpanda_internal",
    "redpanda_public": "redpanda_public",
    "kafka_jmx_example": "kafka_jmx",
    "kafka_jmx_attributes": "kafka_jmx",
    "kafka_jmx_bitnami": "kafka_jmx",
    "kafka_jmx_no_rules": "kafka_jmx",
    "kafka_otel_automq": "kafka_otel",
    "kminion": "kminion",
}
DAMAGED_PAGES = 1000
GARBAGE = b'xZ_ \t\x00\xff\xc3{}",=\\\n#'  # no digit: a number that became another one cannot be recognised


def names_of(page: str) -> set[str]:
    return {name for entry in name_map.load([MAP_OF[page]]) for name in entry.names()}


@pytest.mark.parametrize("page", MAP_OF)
def test_a_page_reads_as_the_slow_reader_reads_it(page: str) -> None:
    """Every wanted series, its labels and its value; nothing is damaged."""
    text = recorded(page)

    found = ExpositionParser(names_of(page)).parse(text)

    assert same(found.series, slow_page(text, names_of(page))[0])
    assert found.damaged == frozenset()


@pytest.mark.parametrize("page", MAP_OF)
def test_a_page_reads_as_the_python_client_reads_it(page: str) -> None:
    """It adds `_total` to what the page calls a counter."""
    names = names_of(page)
    theirs: Series = {}
    for family in text_string_to_metric_families(recorded(page).decode()):
        for sample in family.samples:
            bare = sample.name.removesuffix("_total")
            for name in {sample.name, bare} & names:
                labels = tuple(sorted(sample.labels.items()))
                theirs.setdefault(name, {})[labels] = sample.value

    found = ExpositionParser(names).parse(recorded(page)).series

    for name, series in found.items():
        assert same({name: series}, {name: theirs[name]})


def test_labels_are_read_with_spaces_escapes_and_a_comma_at_the_end() -> None:
    """As jmx_exporter, Pulsar and Prometheus' own clients write them."""
    text = b'a{x="1",} 1\na{x="2", y="b c"} 2 1792000000000\na { x = "}\\"\\\\\\n" } 3\na{}\t4\r\n'

    found = ExpositionParser(["a"]).parse(text)

    assert found.series["a"] == {
        (("x", "1"),): 1.0,
        (("x", "2"), ("y", "b c")): 2.0,
        (("x", '}"\\\n'),): 3.0,
        (): 4.0,
    }


@pytest.mark.parametrize(
    "line",
    [
        "a 1_0",
        "a 1 2",  # a number with a hole in it, no time stamp
        "a ٣",
        "a",
        "a{x=1} 1",
        'a{x="1" y="2"} 1',
        'a{x="1"',
        'a{1x="1"} 1',
        "a 0x10",
        "a 1 # 1",
        "a 1 # {} x",
        'a 1 # {x="1"}',
        "a 1 st@",
        "a 1 st@1739889630.000 1739889638.000",
        "a {count:21,sum:324.7,schema:1}",  # a native histogram is no number
        "a 1 123456789",  # shorter than a time stamp in seconds
        "a 1 12345678901.5",
        'a{"b"} 1',
        "a{b} 1",
        'a{"x"="1" "y"="2"} 1',
        'a{x="' + "y" * 70_000 + '"} 1',
    ],
)
def test_a_line_that_cannot_be_read_makes_its_metric_damaged(line: str) -> None:
    """The rest must not be taken for the whole."""
    found = ExpositionParser(["a", "ab"]).parse(f"ab 23\n# HELP a\n{line}\n".encode())

    assert found.damaged == {"a"}
    assert found.series == {"ab": {(): 23.0}}


@pytest.mark.parametrize(
    "end",
    [
        " 1739889638000",
        " 1739889638",
        " 1739889638.000",
        " 1.739889638123e9",
        " 1.739889638e+09",
        " # {} 1",
        " st@1739889630.000",  # of OpenMetrics 2.0: when the counter began
        ' 1739889638.000 st@1739889630.000 # {trace_id="ab12"} 1.0 1739889638.000',
        ' # {trace_id="ab12"} 1.0',
        ' # {trace_id="ab 1 } 2",span="\\""} 1.0 1739889638.000',
        ' 1739889638.000 # {trace_id="ab12"} 1.0 1739889638.000',
        " \r",
    ],
)
def test_a_value_stands_before_any_timestamp_or_exemplar(end: str) -> None:
    """Milliseconds of the text format, seconds and exemplars of OpenMetrics, at every reading."""
    parser = ExpositionParser(["a_total", "b"])
    found = [
        parser.parse(
            f'# TYPE a counter\na_total{{x="1"}} {value}{end}\nb {value}{end}\n# EOF\n'.encode()
        )
        for value in (1000, 2500)
    ]

    assert [page.series["a_total"][(("x", "1"),)] for page in found] == [1000.0, 2500.0]
    assert [page.series["b"][()] for page in found] == [1000.0, 2500.0]
    assert found[0].damaged == frozenset()


@pytest.mark.parametrize("before", [" ", "\t", "  \t ", "\n \n"])
def test_blanks_before_a_line_do_not_belong_to_it(before: str) -> None:
    """As templates and scripts of people write their pages."""
    text = f'{before}# HELP a x\n{before}a{{x="1"}} 17\n{before}{{"b.c"}} 23\n{before}d 1\n'

    found = ExpositionParser(["a", "b.c"]).parse(text.encode())

    assert found.series == {"a": {(("x", "1"),): 17.0}, "b.c": {(): 23.0}}
    assert found.damaged == frozenset()


def test_a_byte_order_mark_is_no_part_of_a_page() -> None:
    found = ExpositionParser(["a"]).parse(codecs.BOM_UTF8 + b"a 17\n")

    assert found.series == {"a": {(): 17.0}}


def test_quoted_names_of_metrics_and_labels_are_read() -> None:
    """As Prometheus 3 and OpenTelemetry write what is not made of letters, digits, '_' and ':'."""
    lines = (
        '# TYPE "kafka.server.messages" counter',
        '{"kafka.server.messages","topic.name"="a b",partition="0"} 5',
        '{ "kafka.server.messages" , "topic.name" = "c" } 6 1739889638.000',
        '{"température"} 21.5',
        '{"node_load1"} 3',
        r'{"say \"a\""} 4',
        '{"unwanted","x"="1"} 1',
        "plain 1",
        "",
    )
    names = ["kafka.server.messages", "température", "node_load1", 'say "a"', "plain"]

    found = ExpositionParser(names).parse("\n".join(lines).encode())

    assert found.series == {
        "kafka.server.messages": {
            (("partition", "0"), ("topic.name", "a b")): 5.0,
            (("topic.name", "c"),): 6.0,
        },
        "température": {(): 21.5},
        "node_load1": {(): 3.0},
        'say "a"': {(): 4.0},
        "plain": {(): 1.0},
    }
    assert found.damaged == frozenset()


@pytest.mark.parametrize(
    "line",
    [
        '{"a.b"} x',
        '{"a.b",} 1 2',
        '{"a.b","c"} 1',
        '{"a.b",x=1} 1',
        '{"a.b"} 1 # x',
    ],
)
def test_a_quoted_line_that_cannot_be_read_makes_its_metric_damaged(line: str) -> None:
    """Under its own name."""
    found = ExpositionParser(["a.b", "ab"]).parse(f"ab 23\n{line}\nab_c 1\n".encode())

    assert found.damaged == {"a.b"}


def test_an_answer_in_json_is_no_page() -> None:
    """It begins as a quoted name does."""
    with pytest.raises(ProbeError, match="neither a sample nor a comment"):
        ExpositionParser(["error"]).parse(b'{"error": "not found"}\n')


def test_pages_of_the_openmetrics_client_are_read_as_its_own_reader_does() -> None:
    """With exemplars and creation times."""
    registry = CollectorRegistry()
    requests = Counter("requests", "x", ["topic"], registry=registry)
    requests.labels("a b").inc(7, exemplar={"trace_id": "ab12"})
    sizes = Histogram("sizes", "x", registry=registry, buckets=(1.0, 5.0))
    sizes.observe(3.0, exemplar={"trace_id": "cd34"})
    text = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]  # the library's
    theirs: Series = {}
    for family in openmetrics_families(text.decode()):  # type: ignore[no-untyped-call]  # as above
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            theirs.setdefault(sample.name, {})[labels] = sample.value

    found = ExpositionParser(theirs).parse(text)

    assert found.damaged == frozenset()
    assert same(found.series, theirs)


def test_a_series_with_two_values_is_damaged() -> None:
    """Which of them is right is unknown."""
    found = ExpositionParser(["a", "b"]).parse(b"a 1\na 2\nb 1\nb 1.0\n")

    assert found.damaged == {"a"}


@pytest.mark.parametrize(
    "text", [b"", b"a 1", b"a 1\na 12", b"a 1\n23 4\n", b"<html>\n", b"a 1\n\xff\n", b"a 1# EOF"]
)
def test_a_page_that_is_cut_or_of_another_format_is_an_error(text: bytes) -> None:
    """A number without the end of its line may have lost digits."""
    with pytest.raises(ProbeError):
        ExpositionParser(["a"]).parse(text)


def test_a_page_with_its_last_line_is_whole() -> None:
    """OpenMetrics ends each page so; some exporters forget the line feed after it."""
    assert ExpositionParser(["a"]).parse(b"a 12\n# EOF").series == {"a": {(): 12.0}}


def test_too_many_series_are_an_error() -> None:
    """Memory is bounded."""
    text = b"".join(b'a{x="%d"} 1\n' % at for at in range(24))

    with pytest.raises(ProbeError, match="more than 23 wanted series: raise max_series"):
        ExpositionParser(["a"], 23).parse(text)


def test_a_page_of_three_thousand_partitions_is_read_with_the_defaults() -> None:
    """Fifteen lines of a Pulsar broker's page are wanted for each."""
    assert MAX_SERIES >= 3_000 * 15


@pytest.mark.long
@given(st.sets(st.text("ab_", min_size=1, max_size=5), min_size=1, max_size=30), st.data())
def test_names_with_common_prefixes_are_distinguished(names: set[str], data: st.DataObject) -> None:
    """The expression finds the same lines as a list of names."""
    there = data.draw(st.lists(st.text("ab_", min_size=1, max_size=6), max_size=30, unique=True))
    text = "".join(f"{name} 23\n" for name in there).encode() or b"\n"

    assert ExpositionParser(names).parse(text).series.keys() == names & set(there)


def damaged(text: bytes, chance: random.Random) -> bytes:
    """Return a page to which one of the things has happened that happen to pages."""
    at = chance.randrange(len(text))
    lines = text.splitlines(keepends=True)
    kind = chance.randrange(5)
    if kind == 0:
        return text[:at]
    if kind == 1:
        garbage = bytes(chance.choice(GARBAGE) for _ in range(chance.randint(1, 5)))
        return text[:at] + garbage + text[at:]
    if kind == 2:
        begin = chance.randrange(len(lines))
        return b"".join(lines[:begin] + lines[begin + chance.randint(1, 20) :])
    if kind == 3:
        chance.shuffle(lines)
        return b"".join(lines)
    begin = chance.randrange(len(lines))
    return b"".join(lines + lines[begin : begin + 20])


@pytest.mark.long
@pytest.mark.parametrize("count", [100, pytest.param(DAMAGED_PAGES, marks=pytest.mark.slow)])
def test_a_damaged_page_is_an_error_or_a_part_but_never_a_wrong_number(count: int) -> None:
    """It is read after two complete pages."""
    chance = random.Random(23)
    pages = [page for page in MAP_OF if page != "kafka_jmx_attributes"]
    watched = {page: Watched([MAP_OF[page]], recorded(page)) for page in pages}
    whole = {page: (one.values(), one.values())[1] for page, one in watched.items()}
    refused = partial = 0
    for number in range(count):
        page = pages[number % len(pages)]
        text = recorded(page)
        watched[page].answers.pages = [text, text, damaged(text, chance)]
        watched[page].values()
        assert watched[page].values() == whole[page], number  # it has got over the last one
        found = watched[page].values()
        if not found:
            refused += 1
            continue
        partial += found.keys() != whole[page].keys()
        wrong = {
            name: value for name, value in found.items() if whole[page].get(name, value) != value
        }
        assert not wrong, (number, wrong)

    assert refused > count // 10
    assert partial > count // 10


@pytest.mark.parametrize("count", [20, pytest.param(DAMAGED_PAGES, marks=pytest.mark.slow)])
def test_damaged_pages_read_as_the_slow_reader_reads_them(count: int) -> None:
    """Both agree on what is damaged."""
    chance = random.Random(46)
    pages = list(MAP_OF)
    for number in range(count):
        page = pages[number % len(pages)]
        text = damaged(recorded(page), chance)
        try:
            found = ExpositionParser(names_of(page)).parse(text)
        except ProbeError:
            continue
        series, broken = slow_page(text, names_of(page))
        assert found.damaged == broken, number
        assert same(found.series, series), number


@given(st.sampled_from([b"a", b'{"a"', b'{"a.b",', b"a 1 #"]), st.binary(max_size=300))
def test_any_bytes_are_an_error_or_read_as_by_the_slow_reader(start: bytes, text: bytes) -> None:
    """Whatever a server sends."""
    names = {"a", "ab", "a_total", "a.b"}
    try:
        found = ExpositionParser(names).parse(start + text + b"\n")
    except ProbeError:
        return

    series, broken = slow_page(start + text + b"\n", names)
    assert found.damaged == broken
    assert same(found.series, series)
