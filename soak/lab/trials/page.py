"""The results of trials for people: tables as Markdown, and two pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from soak.core import wording
from soak.lab.trials.figures import confusion, curve, figures
from soak.lab.trials.outcome import Outcome, Trial

CURVE, MATRIX = "trials-curve.svg", "trials-causes.svg"
_NOT_REPORTED = "not reported"


def write_page(trials: Sequence[Trial], path: Path) -> None:
    """Write the page and, into the same folder, the pictures."""
    every = [one for trial in trials for one in trial.outcomes]
    draw_curve(every, path.with_name(CURVE))
    draw_causes(every, path.with_name(MATRIX))
    path.write_text(page(trials), encoding="utf-8")


def page(trials: Sequence[Trial]) -> str:
    """Return the page as Markdown."""
    every = [one for trial in trials for one in trial.outcomes]
    opening = (
        f"{len(every)} troubles of {wording.counted(len(trials), 'run')}, drawn at random: kind, target, "
        "strength, start and length. The size of a trouble is p99 in its window over that before. "
        "Intervals hold 95 %."
    )
    lines = [
        "# Trials",
        "",
        opening,
        "",
        f"![Share that was reported, by size]({CURVE})",
        "",
        f"![Causes that were named]({MATRIX})",
        "",
        *_table(("figure", "value"), [(name, str(one)) for name, one in figures(trials).items()]),
        "",
        *_table(("p99 over before", "reported"), [(name, str(one)) for name, one in curve(every)]),
        "",
        "## Each trouble",
        "",
        *_table(
            (
                "kind",
                "strength",
                "at",
                "length",
                "p99",
                "size",
                "reported as",
                "right",
                "onset",
                "mail",
            ),
            [_row(one) for one in every],
        ),
        "",
    ]
    failures = [failure for trial in trials for failure in trial.failures]
    if failures:
        lines += ["## Not injected, or not undone", "", *(f"- {one}" for one in failures), ""]
    return "\n".join(lines)


def _row(one: Outcome) -> tuple[str, ...]:
    return (
        one.kind,
        f"{one.strength:.2f}",
        wording.span(one.begin_k),
        f"{one.length_seconds} s",
        "none" if math.isinf(one.ratio) else f"x{one.ratio:.2g}",
        one.size,
        (one.cause or "-") if one.incidents < 2 else f"{one.cause} ({one.incidents} incidents)",  # noqa: PLR2004
        ", ".join(one.causes),
        "-" if one.onset_seconds is None else f"{one.onset_seconds:+.0f} s",
        "-" if one.notified_seconds is None else f"{one.notified_seconds:.0f} s",
    )


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    head = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    return head + [f"| {' | '.join(row)} |" for row in rows]


def draw_curve(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw the share that was reported over the true size, with intervals."""
    rows = [(name, one) for name, one in curve(outcomes) if one.of]
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    for at, (_, one) in enumerate(rows):
        low, high = one.interval
        axes.plot([at, at], [low, high], color="0.6")
        axes.plot(at, one.value, "o", color="tab:blue")
    axes.set_xticks(range(len(rows)), [f"{name}\n{one.of}" for name, one in rows])
    axes.set_ylim(0, 1.03)
    axes.set_xlabel("p99 in the window over before, and number of troubles")
    axes.set_ylabel("share that was reported")
    axes.grid(axis="y", alpha=0.3)
    figure.savefig(path, metadata={"Date": None})


def draw_causes(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw how often each kind of trouble was reported under each cause."""
    found = confusion(outcomes)
    causes = sorted({cause for row in found.values() for cause in row})
    counts = [[row.get(cause, 0) for cause in causes] for row in found.values()]
    right = {one.kind: one.causes for one in outcomes}
    figure = Figure(figsize=(1.5 + 0.45 * max(4, len(causes)), 1.2 + 0.28 * max(4, len(found))))
    axes = figure.subplots()
    axes.imshow(counts or [[0]], cmap="Blues", aspect="auto")
    for i, (kind, row) in enumerate(found.items()):
        for j, cause in enumerate(causes):
            if row.get(cause):
                weight = "bold" if cause in right[kind] else "normal"
                axes.text(j, i, str(row[cause]), ha="center", va="center", fontweight=weight)
    axes.set_xticks(range(len(causes)), [one or _NOT_REPORTED for one in causes], rotation=90)
    axes.set_yticks(range(len(found)), list(found))
    axes.set_xlabel("cause named (bold: right)")
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
