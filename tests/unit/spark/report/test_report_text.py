"""What a report says of findings: the same numbers as a mail, and all of them in its first sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.core.model import Evidence, Explanation
from spark.report import job as report
from tests.support.spark.report_run import finding_of, timeline
from tests.support.spark.synthetic_run import Shape


@pytest.mark.long
def test_the_first_sentence_counts_the_findings_below(tmp_path: Path) -> None:
    """The first in time is not always the one that matters."""
    found = timeline(tmp_path, Shape(fault_k=None))
    unknown = Explanation("unknown", 0.0, (Evidence("host CPU went from 0.4 to 1."),))
    later = finding_of(key="synthetic-1-160", raised_k=160, onset_k=155, causes=(unknown,))

    report.write(found, [finding_of(), later], None)

    page = found.folder.report.read_text()
    assert "at 14:15:12Z, cause retention cliff; 1 more incident below." in page
    assert "The cause is unknown; other changes:" in page
    assert "confidence 99.90%" not in page
