"""`make chaos`: kills, then every trouble, then the oracle; exit 0 when it has no complaint."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from soak.lab.brokers import kafka
from soak.service.signals import exit_on_sigterm
from tests.chaos import schedule
from tests.chaos.hostile import Hostile
from tests.chaos.oracle import Known, complaints
from tests.chaos.post import Post
from tests.chaos.storm import MAX_DEATHS_PER_MINUTE, Storm
from tests.chaos.surroundings import Surroundings, enter
from tests.chaos.troubles import TROUBLES

HOLD_SECONDS = 10.0  # of each trouble
_APART = "--apart"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make chaos ARGS=...", description=__doc__)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--only", help="these troubles, by a comma; none: kills alone")
    parser.add_argument("--out", type=Path, default=Path("build/chaos.json"))
    parser.add_argument(
        "--strangers", action="store_true", help="they write to the samples topic all the while"
    )
    parser.add_argument(
        "--logs", type=Path, default=Path("build/chaos-logs"), help="copy the daemons' logs there"
    )
    parser.add_argument(_APART, action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if not asked.apart:
        enter("tests.chaos", [*sys.argv[1:], _APART, "--seed", str(asked.seed)])
    exit_on_sigterm()
    names = list(TROUBLES) if asked.only is None else asked.only.split(",")
    troubles = schedule.order(asked.seed, [name for name in names if name != "none"])
    _say(f"seed {asked.seed}: {asked.kills} kills, then {', '.join(troubles)}")
    with tempfile.TemporaryDirectory(prefix="soak-chaos-") as folder:
        found = _weather(Path(folder), asked, troubles)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps({"seed": asked.seed, **found}, indent=2) + "\n")
    for line in found["complaints"]:
        _say(f"WRONG: {line}")
    _say("nothing is wrong" if not found["complaints"] else f"{len(found['complaints'])} wrong")
    sys.exit(1 if found["complaints"] else 0)


def _weather(home: Path, asked: argparse.Namespace, names: list[str]) -> dict[str, Any]:
    """Go through all of it; return the figures and the oracle's complaints."""
    began = time.monotonic()
    with contextlib.ExitStack() as left:
        broker = kafka.start(
            home / "kafka", {}
        )  # which may have to be fetched, while names are known
        left.callback(broker.stop)
        around = Surroundings(home)
        left.callback(around.close)
        post = Post()
        left.callback(post.close)
        post.open()
        hostile = Hostile(home, broker.bootstrap_servers, asked.seed) if asked.strangers else None
        more = hostile.plan if hostile else ""
        storm = Storm(home, around, broker, post, asked.seed, more=more)
        try:
            storm.start()
            if hostile:
                hostile.start(storm)
            kills = schedule.kills(asked.seed, asked.kills, storm.daemons, MAX_DEATHS_PER_MINUTE)
            _kill(storm, kills)
            recovered = {name: round(_endure(storm, name), 1) for name in names}
            storm.settle()
            if hostile:
                hostile.finish(storm)
            summary = storm.end()
            known = Known(
                storm.kept, storm.planted, storm.post.came, storm.in_topic(), storm.excused
            )
            wrong = complaints(storm.folder, summary, known)
            if hostile:
                wrong += hostile.complaints(storm.folder, summary)
        finally:
            if hostile:
                hostile.close()
            storm.close()
            shutil.copytree(storm.folder.logs, asked.logs, dirs_exist_ok=True)
    figures = {
        "seconds": round(time.monotonic() - began),
        "kills": dict(sorted(storm.kills.items())),
        "recovered_seconds": recovered,
        "audit": summary["audit"],
        "in_topic": known.in_topic,
        "coverage": {name: summary["coverage"][name] for name in ("seconds", "ratio")},
        "untrusted_seconds": summary["coverage"]["untrusted_seconds"],
        "seconds_cut_out": len(storm.kept.cut),
        "findings": len(storm.planted.saved),
        "messages": len(storm.planted.messages),
        "mails_on_the_wire": post.came.total(),
        "mails_put_off": post.refused,
        "strangers": hostile.figures(summary) if hostile else None,
        "found": [
            one["key"] for one in summary["findings"] if one["key"] not in storm.planted.saved
        ],
    }
    _say(json.dumps(figures, indent=2))
    return {**figures, "complaints": wrong}


def _kill(storm: Storm, kills: list[schedule.Kill]) -> None:
    for number, one in enumerate(kills, 1):
        storm.watch(one.after_seconds)
        storm.plant()
        storm.kill(one.victim)
        _say(f"second {storm.k}: kill {number} {one.victim}")
    _say(f"back after {storm.recover():.1f} s")


def _endure(storm: Storm, name: str) -> float:
    """Return how long after the end of a trouble every source recorded again."""
    storm.kept.note()
    storm.plant()
    _say(f"second {storm.k}: {name}")
    storm.rng = schedule.choices(storm.seed, name)
    with TROUBLES[name](storm):
        storm.watch(HOLD_SECONDS)
        storm.plant()
    seconds = storm.recover()
    _say(f"second {storm.k}: {name} over, back after {seconds:.1f} s")
    return seconds


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  # the figures


if __name__ == "__main__":
    main()
