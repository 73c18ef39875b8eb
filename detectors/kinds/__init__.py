"""Changes other than steps: drift, periodic spikes and tails that grow, online and in whole series.

Begin with `whole_series.py`, which says what kind each change of a recorded series is; `drift`, `spikes` and
`tail` each hold one kind with its online watch and its offline search, `recent_rows` what the watches keep of
a series. Outages need no noise model: they are in `detectors.outage`. Anything above `detectors` may use the
names below; `detectors.panel` runs the watches.
"""

from __future__ import annotations

from detectors.kinds.whole_series import changes_of_many, changes_of_series

__all__ = ["changes_of_many", "changes_of_series"]
