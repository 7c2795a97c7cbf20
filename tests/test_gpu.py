"""What a machine says of its GPU: with libraries that only pretend, and with none."""

import ctypes

import pytest

from runtime import gpu


class Driver:
    def __init__(self, devices=("NVIDIA Orin", "NVIDIA H200"), starts=True):
        self.devices, self.starts = devices, starts

    def cuInit(self, flags):  # noqa: N802 - the driver's name
        return 0 if self.starts else 100

    def cuDeviceGet(self, device, number):  # noqa: N802
        device._obj.value = number
        return 0 if number < len(self.devices) else 101

    def cuDeviceGetName(self, name, size, device):  # noqa: N802
        name.value = self.devices[device.value].encode()
        return 0


class TensorRt:
    def __init__(self, number):
        self.number = number

    def getInferLibVersion(self):  # noqa: N802
        return self.number


@pytest.fixture
def libraries(monkeypatch):
    found = {}

    def load(name):
        if name not in found:
            raise OSError(f"{name}: cannot open shared object file")
        return found[name]

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(gpu, "_CUDA", ("libcuda.so.1",))
    monkeypatch.setattr(gpu, "_TENSORRT", ("libnvinfer.so.11", "libnvinfer.so.10"))
    return found


def test_a_gpu_is_named_by_its_driver(libraries):
    assert gpu.gpu_name() is None
    libraries["libcuda.so.1"] = Driver()
    assert gpu.gpu_name() == "NVIDIA Orin"
    assert gpu.gpu_name(1) == "NVIDIA H200"
    assert gpu.gpu_name(2) is None
    libraries["libcuda.so.1"] = Driver(starts=False)
    assert gpu.gpu_name() is None


@pytest.mark.parametrize(
    ("number", "version"), [(101501, "10.15.1"), (110500, "11.5.0"), (8601, "8.6.1")]
)
def test_tensorrt_says_its_version(libraries, number, version):
    assert gpu.tensorrt_version() is None
    libraries["libnvinfer.so.10"] = TensorRt(number)
    assert gpu.tensorrt_version() == version


def test_a_library_that_cannot_be_loaded_says_why(libraries):
    libraries["whole.so"] = object()
    assert gpu.missing_library("whole.so") is None
    assert "absent.so: cannot open" in gpu.missing_library("absent.so")
