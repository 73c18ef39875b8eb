"""Findings that are saved as the detector saves them, so that it is known which must be notified."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from soak.core.errors import FindingsError
from soak.core.model import Evidence, Explanation, Finding
from soak.store.findings.store import FindingsStore
from soak.store.run_folder import RunFolder

PREFIX = "planted-"
_CAUSES = (Explanation("unknown", 0.0, (Evidence("Nothing of this happened."),)),)


@dataclass(slots=True)
class Planted:
    """`saved` are those of which the store said that they are; others that were tried may be there."""

    folder: RunFolder
    run: str
    series: str
    saved: dict[str, Finding] = field(default_factory=dict)
    tried: int = 0
    failed: int = 0

    def plant(self, k: int, now_wall_ns: int) -> None:
        """Save a finding that began in second k, and that the one before it went away."""
        last = list(self.saved.values())[-1:]
        self.tried += 1
        new = Finding(
            key=f"{PREFIX}{self.tried}",
            run=self.run,
            raised_k=k,
            onset_k=max(0, k - 5),
            interval=(max(0, k - 6), max(0, k - 4)),
            series=self.series,
            kind="step",
            before=0.004,
            after=0.06,
            state="confirmed",
            confidence=0.99,
            is_about_cluster=True,
            causes=_CAUSES,
            is_settled=True,
        )
        for finding in (*(replace(one, state="gone", resolved_k=k) for one in last), new):
            try:
                with FindingsStore(self.folder.findings) as store:
                    store.save_finding(finding, ["mail"], now_wall_ns)
            except FindingsError:  # the drive, or another process's lock: nothing was acknowledged
                self.failed += 1
            else:
                self.saved[finding.key] = finding

    @property
    def messages(self) -> set[str]:
        """Return which notifications people must have received."""
        return {
            f"{finding.key}.{kind}"
            for finding in self.saved.values()
            for kind in (("confirmed", "gone") if finding.state == "gone" else ("confirmed",))
        }
