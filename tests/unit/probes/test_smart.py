"""The smart probe: the health that drives report, and no values for drives that report none."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.common.block_device import SystemPaths
from probes.smart.ocp_logs import OcpLogs, parse_health_log, parse_latency_log
from probes.smart.probe import Config, Smart
from probes.smart.tools import (
    Health,
    Tool,
    ask_drive,
    find_program,
    find_tool,
    parse_nvme,
    parse_smartctl,
)
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.model import Column, Event
from tests.support.examples import examples
from tests.support.fakes import FakeClock
from tests.support.paths import RECORDED
from tests.support.probes.sys_tree import on, sys_tree

SMART = RECORDED / "smart"
NVME = {
    "smart_wear_ratio": 0.23,
    "smart_available_spare_ratio": 0.98,
    "smart_media_errors": 2.0,
    "smart_temperature_celsius": 41.0,
    "smart_written_bytes": 1_969_459 * 512_000,
}
TEXT = (SMART / "smartctl-7.3-nvme.json").read_text()
NUMBER = st.one_of(st.none(), st.booleans(), st.text(max_size=3), st.integers(), st.floats())


def recorded(name: str) -> Mapping[str, object]:
    return dict(json.loads((SMART / f"{name}.json").read_text()))


def test_both_tools_agree_on_one_nvme_drive() -> None:
    """One counts in kelvin; only smartctl has an overall verdict."""
    assert parse_smartctl(recorded("smartctl-7.3-nvme")) == {"smart_passed": 1.0, **NVME}
    assert parse_nvme(recorded("nvme-2.3")) == NVME
    assert parse_nvme(recorded("nvme-2.4")) == NVME


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("0", 0),
        ("892", 892),
        ("1969459", 1_969_459),
        ("1,969,459", 1_969_459),
        ("1.969.459", 1_969_459),
        ("1\u202f969\u202f459", 1_969_459),
        ("1\u00a0969\u00a0459", 1_969_459),
        ("1'969'459", 1_969_459),
        ("19,69,459", 1_969_459),  # in India
        ("340282366920938463463374607431768211455", 2**128 - 1),
    ],
)
def test_numbers_that_are_written_as_text_are_read(text: str, units: int) -> None:
    """Nvme 2.3 and 2.4 group the digits as the locale says."""
    assert parse_nvme({"data_units_written": text}) == {
        "smart_written_bytes": pytest.approx(units * 512_000)
    }


@pytest.mark.parametrize(
    "text", ["", "n/a", "-5", "1e5", "1,969.459", "41.25", "12 GB", ",5", "1,,000"]
)
def test_text_that_is_no_whole_number_is_left_out(text: str) -> None:
    """Such as one with two kinds of marks."""
    assert parse_nvme({"media_errors": text}) == {}


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (  # Samsung
            [
                (177, "Wear_Leveling_Count", 97, 61),
                (187, "Uncorrectable_Error_Cnt", 100, 2),
                (5, "Reallocated_Sector_Ct", 100, 1),
                (241, "Total_LBAs_Written", 99, 62_000_000_000),
            ],
            {"smart_wear_ratio": 0.03, "smart_media_errors": 2, "smart_reallocated_sectors": 1},
        ),
        (  # Intel
            [
                (5, "Reallocated_Sector_Ct", 100, 0),
                (225, "Host_Writes_32MiB", 100, 1000),
                (233, "Media_Wearout_Indicator", 88, 0),
            ],
            {
                "smart_wear_ratio": 0.12,
                "smart_reallocated_sectors": 0,
                "smart_written_bytes": 1000 * 2**25,
            },
        ),
        (  # Micron
            [
                (5, "Reallocate_NAND_Blk_Cnt", 100, 4),
                (187, "Reported_Uncorrect", 100, 0),
                (202, "Percent_Lifetime_Remain", 75, 25),
            ],
            {"smart_wear_ratio": 0.25, "smart_reallocated_sectors": 4, "smart_media_errors": 0},
        ),
        (  # Kingston
            [
                (5, "Retired_Block_Count", 100, 3),
                (231, "SSD_Life_Left", 100, 0),
                (241, "Lifetime_Writes_GiB", 0, 500),
            ],
            {
                "smart_wear_ratio": 0,
                "smart_reallocated_sectors": 3,
                "smart_written_bytes": 500 * 2**30,
            },
        ),
        (  # Micron, by the name of an older smartctl
            [(202, "Percent_Lifetime_Used", 75, 25)],
            {"smart_wear_ratio": 0.25},
        ),
        (  # WD: this value rises, or falls
            [(230, "Media_Wearout_Indicator", 1, 0x010F005A010F)],
            {},
        ),
    ],
)
def test_attributes_are_read_as_their_manufacturer_means_them(
    attributes: list[tuple[int, str, int, int]], expected: dict[str, float]
) -> None:
    """Counts by their number, which names differ for; wear and written bytes by names that say the unit."""
    table = [
        {"id": number, "name": name, "value": value, "raw": {"value": raw, "string": str(raw)}}
        for number, name, value, raw in attributes
    ]

    assert parse_smartctl({"ata_smart_attributes": {"table": table}}) == pytest.approx(expected)


def test_a_scsi_drive_has_its_grown_defects() -> None:
    """As reallocated sectors."""
    assert parse_smartctl({"scsi_grown_defect_list": 5}) == {"smart_reallocated_sectors": 5.0}


def test_a_count_is_what_smartctl_prints_of_the_raw_value() -> None:
    """Of attribute 5 the lower 16 bits; the drive keeps something else in the others."""
    moved = {"value": (2 << 32) + (7 << 16) + 3, "string": "3 (2 7)"}
    table = [
        {"id": 5, "name": "Reallocated_Sector_Ct", "value": 100, "raw": moved},
        {"id": 187, "name": "Reported_Uncorrect", "raw": {"value": 4, "string": "0x000000000004"}},
    ]

    assert parse_smartctl({"ata_smart_attributes": {"table": table}}) == {
        "smart_reallocated_sectors": 3.0,
        "smart_media_errors": 4.0,
    }


def test_the_errors_that_a_sas_drive_did_not_correct_are_its_media_errors() -> None:
    """Of reads, writes and verifications; it may keep no count of some of them."""
    log = {
        "read": {"total_errors_corrected": 77, "total_uncorrected_errors": 3},
        "write": {"total_errors_corrected": 0, "total_uncorrected_errors": 2},
        "verify": {},
    }

    assert parse_smartctl({"scsi_error_counter_log": log}) == {"smart_media_errors": 5.0}
    assert parse_smartctl({"scsi_error_counter_log": {"read": {}}}) == {}
    del log[
        "read"
    ]  # that one question failed: the sum of the others would be a fall, and then a jump
    assert parse_smartctl({"scsi_error_counter_log": log}) == {}


def test_a_newer_smartctl_says_how_long_a_drive_throttled_itself() -> None:
    """Once it has: at two temperatures."""
    log = {
        "available_spare": 100,
        "thermal_mgmt_temperature_1_transition_count": 3,
        "thermal_mgmt_temperature_1_total_time": 20,
        "thermal_mgmt_temperature_2_transition_count": 1,
        "thermal_mgmt_temperature_2_total_time": 3,
    }

    found = parse_smartctl({"nvme_smart_health_information_log": log})

    assert found["smart_throttled_seconds"] == 23.0


@pytest.mark.parametrize(("major", "seconds"), [(7, None), (8, 0.0)])
def test_a_drive_that_never_throttled_itself_did_so_for_no_second(
    major: int, seconds: float | None
) -> None:
    """Smartctl 8 prints the times once one is above 0; 7 never does."""
    log = {"available_spare": 100}
    found = parse_smartctl(
        {"smartctl": {"version": [major, 0]}, "nvme_smart_health_information_log": log}
    )

    assert found.get("smart_throttled_seconds") == seconds


QEMU_DISK = {  # a disk of QEMU below virtio-scsi, by smartctl 7.3; MegaRAID's volumes are alike
    "smartctl": {"version": [7, 3], "exit_status": 4},
    "device": {"name": "/dev/sdb", "type": "scsi", "protocol": "SCSI"},
    "smart_support": {"available": False},
    "temperature": {"current": 0, "drive_trip": 0},
}
VMWARE_DISK = {  # by smartctl 7.1, which does not say whether there is any health
    "smartctl": {"version": [7, 1], "exit_status": 0},
    "device": {"name": "/dev/sda", "type": "scsi", "protocol": "SCSI"},
    "model_name": "VMware Virtual disk",
}
VIRTUAL_NVME = {  # of VirtualBox, by nvme 2.x; those of clouds are alike
    "critical_warning": 0,
    "temperature": 0,
    "avail_spare": 0,
    "spare_thresh": 0,
    "percent_used": 0,
    "data_units_read": 0,
    "data_units_written": 0,
    "power_cycles": 0,
    "media_errors": 0,
    "num_err_log_entries": 0,
    "warning_temp_time": 0,
    "critical_comp_time": 0,
    "thm_temp1_trans_count": 0,
    "thm_temp2_trans_count": 0,
    "thm_temp1_total_time": 0,
    "thm_temp2_total_time": 0,
}
VIRTUAL_NVME_OF_SMARTCTL = {
    "smart_status": {"passed": True},
    "nvme_smart_health_information_log": {
        "critical_warning": 0,
        "available_spare": 0,
        "percentage_used": 0,
        "data_units_written": 0,
        "media_errors": 0,
        "warning_temp_time": 0,
    },
}


@pytest.mark.parametrize(
    ("parse", "body"),
    [
        (parse_smartctl, QEMU_DISK),
        (parse_smartctl, VMWARE_DISK),
        (parse_smartctl, VIRTUAL_NVME_OF_SMARTCTL),
        (parse_nvme, VIRTUAL_NVME),
        (parse_nvme, {"error": "Failed to open /dev/nvme0n1: Permission denied"}),
    ],
)
def test_a_drive_that_keeps_no_health_has_none(
    parse: Callable[[Mapping[str, object]], Health], body: Mapping[str, object]
) -> None:
    """No spare blocks at all, a passed check and a temperature of 0 would be reported for a virtual drive."""
    assert parse(body) == {}


def test_a_drive_that_measures_no_temperature_has_the_rest_of_its_health() -> None:
    """It says 0 kelvin."""
    found = parse_nvme({**VIRTUAL_NVME, "avail_spare": 100, "percent_used": 3})

    assert found["smart_wear_ratio"] == 0.03
    assert "smart_temperature_celsius" not in found


@pytest.mark.parametrize(
    "wear",
    [
        {"scsi_percentage_used_endurance_indicator": 11},  # until smartctl 7.4
        {"endurance_used": {"current_percent": 11}},
    ],
)
def test_a_sas_drive_has_its_wear(wear: Mapping[str, object]) -> None:
    """A Samsung SSD, by smartctl 7.3; newer ones call its wear as they call that of other drives."""
    body = {
        "device": {"name": "/dev/sdc", "type": "scsi", "protocol": "SCSI"},
        "smart_support": {"available": True, "enabled": True},
        "smart_status": {"passed": True},
        **wear,
        "temperature": {"current": 21, "drive_trip": 70},
        "scsi_grown_defect_list": 0,
    }

    assert parse_smartctl(body) == {
        "smart_passed": 1.0,
        "smart_wear_ratio": 0.11,
        "smart_temperature_celsius": 21.0,
        "smart_reallocated_sectors": 0.0,
    }


def test_of_a_sata_drive_only_comparable_attributes_are_read() -> None:
    """Its raw temperature is three numbers in one, its written sectors have any size."""
    assert parse_smartctl(recorded("smartctl-7.4-sata")) == {
        "smart_passed": 1.0,
        "smart_wear_ratio": 0.04,
        "smart_media_errors": 1.0,
        "smart_reallocated_sectors": 3.0,
        "smart_temperature_celsius": 34.0,
    }


def statistics_of(percent: int | None, **flags: bool) -> dict[str, object]:
    """Return device statistics as smartctl 7 prints them: no value where the drive has none."""
    value = {} if percent is None else {"value": percent}
    used = {"offset": 8, "name": "Percentage Used Endurance Indicator", "size": 1, **value}
    rows = [{**used, "flags": {"valid": True, "normalized": True, **flags}}]
    heat = {"offset": 8, "name": "Current Temperature", "value": 55, "flags": {"valid": True}}
    pages = [{"number": 5, "table": [heat]}, {"number": 7, "table": rows}]
    return {"ata_device_statistics": {"pages": pages}}


def attributes_of(number: int, name: str, value: int) -> dict[str, object]:
    row = {"id": number, "name": name, "value": value, "raw": {"value": 0, "string": "0"}}
    return {"ata_smart_attributes": {"table": [row]}}


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        attributes_of(230, "Media_Wearout_Indicator", 1),  # WD
        attributes_of(233, "Unknown_Attribute", 50),  # a drive that no database knows
        attributes_of(177, "Wear_Leveling_Count", 97),  # Samsung: of its own, not of the standard
        attributes_of(202, "Percent_Lifetime_Remain", 75),  # Micron
    ],
)
@pytest.mark.parametrize("percent", [0, 11, 130])
def test_a_sata_drive_of_any_manufacturer_has_the_wear_of_its_device_statistics(
    attributes: Mapping[str, object], percent: int
) -> None:
    """Beyond 100 % it goes on, as that of NVMe drives."""
    found = parse_smartctl({**statistics_of(percent), **attributes})

    assert found == {"smart_wear_ratio": pytest.approx(percent / 100)}


@pytest.mark.parametrize(
    "statistics",
    [
        statistics_of(None, valid=False),
        statistics_of(11, valid=False),
        {"ata_device_statistics": {"pages": [{"number": 1, "table": [{"offset": 8, "value": 7}]}]}},
        {"ata_device_statistics": {"pages": "none"}},
        {},
    ],
)
def test_statistics_that_are_not_valid_leave_the_wear_to_the_attributes(
    statistics: Mapping[str, object],
) -> None:
    """A drive may support the page and not this number."""
    micron = attributes_of(202, "Percent_Lifetime_Remain", 75)

    assert parse_smartctl({**statistics, **micron}) == {"smart_wear_ratio": 0.25}
    assert parse_smartctl(statistics) == {}


def test_smartctl_is_asked_for_the_device_statistics() -> None:
    """It prints them on request only."""
    tool = find_tool(lambda name, **_: f"/usr/sbin/{name}" if name == "smartctl" else None)

    assert "--log=devstat,7" in tool.command


def test_a_new_drive_has_a_wear_of_zero() -> None:
    """Zero is a value, not a missing one."""
    assert parse_smartctl({"nvme_smart_health_information_log": {"percentage_used": 0}}) == {
        "smart_wear_ratio": 0.0
    }


def printing(text: str, code: int = 0) -> Tool:
    """Return a tool that says this, and passes over the device it is asked about."""
    program = f"import sys; print({text!r}); sys.exit({code})"
    return Tool((sys.executable, "-c", program), parse_smartctl)


def test_the_exit_code_for_a_failing_drive_is_no_failure_of_the_tool() -> None:
    """The upper bits of smartctl's code are about the drive."""
    found = ask_drive(printing((SMART / "smartctl-7.4-sata.json").read_text(), 64), "/dev/sda")

    assert found["smart_reallocated_sectors"] == 3.0


