"""The page of `soak compare`: warnings and verdict, differences, throughput, cost; and the page of a trend.

Static pictures and tables, self-contained; a run's own page has the interactive charts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from detectors import comparison
from detectors.comparison import Drift, Verdict
from soak.core import wording
from spark.batch.comparison.comparison import MOST_DETECTABLE, Comparison, Side
from spark.batch.comparison.run import LATENCIES, ComparedRun, started
from spark.batch.comparison.trend import Trend
from spark.report.comparison_charts import (
    course_svg,
    distributions,
    forest,
    heat_maps,
    quantile_plot,
    throughput,
)
from spark.report.page import joined, shown_name, table, tag

_MAX_SHOWN = 500
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --soft: #5d6673; --rule: #d9dee4;
  --card: #f5f7f9; --before: #0072b2; --after: #b34e00; --same: #00795a; --worse: #b3261e; --unsure: #8a6d00;
  --heat: 0, 90, 150; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --paper: #14181d; --soft: #9aa5b1;
  --rule: #333b45; --card: #1c2229; --before: #56b4e9; --after: #f0a35e; --same: #2bc79a; --worse: #ff7a6e;
  --unsure: #e6c35c; --heat: 110, 190, 245; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 62rem; color: var(--ink);
  background: var(--paper); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem;
  border-bottom: 1px solid var(--rule); } h3 { font-size: .95rem; margin: 1rem 0 .3rem; }
.verdict { font-size: 1.35rem; font-weight: 650; border-left: .5rem solid var(--unsure);
  padding: .4rem .8rem; } .verdict.same, .verdict.better { border-color: var(--same); }
.verdict.worse { border-color: var(--worse); }
.warning { border: 2px solid var(--unsure); border-radius: 4px; padding: .5rem .9rem; }
.warning ul { margin: .2rem 0; }
td .same, td .better { color: var(--same); } td .worse { color: var(--worse); font-weight: 650; }
td .unsure { color: var(--unsure); }
.wide { overflow-x: auto; overflow-wrap: normal; } table { border-collapse: collapse; font-size: .92rem; }
th, td { text-align: left; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid var(--rule);
  vertical-align: top; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; }
@media (max-width: 44rem) { .pair { grid-template-columns: 1fr; } }
svg { width: 100%; height: auto; display: block; background: var(--card); border-radius: 4px; }
.axis { font-size: 11px; fill: var(--soft); } .end { text-anchor: end; } .middle { text-anchor: middle; }
.grid { stroke: var(--rule); } .margin { fill: var(--same); opacity: .16; }
.diagonal { stroke: var(--soft); stroke-dasharray: 5 4; fill: none; }
.before { stroke: var(--before); fill: none; } .after { stroke: var(--after); fill: none; }
.range { stroke: var(--ink); stroke-width: 2.5; } .dot { fill: var(--ink); }
.incident { stroke: var(--worse); stroke-width: 1.5; }
.legend { color: var(--soft); font-size: .88rem; } .legend b.a { color: var(--before); }
.legend b.b { color: var(--after); }
.heat1 { fill: rgba(var(--heat), .12); } .heat2 { fill: rgba(var(--heat), .3); }
.heat3 { fill: rgba(var(--heat), .5); } .heat4 { fill: rgba(var(--heat), .75); }
.heat5 { fill: rgb(var(--heat)); }
@media print { body { max-width: none; } .pair, tr, svg { break-inside: avoid; }
  svg { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""


def comparison_html(several: Sequence[Comparison]) -> str:
    """Return the page of comparisons with one baseline; everything that came from outside is escaped."""
    title = f"{_short(several[0].before)} against {', '.join(_short(one.after) for one in several)}"
    parts = []
    for found in several:
        parts += list(_sections(found, is_alone=len(several) == 1))
    return page_html(title, parts)


def trend_html(found: Trend) -> str:
    """Return the page of a trend."""
    changes = [
        (
            tag("span", one.verdict, class_=_class(one.verdict)),
            _shown(one.name),
            f"{_shown(one.run.path)} ({started(one.run)} UTC)",
            wording.amount(one.before, found.unit(one.name)),
            wording.amount(one.after, found.unit(one.name)),
        )
        for one in found.changes
    ]
    parts = [
        tag(
            "p",
            f"{_sentence(found.verdict)} {len(found.runs)} runs.",
            class_=_verdict_class(found.verdict),
        ),
        *(tag("p", _shown(f"Warning: {line}"), class_="warning") for line in found.warnings),
        tag("h2", "Changes of level"),
        table(("", "quantity", "from this run on", "before", "after"), changes, numeric=3)
        if changes
        else tag("p", _no_change(found)),
    ]
    for name, values in found.values.items():
        by_run = {run.path.name: value for run, value in zip(found.runs, values, strict=True)}
        changed = [one.run.path.name for one in found.changes if one.name == name]
        parts.append(tag("h2", _shown(name)))
        if name in found.drifts:
            parts.append(tag("p", f"Trend: {drift_text(found.drifts[name])}."))
        parts.append(course_svg(name, found.unit(name), by_run, changed))
    rows = [
        (
            _shown(run.path.name),
            started(run),
            run.verdict,
            len(run.counting),
            *(
                wording.amount(values[at], found.unit(name))
                for name, values in found.values.items()
            ),
        )
        for at, run in enumerate(found.runs)
    ]
    parts += [
        tag("h2", "Runs"),
        table(
            ("run", "start, UTC", "verdict", "incidents", *map(_shown, found.values)),
            rows,
            numeric=3,
        ),
    ]
    return page_html(f"Trend over {len(found.runs)} runs", parts)


def page_html(title: str, parts: Sequence[object]) -> str:
    """Return a page of static pictures and tables; everything that is no markup is escaped."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = joined(
        [
            Markup('<meta charset="utf-8">'),
            Markup('<meta http-equiv="Content-Security-Policy" content="{}">').format(policy),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            tag("title", f"soakd: {title}"),
            tag("style", Markup(_STYLE)),  # noqa: S704  # our own text
        ]
    )
    body = tag("header", tag("h1", title)) + tag("main", joined(parts))
    return (
        Markup("<!doctype html>\n")
        + tag("html", tag("head", head) + tag("body", body), lang="en")
        + "\n"
    )


