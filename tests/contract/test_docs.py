"""The documentation holds: generated parts, links, plans, causes, metrics, and sentences that can be read."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

from detectors import attribution
from probes.broker_log import patterns
from soak.app import first_plan
from soak.core.clock import SystemClock
from soak.core.cluster.forecast import (
    Forecast,
    forecast_lines,
    forecast_plan,
    forecast_warnings,
)
from soak.core.model import Column
from soak.core.plan import plugins
from soak.core.plan import text as plan_text
from soak.core.plan.plan import Alerts, Plan
from soak.core.wording import amount
from soak.runtime.context import connect
from soak.service.metric_names import SHOWN, shown_as
from tests.docs import prose, reference, walkthrough
from tests.support.paths import ROOT

PAGES = prose.all_pages()
USER_PAGES = [page for page in PAGES if not prose.is_evidence(page)]
DOCS = ROOT / "docs"
CAUSES = (DOCS / "reference" / "causes.md").read_text()
METRICS = (DOCS / "reference" / "metrics.md").read_text()
PARTS = (
    "In short",
    "What you see",
    "Confirm it",
    "Do now",
    "For good",
    "Easily mistaken for",
    "Not named when",
)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_YAML = re.compile(r"^( *)```yaml\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_NO_PLAN = ("scrape_configs:", "route:", "groups:")
"""Blocks of other programs, whose first key they begin with."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


# --- generated parts


@pytest.mark.parametrize("page", [*reference.pages()], ids=name_of)
def test_a_generated_part_is_what_the_code_gives(page: Path) -> None:
    """`make reference` writes it anew: a key, command, unit or drill that changes is on its page."""
    assert reference.generated(page.read_text()) == page.read_text()


def test_every_generated_part_is_on_a_page() -> None:
    text = "".join(page.read_text() for page in reference.pages())

    assert [name for name in reference.BLOCKS if f"generated: {name} " not in text] == []


def test_every_key_of_a_plan_says_what_it_means() -> None:
    said = reference.key_meanings()

    assert [key.path for key in reference.plan_keys() if not said.get(key.path)] == []


def test_a_key_of_another_section_is_not_taken_for_this_one() -> None:
    """The meaning is looked up by the whole path."""
    said = reference.meanings(
        "a:\n  timeout: 1s # of a\nb:\n  timeout: 2s\n# c:\n#   timeout: 3s # of c\n"
    )

    assert said == {"a.timeout": "of a", "c.timeout": "of c"}


# --- links


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as forges make them."""
    found: list[str] = []
    for head in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head).lower().replace("`", "")
        found.append(re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-"))
    return set(found)


def links(page: Path) -> list[tuple[str, Path, str]]:
    """Return the links of a page to files: as written, the file, the anchor."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = []
    for target in _LINK.findall(text):
        if not re.match(r"[a-z]+:", target):
            file, _, anchor = target.partition("#")
            found.append((target, (page.parent / file).resolve() if file else page, anchor))
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    dead = [
        target
        for target, file, anchor in links(page)
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file))
    ]

    assert dead == []


