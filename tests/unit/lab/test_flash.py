"""The model of a flash drive: when it runs out of erased pages, how long writes wait then, what trim does."""

from __future__ import annotations

import random

import pytest

from soak.lab.drive.flash import PAGE_BYTES, Flash, Settings

PAGES = 1000
CAPACITY = PAGES * PAGE_BYTES


def aged(**changes: float) -> Flash:
    """Return a full drive of a thousand pages with 280 erased ones."""
    return Flash(CAPACITY, Settings(**changes), 0.0)  # type: ignore[arg-type]  # all but one are numbers


def overwrite(flash: Flash, pages: int, now: float) -> float:
    """Overwrite so many pages one by one, at one instant; return how long the last one takes."""
    return [flash.write(at % PAGES * PAGE_BYTES, PAGE_BYTES, now) for at in range(pages)][-1]


def per_page(flash: Flash, writes: list[tuple[float, int]]) -> tuple[float, int, int]:
    """Do the same page by page and in steps of a millisecond: erased, stale and valid pages at the end."""
    settings, erased, stale, valid = flash.settings, flash.erased, 0.0, set(range(PAGES))
    now = 0.0
    for at, page in writes:
        while now < at:
            rate = settings.collected_pages_per_second * (
                settings.foreground_ratio if erased < 0 else 1
            )
            collected = min(stale, rate * stale / (stale + len(valid)) * 0.001)
            stale, erased, now = stale - collected, erased + collected, now + 0.001
        stale += page in valid
        valid.add(page)
        erased -= 1
    return erased, round(stale), len(valid)


def test_a_drive_without_collection_lasts_for_its_spare_pages() -> None:
    """A thousand pages and 28 % spare: 280 quick writes, and the next one waits."""
    flash = aged(collected_pages_per_second=1000.0)

    assert overwrite(flash, 280, now=0.0) == 0
    assert flash.starved_at_written_pages is None
    # 281 of 1281 used pages are stale, so 1000 a second become 219.
    assert flash.write(0, PAGE_BYTES, 0.0) == pytest.approx(1281 / 281 / 1000)
    assert flash.starved_at_written_pages == 281


def test_those_who_wait_stand_in_one_queue() -> None:
    """The second one that finds no page waits for two."""
    flash = aged(collected_pages_per_second=1000.0)
    overwrite(flash, 281, now=0.0)

    assert flash.write(0, PAGE_BYTES, 0.0) == pytest.approx(2 * 1282 / 282 / 1000)


def test_while_a_write_waits_the_drive_collects_in_the_foreground() -> None:
    """Three times as fast, until the page is there; what else is collected is collected as before."""
    flash = aged(collected_pages_per_second=1000.0, foreground_ratio=3.0)
    overwrite(flash, 280, now=0.0)
    waited = flash.write(0, PAGE_BYTES, 0.0)

    flash.collect(waited + 0.1)

    assert waited == pytest.approx(1281 / 281 / 3000)
    assert flash.erased == pytest.approx(0.1 * 1000 * 281 / 1281, rel=0.1)


def test_a_new_drive_takes_its_whole_capacity_and_more_before_it_starves() -> None:
    """Nothing is stale while it is filled for the first time."""
    flash = aged(is_full=False, collected_pages_per_second=1000.0)

    assert overwrite(flash, PAGES, now=0.0) == 0
    assert (flash.valid, flash.stale) == (PAGES, 0)
    assert flash.erased == pytest.approx(280)