def test_a_drive_that_may_not_be_opened_is_not_available() -> None:
    """With the tool's own message."""
    tool = printing((SMART / "smartctl-7.3-refused.json").read_text(), 2)

    with pytest.raises(NotAvailableError, match=r"/dev/sda: .*Permission denied"):
        ask_drive(tool, "/dev/sda")


def test_the_usage_text_of_a_tool_is_left_out() -> None:
    """Nvme prints it after an error."""
    tool = printing("/dev/vda: Operation not permitted\nUsage: nvme smart-log <device>\n", 1)

    with pytest.raises(NotAvailableError) as caught:
        ask_drive(tool, "/dev/vda")

    assert (
        str(caught.value).partition(";")[0].endswith("/dev/vda: /dev/vda: Operation not permitted")
    )


def test_output_that_is_not_json_is_an_error() -> None:
    """An old smartctl has no --json."""
    with pytest.raises(ProbeError, match="printed no JSON about /dev/sda"):
        ask_drive(printing("smartctl 6.6"), "/dev/sda")


@pytest.mark.parametrize("body", [QEMU_DISK, VMWARE_DISK])
def test_a_drive_without_health_is_said_to_have_none(body: Mapping[str, object]) -> None:
    """Not the first line of the output, which is a brace; nor that root is needed, where the tool had it."""
    text = json.dumps(body, indent=2)

    with pytest.raises(
        NotAvailableError, match=r"no data of /dev/sda: it keeps no health log[^;{]*$"
    ):
        ask_drive(printing(text, 4), "/dev/sda")


