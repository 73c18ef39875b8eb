"""`soak serve`: what it shows, and what it does not let happen."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from subprocess import Popen

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from soak.app.live.folder import ServedFolder, list_run
from soak.app.live.jobs import Jobs, spawn_command
from soak.app.live.pages import ListedRun, Pages
from soak.app.live.server import (
    MAX_CONNECTIONS,
    MAX_REQUEST_BYTES,
    REQUEST_SECONDS,
    Access,
    parse_listen,
    read_token,
)
from soak.app.live.site import Site
from soak.core.clock import SystemClock
from soak.core.errors import PlanError
from soak.core.units import SECOND_NS
from soak.store.findings.store import FindingsStore
from soak.store.run_folder import Run, RunFolder, read_run, write_run
from tests.support.compared import ComparedShape, write_compared_run
from tests.support.examples import examples
from tests.support.fakes import FakeClock
from tests.support.live import (
    FOUND,
    NASTY_TEXTS,
    OUTAGE,
    START_WALL_NS,
    WrittenRun,
    is_harmless,
    snapshot,
    written_run,
)
from tests.support.served import Elements, Served, contents, new_folder, served

GOOD = {"sent": 1000.0, "acked": 1000.0, "failed": 0.0, "publish_p99": 0.02, "slow": 30.0}
SECRET = "what nobody may read"
PAGE_TAGS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "link",
        "script",
        "body",
        "nav",
        "main",
        "header",
        "h1",
        "h2",
        "p",
    ),
    *(
        "span",
        "a",
        "bdi",
        "b",
        "progress",
        "ol",
        "ul",
        "li",
        "dl",
        "div",
        "dt",
        "dd",
        "table",
        "thead",
    ),
    *("tbody", "tr", "th", "td", "svg", "polyline", "rect", "path", "text", "figure", "figcaption"),
    *("noscript", "iframe"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that are over, with reports, and one that goes on; beside the folder lies a secret."""
    place = tmp_path_factory.mktemp("served")
    (place / "secret").write_text(SECRET)
    root = place / "runs"
    root.mkdir()
    for day, name in enumerate(("before", "after")):
        shape = ComparedShape(seconds=20, day=day)
        folder = RunFolder(write_compared_run(root / name, shape))
        policy = "default-src &#39;none&#39;; script-src &#39;sha256-AAAA=&#39;"
        folder.report.write_text(
            f'<meta http-equiv="Content-Security-Policy" content="{policy}"><title>{name}</title>'
        )
    run = written_run(root / "going on")
    for k in range(100):
        run.write("produce.0@h", k, **GOOD)
        run.write("consume.0@h", k, received=1000.0, lag=7.0, end_to_end_p99=0.03)
    with FindingsStore(run.folder.findings) as store:
        store.save_finding(FOUND, (), 1)
    return root


@pytest.fixture(scope="module")
def site(runs: Path) -> Iterator[Served]:
    clock = FakeClock()
    clock.advance(100.5)
    with served(runs, clock) as found:
        yield found


# --- What is shown.


def test_the_list_has_every_run_newest_first_with_its_verdict(site: Served) -> None:
    text = site.get("/").text

    assert text.index("after</bdi>") < text.index("before</bdi>")
    assert Elements(text).links[0] == "/run/after/"
    assert text.count('<span class="badge clean">clean</span>') == 2
    assert "running" in text


def test_two_clicks_lead_from_the_list_to_a_comparison(site: Served) -> None:
    """The first chooses the baseline, the second the other run."""
    first = next(
        link for link in Elements(site.get("/").text).links if link.endswith("with=before")
    )
    second = [link for link in Elements(site.get(first).text).links if link.startswith("/compare")]

    assert second == ["/compare?a=before&b=after"]


def test_the_page_of_a_run_that_goes_on_says_how_it_is(site: Served) -> None:
    text = site.get("/run/going%20on/").text

    assert 'data-poll="2"' in text
    assert "soak 1:40 of 6:20, 4:20 of this phase left" in text
    assert ">1,000/s<" in text
    assert "confirmed: p99 end-to-end latency 4 ms -&gt; 61 ms (x15)" in text


def test_the_main_part_is_that_of_the_page(site: Served) -> None:
    """A browser replaces the one by the other."""
    whole, part = (site.get(f"/run/going%20on/{name}").text for name in ("", "now"))

    assert part in whole


def test_the_state_of_a_run_is_there_for_programs(site: Served) -> None:
    body = json.loads(site.get("/run/going%20on/now.json").body)

    assert (body["sent"], body["acknowledged"], body["failed"]) == (1000.0, 1000.0, 0.0)
    assert body["subscriptions"][0]["received"] == 1000.0
    assert body["publish"]["p50"] is None
    assert body["incidents"] == [
        {"key": "r-100", "kind": "step", "state": "confirmed", "cause": "unknown"}
    ]


def test_a_run_that_is_over_is_not_asked_for_again(site: Served) -> None:
    text = site.get("/run/after/").text

    assert "data-poll" not in text
    assert "ended 0:25 of 0:25" in text


