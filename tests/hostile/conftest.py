"""Says at the end how many inputs and cases each gate has had, in all processes of pytest-xdist."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hostile import INPUTS, SEED

_KEY = "hostile_inputs"
_CASES = Counter[str]()


def pytest_sessionfinish(session: pytest.Session) -> None:
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:  # None: this process is no worker
        output[_KEY] = dict(INPUTS)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    INPUTS.update(getattr(node, "workeroutput", {}).get(_KEY, {}))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and report.failed and SEED:
        report.sections.append(("Seed", f"HOSTILE_SEED={SEED[0]}"))
    SEED.clear()
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and "hostile" in report.nodeid:
        _CASES[Path(report.location[0]).stem.removeprefix("test_")] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name, count in sorted(_CASES.items()):
        terminalreporter.write_line(f"hostile: test_{name}.py: {count:,} cases")
    for gate, count in sorted(INPUTS.items()):
        terminalreporter.write_line(f"hostile: {gate}: {count:,} inputs")