@pytest.mark.parametrize(
    ("reason", "is_refused"),
    [
        ("Smartctl open device: /dev/sda failed: Permission denied", True),
        ("/dev/sda: Unable to detect device type", False),  # as /dev/vda, a drive of virtio
        ("DELL or MegaRaid controller, please try adding '-d megaraid,N'", False),
    ],
)
def test_root_is_asked_for_only_where_it_helps(
    reason: str, monkeypatch: pytest.MonkeyPatch, *, is_refused: bool
) -> None:
    """The advice would be wrong for a drive that has nothing to say to root either."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    text = json.dumps({"smartctl": {"messages": [{"string": reason, "severity": "error"}]}})

    with pytest.raises(NotAvailableError) as caught:
        ask_drive(printing(text, 2), "/dev/sda")

    assert str(caught.value).endswith("it needs root, which this probe does not have") is is_refused


def test_the_error_of_nvme_is_told_as_it_says_it() -> None:
    """From 2.0 on it is in the JSON."""
    text = '{\n  "error":"Failed to open /dev/nvme0n1: Permission denied"\n}'

    with pytest.raises(NotAvailableError, match=r"/dev/nvme0n1: Failed to open .* denied"):
        ask_drive(printing(text, 1), "/dev/nvme0n1")


def test_a_tool_speaks_english_whatever_the_language_of_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nvme says `Keine Berechtigung` in German, and groups digits: neither was understood."""
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    program = (
        "import json, os, sys; print(json.dumps({'error': os.environ['LC_ALL']})); sys.exit(1)"
    )

    with pytest.raises(NotAvailableError, match=r"has no data of /dev/nvme0n1: C$"):
        ask_drive(Tool((sys.executable, "-c", program), parse_nvme), "/dev/nvme0n1")