def _just_ended(folder: Path, clock: FakeClock) -> tuple[WrittenRun, Site]:
    """Return a run that ended a second ago, and the site that serves it."""
    run = written_run(folder / "run")
    for k in range(100):
        run.write("produce.0@h", k, **GOOD)
    run.decide("end", 100)
    run.becomes("ended")
    clock.advance(101)
    site = Site(ServedFolder(folder), _jobs(folder, clock)[0], clock)
    return run, site


def test_the_report_appears_on_the_page_of_a_run_that_has_just_ended(tmp_path: Path) -> None:
    """A run has ended before its report is made; of one that ended long ago none is awaited."""
    clock = FakeClock()
    run, site = _just_ended(tmp_path, clock)
    before = site.answer("/run/run/now", "").body.decode()
    run.folder.report.parent.mkdir()
    run.folder.summary.write_text(json.dumps({"verdict": "clean", "findings": []}))
    clock.advance(2)
    after = site.answer("/run/run/now", "").body.decode()
    run.folder.summary.unlink()
    clock.advance(3600)
    late = site.answer("/run/run/now", "").body.decode()

    assert "data-poll" in before
    assert 'id="report"' not in before
    assert "data-poll" not in after
    assert '<a href="report" id="report">' in after
    assert "data-poll" not in late
    assert "There is no report" in late


def test_a_report_of_a_part_is_not_the_result_of_a_run_that_is_over(tmp_path: Path) -> None:
    """The end may have brought what it does not know."""
    clock = FakeClock()
    run, site = _just_ended(tmp_path, clock)
    run.folder.report.parent.mkdir()
    body = {"verdict": "clean", "findings": [], "is_running": True}
    run.folder.summary.write_text(json.dumps(body))
    clock.advance(2)
    page = site.answer("/run/run/now", "").body.decode()

    assert "data-poll" in page
    assert "clean" not in page
    assert list_run(run.folder.path).verdict == "no report"


def test_a_run_that_is_being_prepared_has_no_time_yet(tmp_path: Path) -> None:
    run = written_run(tmp_path / "run")
    write_run(
        run.folder, dataclasses.replace(read_run(run.folder), start_wall_ns=0, state="beginning")
    )
    clock = FakeClock()
    site = Site(ServedFolder(tmp_path), _jobs(tmp_path, clock)[0], clock)
    page = site.answer("/run/run/", "").body.decode()

    assert "the run is being prepared" in page
    assert "1970" not in page
    assert list_run(run.folder.path).start == "-"


def test_an_ended_run_without_a_report_has_no_page_of_one(tmp_path: Path) -> None:
    clock = FakeClock()
    _, site = _just_ended(tmp_path, clock)
    clock.advance(7200)

    assert site.answer("/run/run/report", "").status == 404


def test_a_killed_run_that_is_reported_is_not_reported_again(tmp_path: Path) -> None:
    clock = FakeClock()
    run = written_run(tmp_path / "run")
    for k in range(100):
        run.write("produce.0@h", k, **GOOD)
    run.folder.report.parent.mkdir()
    run.folder.summary.write_text(json.dumps({"verdict": "clean", "findings": []}))
    jobs, spawned = _jobs(tmp_path, clock, 600)
    clock.advance(3600)
    page = Site(ServedFolder(tmp_path), jobs, clock).answer("/run/run/", "").body.decode()
    jobs.step()

    assert "Nothing is recorded any more; the report has what there is." in page
    assert "<dd>1,000/s" not in page
    assert spawned.asked == []


def test_a_page_of_numbers_that_are_not_complete_says_so() -> None:
    found = dataclasses.replace(snapshot(900, state="ended"), read_ratio=0.25)

    assert "Read so far: 25%." in Pages().now(found, 0, "")


def test_a_folder_of_one_run_leads_to_it(runs: Path) -> None:
    with served(runs / "after") as found:
        assert found.get("/").headers["location"] == "/run/after/"
        assert 'id="home"' not in found.get("/run/after/").text


def test_an_outage_is_the_first_that_is_read() -> None:
    page = Pages().run(snapshot(troubles=(OUTAGE,)), 0, "", has_home=True)

    assert f'<p class="trouble">{OUTAGE}</p>' in page


def test_a_look_costs_no_more_when_many_look(runs: Path) -> None:
    """Within a second all of them see the same."""
    copy = new_folder() / "runs"
    shutil.copytree(runs, copy)
    clock = FakeClock()
    clock.advance(100.5)
    with served(copy, clock) as found:
        before = found.get("/run/going%20on/now").body
        WrittenRun(RunFolder(copy / "going on")).write("produce.0@h", 100, **{**GOOD, "sent": 5.0})

        assert found.get("/run/going%20on/now").body == before
        clock.advance(1.0)
        assert found.get("/run/going%20on/now").body != before


def test_a_report_keeps_its_policy_and_gets_an_origin_of_its_own(site: Served) -> None:
    """Its program must not read other runs with the cookie of the reader."""
    found = site.get("/run/after/report")

    stated, added = found.headers["content-security-policy"].split(", ")
    assert stated == "default-src 'none'; script-src 'sha256-AAAA='"
    assert added.startswith("sandbox allow-scripts allow-downloads; connect-src 'none'")
    assert "allow-same-origin" not in added


