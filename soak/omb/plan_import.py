"""Workload and driver files to one plan: each file is told by its keys, each driver by its class."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from soak.core import plugins
from soak.core.errors import PlanError
from soak.omb import workload
from soak.omb.draft import Draft
from soak.omb.source_file import SourceFile

_DRIVERS = "soak.omb.drivers"


def plan(sources: Sequence[SourceFile], dialect: str | None, name: str) -> str:
    """Return the text of a plan that loads, with a comment for whatever could not be carried over.

    `name` is the plan's, for errors in what the files ask for.

    Raises:
        PlanError: a file is neither workload nor driver, two are of one kind, or a value is wrong.
    """
    drivers = [source for source in sources if "driverClass" in source.values]
    workloads = [source for source in sources if "driverClass" not in source.values]
    for kind, found in (("driver", drivers), ("workload", workloads)):
        if len(found) > 1:
            second = found[1].document
            raise PlanError(f"{second.name}: a second {kind}: a plan is made of one of each")
    draft = Draft()
    for source in workloads:
        if not workload.is_one(source):
            text = "neither a workload nor a driver: it has too few keys of either"
            raise source.document.error((), text)
        workload.take(source, draft, dialect)
    for source in drivers:
        _driver_of(source).take(source, draft)
        if not workloads:
            draft.put("name", workload.plan_name(source.text("name")))
    return draft.text(name)


def _driver_of(source: SourceFile) -> ModuleType:
    found = source.text("driverClass")
    modules = {name: plugins.load(_DRIVERS, name) for name in plugins.names(_DRIVERS)}
    for module in modules.values():
        if found.startswith(module.PREFIX):
            return module
    raise source.error("driverClass", f"no driver for {found!r}; there are {', '.join(modules)}")
