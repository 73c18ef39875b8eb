"""The table of the numbers that decide what the online step detector finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constants:
    """Behind each number, what fixes it."""

    # memory
    scale_rows: float = 150.0  # of s: doubling noise is followed in minutes; flat from 80 to 300
    # of v(m), the share of outliers and the tail: a daily wave is followed, an AR(1) of .95 averaged
    noise_rows: float = 10_000.0
    # what is assumed before it is known
    prior_samples: float = 150.0  # that s and the AR(1) curve count for, an octave of window length
    # the same where more than that was seen: a random walk must be learnt within an hour
    upward_samples: float = 30.0
    tail_samples: float = 30.0  # clusters that a mean excess of 1 counts for
    # robustness
    least_clip: float = 1.8  # least bound of a score: Huber's k for 1.6 % of outliers
    outlier_sd: float = 4.0  # a difference beyond it is an outlier: 1 of 16,000 normal ones
    # a contrast teaches at most so many sd of what is expected, and the mean excess of clusters is at most so
    # much: a short trouble is no noise, and would hide the next
    contrast_sd: float = 2.5
    most_excess: float = 1.5
    # of a change, least share that the oldest and the newest third since its onset show; its inverse at most:
    # a burst in one of them is no level
    stays: float = 1.0 / 3.0
    # windows
    least_before: float = 16.0  # rows before an onset: fewer estimate no level
    before_ratio: float = (
        16.0  # at most, rows compared before an onset, over rows since (window.reach)
    )
    # threshold, measured with independent normal noise
    level: float = 5.0  # ratio whose exceedances are counted: some ten clusters an hour
    clusters_an_hour: float = 9.0  # of exceedances of that level
    offset: float = 0.3  # of the threshold: one false alarm an hour in independent noise


CONSTANTS = Constants()