@pytest.mark.parametrize(
    "head",
    [
        "",
        '<meta http-equiv="Content-Security-Policy" content="x\r\nSet-Cookie: a=b">',
        '<meta http-equiv="Content-Security-Policy" content="script-src *, x">',
    ],
)
def test_a_report_without_a_plain_policy_runs_no_program(runs: Path, head: str) -> None:
    copy = new_folder()
    shutil.copytree(runs / "after", copy / "after")
    RunFolder(copy / "after").report.write_text(f"{head}<script>alert(1)</script>")
    with served(copy) as found:
        headers = found.get("/run/after/report").headers

    assert headers["content-security-policy"].startswith(
        "default-src 'none'; style-src 'unsafe-inline'"
    )
    assert "set-cookie" not in headers


# --- The report of a run that goes on.


POLICY = "default-src &#39;none&#39;; script-src &#39;sha256-AAAA=&#39;"
REPORT = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><body>one</body>'


def _with_report(runs: Path, text: str = REPORT) -> RunFolder:
    copy = new_folder() / "runs"
    shutil.copytree(runs / "going on", copy / "going on")
    folder = RunFolder(copy / "going on")
    folder.report.parent.mkdir(exist_ok=True)
    folder.report.write_text(text)
    return folder


def test_an_open_report_of_a_run_that_goes_on_asks_for_a_newer_one(runs: Path) -> None:
    """The page around it says how old it is; the report is in a frame, with an origin of its own."""
    folder, clock = _with_report(runs), FakeClock()
    made_ns = clock.wall_ns()
    os.utime(folder.report, ns=(made_ns, made_ns))
    clock.advance(130)
    with served(folder.path.parent, clock) as found:
        page = found.get("/run/going%20on/report")
        before = json.loads(found.get("/run/going%20on/report.json").body)
        folder.report.write_text(REPORT + "more")
        after = json.loads(found.get("/run/going%20on/report.json").body)

    frame = dict(Elements(page.text).found)["iframe"]
    assert page.headers["content-security-policy"].endswith("; frame-src 'self'")
    assert (frame["src"], frame["sandbox"]) == ("report.html", "allow-scripts allow-downloads")
    assert frame["data-version"] == before["version"] != after["version"]
    assert before["again_seconds"] == int(frame["data-poll"]) == 10
    assert before["text"].startswith("This report was made 2 min 10 s ago. ")
    assert before["text"].split(" ago. ")[1] in page.text


def test_an_open_report_makes_the_server_renew_it(runs: Path) -> None:
    folder, clock = _with_report(runs), FakeClock()
    jobs, spawned = _jobs(folder.path.parent, clock, 600)
    site = Site(ServedFolder(folder.path.parent), jobs, clock)

    site.answer("/run/going%20on/report.json", "")
    jobs.step()

    assert spawned.asked == [["report", "--", str(folder.path)]]


def test_a_report_in_a_frame_may_run_our_program_and_no_other(runs: Path) -> None:
    """It tells where the reader is, so that a newer report begins there."""
    folder = _with_report(runs)
    with served(folder.path.parent) as found:
        answer = found.get("/run/going%20on/report.html?1-2")

    program = answer.text.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(program.encode()).digest()).decode()
    stated, added = answer.headers["content-security-policy"].split(", ")
    assert stated == f"default-src 'none'; script-src 'sha256-{digest}' 'sha256-AAAA='"
    assert stated.replace("'", "&#39;") in answer.text
    assert added.startswith("sandbox allow-scripts allow-downloads; connect-src 'none'")
    assert added.endswith("frame-ancestors 'self'")
    assert answer.headers["x-frame-options"] == "SAMEORIGIN"
    assert answer.text.endswith("</script></body>")


@pytest.mark.parametrize("policy", ["default-src &#39;none&#39;", "script-src *, x"])
def test_a_report_in_a_frame_that_states_no_programs_gets_none(runs: Path, policy: str) -> None:
    folder = _with_report(runs, REPORT.replace(POLICY, policy))
    with served(folder.path.parent) as found:
        assert "<script" not in found.get("/run/going%20on/report.html").text


def test_a_run_that_goes_on_without_a_report_gets_it_when_it_is_there(runs: Path) -> None:
    with served(runs, FakeClock()) as found:
        page = found.get("/run/going%20on/report").text

    assert "There is no report yet." in page
    assert "src" not in dict(Elements(page).found)["iframe"]


def test_the_page_around_a_report_has_the_last_one_when_the_run_ends(tmp_path: Path) -> None:
    clock = FakeClock()
    run, site = _just_ended(tmp_path, clock)
    before = json.loads(site.answer("/run/run/report.json", "").body)
    run.folder.report.parent.mkdir()
    run.folder.report.write_text(REPORT)
    run.folder.summary.write_text(json.dumps({"verdict": "clean", "findings": []}))
    clock.advance(2)
    after = json.loads(site.answer("/run/run/report.json", "").body)

    assert (before["version"], before["again_seconds"]) == ("", 10)
    assert (after["version"] != "", after["again_seconds"]) == (True, 0)
    assert after["text"].endswith("The run has ended.")
    assert site.answer("/run/run/report", "").body == REPORT.encode()