def test_every_page_and_picture_is_reached_from_the_index() -> None:
    """Through other pages, too; the README is one of them."""
    seen: set[Path] = set()
    waiting = [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page not in seen:
            seen.add(page)
            if page.suffix == ".md":
                waiting += [file for _, file, _ in links(page) if file.is_file()]
    files = [file for file in DOCS.rglob("*") if file.suffix in {".md", ".png", ".svg"}]

    assert [name_of(file) for file in sorted(files) if file not in seen] == []


@pytest.mark.parametrize("page", USER_PAGES, ids=name_of)
def test_a_page_of_the_docs_is_linked_and_not_quoted(page: Path) -> None:
    """A quoted name cannot be followed, and is not checked."""
    assert re.findall(r"`(?:docs/)?[\w/-]+\.md`", prose.prose(page.read_text())) == []


def test_paths_of_pages_in_the_code_exist() -> None:
    named = set()
    for package in ("soak", "probes", "spark", "detectors", "configs", "tests"):
        for path in (ROOT / package).rglob("*"):
            if path.suffix in {".py", ".yaml", ".toml"} and "data" not in path.parts:
                named |= set(re.findall(r"\bdocs/[\w/-]+\.(?:md|jsonl)", path.read_text()))

    assert sorted(one for one in named if not (ROOT / one).exists()) == []


# --- plans


def shown_plans() -> list[tuple[str, str]]:
    """Return the plans and parts of plans that pages show, with their place."""
    return [
        (f"{name_of(page)}-{at}", re.sub(rf"^{indent}", "", body, flags=re.MULTILINE))
        for page in USER_PAGES
        for at, (indent, body) in enumerate(_YAML.findall(page.read_text()))
        if not any(one in body for one in _NO_PLAN) and "kubernetes" not in page.name
    ]


def padded(body: str) -> str:
    """Return a part of a plan as a plan: with a name and a broker where it has none."""
    name = "" if re.search(r"^name:", body, re.MULTILINE) else "name: p\n"
    broker = "" if re.search(r"^broker:", body, re.MULTILINE) else "broker: {kafka: {}}\n"
    return f"{name}{broker}{body}"


@pytest.mark.parametrize("body", [pytest.param(body, id=place) for place, body in shown_plans()])
def test_a_plan_that_a_page_shows_can_be_loaded(body: str) -> None:
    assert plan_text.load(padded(body), "page").plan.name


def forecast_with_defaults(plan: Plan) -> Forecast:
    """Return what a plan stores on brokers with Kafka's defaults."""
    guarantees = connect(plan, SystemClock()).guarantees
    limits = guarantees.assumed_retention(plan.topic, {})
    return forecast_plan(plan, limits, guarantees.stored_size(plan.load, plan.topic, limits))


def plan_of_soak_init() -> Plan:
    """Return what `soak init` writes for three brokers without a login."""
    answers = first_plan.Answers("kafka", "broker1:9092,broker2:9092,broker3:9092")
    written = first_plan.plan_text(Path("my-soak.yaml"), answers, 3)
    return plan_text.load(written, "my-soak.yaml").plan


def test_the_plan_of_the_readme_is_that_of_soak_init_and_holds_what_it_says() -> None:
    body = next(body for place, body in shown_plans() if place.startswith("README"))
    plan = plan_text.load(body, "README.md").plan
    held = forecast_with_defaults(plan).most_held_bytes

    assert plan == plan_of_soak_init()
    assert f"holds at most {amount(held, 'bytes')}" in (ROOT / "README.md").read_text()
    assert plan.phases.warm_up + plan.phases.soak == 15 * 60 * 10**9


def test_the_tutorial_shows_what_the_plan_of_soak_init_stores() -> None:
    """On brokers with Kafka's defaults; deletions begin within the soak."""
    found = forecast_with_defaults(plan_of_soak_init())
    shown = [
        line
        for step in walkthrough.steps((DOCS / "tutorials" / "first-soak.md").read_text())
        for line in step.expected
    ]

    assert found.seen == "in the soak"
    assert forecast_warnings(found, None) == []
    assert [line for line in forecast_lines(found, None) if line not in shown] == []
    held = f"hold at most {amount(found.most_held_bytes, 'bytes')} of it"
    assert any(held in line for line in shown)


# --- pages that are followed


def test_a_page_is_cut_into_steps_with_their_output() -> None:
    page = "```\none\n```\nsays\n```text\na\n\nb\n```\n```yaml\nx: y\n```\n```\ntwo # exit code 2\n```\n"

    assert list(walkthrough.steps(page)) == [
        walkthrough.Step("one\n", 0, ("a", "b")),
        walkthrough.Step("two # exit code 2\n", 2, ()),
    ]


def test_output_may_differ_in_numbers_ids_and_addresses_and_in_nothing_else() -> None:
    """Other lines may be between; the order counts."""
    shown = ["held 2.09 GiB at broker1:9093,broker2:9093", "verdict: clean"]
    output = "held 1 MiB at h:1\nmore\nverdict: clean\n"

    assert walkthrough.missing(shown, output) == []
    assert walkthrough.missing(["held 2.09 GiB in broker1:9093"], output) != []
    assert walkthrough.missing(shown[::-1], output) == [shown[0]]
    assert walkthrough.missing(["verdict: bad"], output, [("bad", "cl.*")]) == []


# --- commands of Kafka

_OF_KAFKA = re.compile(r"\b(kafka-[a-z-]+\.sh)((?:\\\n|[^`\n|#])*)")
_NOT_TO_RUN = re.compile(
    r"<!-- generated.*?<!-- end -->|^```text\n.*?^```$|^\*\*Next step.*?$", re.MULTILINE | re.DOTALL
)
"""What soakd prints, which has room for the main options alone."""
KAFKA_OPTIONS = {
    "kafka-acls.sh": "add remove list allow-principal principal operation topic cluster group "
    "transactional-id resource-pattern-type command-config",
    "kafka-configs.sh": "alter describe entity-type entity-name entity-default add-config delete-config "
    "command-config",
    "kafka-consumer-groups.sh": "describe all-groups group command-config",
    "kafka-leader-election.sh": "election-type all-topic-partitions topic partition command-config",
    "kafka-reassign-partitions.sh": "list cancel reassignment-json-file throttle command-config",
    "kafka-topics.sh": "list describe topic under-replicated-partitions unavailable-partitions "
    "command-config",
}
"""Those options of Kafka 4's tools that pages use: --help of each lists them."""


@pytest.mark.parametrize("page", USER_PAGES, ids=name_of)
def test_a_command_of_kafka_can_be_run_as_it_is_written(page: Path) -> None:
    """It says which cluster, and has no option that the tool does not know."""
    wrong = []
    for tool, rest in _OF_KAFKA.findall(_NOT_TO_RUN.sub("", page.read_text())):
        options = re.findall(r"(?<=\s)--([a-z-]+)", rest)
        unknown = set(options) - {"bootstrap-server", *KAFKA_OPTIONS.get(tool, "").split()}
        if options and (unknown or "bootstrap-server" not in options):
            wrong.append(f"{tool}{rest}")

    assert wrong == []


# --- causes


def sections() -> dict[str, str]:
    """Return the text of each section of the runbook by its cause."""
    parts = re.split(r"^## (\w+)$", CAUSES, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_runbook_has_every_cause_and_no_other() -> None:
    assert sorted(sections()) == sorted(attribution.causes())


@pytest.mark.parametrize("cause", sorted(attribution.causes()))
def test_a_cause_has_every_part(cause: str) -> None:
    text = sections()[cause]
    parts = re.findall(r"^\*\*([^*]+)\.\*\*", text, re.MULTILINE)

    assert tuple(parts) == PARTS


@pytest.mark.parametrize("cause", sorted(attribution.confirmations("kafka")))
def test_a_section_confirms_with_the_command_and_the_threshold_of_the_mail(cause: str) -> None:
    """Both come from the table of the cause's module; the page may set names in it as code.

    What a mail fills in is in capitals there, but for the login that tools need on a secured cluster.
    """
    one = attribution.confirmations("kafka")[cause].filled({"admin": ""})
    where = one.where[:1].upper() + one.where[1:]
    text = " ".join(sections()[cause].replace("`", "").split())

    assert f"**Confirm it.** {where}, {one.command} shows {one.sign}." in text


def test_a_section_notes_a_setting_before_it_changes_it_and_says_how_to_set_it_again() -> None:
    """A deleted override is no way back where one was set before."""
    altered = {cause: text for cause, text in sections().items() if "--add-config" in text}
    orders = {
        cause: [text.find(one) for one in ("--describe --entity-type", "--add-config", "noted")]
        for cause, text in altered.items()
    }

    wrong = [one for one, places in orders.items() if -1 in places or places != sorted(places)]

    assert wrong == []


def test_data_of_others_is_deleted_after_that_of_the_run_and_with_consent() -> None:
    text = sections()["disk_full"].partition("**Do now.**")[2]
    steps = ("soak stop", "soak clean", "consent", "--add-config retention.ms")

    assert sorted(steps, key=text.index) == [*steps]


def test_the_page_that_mails_link_to_has_the_heading_of_each_cause() -> None:
    page = ROOT / Alerts().runbook_url

    assert set(attribution.causes()) <= anchors(page)


# --- metrics


READERS = ("soak/app/", "soak/omb/", "soak/lab/")
"""They name columns that others have recorded."""
NO_METRICS = {
    "lag_seconds": "a field of an event",
    "batch_seconds": "a key of progress.json",
    "created_segments": "the end of a name",
    "renamed_segments": "the end of a name",
    "unlinked_segments": "the end of a name",
    "unlinked_bytes": "the end of a name",
    "x_seconds": "of a record that is made up",
}
"""What looks like a metric in a module that records some."""
OF_TARGETS = {"up", "scrape_duration_seconds"}
"""Of each target of the probe `prometheus`; their page has one text for all that was fetched."""


def metrics_in(tree: ast.Module) -> set[str]:
    """Return the metrics that a module names.

    They are the first arguments of `Column`. Where one of these is a variable, each text of the module counts
    that ends with a word with which the name of a metric ends.
    """
    calls = [
        node.args[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Column"
        and node.args
    ]
    found = {str(one.value) for one in calls if isinstance(one, ast.Constant)}
    if any(not isinstance(one, ast.Constant) for one in calls):
        ends = {name.rpartition("_")[2] for name in SHOWN}
        texts = {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        names = {text for text in texts if re.fullmatch(r"[a-z]+(_[a-z0-9]+)+", text)}
        found |= {name for name in names if name.rpartition("_")[2] in ends}
    return found - NO_METRICS.keys()


@cache
def recorded_metrics() -> frozenset[str]:
    """Return the metrics that the code records."""
    return frozenset(
        name
        for package in ("soak", "probes", "spark")
        for path in (ROOT / package).rglob("*.py")
        if not name_of(path).startswith(READERS)
        for name in metrics_in(ast.parse(path.read_text()))
    )


def listed_metrics() -> set[str]:
    """Return the metrics of soakd itself that have a row in the reference."""
    own = METRICS.split("## Pages of brokers")[0]
    rows = re.findall(r"^\| (`.*?) \|", own, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


OF_PAGES = {"soak_daemon_info", "soak_last_record_timestamp_seconds"}


def test_the_reference_has_a_row_of_every_metric_and_no_other() -> None:
    """Also those whose names are put together, which are in `metric_names`, and those of logs."""
    files = sorted(path.stem for path in patterns.FOLDER.glob("*.toml"))
    of_logs = {one.metric for one in patterns.load(files) if one.metric}
    known = recorded_metrics() | SHOWN.keys() | of_logs | OF_PAGES

    assert sorted(known - listed_metrics()) == []
    assert sorted(listed_metrics() - known) == []


def test_every_metric_that_is_recorded_has_a_text_on_the_pages() -> None:
    """In `metric_names`: without one a page repeats the name instead of saying what it means."""
    shown = {name for name in recorded_metrics() if shown_as(Column(name)) is not None}

    assert sorted(shown - SHOWN.keys() - OF_TARGETS) == []


def test_a_metric_whose_name_stands_elsewhere_than_in_its_column_is_seen() -> None:
    """In a table or a mapping from which the columns are made."""
    of_table = 'names = {"detect_lost_rows": 1.0, "at_ns": 2}\n[Column(name) for name in names]'

    assert metrics_in(ast.parse(of_table)) == {"detect_lost_rows"}
    assert metrics_in(ast.parse(of_table.replace("Column(name)", 'Column("one")'))) == {"one"}


# --- probes


def test_every_probe_has_a_section_in_the_reference() -> None:
    text = (DOCS / "reference" / "probes.md").read_text()
    headings = " ".join(re.findall(r"^## (.+)$", text, re.MULTILINE))

    assert sorted(set(plugins.names("probes")) - set(headings.split())) == []


# --- events

_MAKERS = {"Event", "note_event", "_event", "_offsets_event", "_named"}
_POLLED = ("retention", "broker_log")  # prefixes of a `ReadingBuffer`


def _kinds(node: ast.expr, tree: ast.Module, module: str) -> set[str]:
    """Return the kinds that an expression may be; none for a parameter, whose callers name it."""
    match node:
        case ast.Constant(value=str() as kind):
            return {kind}
        case ast.IfExp():
            return _kinds(node.body, tree, module) | _kinds(node.orelse, tree, module)
        case ast.JoinedStr(values=[_, ast.Constant(value=str() as end)]):
            return {f"{prefix}{end}" for prefix in _POLLED}
        case ast.Name(id=name):
            constant = getattr(importlib.import_module(module), name, None)
            local = [
                one.value
                for one in ast.walk(tree)
                if isinstance(one, ast.Assign)
                and any(isinstance(to, ast.Name) and to.id == name for to in one.targets)
            ]
            if isinstance(constant, str):
                return {constant}
            return {kind for one in local for kind in _kinds(one, tree, module)}
    return set()


def recorded_events() -> set[str]:
    """Return the kinds of events that the code records, without those of log patterns."""
    found = set()
    for package in ("soak", "probes"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text()
            if not re.search("|".join(rf"\b{name}\(" for name in _MAKERS), text):
                continue
            tree = ast.parse(text)
            module = str(path.relative_to(ROOT).with_suffix("")).replace("/", ".")
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and node.args:
                    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                    owner = getattr(getattr(node.func, "value", None), "id", "")
                    if name in _MAKERS and owner not in {"threading", "asyncio"}:
                        found |= _kinds(node.args[0], tree, module)
    return {kind for kind in found if re.fullmatch("[a-z][a-z_]+", kind)} - _BY


_BY = {"deletion", "compaction"}
"""What a bookie reclaims by: the first argument of its `_event`, and no kind."""


def test_the_page_of_events_has_every_kind_and_no_other() -> None:
    rows = re.findall(
        r"^\| (`.*?) \|", (DOCS / "reference" / "events.md").read_text(), re.MULTILINE
    )

    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == sorted(
        recorded_events()
    )


# --- summary.json


def summary_keys() -> set[str]:
    """Return the keys that the modules of the summary write out."""
    found = set()
    for name in ("summary.py", "job.py"):
        for node in ast.walk(ast.parse((ROOT / "spark" / "report" / name).read_text())):
            if isinstance(node, ast.Dict):
                keys = {key.value for key in node.keys if isinstance(key, ast.Constant)}
                if name == "summary.py" or "headline" in keys:
                    found |= keys
    return {str(key) for key in found if isinstance(key, str)}


def test_every_key_of_the_summary_is_described() -> None:
    text = (DOCS / "reference" / "summary-json.md").read_text()

    assert sorted(key for key in summary_keys() if f"`{key}`" not in text) == []


# --- sentences


@pytest.mark.parametrize("page", USER_PAGES, ids=name_of)
def test_no_sentence_is_too_long_to_be_read_once(page: Path) -> None:
    """At most 35 words, outside of evidence and decisions."""
    assert [one.text for one in prose.long_sentences(page)] == []


@pytest.mark.parametrize("page", USER_PAGES, ids=name_of)
def test_no_word_of_the_old_dialect_is_used(page: Path) -> None:
    assert prose.old_words(page) == []


def test_sentences_are_counted_without_code_and_tables() -> None:
    """And a sentence ends at its stop, also in a list."""
    body = "One two. Three `a b c`.\n\n| x | y |\n|---|---|\n\n- four\n- five six\n\n"
    text = f"# Head\n\n{body}```\ncode\n```\n"
    page = ROOT / "docs" / "index.md"

    class Page(type(page)):  # type: ignore[misc]
        def read_text(self, *_: object, **__: object) -> str:
            return text

    found = [(one.text, one.words) for one in prose.sentences(Page(page))]

    assert found == [("One two.", 2), ("Three `x`.", 2), ("four", 1), ("five six", 2)]
