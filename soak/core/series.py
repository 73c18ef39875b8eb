"""Series: a measured column of one source, and its text form `source|metric{label="value"}`.

The part after the bar is written as Prometheus writes it: backslash, quote and newline are escaped in label
values, and a label whose name has characters of this form is quoted like a value. So every name can be parsed
again, whatever a topic, a folder or a label is called.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

Labels = tuple[tuple[str, str], ...]
"""Sorted pairs, so that equal labels compare and hash equal."""

# Possessive quantifiers: no name can make them backtrack.
_QUOTED = r'"((?:[^"\\]|\\.)*+)"'
_BARE = r'[^=,{}"\s][^=,{}"]*+'
_BARE_NAME = re.compile(_BARE)
_LABEL = re.compile(rf"(?:\A|,)\s*+(?:({_BARE})|{_QUOTED})={_QUOTED}", re.DOTALL)
_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n"}
_ESCAPED = re.compile(r'\\([\\"n])')
_UNITS = ("seconds", "bytes", "messages", "ratio", "cores")
# Of these, the seconds spent in each second are recorded.
_TIME_SPENT = re.compile(
    r"node_disk_\w*time(_weighted)?_seconds|node_pressure_\w+_seconds|jvm_gc_collection_seconds"
    r"|vectorized_scheduler_starvetime_seconds"
)
_CPU_TIME = re.compile(r"(process|node|redpanda)_cpu(_busy)?_seconds")
_PER_SECOND = re.compile(
    r"node_disk_(read|written)_bytes|(node|host)_network_\w+_bytes|host_swap_(in|out)_bytes"
    r"|vectorized_io_queue_total_(read|write)_bytes|vectorized_storage_log_written_bytes"
    r"|redpanda_kafka_request_bytes|pulsar_(in|out)_bytes"
)


@dataclass(frozen=True, slots=True)
class SeriesId:
    """What identifies a series: its source, such as `probe@b1`, and the metric and labels of its column."""

    source: str
    metric: str
    labels: Labels = ()

    def __str__(self) -> str:
        return series_name(self.source, column_name(self.metric, self.labels))

    def label(self, key: str) -> str:
        """Return the value of a label, or ""."""
        return dict(self.labels).get(key, "")

    @property
    def unit(self) -> str:
        """Return the unit at the end of the metric's name, or ""; of time spent "ratio", of CPU "cores"."""
        if _TIME_SPENT.fullmatch(self.metric):
            return "ratio"
        if _CPU_TIME.fullmatch(self.metric):
            return "cores"
        last = self.metric.rpartition("_")[2]
        return last if last in _UNITS else ""

    @property
    def is_per_second(self) -> bool:
        """True for bytes that are counted per second, which the unit does not say."""
        return bool(_PER_SECOND.fullmatch(self.metric))


def column_name(metric: str, labels: Labels) -> str:
    """Return the text form of a column: `metric{label="value"}`."""
    if not labels:
        return metric
    pairs = ",".join(
        f'{key if key.isidentifier() else _label_name(key)}="{_escape(value)}"'  # nearly always one
        for key, value in labels
    )
    return f"{metric}{{{pairs}}}"


def series_name(source: str, column: str) -> str:
    """Return the text form of a series; `column` is the name of its column."""
    return f"{source}|{column}"


@lru_cache(maxsize=8192)
def parse_series(text: str) -> SeriesId:
    """Return the series of a text form; one without a bar has no source."""
    head, _, labels = text.partition("{")
    source, bar, metric = head.partition("|")
    pairs = (
        (bare or _ESCAPED.sub(_unescape, quoted), _ESCAPED.sub(_unescape, value))
        for bare, quoted, value in _LABEL.findall(labels)
    )
    return SeriesId(source if bar else "", metric if bar else head, tuple(pairs))


def source_of(text: str) -> str:
    """Return the source of a series' text form."""
    return parse_series(text).source


def is_client(source: str) -> bool:
    """Return whether a source is a producer or a consumer of the load."""
    return source.startswith(("produce.", "consume."))


def host_of(source: str) -> str:
    """Return the part of `daemon@host` after the at, or ""."""
    return source.partition("@")[2]


def _label_name(key: str) -> str:
    return key if _BARE_NAME.fullmatch(key) else f'"{_escape(key)}"'


def _escape(value: str) -> str:
    if "\\" not in value and '"' not in value and "\n" not in value:  # nearly always
        return value
    return "".join(_ESCAPES.get(one, one) for one in value)


def _unescape(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]