# --- Nothing is changed, nothing else is read.


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"]
)
def test_only_reading_is_possible(site: Served, method: str) -> None:
    assert site.get("/run/after/", method).status == 405


def test_head_sends_the_headers_alone(site: Served) -> None:
    found = site.get("/", "HEAD")

    assert (found.status, found.body) == (200, b"")
    assert int(found.headers["content-length"]) > 500


def test_reading_everything_leaves_the_folder_as_it_is(runs: Path, site: Served) -> None:
    before = contents(runs)
    for name in ("before", "after", "going%20on"):
        for page in ("", "now", "now.json", "report", "report.html", "report.json", "summary.json"):
            site.get(f"/run/{name}/{page}")
    site.get("/compare?a=before&b=after")

    assert contents(runs) == before


@pytest.mark.parametrize(
    "path",
    [
        "/run/../secret",
        "/run/%2e%2e/",
        "/run/..%2fsecret/report",
        "/run/after/../../secret",
        "/run/after/%2e%2e%2f%2e%2e%2fsecret",
        "/run/after/report/../../../secret",
        "/run//",
        "/run/%00/",
        "/run/after%00/",
        "/run/after/report%00",
        "//secret",
        "/secret",
        "/run/./report",
        "/run/.%5c..%5csecret",
        "http://localhost/run/after/",
        "*",
        "/soak.css/../server.py",
        "/compare?a=..%2fsecret&b=after",
        "/compare?a=after",
        "/?with=../secret",
    ],
)
def test_no_path_leads_out_of_the_folder(site: Served, path: str) -> None:
    found = site.get(path)

    assert found.status == (200 if path.startswith("/?") else 404)
    assert SECRET not in found.text


@settings(max_examples=examples(40))
@given(
    parts=st.lists(
        st.sampled_from(
            ["..", ".", "", "run", "secret", "after", "report", "%2e%2e", "%2f", "..%2f", "%00"]
        ),
        max_size=7,
    )
)
def test_no_path_of_any_parts_leads_out_of_the_folder(site: Served, parts: list[str]) -> None:
    assert SECRET not in site.get("/" + "/".join(parts)).text


def _linked(root: Path, what: str) -> None:
    """Make a folder whose run has something that leads to the secret."""
    run = written_run(root / "runs" / "bad").folder
    secret = root / "secret"
    secret.write_text(SECRET)
    run.report.parent.mkdir()
    (run.journal / "produce.0@h").mkdir(parents=True)
    match what:
        case "run.json" | "plan.yaml" | "findings.db" | "acknowledged.json" | "phases.jsonl":
            (run.path / what).unlink(missing_ok=True)
            (run.path / what).symlink_to(secret)
        case "report" | "journal":
            shutil.rmtree(run.path / what)
            (root / "elsewhere").mkdir()
            (run.path / what).symlink_to(root / "elsewhere")
        case "report/index.html" | "journal/produce.0@h/000000.jsonl":
            (run.path / what).symlink_to(secret)
        case "journal/produce.0@h":
            shutil.rmtree(run.path / what)
            (run.path / what).symlink_to(root)
        case "loop":
            (run.path / "loop").symlink_to(run.path / "loop")
        case "dangling":
            (run.path / "acknowledged.json").symlink_to(root / "none")
        case "fifo":
            os.mkfifo(run.report)


@pytest.mark.parametrize(
    "what",
    [
        *(
            "run.json",
            "plan.yaml",
            "findings.db",
            "acknowledged.json",
            "phases.jsonl",
            "report",
            "journal",
        ),
        *("report/index.html", "journal/produce.0@h/000000.jsonl", "journal/produce.0@h"),
        *("loop", "dangling", "fifo"),
    ],
)
def test_no_link_is_followed_out_of_the_folder(tmp_path: Path, what: str) -> None:
    """Nor does a named pipe hold up a thread; the list says that the run is not shown."""
    _linked(tmp_path, what)
    with served(tmp_path / "runs") as found:
        answers = [
            found.get(path) for path in ("/run/bad/", "/run/bad/report", "/run/bad/now.json")
        ]

        assert [one.status for one in answers] == [404, 404, 404]
        assert "has links out of this folder" in found.get("/").text
        assert not [one for one in answers if SECRET in one.text]


def test_a_folder_that_is_a_link_is_no_run(runs: Path, tmp_path: Path) -> None:
    """`current` leads to one of the others, or out."""
    (tmp_path / "current").symlink_to(runs / "after")
    with served(tmp_path) as found:
        assert found.get("/run/current/").status == 404
        assert "There are no runs" in found.get("/").text


def test_a_link_within_the_folder_is_followed(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "after", tmp_path / "after")
    (tmp_path / "shared.html").write_text("shared")
    report = RunFolder(tmp_path / "after").report.parent
    (report / "old.html").symlink_to(tmp_path / "shared.html")
    with served(tmp_path) as found:
        assert found.get("/run/after/").status == 200