def test_a_tool_is_found_where_only_root_looks() -> None:
    """RHEL's sudo and the shells of users leave out /usr/local/sbin."""
    asked = list[tuple[str, str]]()
    find_program("nvme", lambda name, path: asked.append((name, path)))
    ((_, path),) = asked

    assert {"/usr/local/sbin", "/usr/sbin", "/sbin"} <= set(path.split(":"))


def test_a_smartctl_that_is_too_old_is_named() -> None:
    """Its first line is its version, which is no reason by itself."""
    text = (
        "smartctl 6.6 2016-05-31 r4324 [x86_64-linux-4.15.0-55-generic] (local build)\n"
        "Copyright (C) 2002-16, Bruce Allen, Christian Franke, www.smartmontools.org\n\n"
        "=======> UNRECOGNIZED OPTION: json\n\nUse smartctl -h to get a usage summary\n"
    )
    smartctl = find_tool(lambda name, path: f"/usr/sbin/{name}")  # noqa: ARG005  # called by this name
    old = replace(smartctl, command=printing(text, 1).command)

    with pytest.raises(NotAvailableError, match=r"must be smartctl 7\.0 or newer.*smartctl 6\.6"):
        ask_drive(old, "/dev/sda")


def test_without_a_tool_it_is_not_available() -> None:
    """Smartctl is preferred if both are installed."""
    with pytest.raises(NotAvailableError, match="neither smartctl nor nvme is installed"):
        find_tool(lambda _name, path: None)  # noqa: ARG005  # called by this name

    both = find_tool(lambda name, path: f"/usr/sbin/{name}")  # noqa: ARG005  # as above
    assert both.command[0] == "/usr/sbin/smartctl"


