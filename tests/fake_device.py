"""An ONNX Runtime with a GPU that is none: it computes on the CPU and records what lies where.

Put in the place of `runtime.session.ort`. Tensors know which device they were made for; copies to
and from a device are counted; sessions note options, bindings and runs, and fail when told to. As
on a device, a replayed CUDA graph neither reads the host's tensors nor writes them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import onnxruntime

CUDA, TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"
CPU = "CPUExecutionProvider"


@dataclass
class Node:
    """A node as the placement names it."""

    op_type: str


@dataclass
class Record:
    """What happened, and what is to happen.

    Attributes:
        to_device: bytes of every copy from the host.
        from_device: bytes of every copy to the host that a tensor was asked for.
        read: bytes of every tensor on the host that a run filled.
        sessions: those that were opened.
        refuses: whether a session with these provider options fails to load.
        loads: whether the first provider loads.
        fails: whether the run of a CUDA graph of this number fails.
        on_cpu: ops that the provider leaves to the CPU; `None` if nobody can tell.
    """

    to_device: list[int] = field(default_factory=list)
    from_device: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    sessions: list["FakeSession"] = field(default_factory=list)
    refuses: Callable[[dict[str, str]], bool] = lambda _: False
    loads: bool = True
    fails: Callable[[str], bool] = lambda _: False
    on_cpu: Sequence[str] | None = ()


class FakeValue:
    """A tensor on a device, which is the host's memory all the same."""

    def __init__(self, record: Record, values: Any, device: str) -> None:
        self.record, self.device = record, device
        self.real = onnxruntime.OrtValue.ortvalue_from_numpy(values.copy(), "cpu", 0)

    def numpy(self) -> Any:
        values = self.real.numpy()
        if self.device != "cpu":
            self.record.from_device.append(values.nbytes)
        return values

    def update_inplace(self, values: Any) -> None:
        if self.device != "cpu":
            self.record.to_device.append(values.nbytes)
        self.real.update_inplace(values)


class FakeBinding:
    """Remembers which tensor was bound to which name."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.inputs: dict[str, FakeValue] = {}
        self.outputs: dict[str, FakeValue] = {}

    def bind_ortvalue_input(self, name: str, value: FakeValue) -> None:
        self.inputs[name] = value
        self.real.bind_ortvalue_input(name, value.real)

    def bind_ortvalue_output(self, name: str, value: FakeValue) -> None:
        self.outputs[name] = value
        self.real.bind_ortvalue_output(name, value.real)


class FakeSession:
    """A session of the real library on the CPU that says it runs elsewhere."""

    def __init__(
        self, record: Record, path: str, sess_options: Any, providers: list[tuple[str, dict]]
    ) -> None:
        self.record, self.path, self.options, self.providers = record, path, sess_options, providers
        self.recorded: dict[str, dict[str, Any]] = {}  # what the host said, by graph and input
        if record.refuses(providers[0][1]):
            raise RuntimeError("this session cannot use the graph capture feature")
        self.real = onnxruntime.InferenceSession(path, sess_options, providers=[CPU])
        self.bindings: list[FakeBinding] = []
        self.graphs: list[str] = []  # the number of every run's CUDA graph
        record.sessions.append(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def get_providers(self) -> list[str]:
        return [self.providers[0][0], CPU] if self.record.loads else [CPU]

    def get_provider_graph_assignment_info(self) -> list[Any]:
        if self.record.on_cpu is None:
            raise RuntimeError("not recorded")
        parts = [(self.providers[0][0], ["MatMul"] * 7), (CPU, self.record.on_cpu)]
        return [
            SimpleNamespace(ep_name=name, get_nodes=lambda ops=ops: [Node(op) for op in ops])
            for name, ops in parts
        ]

    def io_binding(self) -> FakeBinding:
        self.bindings.append(FakeBinding(self.real.io_binding()))
        return self.bindings[-1]

    def run_with_iobinding(self, binding: FakeBinding, options: Any) -> None:
        try:
            number = options.get_run_config_entry("gpu_graph_id")
        except RuntimeError:
            number = ""
        if self.record.fails(number):
            raise RuntimeError("operation not permitted when stream is capturing")
        self.graphs.append(number)
        if number in self.recorded:
            self._replay(binding, number)
            return
        self.real.run_with_iobinding(binding.real, options)
        self.record.read += [v.real.numpy().nbytes for v in hosted(binding.outputs).values()]
        if number not in ("", "-1"):
            inputs = hosted(binding.inputs)
            self.recorded[number] = {n: v.real.numpy().copy() for n, v in inputs.items()}

    def _replay(self, binding: FakeBinding, number: str) -> None:
        outputs = hosted(binding.outputs).values()
        before = [value.real.numpy().copy() for value in outputs]
        for name, values in self.recorded[number].items():
            binding.inputs[name].real.numpy()[...] = values
        self.real.run_with_iobinding(binding.real, onnxruntime.RunOptions())
        for value, values in zip(outputs, before, strict=True):
            value.real.numpy()[...] = values


def hosted(tensors: dict[str, FakeValue]) -> dict[str, FakeValue]:
    """Return the tensors that lie on the host."""
    return {name: value for name, value in tensors.items() if value.device == "cpu"}


def make_fake_ort(record: Record) -> Any:
    """Return what stands for the module `onnxruntime`."""
    return SimpleNamespace(
        __version__=onnxruntime.__version__,
        __file__=onnxruntime.__file__,
        SessionOptions=onnxruntime.SessionOptions,
        RunOptions=onnxruntime.RunOptions,
        OrtValue=SimpleNamespace(
            ortvalue_from_numpy=lambda values, device, _: FakeValue(record, values, device)
        ),
        InferenceSession=lambda path, *, sess_options, providers: FakeSession(
            record, path, sess_options, providers
        ),
        get_available_providers=lambda: [TENSORRT, CUDA, CPU],
    )