@pytest.mark.parametrize(
    "damage", ["", "{}", "[]", "\x00\xff", '{"id": 1, "start_wall_ns": 1e300}']
)
@pytest.mark.parametrize(
    "name", ["run.json", "plan.yaml", "phases.jsonl", "forecast.json", "report/summary.json"]
)
def test_a_damaged_run_is_a_page_and_harms_no_other(
    runs: Path, tmp_path: Path, name: str, damage: str
) -> None:
    for run in ("after", "before"):
        shutil.copytree(runs / run, tmp_path / run)
    (tmp_path / "after" / name).write_text(damage)
    jobs, _ = _jobs(tmp_path, FakeClock())
    site = Site(ServedFolder(tmp_path), jobs, FakeClock())

    assert site.answer("/run/after/", "").status in {200, 404, 500}
    assert site.answer("/run/after/now.json", "").status in {200, 404, 500}
    assert site.answer("/", "").status == 200
    assert site.answer("/run/before/", "").status == 200


# --- Headers and limits.


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/run/after/",
        "/run/going%20on/now",
        "/soak.js",
        "/soak.css",
        "/none",
        "/run/after",
        "/compare?a=before&b=after",
    ],
)
def test_every_answer_has_the_headers_of_a_careful_server(site: Served, path: str) -> None:
    headers = site.get(path).headers

    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"
    assert headers["server"].strip() == "soak"


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[", "localhost@evil"),
        *("localhost#evil", "localhost/evil", "localhost?evil", "local\thost", "localhost\\evil"),
    ],
)
def test_a_name_of_another_site_that_leads_here_is_refused(site: Served, host: str) -> None:
    assert site.get("/", Host=host).status == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8042", "127.0.0.1:1", "[::1]:8042"])
def test_this_machine_is_answered_by_any_of_its_names(site: Served, host: str) -> None:
    assert site.get("/", Host=host).status == 200


def test_a_page_of_another_site_starts_no_comparison(runs: Path) -> None:
    """It cannot read the answer, but the process that a request starts would run."""
    with served(runs) as found:
        paths = ("/compare?a=before&b=after", "/run/going%20on/", "/", "/soak.js")
        answers = [found.get(path, **{"Sec-Fetch-Site": "cross-site"}) for path in paths]
        found.jobs.step()  # would start it

    assert [one.status for one in answers] == [403] * 4
    assert answers[0].text == "A page of another site led here: enter this address yourself.\n"


@pytest.mark.parametrize("site_of_it", ["same-origin", "same-site", "none"])
def test_a_request_that_a_reader_makes_is_answered(site: Served, site_of_it: str) -> None:
    """Such as a click on our own page or an address that was entered; programs send no such header."""
    assert site.get("/", **{"Sec-Fetch-Site": site_of_it}).status == 200


def test_a_link_of_another_site_with_the_token_is_answered(runs: Path) -> None:
    """It may stand in a mail or a chat."""
    with served(runs, token=TOKEN) as found:
        headers = {"Sec-Fetch-Site": "cross-site"}

        assert found.get(f"/?token={TOKEN}", **headers).status == 303
        assert found.get("/", **headers).status == 401


TOKEN = "abcdefghijklmnop0123"


def test_beyond_loopback_a_token_is_made_and_needed(runs: Path) -> None:
    with served(runs, address="0.0.0.0") as found:
        token = found.serving.token

        assert len(token) >= 40
        assert found.serving.url.endswith(f"/?token={token}")
        assert {found.get(path).status for path in ("/", "/run/after/", "/none", "/soak.js")} == {
            401
        }
        assert found.get("/", Authorization=f"Bearer {token}", Host="any.example").status == 200


def test_a_token_becomes_a_cookie_and_leaves_the_address(runs: Path) -> None:
    with served(runs, token=TOKEN) as found:
        first = found.get(f"/run/after/?token={TOKEN}")
        cookie = first.headers["set-cookie"]

        assert (first.status, first.headers["location"]) == (303, "/run/after/")
        name = f"soak_token_{found.serving.port}"  # cookies go to every port of a host
        assert cookie == f"{name}={TOKEN}; Path=/; HttpOnly; SameSite=Strict"
        assert found.get("/", Cookie=cookie.partition(";")[0]).status == 200
        others = f'prefs={{"a":1}}; {name}={TOKEN}; soak_token_1=wrong'
        assert found.get("/", Cookie=others).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Cookie": "soak_token="},
        {"Cookie": "soak_token=\xff"},
        {"Cookie": ";;=;"},
    ],
)
def test_what_is_not_the_token_is_refused(headers: dict[str, str]) -> None:
    access = Access("0.0.0.0", TOKEN)

    for query in ("", "token=", "token=wrong", "token", f"tokens={TOKEN}"):
        refused = access.refusal("/", query, headers)
        assert refused is not None
        assert refused.status == 401


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:8042", ("127.0.0.1", 8042)),
        ("[::1]:0", ("::1", 0)),
        ("8042", ("127.0.0.1", 8042)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
    ],
)
def test_where_to_listen(text: str, expected: tuple[str, int]) -> None:
    assert parse_listen(text) == expected


@pytest.mark.parametrize(
    "text", ["", ":", ":80", "a:b", "1:2:x", "127.0.0.1:65536", "127.0.0.1:-1", "h:²"]
)
def test_where_nobody_can_listen(text: str) -> None:
    with pytest.raises(PlanError, match="must be ADDRESS:PORT"):
        parse_listen(text)