def probe_of(tmp_path: Path, *answers: Health | Exception) -> Smart:
    """Return a probe of an array of two drives that answer in turn."""
    waiting = list(answers)

    def health(_tool: Tool, device: str) -> Health:
        assert device in {"/dev/nvme0n1", "/dev/nvme1n1"}
        answer = waiting.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    paths = SystemPaths(sys=sys_tree(tmp_path, "md-raid1"), numbers=lambda _: on(9, 127))
    return Smart(
        Config(directory="/data"),
        FakeClock(),
        paths=paths,
        tool=lambda: printing(""),
        health=health,
    )


def samples_of(probe: Smart) -> list[tuple[Column, float]]:
    """Return the samples of one round of the thread."""
    before = probe.read().samples
    probe.close()
    return [*before, *probe.read().samples]


def test_every_drive_of_an_array_is_read_once(tmp_path: Path) -> None:
    """A result is not repeated until the next query."""
    probe = probe_of(tmp_path, {"smart_wear_ratio": 0.2}, {"smart_wear_ratio": 0.3})

    found = {column.name: value for column, value in samples_of(probe)}

    assert found == {
        'smart_wear_ratio{device="nvme0n1"}': 0.2,
        'smart_wear_ratio{device="nvme1n1"}': 0.3,
    }
    assert probe.read().samples == ()


