"""Whether a plan asks for more than its limits: `soak check` tells it, and no run begins without --yes."""

from __future__ import annotations

from soak.cli._load_checks import table_of
from soak.core.excess import excess
from soak.core.plan_text import PlanFile


def refuse_excess(plan_file: PlanFile) -> None:
    """Refuse what nobody has said yes to, before anything is asked of the cluster.

    Raises:
        PlanError: with file, line and key.
    """
    for place, why in excess(plan_file.plan, table_of(plan_file)):
        raise plan_file.document.error(place, why)


def warnings(plan_file: PlanFile) -> list[str]:
    """Return what will be refused where nobody says yes."""
    found = excess(plan_file.plan, table_of(plan_file))
    return [f"{'.'.join(map(str, place))}: {why}" for place, why in found]