@pytest.mark.parametrize("text", ["", "short", "with a blank in it", "a;b" * 10, "ü" * 20])
def test_a_token_that_can_be_guessed_or_not_sent_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)

    with pytest.raises(PlanError, match="token"):
        read_token(tmp_path / "token")


def test_a_request_of_many_parameters_is_none_also_with_a_token() -> None:
    query = "&".join(f"a{at}=1" for at in range(9))

    refused = Access("0.0.0.0", TOKEN).refusal("/", query, {})

    assert refused is not None
    assert refused.status == 400


def test_a_killed_run_is_not_listed_as_running(tmp_path: Path) -> None:
    """One that reads its last records after the end is; both call themselves running."""
    now_ns = SystemClock().wall_ns()
    for name in ("killed", "ending", "going on"):
        run = written_run(tmp_path / name)
        run.write("produce.0@h", 0, **GOOD)
        if name == "ending":
            run.decide("end", 1)
        if name != "going on":
            for path in (run.folder.run_json, run.folder.journal / "produce.0@h/000000.jsonl"):
                os.utime(path, ns=(now_ns, now_ns - 600 * SECOND_NS))

    runs, _ = ServedFolder(tmp_path).runs(now_ns)

    assert {one.name: one.state for one in runs} == {
        "killed": "stopped",
        "ending": "running",
        "going on": "running",
    }


def _is_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_a_client_that_does_not_ask_in_time_is_ended(runs: Path) -> None:
    """Nor one that sends a byte now and then."""
    clock = FakeClock()
    with served(runs, clock) as found, found.connect() as slow:
        slow.sendall(b"GET / HT")
        found.get("/")  # connections are accepted in their order
        clock.advance(REQUEST_SECONDS + 1)

        assert _is_ended(slow)
        assert found.get("/").status == 200


def test_more_clients_than_there_is_room_for_are_refused(runs: Path) -> None:
    """Those that came first are served when they ask."""
    with served(runs, FakeClock()) as found:
        waiting = [found.connect() for _ in range(MAX_CONNECTIONS)]
        answer = found.get("/")
        waiting[0].sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")

        assert answer.status == 503
        assert waiting[0].recv(12) == b"HTTP/1.0 200"
        for one in waiting:
            one.close()


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /" + b"a" * 20_000 + b" HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.0\r\nX: " + b"a" * (MAX_REQUEST_BYTES + 1),
        b"GET / HTTP/1.0\r\n" + b"X: y\r\n" * 101 + b"\r\n",
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET\r\n\r\n",
    ],
)
def test_a_request_that_is_none_gets_an_error_or_an_end(site: Served, request_: bytes) -> None:
    answer = b""
    with site.connect() as connection, suppress(OSError):  # the end may come before all is sent
        connection.sendall(request_)
        connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(65_536):
            answer += part

    assert b" 200 " not in answer[:20]
    assert b"Traceback" not in answer
    assert site.get("/").status == 200


# --- Names as nobody should choose them.


def _folder_names(text: str) -> str:
    name = text.replace("/", "_").replace("\0", "_").encode("utf-8", "replace")[:200]
    return name.decode("utf-8", "ignore") or "x"


@pytest.mark.long
@settings(max_examples=25)
@given(text=NASTY_TEXTS)
@example(text="a&with=b#c?d%2fe+f")
def test_a_folder_of_any_name_is_listed_and_shown(text: str) -> None:
    """Each link leads to its run; the name is text and nothing else."""
    root = new_folder()
    name = _folder_names(text)
    if name in {".", ".."}:
        return
    run = written_run(root / name)
    run.becomes("ended")
    run.folder.summary.parent.mkdir()
    run.folder.summary.write_text(json.dumps({"verdict": text, "findings": [], "headline": text}))
    jobs, _ = _jobs(root, FakeClock())
    site = Site(ServedFolder(root), jobs, FakeClock())
    page = Elements(site.answer("/", "").body.decode())
    shown = site.answer(page.links[0], "")
    shutil.rmtree(root)

    assert page.tags <= PAGE_TAGS
    assert is_harmless(page.text)
    assert (shown.status, b'class="where"' in shown.body) == (200, True)


@pytest.mark.long
@settings(max_examples=examples(30))
@given(text=NASTY_TEXTS)
def test_no_name_is_markup_on_any_page(text: str) -> None:
    """Plan, run, phase, trouble, series, verdict and reasons; attributes are those of the templates."""
    found = dataclasses.replace(FOUND, series=f'consume.0@{text}|x_seconds{{a="{text}"}}')
    seen = dataclasses.replace(
        snapshot(100, (found,), name=text, phase=text, troubles=(text,)), run_id=text, invalid=text
    )
    listed = ListedRun(text, text, text, text, text, text, text, text.encode("utf-8", "replace"))
    pages = Pages()
    several = [
        pages.run(seen, 0, text, has_home=True),
        pages.now(seen, 0, text),
        pages.runs(text, [listed], listed, 3),
        pages.message("title", [text], 2),
        pages.report({"name": text, "version": "1-2", "text": text, "again_seconds": 10}),
    ]

    for page in several:
        elements = Elements(page)
        assert elements.tags <= PAGE_TAGS
        assert not [one for _, found in elements.found for one in found if one.startswith("on")]
        assert [found for tag, found in elements.found if tag == "script"] in (
            [{"src": "/soak.js", "defer": ""}],
            [],
        )
        assert is_harmless(elements.text)
        assert len(page) < 60_000


