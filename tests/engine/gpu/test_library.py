from __future__ import annotations

import ctypes
from typing import Any

import pytest

from engine.gpu.library import CONSTANTS, ERRORS, FUNCTIONS, LATER_CONSTANTS, TYPES, Cause, Library, NvmlError
from tests.engine.gpu import fake_nvml
from tests.engine.gpu.fake_nvml import Device, FakeNvml


def test_what_is_called_exists_in_the_package() -> None:
    package: Any = pytest.importorskip("pynvml")
    for name in FUNCTIONS:
        assert callable(getattr(package, name)), name
    for name in (*CONSTANTS, *ERRORS):
        assert isinstance(getattr(package, name), int), name
    for name in TYPES:
        assert issubclass(getattr(package, name), ctypes.Structure), name
    request = package.c_nvmlGpmMetricsGet_t()
    assert {"version", "numMetrics", "sample1", "sample2", "metrics"} <= {field[0] for field in request._fields_}
    assert {"metricId", "nvmlReturn", "value"} <= {field[0] for field in request.metrics[0]._fields_}
    event = {field[0] for field in package.c_nvmlEventData_t._fields_}
    assert {"eventType", "eventData", "gpuInstanceId"} <= event
    value = {field[0] for field in package.c_nvmlFieldValue_t._fields_}
    assert {"nvmlReturn", "value"} <= value
    assert issubclass(package.NVMLLibraryMismatchError, Exception)


def test_the_fake_has_the_package_s_names_and_numbers() -> None:
    package: Any = pytest.importorskip("pynvml")
    fake = FakeNvml()
    for name in FUNCTIONS:
        assert callable(getattr(fake, name)), name
    for name, number in {**fake_nvml.NUMBERS, **fake_nvml.ERROR_NUMBERS}.items():
        assert getattr(package, name) == number, name
    assert {*CONSTANTS, *LATER_CONSTANTS} <= fake_nvml.NUMBERS.keys()


def test_the_package_s_errors_are_caught_as_the_fake_s_are() -> None:
    """The real package, on a machine without the driver's library or with it."""
    package: Any = pytest.importorskip("pynvml")
    try:
        Library(package).close()
    except NvmlError as error:
        assert error.cause in (Cause.NO_LIBRARY, Cause.NO_DRIVER, Cause.NO_PERMISSION, Cause.MISMATCH)


@pytest.mark.parametrize(
    ("error", "cause", "remedy"),
    [
        ("NVML_ERROR_LIBRARY_NOT_FOUND", Cause.NO_LIBRARY, "install NVIDIA's driver"),
        ("NVML_ERROR_DRIVER_NOT_LOADED", Cause.NO_DRIVER, "modprobe nvidia"),
        ("NVML_ERROR_NO_PERMISSION", Cause.NO_PERMISSION, "let this user"),
        ("NVML_ERROR_LIB_RM_VERSION_MISMATCH", Cause.MISMATCH, "restart the machine"),
        ("NVML_ERROR_FUNCTION_NOT_FOUND", Cause.TOO_OLD, "update NVIDIA's driver"),
        ("mismatch", Cause.TOO_OLD, "update NVIDIA's driver"),
        ("NVML_ERROR_GPU_IS_LOST", Cause.LOST, "reset the device"),
        ("NVML_ERROR_UNKNOWN", Cause.FAILED, "see dmesg"),
    ],
)
def test_each_error_is_a_cause_with_a_remedy(error: str, cause: Cause, remedy: str) -> None:
    with pytest.raises(NvmlError, match=remedy) as raised:
        Library(FakeNvml(Device(), fails={"nvmlInit": error}))
    assert raised.value.cause is cause
    assert "nvmlInit" in str(raised.value)


def test_a_package_without_the_function_is_too_old() -> None:
    library = Library(FakeNvml(without=("nvmlGpmSampleGet",)))
    with pytest.raises(NvmlError, match="has no nvmlGpmSampleGet") as raised:
        library.call("nvmlGpmSampleGet", None, None)
    assert raised.value.cause is Cause.TOO_OLD


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.gpu.library.PACKAGE", "no_such_package")
    with pytest.raises(NvmlError, match=r"edgeproxy\[gpu\]") as raised:
        Library()
    assert raised.value.cause is Cause.NO_PACKAGE
