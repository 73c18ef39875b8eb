"""What detection costs: CPU a value and stored bytes a series online, CPU seconds a series offline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from statistics import median
from time import process_time

import numpy as np

from tests.bench.detect import feed, noises, peers
from tests.bench.detect.feed import FAR
from tests.bench.detect.noises import SD, Floats
from tests.bench.detect.parts import OURS, Measurement, Run, worst

_SERIES, _ROWS = 500, 1_800
_MAX_MICROSECONDS, _MAX_BYTES, _MAX_SECONDS = 2.0, 1_024.0, 0.5
_STEPS = 50
_MONTH = 30 * 86_400.0


def measure(run: Run) -> list[Measurement]:
    """Measure in this process, one method after the other."""
    return [*_online(run), *_offline(run)]


def with_steps(rows: int) -> Floats:
    """Return independent noise on log10 with fifty steps of 4 sd, up or down."""
    rng = np.random.default_rng(23)
    y = rng.normal(0.0, SD, rows)
    for at in rng.integers(0, rows, _STEPS):
        y[at:] += 4.0 * SD * rng.choice([-1.0, 1.0])
    return y


def _online(run: Run) -> Iterator[Measurement]:
    values = FAR + np.random.default_rng(5).standard_normal((_ROWS, _SERIES))
    costs = [feed.cost(values, _SERIES) for _ in range(run.size.rounds)]
    name = f"online, {_SERIES} series: "
    microseconds = f"{name}microseconds a value"
    yield Measurement(
        figure=microseconds,
        method=OURS,
        value=median(one for one, _ in costs),
        at_most=_MAX_MICROSECONDS,
    )
    yield Measurement(
        figure=f"{name}bytes a series", method=OURS, value=costs[0][1], at_most=_MAX_BYTES
    )
    for method, detect in peers.online_methods(
        run.references, with_peers=run.are_peers_shown
    ).items():
        if method != OURS:
            seconds = [
                _seconds(partial(detect, values, "", _MONTH * _SERIES))
                for _ in range(run.size.rounds)
            ]
            yield Measurement(
                figure=microseconds, method=method, value=median(seconds) / values.size * 1e6
            )


def _offline(run: Run) -> Iterator[Measurement]:
    methods = peers.offline_methods(run.references, with_peers=run.are_peers_shown)
    for rows, names in (
        (run.size.cost_rows, [name for name in (OURS, peers.REFERENCE) if name in methods]),
        (run.size.peer_rows, list(methods) if len(methods) > 1 else []),
    ):
        series = {name: noises.on_log10(name, [14], rows) for name in noises.NOISES}
        series[f"{_STEPS} steps of 4 sd"] = with_steps(rows)
        for method in names:
            seconds = [
                (name, median(_offline_seconds(methods, method, y) for _ in range(run.size.rounds)))
                for name, y in series.items()
            ]
            slowest = worst(seconds)
            yield Measurement(
                figure=f"offline, {rows} rows: CPU seconds, slowest of {len(series)} series",
                method=method,
                value=slowest[1],
                at_most=_MAX_SECONDS,
                note=slowest[0],
            )


def _offline_seconds(methods: Mapping[str, peers.Offline], method: str, y: Floats) -> float:
    if method == peers.OTAVAS:  # in a process of its own
        return peers.in_otava([y])[1]
    return _seconds(partial(methods[method], y))


def _seconds(function: Callable[[], object]) -> float:
    begin = process_time()
    function()
    return process_time() - begin