@pytest.mark.long
def test_pages_that_are_open_in_turn_keep_what_was_read(tmp_path: Path) -> None:
    """Forty runs go on. What was read is gone from their journals, so it cannot be read a second time."""
    runs, clock = [written_run(tmp_path / f"run-{at}") for at in range(40)], FakeClock()
    for run in runs:
        for k in range(100):
            run.write("produce.0@h", k, **GOOD)
    clock.advance(100)
    with served(tmp_path, clock) as found:

        def sent(run: WrittenRun) -> float:
            body = json.loads(found.get(f"/run/{run.folder.path.name}/now.json").body)
            return float(body["totals"]["sent"])

        assert {sent(run) for run in runs} == {100_000.0}
        for run in runs:
            (journal,) = (run.folder.journal / "produce.0@h").iterdir()
            journal.write_bytes(b"\n" * journal.stat().st_size)
            run.write("produce.0@h", 100, **GOOD)
        clock.advance(2)

        assert {sent(run) for run in runs} == {101_000.0}


def test_another_run_in_the_same_folder_is_read_anew(tmp_path: Path) -> None:
    clock = FakeClock()
    clock.advance(100.5)
    run = written_run(tmp_path / "runs" / "nightly")
    for k in range(100):
        run.write("produce.0@h", k, **GOOD)
    site = Site(ServedFolder(tmp_path / "runs"), _jobs(tmp_path, clock)[0], clock)
    site.answer("/run/nightly/now.json", "")
    shutil.rmtree(run.folder.path)
    other = written_run(tmp_path / "runs" / "nightly")
    start = START_WALL_NS + 90 * SECOND_NS
    write_run(other.folder, Run("other", start, "host", {}, "running", "written"))
    for k in range(10):
        other.write("produce.0@h", k, **{**GOOD, "sent": 7.0})
    clock.advance(1)

    found = json.loads(site.answer("/run/nightly/now.json", "").body)

    assert (found["run_id"], found["totals"]["sent"], found["sent"]) == ("other", 70.0, 7.0)


@pytest.mark.long
def test_many_readers_of_a_run_share_what_was_read(tmp_path: Path) -> None:
    """Each look of a second reads what is new, for all of them together."""
    clock = FakeClock()
    run = written_run(tmp_path / "run")
    for k in range(10):
        run.write("produce.0@h", k, **GOOD)
    clock.advance(10.5)
    site = Site(ServedFolder(tmp_path), _jobs(tmp_path, clock)[0], clock)
    first = site.answer("/run/run/now.json", "").body
    (run.folder.journal / "produce.0@h" / "000000.jsonl").unlink()  # nobody reads it again
    with ThreadPoolExecutor(12) as pool:
        bodies = set(pool.map(lambda _: site.answer("/run/run/now.json", "").body, range(200)))

    assert bodies == {first}


# --- Comparisons and reports.


class _Process:
    """A process that ends when it is asked to."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.kills = 0
        self.pid = 2**22 + 1  # none: Linux has no larger ones

    def kill(self) -> None:
        self.kills += 1
        self.code = -9

    def wait(self, _timeout: float) -> int | None:
        return self.code

    def poll(self) -> int | None:
        return self.code


class _Spawned:
    """Notes what would be started."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.process = _Process()

    def __call__(self, arguments: list[str], log: Path, _folder: Path) -> Popen[bytes]:
        self.asked.append(arguments)
        self.process = _Process()
        log.write_text("soak: b has no report yet\n")
        return self.process  # type: ignore[return-value]  # as far as it is used

    def ends(self, code: int, page: str = "") -> None:
        """End the newest process, which has written a page."""
        if page:
            asked = self.asked[-1]
            Path(asked[asked.index("--page") + 1]).write_text(page)
        self.process.code = code


def _jobs(root: Path, clock: FakeClock, renew_seconds: int = 0) -> tuple[Jobs, _Spawned]:
    spawned = _Spawned()
    return Jobs(root, clock, renew_seconds * SECOND_NS, spawned), spawned


def test_a_comparison_is_made_once_and_kept(runs: Path) -> None:
    """It keeps nothing in the folders; a name with a dash is no option."""
    jobs, spawned = _jobs(runs, FakeClock())
    before, after = RunFolder(runs / "before"), RunFolder(runs / "after")

    assert jobs.comparison(before, after) is None
    jobs.step()
    assert jobs.comparison(before, after) is None
    jobs.step()
    spawned.ends(3, "<p>worse")
    jobs.step()
    found = jobs.comparison(before, after)

    assert found is not None
    assert found.page == b"<p>worse"
    (asked,) = spawned.asked
    assert asked[:2] == ["compare", "--no-cache"]
    assert asked[-3:] == ["--", "./runs/before", "./runs/after"]


def test_a_comparison_that_fails_says_why(runs: Path) -> None:
    jobs, spawned = _jobs(runs, FakeClock())
    before, after = RunFolder(runs / "before"), RunFolder(runs / "going on")
    jobs.comparison(before, after)
    jobs.step()
    spawned.ends(1)
    jobs.step()

    found = jobs.comparison(before, after)

    assert found is not None
    assert found.why == "b has no report yet"


