"""Leaders that stop acknowledging for good: their open changes end, or no later trouble is reported."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from detectors.incidents import group
from detectors.level_shift import Config
from detectors.panel import Panel
from soak.core.model import Change, Column

pytestmark = pytest.mark.long

Labels = tuple[tuple[str, str], ...]
SECONDS, RISES, LEAVES, COMES = 2100, 300, 500, 1700


def column(labels: Labels) -> Column:
    return Column("publish_latency_seconds", (*labels, ("quantile", "0.99")), "seconds")


CLIENT, FIRST, SECOND = column(()), column((("leader", "1"),)), column((("leader", "2"),))


def watched(*, is_column_left: bool, silent: Sequence[int], resumed: int = 0) -> list[Change]:
    """Return the changes of a client and its two leaders, of which the first is slow before it leaves.

    Much later the second is slow too, and the client with each. `silent`: the columns without values from
    the time when it leaves.
    """
    rng = np.random.default_rng(5)
    values = 0.004 * 10.0 ** rng.normal(0.0, 0.05, (SECONDS, 3))
    values[RISES:LEAVES, :2] *= 15.0
    values[COMES:, [0, 2]] *= 15.0
    columns, panel, found = (CLIENT, FIRST, SECOND), Panel(Config()), []
    for k, row in enumerate(values):
        if resumed and k % resumed == 0:
            panel = Panel.from_bytes(panel.to_bytes(), Config())
        if k >= LEAVES:
            row[list(silent)] = np.nan
        if k >= LEAVES and is_column_left:
            found += panel.update("p@h", columns[::2], k, row[::2], True, "soak")
        else:
            found += panel.update("p@h", columns, k, row, True, "soak")
    return found


@pytest.mark.parametrize("is_column_left", [True, False])
def test_the_incident_of_a_leader_that_left_is_resolved_and_the_next_is_another(
    *, is_column_left: bool
) -> None:
    """With its column or without, as after a restart of the client; ten minutes later it is known."""
    changes = watched(is_column_left=is_column_left, silent=[1])
    first, second = [one for one in group(changes) if one.state != "warning"]
    (own,) = [one for one in changes if one.series.endswith(FIRST.name) and one.state == "gone"]

    assert first.state == "gone"
    assert (own.resolved_k, second.opening.onset_k) == (LEAVES, COMES)


@pytest.mark.parametrize("silent", [[1, 2], [0, 1, 2]])
def test_while_no_leader_has_messages_none_has_left(silent: list[int]) -> None:
    """The load pauses, or nobody says which partitions a leader has."""
    changes = watched(is_column_left=False, silent=silent)
    of_leader = [one.state for one in changes if one.series.endswith(FIRST.name)]

    assert of_leader == ["warning", "confirmed"]


def test_what_ends_with_a_leader_is_the_same_when_resumed() -> None:
    assert watched(is_column_left=True, silent=[1], resumed=97) == watched(
        is_column_left=True, silent=[1]
    )