# --- One comparison.


def _sections(found: Comparison, *, is_alone: bool) -> Iterator[Markup]:
    if not is_alone:
        yield tag("h2", f"{_short(found.before)} against {_short(found.after)}")
    if found.warnings:
        lines = joined([tag("li", _shown(line)) for line in found.warnings])
        yield tag(
            "div",
            tag("b", "Differences that may explain the result") + tag("ul", lines),
            class_="warning",
        )
    yield tag("p", _headline(found), class_=_verdict_class(found.verdict))
    yield _legend(found)
    yield tag(
        "p", tag("b", "Compared: ") + Markup.escape(f"{found.aligned_text}."), class_="legend"
    )
    yield tag("h2", "Differences")
    yield _differences(found)
    yield forest([one for one in found.quantities if one.unit == "seconds"], found.settings.margin)
    for latency, text in LATENCIES.items():
        plot = quantile_plot(found, latency)
        if plot is not None:
            yield tag("h2", f"Latency, {text}")
            yield tag("div", plot + distributions(found, latency), class_="pair")
            yield heat_maps(found, latency)
    yield tag("h2", "Throughput and cost")
    rows = [
        (name, *("-" if value is None else wording.amount(value, unit) for value in both))
        for name, *both, unit in found.costs
        if any(value is not None for value in both)
    ]
    costs = table(("", "before", "after"), rows, numeric=1)
    yield tag("div", throughput(found) + costs, class_="pair")
    yield tag("h2", "Incidents of one side only")
    yield _incidents(found)
    yield tag("h2", "Phases and events")
    yield _events(found)
    yield tag("h2", "How it is judged")
    yield _method(found)


def _short(side: Side) -> str:
    runs = side.runs
    if len(runs) == 1:
        return _shown(runs[0].path.name)
    return f"{_shown(side.label)} ({len(runs)} runs)"


def _shown(text: object) -> str:
    """Return a text from outside, such as a name, so that it can be read."""
    return shown_name(str(text), _MAX_SHOWN)


def _legend(found: Comparison) -> Markup:
    parts = []
    for name, class_, side in (("Before", "a", found.before), ("After", "b", found.after)):
        runs = "; ".join(
            f"{_shown(run.path)} ({_shown(run.name)}, {started(run)} UTC)" for run in side.runs
        )
        parts.append(
            tag("p", tag("b", f"{name}: ", class_=class_) + Markup.escape(runs), class_="legend")
        )
    return joined(parts)