def test_a_comparison_that_cannot_begin_says_so_and_the_server_goes_on(runs: Path) -> None:
    def fail(_arguments: list[str], _log: Path, _folder: Path) -> Popen[bytes]:
        raise OSError("no room")

    jobs = Jobs(runs, FakeClock(), 0, fail)
    before, after = RunFolder(runs / "before"), RunFolder(runs / "after")
    jobs.comparison(before, after)
    jobs.step()
    found = jobs.comparison(before, after)
    jobs.close()

    assert found is not None
    assert found.why == "cannot begin: no room"
    assert jobs.comparison(before, after) is None  # it is tried again


def test_a_comparison_that_took_too_long_is_made_again_for_the_next_reader(runs: Path) -> None:
    clock = FakeClock()
    jobs, _ = _jobs(runs, clock)
    before, after = RunFolder(runs / "before"), RunFolder(runs / "after")
    jobs.comparison(before, after)
    jobs.step()
    clock.advance(601)
    jobs.step()
    found = jobs.comparison(before, after)

    assert found is not None
    assert found.why == "it took too long"
    assert jobs.comparison(before, after) is None


def test_no_file_of_the_folder_takes_the_place_of_a_module(tmp_path: Path) -> None:
    """Others may write into the folder above the runs."""
    (tmp_path / "soak").mkdir()
    (tmp_path / "soak" / "__init__.py").write_text("print('taken over')")
    process = spawn_command(["--version"], tmp_path / "log", tmp_path)

    assert process.wait(60) == 0
    assert "taken over" not in (tmp_path / "log").read_text()


def test_a_report_that_is_made_anew_is_compared_anew(tmp_path: Path, runs: Path) -> None:
    shutil.copytree(runs, tmp_path / "runs")
    jobs, spawned = _jobs(tmp_path / "runs", FakeClock())
    before, after = (RunFolder(tmp_path / "runs" / name) for name in ("before", "after"))
    jobs.comparison(before, after)
    jobs.step()
    spawned.ends(0, "<p>same")
    jobs.step()
    after.summary.write_text(after.summary.read_text() + " ")

    assert jobs.comparison(before, after) is None


def test_comparisons_that_wait_are_bounded(runs: Path) -> None:
    jobs, _ = _jobs(runs, FakeClock())
    before = RunFolder(runs / "before")

    found = [jobs.comparison(before, RunFolder(runs / str(at))) for at in range(6)]

    assert [one is None for one in found] == [True] * 4 + [False] * 2
    assert found[5] is not None
    assert "Try again" in found[5].why


def test_a_report_is_renewed_while_somebody_looks_and_not_more_often(runs: Path) -> None:
    clock = FakeClock()
    jobs, spawned = _jobs(runs, clock, 600)
    run = RunFolder(runs / "going on")
    jobs.step()
    assert spawned.asked == []

    jobs.watch(run)
    jobs.step()
    assert spawned.asked == [["report", "--", str(run.path)]]
    assert jobs.renewal_text(run) == "The report is being renewed."

    spawned.ends(1)
    for _ in range(599):
        clock.advance(1)
        jobs.watch(run)
        jobs.step()
    assert len(spawned.asked) == 1
    assert jobs.renewal_text(run).endswith("The last time that failed: b has no report yet")

    clock.advance(2)
    jobs.watch(run)
    jobs.step()
    assert len(spawned.asked) == 2


def test_a_report_of_a_run_that_ends_meanwhile_is_stopped(tmp_path: Path) -> None:
    """It would be made of a part of the run, and be written after the last one."""
    jobs, spawned = _jobs(tmp_path, FakeClock(), 600)
    run = written_run(tmp_path / "run")
    jobs.watch(run.folder)
    jobs.step()
    jobs.step()
    assert spawned.process.kills == 0

    run.becomes("ended")
    jobs.step()

    assert spawned.process.kills == 1
    assert jobs.renewal_text(run.folder) != "The report is being renewed."


def test_no_report_is_made_of_a_run_that_is_over_or_that_nobody_looks_at(runs: Path) -> None:
    clock = FakeClock()
    jobs, spawned = _jobs(runs, clock, 600)
    jobs.watch(RunFolder(runs / "after"))
    jobs.step()
    jobs.watch(RunFolder(runs / "going on"))
    clock.advance(61)
    jobs.step()

    assert spawned.asked == []


def test_without_renewal_none_is_made_and_the_page_says_how(runs: Path) -> None:
    jobs, spawned = _jobs(runs, FakeClock())
    run = RunFolder(runs / "going on")
    jobs.watch(run)
    jobs.step()

    assert spawned.asked == []
    assert "`soak report` with the folder of the run renews it" in jobs.renewal_text(run)


def test_the_names_of_the_runs_are_compared_and_never_joined(runs: Path) -> None:
    folder = ServedFolder(runs)

    assert sorted(folder.keys()) == [b"after", b"before", b"going on"]
    assert [folder.find(key) for key in (b"..", b".", b"", b"../runs/after", b"after/")] == [
        None
    ] * 5