def test_a_drive_without_data_does_not_affect_the_others(tmp_path: Path) -> None:
    """A virtual one and a real one."""
    probe = probe_of(tmp_path, NotAvailableError("virtual"), {"smart_wear_ratio": 0.3})

    assert [value for _, value in samples_of(probe)] == [0.3]


def test_if_no_drive_has_data_the_probe_is_not_available(tmp_path: Path) -> None:
    """With the first reason."""
    probe = probe_of(tmp_path, NotAvailableError("virtual"), NotAvailableError("too"))

    with pytest.raises(NotAvailableError, match="virtual"):
        samples_of(probe)


def test_a_tool_that_hangs_is_a_failure(tmp_path: Path) -> None:
    """It hangs in the kernel, where its own time limit cannot end it."""
    clock, is_asked, let_go = FakeClock(), threading.Event(), threading.Event()

    def health(_tool: Tool, _device: str) -> Health:
        is_asked.set()
        let_go.wait()
        return {}

    paths = SystemPaths(sys=sys_tree(tmp_path, "md-raid1"), numbers=lambda _: on(9, 127))
    probe = Smart(
        Config(directory="/data"), clock, paths=paths, tool=lambda: printing(""), health=health
    )
    probe.read()
    assert is_asked.wait(30)
    clock.advance(61)

    with pytest.raises(ProbeError, match="nvme0n1 has not answered for 61 s"):
        probe.read()
    let_go.set()
    probe.close()


@pytest.mark.parametrize(
    ("answers", "asked"),
    [([{}], ["/dev/sdb"]), ([ProbeError("path"), {}], ["/dev/sdb", "/dev/sdc"])],
)
def test_a_drive_with_several_ways_is_asked_by_one_that_answers(
    tmp_path: Path, answers: list[Health | Exception], asked: list[str]
) -> None:
    """No tool knows the device of dm-multipath, whose name the other metrics of the drive have."""
    waiting, seen = list(answers), []

    def health(_tool: Tool, device: str) -> Health:
        seen.append(device)
        answer = waiting.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {"smart_wear_ratio": 0.3}

    paths = SystemPaths(sys=sys_tree(tmp_path, "dm-multipath"), numbers=lambda _: on(253, 1))
    config = Config(directory="/data")
    probe = Smart(config, FakeClock(), paths=paths, tool=lambda: printing(""), health=health)
    probe.close()  # no thread

    probe.poll(printing(""))

    assert seen == asked
    assert [column.name for column, _ in probe.read().samples] == [
        'smart_wear_ratio{device="dm-0"}'
    ]