def _headline(found: Comparison) -> str:
    by_verdict = [
        f"{verdict} for {', '.join(names)}"
        for verdict in ("worse", "cannot tell", "better", "same")
        if (names := [_shown(one.name) for one in found.quantities if one.verdict == verdict])
    ]
    if not by_verdict:
        return f"{_sentence(found.verdict)} No quantity was measured on both sides."
    return f"{_sentence(found.verdict)} {'; '.join(by_verdict).capitalize()}."


def _no_change(found: Trend) -> str:
    if len(found.runs) < found.least_runs:
        return f"Fewer than {found.least_runs} runs: a change of level cannot be distinguished from noise."
    return "None was found."


def _sentence(verdict: Verdict) -> str:
    return f"{verdict.capitalize()}."


def _class(verdict: Verdict) -> str:
    return "unsure" if verdict == "cannot tell" else verdict


def _verdict_class(verdict: Verdict) -> str:
    return f"verdict {_class(verdict)}"


def _differences(found: Comparison) -> Markup:
    rows = []
    for one in found.quantities:
        detectable = one.detectable
        shown = (
            f"+{100 * (detectable - 1):.1f} %"
            if detectable and detectable <= MOST_DETECTABLE
            else "-"
        )
        rows.append(
            (
                _shown(one.name),
                tag("span", one.verdict, class_=_class(one.verdict)),
                one.why,
                wording.amount(one.before, one.unit),
                wording.amount(one.after, one.unit),
                shown,
            )
        )
    if not rows:
        return tag("p", "No quantity was measured on both sides.")
    return table(("", "verdict", "why", "before", "after", "found from"), rows, numeric=3)


def _incidents(found: Comparison) -> Markup:
    rows = [
        (side, *map(_shown, (one.at, one.what, one.cause, one.key)))
        for side, several in (("before", found.only_before), ("after", found.only_after))
        for one in several
    ]
    parts = [
        table(("only", "at", "what", "cause", "incident"), rows)
        if rows
        else tag(
            "p", "None: each incident that counts has one of its kind and cause on the other side."
        )
    ]
    parts += [tag("p", _shown(line)) for line in found.notes]
    return joined(parts)


def _events(found: Comparison) -> Markup:
    rows = []
    for side, several in (("before", found.before.runs), ("after", found.after.runs)):
        for run in several:
            edges = [*run.phases.from_k[1:], None]
            names = [
                f"{one.phase} {one.part}".strip() + (f" {edge - one.from_k:,} s" if edge else "")
                for one, edge in zip(run.phases.decisions, edges, strict=True)
                if one.phase != "end"
            ]
            rows.append(
                (
                    side,
                    _shown(run.path.name),
                    ", ".join(names) or "-",
                    f"{run.soak_seconds:,} s",
                    "-"
                    if run.first_deletion is None
                    else f"{run.first_deletion:,.0f} s after the load began",
                    _compared(run),
                )
            )
    headings = ("", "run", "phases", "soak on record", "first deletion", "compared")
    return table(headings, rows)


def _compared(run: ComparedRun) -> str:
    if not run.compared.size:
        return "-"
    return f"seconds {int(run.compared[0]):,} to {int(run.compared[-1]) + 1:,} of the run"


def _method(found: Comparison) -> Markup:
    settings = found.settings
    margin, noise = 100 * settings.margin, 100 * settings.run_noise
    error, power = 100 * settings.error_rate, 100 * comparison.POWER
    texts = [
        (
            "Warm-up, ramp, catch-up and drain do not count, nor do seconds in which the client itself was "
            "the bottleneck."
        ),
        (
            f"Same: two one-sided tests at 5 % put the difference within {margin:g} %. Worse or better: it "
            f"lies beyond chance, with an error of {error:g} % over all quantities together. "
            "Cannot tell: neither; a longer soak or more runs a side narrow the interval."
        ),
        (
            "Errors come from a block bootstrap over time, whose blocks are as long as the autocorrelation "
            "asks for (Politis and White 2004). Noise between runs is measured where a side has several "
            f"runs; else equal runs are assumed to differ by {noise:g} % (--run-noise)."
        ),
        f"Found from: the least rise that is called worse in {power:.0f} % of such comparisons.",
    ]
    return joined([tag("p", text) for text in texts])


def drift_text(found: Drift) -> str:
    """Return how a quantity went: `x2.50 from the first run to the last (by chance in 0.003)`."""
    if not found.is_clear:
        return "no clear trend"
    return f"x{found.ratio:.2f} from the first run to the last (by chance in {found.chance:.2g})"
