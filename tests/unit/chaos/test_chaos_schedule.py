"""What `make chaos` does is a matter of its seed alone, so that a storm can be had again."""

from __future__ import annotations

from tests.chaos import schedule
from tests.chaos.storm import MAX_DEATHS_PER_MINUTE
from tests.chaos.troubles import TROUBLES

DAEMONS = ["alert", "conduct", "consume.0", "detect-stream", "probe", "produce.0", "produce.1"]
NAMES = list(TROUBLES)


def drawn(seed: int) -> tuple[list[schedule.Kill], list[str], list[str]]:
    """Return all that is drawn from a seed: kills, the order of the troubles, the first victim of each."""
    order = schedule.order(seed, NAMES)
    victims = [schedule.choices(seed, name).choice(DAEMONS) for name in order]
    return schedule.kills(seed, 50, DAEMONS, MAX_DEATHS_PER_MINUTE), order, victims


def test_one_seed_is_one_storm() -> None:
    """The same pauses and victims, however the storm fares; another seed is another one."""
    assert drawn(7) == drawn(7)
    assert all(mine != other for mine, other in zip(drawn(7), drawn(8), strict=True))


def test_this_seed_is_this_storm() -> None:
    """On every machine and with every Python: what was published under a seed can be had again."""
    first = schedule.kills(20261122, 3, DAEMONS, MAX_DEATHS_PER_MINUTE)

    assert [(round(kill.after_seconds, 3), kill.victim) for kill in first] == [
        (3.146, "probe"),
        (1.67, "alert"),
        (4.849, "produce.0"),
    ]
    assert schedule.order(20261122, NAMES)[:3] == ["mail_refusing", "no_descriptors", "broker_away"]


def test_a_trouble_left_out_changes_no_other() -> None:
    """`--only` gives the same troubles in the same order with the same victims, after the same kills."""
    few = NAMES[::3]

    assert schedule.order(7, few) == [name for name in schedule.order(7, NAMES) if name in few]
    assert sorted(schedule.order(7, NAMES)) == sorted(NAMES)


def test_no_daemon_dies_more_often_in_a_minute_than_a_supervisor_bears() -> None:
    """Two hundred storms: the broker is restarted by the storm itself, and may."""
    for seed in range(200):
        now, deaths = 0.0, dict[str, list[float]]()
        for kill in schedule.kills(seed, 50, DAEMONS, MAX_DEATHS_PER_MINUTE):
            now += kill.after_seconds
            deaths.setdefault(kill.victim, []).append(now)
        deaths.pop(schedule.BROKER, None)
        for moments in deaths.values():
            for first, later in zip(moments, moments[MAX_DEATHS_PER_MINUTE:], strict=False):
                assert later - first >= schedule.WINDOW_SECONDS