def test_what_is_trimmed_is_collected_quickly() -> None:
    """Half of it trimmed: the pool is full again within seconds, and a write waits no longer."""
    flash = aged(collected_pages_per_second=1000.0)
    overwrite(flash, 400, now=0.0)

    flash.trim(0, CAPACITY // 2, 0.0)

    assert flash.trimmed_pages == PAGES // 2
    assert flash.write(0, PAGE_BYTES, 3.0) == 0


def test_only_whole_pages_are_trimmed_and_each_once() -> None:
    """A request of one byte less than two pages frees one."""
    flash = aged()

    for _ in range(2):
        flash.trim(PAGE_BYTES // 2, 2 * PAGE_BYTES, 0.0)

    assert (flash.trimmed_pages, flash.valid) == (1, PAGES - 1)


def test_a_request_across_a_page_takes_both() -> None:
    """The drive writes whole pages."""
    flash = aged()

    flash.write(PAGE_BYTES - 1, 2, 0.0)

    assert (flash.written_pages, flash.stale) == (2, 2)


@pytest.mark.parametrize(("kept", "seconds"), [(0.0, 1.0), (0.5, 1280 / 780), (0.9, 1280 / 380)])
def test_a_trim_is_more_work_the_fuller_the_drive(kept: float, seconds: float) -> None:
    """A hundred pages, each a second on an empty drive, and what is kept for good to be moved with them."""
    flash = aged(is_full=False, kept_ratio=kept, trim_seconds_per_mib=256.0)
    flash.write(0, 100 * PAGE_BYTES, 0.0)

    assert flash.trim(0, CAPACITY, 0.0) == pytest.approx(100 * seconds)
    assert flash.trim(0, CAPACITY, 0.0) == 0


def test_what_is_kept_makes_room_for_what_is_written() -> None:
    """900 of 1000 pages are kept, and all 1000 are written; then 100 of them are trimmed."""
    flash = aged(is_full=False, kept_ratio=0.9, trim_seconds_per_mib=256.0)
    flash.write(0, CAPACITY, 0.0)

    assert (flash.valid, flash.stale, flash.erased) == (1000, 900, -620)
    assert flash.trim(0, 100 * PAGE_BYTES, 0.0) == pytest.approx(100 * 1280 / 380)


def test_a_trim_on_a_full_drive_without_spare_pages_moves_all_the_others() -> None:
    flash = aged(spare_ratio=0.0, trim_seconds_per_mib=256.0)

    assert flash.trim(0, 100 * PAGE_BYTES, 0.0) == pytest.approx(100 * 1000 / 100)


def test_a_trim_costs_nothing_unless_set() -> None:
    """Two MiB take twice as long as one, if a time is set."""
    flash = aged(trim_seconds_per_mib=1e-6, spare_ratio=1e9)  # valid pages are few among so many

    assert aged().trim(0, CAPACITY, 0.0) == 0
    assert flash.trim(0, 2**20, 0.0) == pytest.approx(1e-6)
    assert flash.trim(2**20, 2 * 2**20, 0.0) == pytest.approx(2e-6)


def test_its_own_latencies_are_added() -> None:
    """What a write takes always, and what it takes longer while there is no erased page."""
    flash = aged(collected_pages_per_second=1e9, write_seconds=0.001, starved_seconds=0.1)

    assert overwrite(flash, 280, now=0.0) == 0.001
    assert flash.write(0, PAGE_BYTES, 0.0) == pytest.approx(0.101, rel=1e-3)


@pytest.mark.parametrize(("rate", "foreground"), [(500.0, 1.0), (2000.0, 1.0), (500.0, 4.0)])
def test_it_goes_as_page_by_page_in_small_steps(rate: float, foreground: float) -> None:
    """Random writes at random times against the definition, with a prime number of them."""
    rng = random.Random(23)
    flash = aged(collected_pages_per_second=rate, foreground_ratio=foreground)
    writes = sorted((rng.uniform(0, 2), rng.randrange(PAGES)) for _ in range(347))
    expected = per_page(flash, writes)

    for at, page in writes:
        flash.write(page * PAGE_BYTES, PAGE_BYTES, at)

    assert flash.erased == pytest.approx(expected[0], abs=3)
    assert flash.stale == pytest.approx(expected[1], abs=3)
    assert flash.valid == expected[2]


def test_no_page_is_ever_lost_or_made() -> None:
    """Erased, stale and valid ones are as many as the drive has, whatever is done to it."""
    rng = random.Random(7)
    flash, now = aged(), 0.0
    for _ in range(1000):
        now += rng.uniform(0, 0.1)
        act = flash.write if rng.random() < 0.8 else flash.trim
        act(rng.randrange(PAGES - 8) * PAGE_BYTES, rng.randrange(1, 8 * PAGE_BYTES), now)

    assert flash.erased + flash.stale + flash.valid == pytest.approx(1280)
