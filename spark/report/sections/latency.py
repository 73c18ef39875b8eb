"""The whole run: p50, p99 and p99.9 of both latencies, and rates, with steps and deletions marked."""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup

from detectors.client_seconds import is_headline
from soak.core import wording
from soak.core.series import SeriesId, host_of, is_client, parse_series, series_name
from spark.batch.timeline import Floats, Ints, Timeline, per_second, summed
from spark.report.charts import Plot, log_range, shade
from spark.report.page import Page, clients_text, joined, tag, titled

ORDER = 12
TITLE = "The whole run"

HEIGHT = 268
_LINES = 4
_BEFORE_SECONDS = 120  # the level before was measured in about these
_CLASS = {"0.5": "p50", "0.99": "p99", "0.999": "p999"}
_RATES_HEIGHT = 150
_RATES = (
    ("p50", "sent", "sent_messages"),
    ("p99", "acknowledged", "acked_messages"),
    ("p999", "received, of all subscriptions", "received_messages"),
)
_METRICS = (
    ("end_to_end_latency_seconds", "End-to-end"),
    ("publish_latency_seconds", "Publish"),
)


def render(page: Page) -> Markup:
    keys = [
        ("p50", "p50"),
        ("p99", "p99"),
        ("p999", "p99.9"),
        ("swatch-onset", "onset of a step, its 95 % interval shaded"),
        ("swatch-gone", "resolved"),
        ("level", "level before and after"),
        ("swatch-deletion", "deletion by retention"),
        ("swatch-phase", "phase that is not judged"),
        ("swatch-gap", "gap"),
        ("swatch-untrusted", "invalid"),
    ]
    legend = [tag("span", joined([tag("i", class_=key), text])) for key, text in keys]
    note = "From the intended send time, so that a stall counts for every message that it delayed."
    plots = [*(_plot(page, metric, title) for metric, title in _METRICS), _rates(page)]
    notes = [tag("p", text, class_="soft") for text in (note, *_clocks(page.timeline))]
    still = tag("div", joined([tag("p", joined(legend), class_="legend"), *plots]), class_="still")
    key = tag("p", joined([*_KEY, tag("span", _HINT, class_="hint")]), class_="key js-only")
    drawn = tag("div", still, id="main") + tag("div", "", id="rates", class_="js-only")
    return joined([drawn, key, *notes])


def _swatch(class_: str, text: str) -> Markup:
    box = tag("rect", width=14, height=10, class_=class_)
    return tag("span", tag("svg", box, width=14, height=10, aria_hidden="true") + text)


_KEY = [
    _swatch(class_, text)
    for class_, text in (
        ("span", "incident"),
        ("unjudged", "not judged"),
        ("hatched", "no data"),
        ("untrusted", "invalid: the client, its host or its clock was at fault"),
    )
] + [tag("span", "band: lowest to highest second")]
_HINT = "Drag to zoom. Double-click or Esc: the whole run. Arrow keys pan."


def deletions(page: Page) -> list[float]:
    """Return the seconds in which retention deleted something."""
    found = page.timeline.event_seconds.get("retention_deletion")
    return [] if found is None else [float(k) for k in found]


def _clocks(timeline: Timeline) -> Iterator[str]:
    """Say how far the hosts' clocks may have been off, where messages went from one host to another."""
    hosts = {host_of(name) for name in timeline.seconds if is_client(name)}
    if len(hosts) < 2:  # noqa: PLR2004  # on one host the monotonic clock is used
        return
    bounds = [f"{host} {_bound(timeline, host)}" for host in sorted(hosts)]
    yield (
        "Messages went between hosts, so end-to-end latency is as good as their clocks agree: "
        f"{'; '.join(bounds)}."
    )


def _bound(timeline: Timeline, host: str) -> str:
    for kind in ("chrony", "kernel"):  # the tighter bound first
        name = str(SeriesId(f"probe@{host}", "clock_offset_bound_seconds", (("source", kind),)))
        if name in timeline.series and timeline.series[name][1].size:
            return (
                f"off by at most {wording.amount(float(timeline.series[name][1].max()), 'seconds')}"
            )
    return "not known (the probe `clock` measures it)"


def _plot(page: Page, metric: str, title: str) -> Markup:
    timeline = page.timeline
    names = [
        name
        for name, column in timeline.columns.items()
        if column.metric == metric and is_headline(column) and name in timeline.series
    ]
    low, high = log_range([timeline.series[name][1] for name in names])
    plot = Plot(page, HEIGHT, low, high, "seconds")
    shade(plot)
    for name in names:
        quantile = dict(timeline.columns[name].labels)["quantile"]
        plot.line(*timeline.series[name], _CLASS.get(quantile, "p999"), wording.title(name))
    _steps(plot, metric)
    found = deletions(page)
    plot.ticks(found, "deletion", f"{len(found)} seconds with deletions by retention")
    heading = titled(page, f"{title} latency", clients_text(page, names))
    return heading + plot.svg(f"{title}: p50, p99 and p99.9 over time, {page.times}")


def _rates(page: Page) -> Markup:
    """Draw what all producers sent and all consumers received, in messages a second."""
    found = [(class_, word, _total(page.timeline, metric)) for class_, word, metric in _RATES]
    found = [(class_, word, total) for class_, word, total in found if total[0].size]
    if not found:
        return Markup()
    highest = max(float(values.max()) for _, _, (_, values) in found)
    plot = Plot(
        page, _RATES_HEIGHT, 0.0, max(highest, 1.0), "messages/s", is_log=False, quantity="Rate"
    )
    shade(plot)
    for class_, word, (k, values) in found:
        plot.line(k, values, class_, word)
    keys = [tag("span", joined([tag("i", class_=class_), word])) for class_, word, _ in found]
    legend = tag("p", joined(keys), class_="legend")
    return (
        titled(page, "Messages a second", "all clients together")
        + legend
        + plot.svg(f"Messages a second over time, {page.times}")
    )


def _total(timeline: Timeline, metric: str) -> tuple[Ints, Floats]:
    """Return seconds, and a metric of all clients in them added up, a second."""
    names = (series_name(source, metric) for source in timeline.seconds)
    return summed([per_second(timeline, name) for name in names if name in timeline.series])


def _steps(plot: Plot, metric: str) -> None:
    """Write what counts next to its onset, and draw its two levels where they were measured."""
    page = plot.page
    begin_k, soak_end_k = page.timeline.soak
    counted = [one.finding for one in page.shown if one.finding.is_about_cluster]
    for line, found in enumerate(counted):
        name = parse_series(found.series)
        plot.label(
            found.onset_k,
            f"{page.moment(found.onset_k)} {wording.cause_text(found.cause)}",
            line % _LINES,
        )
        end_k = soak_end_k if found.resolved_k is None else found.resolved_k
        if name.metric == metric:
            title = wording.title(found.series)
            before = f"{title} before: {wording.amount(found.before, name.unit)}"
            after = f"{title} after: {wording.amount(found.after, name.unit)}"
            first_k = max(begin_k, found.onset_k - _BEFORE_SECONDS)
            plot.level(first_k, found.onset_k, found.before, before)
            plot.level(found.onset_k, end_k, found.after, after)
        begin_k = max(begin_k, min(end_k, found.onset_k))
