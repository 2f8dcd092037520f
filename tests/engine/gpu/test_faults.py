from __future__ import annotations

import pytest

from engine.gpu.faults import KINDS, PROGRAMS, RECOVERY_CHANGED, judged, refused


@pytest.mark.parametrize("xid", PROGRAMS)
def test_a_program_s_fault_leaves_the_device_sound(xid: int) -> None:
    assert not judged("xid", xid, 0).fatal
    assert not judged("xid", xid, None).fatal


@pytest.mark.parametrize("xid", [48, 79, 95, 119, 12345])
def test_any_other_xid_is_fatal_also_one_that_nobody_knows(xid: int) -> None:
    event = judged("xid", xid, None)
    assert event.fatal
    assert f"Xid {xid}" in event.text


def test_a_program_s_fault_after_which_the_driver_wants_a_reset_is_fatal() -> None:
    event = judged("xid", 31, 1)
    assert event.fatal
    assert event.text == "Xid 31: memory page fault; the driver asks for a reset of the device"


@pytest.mark.parametrize(("kind", "data"), [("recovery", 0), ("xid", RECOVERY_CHANGED)])
@pytest.mark.parametrize(("action", "fatal"), [(0, False), (2, True), (99, True), (None, False)])
def test_a_recovery_action_is_fatal_unless_it_is_none(kind: str, data: int, action: int | None, fatal: bool) -> None:
    assert judged(kind, data, action).fatal is fatal


@pytest.mark.parametrize("kind", sorted(set(KINDS.values()) - {"xid", "recovery"}))
def test_memory_that_is_lost_is_always_fatal(kind: str) -> None:
    assert judged(kind, 0, None).fatal


def test_a_device_that_waits_for_a_restart_is_not_begun_on() -> None:
    assert refused(2) == "the driver asks for a restart of the machine"
    assert refused(0) is None is refused(None)