def test_a_drive_that_is_mounted_later_is_read(tmp_path: Path) -> None:
    """The drives below the folder are looked up in each round."""
    device, asked, clock = [on(9, 127)], [], FakeClock()

    def health(_tool: Tool, name: str) -> Health:
        asked.append(name)
        return {}

    paths = SystemPaths(sys=sys_tree(tmp_path, "md-raid1"), numbers=lambda _: device[0])
    config = Config(directory="/data")
    probe = Smart(config, clock, paths=paths, tool=lambda: printing(""), health=health)

    probe.poll(printing(""))
    device[0] = on(259, 0)
    probe.poll(printing(""))

    assert asked == ["/dev/nvme0n1", "/dev/nvme1n1", "/dev/nvme0n1"]


def test_new_media_errors_are_an_event(tmp_path: Path) -> None:
    """Those at the start are not new."""
    counts = [{"smart_media_errors": errors} for errors in (2.0, 2.0, 25.0, 0.0)]
    probe = probe_of(tmp_path, *(answer for count in counts for answer in (count, {})))
    probe.close()  # no thread
    events: list[Event] = []
    for _ in counts:
        probe.poll(printing(""))
        events += probe.read().events

    assert [event.fields for event in events] == [{"device": "nvme0n1", "errors": 23.0}]


@settings(max_examples=examples(150))
@given(at=st.integers(0, len(TEXT) - 1), junk=st.text(max_size=8))
def test_damaged_output_is_read_or_left_out(at: int, junk: str) -> None:
    """What cannot be read is left out."""
    try:
        body = json.loads(TEXT[:at] + junk + TEXT[at + len(junk) :])
    except ValueError:
        return
    found = parse_smartctl(body) if isinstance(body, dict) else {}

    assert all(value >= 0 for value in found.values())


@given(
    body=st.dictionaries(
        st.sampled_from(["nvme_smart_health_information_log", "temperature", "smart_status"]),
        st.one_of(
            NUMBER,
            st.dictionaries(st.sampled_from(["percentage_used", "current", "passed"]), NUMBER),
        ),
    )
)
def test_values_that_are_not_plain_numbers_are_left_out(body: dict[str, object]) -> None:
    """Text, booleans, infinities and negative numbers."""
    assert all(0 <= value < float("inf") for value in parse_smartctl(body).values())


def log_of(number: int, **fields: tuple[int, int, int]) -> bytes:
    """Return a log of OCP's with these (place, bytes, value), as the specification lays it out."""
    log = bytearray(512)
    for at, size, value in fields.values():
        log[at : at + size] = value.to_bytes(size, "little")
    log[496:] = {
        0xC0: 0xAFD514C97C6F4F9CA4F2BFEA2810AFC5,
        0xC3: 0x85D45E58D4E643709C6C84D08CC07A92,
    }[number].to_bytes(16, "little")
    return bytes(log)


HEALTH_LOG = log_of(
    0xC0, media=(0, 16, 5_000_000_000), events=(96, 1, 3), level=(97, 1, 2), free=(120, 1, 12)
)
SLOW = 0x20
LATENCY_LOG = log_of(
    0xC3, enabled=(0, 1, 1), reads=(SLOW, 4, 2), writes=(SLOW + 4, 4, 40), worst=(SLOW + 52, 4, 1)
)


def test_a_data_centre_drive_says_what_it_wrote_to_its_flash() -> None:
    """By OCP's log 0xC0."""
    assert parse_health_log(HEALTH_LOG) == {
        "smart_media_written_bytes": 5e9,
        "smart_throttle_events": 3.0,
        "smart_throttle_level": 2.0,
        "smart_free_blocks_ratio": 0.12,
    }


def test_a_data_centre_drive_counts_its_slow_requests() -> None:
    """Over all limits of OCP's log 0xC3, and only when it counts."""
    assert parse_latency_log(LATENCY_LOG) == {"smart_slow_requests": 43.0}
    assert parse_latency_log(b"\0" + LATENCY_LOG[1:]) == {}


