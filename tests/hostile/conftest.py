"""Says at the end how many inputs each gate has had."""

from __future__ import annotations

import pytest

from tests.support.hostile import INPUTS


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for gate, count in sorted(INPUTS.items()):
        terminalreporter.write_line(f"hostile: {gate}: {count:,} inputs")
