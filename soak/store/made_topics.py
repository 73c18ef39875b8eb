"""Which topics a run made: noted before they are asked for, and once the cluster has said that it has them.

A name alone proves nothing: somebody may have made a topic of it since.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from soak.core.errors import RunFolderError
from soak.store.run_folder import RunFolder, write_atomically


@dataclass(frozen=True, slots=True)
class MadeTopics:
    """What is known of them; `made` holds what the cluster told of each to know it by, or ""."""

    mark: str = ""  # what they bear where a cluster lets a topic bear something
    asked: tuple[str, ...] = ()
    made: Mapping[str, str] = field(default_factory=dict)
    has_own_names: bool = False  # they hold a run's random id, so nobody else gives them

    def is_own(self, name: str, identity: str) -> bool:
        """True when the topic that has this name and identity now is one that the run made."""
        if name not in self.asked:
            return False
        known = self.made.get(name, "")
        if identity and known:
            return identity == known
        return self.has_own_names or (identity != "" and identity == self.mark)

    def with_made(self, identities: Mapping[str, str]) -> MadeTopics:
        return replace(self, made={**self.made, **identities})


def read_made(folder: RunFolder) -> MadeTopics:
    """Return what was noted; of a run that made none, or before there were notes, nothing.

    Raises:
        RunFolderError: the file is damaged or cannot be read.
    """
    try:
        body = json.loads(folder.topics.read_text())
        return MadeTopics(**{**body, "asked": tuple(body["asked"]), "made": dict(body["made"])})
    except FileNotFoundError:
        return MadeTopics()
    except OSError as error:
        raise RunFolderError(f"cannot read {folder.topics}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise RunFolderError(f"{folder.topics} is damaged: {error}") from error


def write_made(folder: RunFolder, made: MadeTopics) -> None:
    write_atomically(folder.topics, json.dumps(asdict(made), indent=2) + "\n")