def test_values_that_a_log_cannot_hold_are_left_out() -> None:
    """A counter of one byte stays at 255; a share over 100 % is not one."""
    full = log_of(0xC0, events=(96, 1, 255), free=(120, 1, 255))

    assert parse_health_log(full) == {"smart_media_written_bytes": 0, "smart_throttle_level": 0}


@given(log=st.binary(max_size=600))
def test_logs_of_other_manufacturers_are_left_out(log: bytes) -> None:
    """They use the same numbers; torn logs, too."""
    assert parse_health_log(log) == {}
    assert parse_latency_log(log) == {}


def nvme_with(folder: Path, logs: Mapping[str, bytes]) -> tuple[str, Path]:
    """Return a program that prints these logs by number and index, and its record of what was asked."""
    for name, log in logs.items():
        (folder / name).write_bytes(log)
    program, asked = folder / "nvme", folder / "asked"
    program.write_text(
        "#!/bin/sh\n"
        f"echo $2 ${{3#--log-id=}} ${{6#--uuid-index=}} >> {asked}\n"
        f"cat {folder}/${{3#--log-id=}}-${{6#--uuid-index=}}\n"
    )
    program.chmod(0o755)
    return str(program), asked


def test_the_log_is_found_where_a_drive_has_it(tmp_path: Path) -> None:
    """Behind another's of the same number, and asked for there from then on; what it lacks is not."""
    program, asked = nvme_with(tmp_path, {"0xc0-": b"\1" * 512, "0xc0-1": HEALTH_LOG})
    logs = OcpLogs(program)

    first, second = logs.read("/dev/nvme0n1"), logs.read("/dev/nvme0n1")

    assert first == second == parse_health_log(HEALTH_LOG)
    assert asked.read_text().splitlines() == [
        "/dev/nvme0n1 0xc0",
        "/dev/nvme0n1 0xc0 1",
        "/dev/nvme0n1 0xc3",
        "/dev/nvme0n1 0xc3 1",
        "/dev/nvme0n1 0xc3 2",
        "/dev/nvme0n1 0xc0 1",
    ]


def test_only_nvme_drives_are_asked_for_logs(tmp_path: Path) -> None:
    """And none without the program."""
    program, asked = nvme_with(tmp_path, {"0xc0-": HEALTH_LOG})

    assert OcpLogs(program).read("/dev/sda") == {}
    assert OcpLogs(None).read("/dev/nvme0n1") == {}
    assert not asked.exists()


def test_logs_are_samples_beside_what_the_tool_says(tmp_path: Path) -> None:
    """What both know is what the tool says: NVMe's own log."""
    program, _ = nvme_with(tmp_path, {"0xc0-": HEALTH_LOG})
    probe = Smart(
        Config(directory="/data"),
        FakeClock(),
        paths=SystemPaths(sys=sys_tree(tmp_path, "md-raid1"), numbers=lambda _: on(259, 0)),
        tool=lambda: printing(""),
        health=lambda _tool, _device: {"smart_throttle_events": 7.0},
        logs=OcpLogs(program),
    )

    found = {column.name: value for column, value in samples_of(probe)}

    assert found['smart_throttle_events{device="nvme0n1"}'] == 7.0
    assert found['smart_free_blocks_ratio{device="nvme0n1"}'] == 0.12


def test_the_time_that_a_drive_throttled_itself_is_read() -> None:
    """Both of its levels; the time that it was too hot is in minutes."""
    body = {
        "warning_temp_time": 2,
        "thm_temp1_trans_count": 3,
        "thm_temp2_trans_count": "1",
        "thm_temp1_total_time": 40,
        "thm_temp2_total_time": 5,
    }

    assert parse_nvme(body) == {
        "smart_hot_seconds": 120.0,
        "smart_throttle_events": 4.0,
        "smart_throttled_seconds": 45.0,
    }
    hot = {"nvme_smart_health_information_log": {"warning_temp_time": 2}}
    assert parse_smartctl(hot) == {"smart_hot_seconds": 120.0}
