"""The text form of a series: made and parsed in one place, whatever its labels hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.core.model import Column
from soak.core.series import SeriesId, parse_series, series_name

VALUES = st.text(max_size=20) | st.text(alphabet='ab\\"\n,={}|', max_size=20)
LABELS = st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True) | VALUES, VALUES, max_size=3)


@pytest.mark.long
@given(labels=LABELS)
def test_every_series_survives_its_text_form(labels: dict[str, str]) -> None:
    series = SeriesId("probe@b1", "lag_messages", tuple(sorted(labels.items())))

    assert parse_series(str(series)) == series


@pytest.mark.parametrize("topic", ['a,b="c"', "C:\\new", "two\nlines", "x|y{z}", ""])
def test_a_topic_may_have_any_name(topic: str) -> None:
    column = Column("retention_deleted_bytes", (("topic", topic),), "bytes")

    found = parse_series(series_name("probe@b1", column.name))

    assert found == SeriesId("probe@b1", column.metric, (("topic", topic),))


@pytest.mark.parametrize(
    ("label", "text"),
    [
        ("k8s.pod/name", "k8s.pod/name"),
        ("a b", "a b"),
        (" a", '" a"'),
        ("", '""'),
        ("a=b", '"a=b"'),
        ('x="1",leader', '"x=\\"1\\",leader"'),
    ],
)
def test_a_label_may_have_any_name(label: str, text: str) -> None:
    """It is quoted only where it could be taken for another one."""
    series = SeriesId("p@h", "up", ((label, "2"),))

    assert str(series) == f'p@h|up{{{text}="2"}}'
    assert parse_series(str(series)) == series


def test_labels_are_escaped_as_prometheus_does() -> None:
    series = SeriesId("p@h", "up", (("job", 'a\\b"c\nd'), ("target", "b1")))

    assert str(series) == 'p@h|up{job="a\\\\b\\"c\\nd",target="b1"}'


def test_a_name_without_a_bar_has_no_source() -> None:
    assert parse_series('up{job="a|b"}') == SeriesId("", "up", (("job", "a|b"),))


def test_a_series_knows_its_unit() -> None:
    found = parse_series('p@h|a_b_bytes{x="1,2}{",y="z"}')

    assert found == SeriesId("p@h", "a_b_bytes", (("x", "1,2}{"), ("y", "z")))
    assert (found.unit, found.label("y"), found.label("z")) == ("bytes", "z", "")
