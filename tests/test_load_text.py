"""What a report and `soak check` say of a load that is not the same all the time."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.core.load_text import size_text, soak_rate_text
from soak.core.plan_text import load
from soak.store.profile_file import kept_profile
from spark import report
from spark.timeline import assemble
from tests.checking import checked
from tests.report_run import read
from tests.synthetic_run import Shape, write_synthetic_run

MIXTURE = "[{size: 1KiB, share: 0.5}, {size: 64KiB, share: 0.5}]"
STEPS = "{steps: [{after: 30s, rate: 80k/s}, {after: 90s, rate: 5k/s}, {after: 1h, rate: 90k/s}]}"


@pytest.mark.parametrize(
    ("phases", "profile", "said"),
    [
        ("", "{}", "20k/s"),
        ("", STEPS, "5k/s to 80k/s"),
        ("", "{sine_period: 40s, sine_amplitude: 0.5}", "10.03k/s to 29.97k/s"),
        ("ramp: {soak_share: 0.8}, ", STEPS, "80% of the rate that the ramp finds"),
    ],
)
def test_the_rates_of_a_soak_are_told_from_the_lowest_to_the_highest(
    phases: str, profile: str, said: str
) -> None:
    """What comes after the soak is not among them, and of a ramp nobody knows."""
    text = f"load: {{rate: 20k/s, profile: {profile}}}\nphases: {{{phases}soak: 2min}}\n"
    plan = load(f"name: x\nbroker: {{kafka: {{}}}}\n{text}", "plan.yaml").plan

    assert soak_rate_text(plan) == said


def test_a_mixture_is_told_with_its_mean_and_its_ends() -> None:
    text = f"name: x\nbroker: {{kafka: {{}}}}\nload: {{message_sizes: {MIXTURE}}}\n"

    assert size_text(load(text, "plan.yaml").plan.load) == "32.5 KiB on average (1 KiB to 64 KiB)"


def test_a_report_tells_the_load_as_it_was(tmp_path: Path) -> None:
    """Not a size and a rate that the plan replaces; of a file that is gone the name."""
    folder = write_synthetic_run(tmp_path / "run", Shape(fault_k=None))
    head, _, rest = folder.plan.read_text().partition("load:\n")
    varied = f"load: {{rate: 400/s, profile: {{file: day.csv}}, message_sizes: {MIXTURE}}}\n"
    folder.plan.write_text(head + varied + rest[rest.index("limits:") :])
    kept_profile(folder).write_text("seconds,rate\n0,300/s\n60,1200/s\n9999,2k/s\n")

    report.write(assemble(folder, read), [], None)
    told = folder.report.read_text()
    kept_profile(folder).unlink()
    report.write(assemble(folder, read), [], None)

    assert (
        "3 min 35 s of soak at 300/s to 1.2k/s of 32.5 KiB on average (1 KiB to 64 KiB), " in told
    )
    assert "of soak at the rates of day.csv, which cannot be read, of " in folder.report.read_text()


def test_the_check_tells_all_rates_of_the_soak(tmp_path: Path) -> None:
    said = checked(
        tmp_path,
        "broker: {kafka: {}}\nload: {rate: 1k/s, profile: {steps: [{after: 5s, rate: 2k/s}]}}\n",
    )

    assert "good. 1k/s to 2k/s against a lab broker" in said
