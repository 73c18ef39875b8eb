"""Whether a plan asks for more than its limits: `soak check` tells it, and no run begins without --yes."""

from __future__ import annotations

from soak.cli._load_checks import table_of
from soak.core.excess import excess
from soak.core.plan_text import PlanFile

BY_YES = ", or begin it all the same by `soak run --yes`"
"""What else somebody at a terminal may do; a service is asked nothing."""


def refuse_excess(plan_file: PlanFile, *, or_else: str = "") -> None:
    """Refuse what nobody has said yes to, before anything is asked of the cluster.

    Raises:
        PlanError: with file, line and key.
    """
    for place, why in excess(plan_file.plan, table_of(plan_file)):
        raise plan_file.document.error(place, why + or_else)


def warnings(plan_file: PlanFile) -> list[str]:
    """Return what will be refused where nobody says yes."""
    found = excess(plan_file.plan, table_of(plan_file))
    return [f"{'.'.join(map(str, place))}: {why}{BY_YES}" for place, why in found]
