"""One ONNX Runtime session with cached I/O bindings: the only file that imports onnxruntime.

In: a graph and a provider. Out: `Session`, which allocates tensors where the graph
runs and replays bindings. Everything above sees NumPy arrays and the names of inputs and outputs.
Source: ONNX Runtime Python API (`InferenceSession`, `IOBinding`, `OrtValue`).
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import BundleError, ForerunError, ProviderError
from .gpu import missing_library
from .providers import CPU, CUDA, TENSORRT, Provider, Threads

try:
    import onnxruntime as ort
except ImportError as error:
    raise ProviderError(
        "ONNX Runtime is not installed: type  pip install 'forerun[cpu]'  or, for an NVIDIA GPU, "
        f" pip install 'forerun[gpu]'  (never both) [{error}]"
    ) from None

_log = logging.getLogger(__name__)

Tensor = Any  # an onnxruntime.OrtValue: the library ships no types

_INSTALL = {
    CUDA: "pip install 'onnxruntime-gpu[cuda,cudnn]'",
    TENSORRT: "pip install tensorrt",
}
_SHARED_LIBRARY = {CUDA: "cuda", TENSORRT: "tensorrt"}
# Where shapes are computed; ONNX Runtime keeps such nodes on the CPU on purpose.
_SHAPE_OPS = {"Shape", "Size", "Squeeze", "Unsqueeze", "Range", "Concat", "Cast", "Constant"}
_RECORDS_PLACEMENT = "session.record_ep_graph_assignment_info"
_NO_GRAPH = "-1"

_DTYPES = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(bool)": np.dtype(np.bool_),
}


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Which nodes run where: how many on each of ONNX Runtime's providers, and the strays.

    `strays` counts, by op, the nodes that compute on the CPU although another provider was asked
    for.
    """

    nodes: Mapping[str, int]
    strays: Mapping[str, int]


class Binding:
    """A set of bound tensors that can be run again and again without being named anew."""

    def __init__(
        self, owner: "Session", binding: Any, options: Any, outputs: Mapping[str, Tensor | None]
    ) -> None:
        self._owner = owner
        self._names = list(outputs)
        self._made = [name for name, tensor in outputs.items() if tensor is None]
        self._binding = binding
        self._options = options

    def run(self) -> dict[str, Tensor]:
        """Run the graph once: read the bound inputs, write the bound outputs, wait for them.

        Returns the outputs that the graph made itself, by name.

        Raises:
            ForerunError: ONNX Runtime failed, out of memory for instance.
        """
        try:
            self._owner.run(self._binding, self._options)
        except Exception as error:  # the library raises many unrelated types
            raise ForerunError(f"ONNX Runtime failed in a run: {_first_line(error)}") from error
        if not self._made:
            return {}
        found = dict(zip(self._names, self._binding.get_outputs(), strict=True))
        return {name: found[name] for name in self._made}


class Session:
    """A loaded graph on one provider.

    Args:
        graph: the `.onnx` file, its weights beside it, or the content of one that needs none.
        provider: where to run; it must load, there is no silent fallback.
        threads: compute threads of this session.

    Attributes:
        captures: passes that ask for it are recorded as CUDA graphs and replayed.
        placement: which nodes run where; `None` if this ONNX Runtime does not say.

    Raises:
        ProviderError: the provider is not in this build of ONNX Runtime or did not load.
        BundleError: ONNX Runtime refuses the graph.
    """

    def __init__(self, graph: Path | bytes, *, provider: Provider, threads: Threads) -> None:
        _check_available(provider)
        self.provider = provider
        self.captures = provider.captures
        self._session = self._open(graph, threads)
        loaded = self._session.get_providers()[0]
        if loaded != provider.ort_name:
            raise ProviderError(_why_not_loaded(provider, loaded))
        self.placement = _read_placement(self._session, provider)
        self.inputs = {arg.name: _DTYPES.get(arg.type) for arg in self._session.get_inputs()}
        self.outputs = {arg.name: _DTYPES.get(arg.type) for arg in self._session.get_outputs()}
        self._graph_ids = count(1)

    def _open(self, graph: Path | bytes, threads: Threads) -> Any:
        name = graph if isinstance(graph, Path) else "a graph of its own"
        try:
            try:
                return _make_session(graph, self.provider, threads, captures=self.captures)
            except Exception:
                if not self.captures:
                    raise
            # With CUDA graphs every node must be on the device, else loading fails.
            self.captures = False
            _log.warning("CUDA graphs are off: %s has nodes that they cannot hold", name)
            return _make_session(graph, self.provider, threads, captures=False)
        except Exception as error:  # the library raises many unrelated types
            raise BundleError(
                f"ONNX Runtime {ort.__version__} cannot load {name}: {_first_line(error)}"
            ) from None

    def allocate(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Tensor:
        """Return a zeroed tensor in the provider's memory."""
        return self.place(np.zeros(shape, dtype))

    def place(self, values: NDArray[Any]) -> Tensor:
        """Return a tensor with these values in the provider's memory."""
        provider = self.provider
        return ort.OrtValue.ortvalue_from_numpy(values, provider.device, provider.device_id)

    def allocate_host(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Tensor:
        """Return a zeroed tensor in the host's memory; `view` shows it without a copy."""
        return ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, dtype), "cpu", 0)

    def bind(
        self,
        inputs: Mapping[str, Tensor],
        outputs: Mapping[str, Tensor | None],
        *,
        captured: bool = False,
    ) -> Binding:
        """Return a binding of every named input and output to its tensor.

        One tensor may stand on both sides: then the graph updates it in place. An output without a
        tensor is made by the graph anew in each run. With `captured` the
        first run records a CUDA graph where the session captures, and later ones replay it; the
        graph's number is never used again, as it holds these tensors' addresses.
        """
        binding = self._session.io_binding()
        for name, tensor in inputs.items():
            binding.bind_ortvalue_input(name, tensor)
        for name, tensor in outputs.items():
            if tensor is None:
                binding.bind_output(name, self.provider.device, self.provider.device_id)
            else:
                binding.bind_ortvalue_output(name, tensor)
        options = ort.RunOptions()
        if self.captures:
            number = str(next(self._graph_ids)) if captured else _NO_GRAPH
            options.add_run_config_entry("gpu_graph_id", number)
        return Binding(self, binding, options, outputs)

    def run(self, binding: Any, options: Any) -> None:
        """Run what is bound; without CUDA graphs from then on if they fail."""
        if not self.captures:
            self._session.run_with_iobinding(binding, options)
            return
        try:
            self._session.run_with_iobinding(binding, options)
        except Exception:
            if options.get_run_config_entry("gpu_graph_id") == _NO_GRAPH:
                raise
            # A pass changes nothing that it reads, so that it can be run again.
            options.add_run_config_entry("gpu_graph_id", _NO_GRAPH)
            self._session.run_with_iobinding(binding, options)
            self.captures = False
            _log.warning("CUDA graphs are off: a pass could not be recorded")


def view(tensor: Tensor) -> NDArray[Any]:
    """Return a host tensor as an array that shares its memory."""
    return tensor.numpy()  # type: ignore[no-any-return]


def write(tensor: Tensor, values: NDArray[Any]) -> None:
    """Copy `values` (same shape and type) into `tensor`, wherever that lies."""
    tensor.update_inplace(values)


def onnxruntime_version() -> str:
    """Return the version of the ONNX Runtime that is loaded."""
    return str(ort.__version__)


def _make_session(
    graph: Path | bytes, provider: Provider, threads: Threads, *, captures: bool
) -> Any:
    backends = [(name, dict(options)) for name, options in provider.backends.items()]
    if not captures:
        for _, options in backends:
            options.pop("enable_cuda_graph", None)
    if provider.ort_name != CPU:
        _preload_libraries()
    content = graph if isinstance(graph, bytes) else str(graph)
    return ort.InferenceSession(
        content, sess_options=_session_options(provider, threads), providers=backends
    )


def _session_options(provider: Provider, threads: Threads) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads.count
    options.inter_op_num_threads = 1
    # Shapes change from call to call: a memory pattern per shape would only grow.
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    # A draft and a target take turns. Threads that go on spinning after their own run steal the
    # other's cores (measured: 0.62x of plain decoding on two cores), so they stop with the run.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if not threads.spins:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if provider.ort_name != CPU:
        options.add_session_config_entry(_RECORDS_PLACEMENT, "1")
    for name, size in provider.dimensions.items():
        options.add_free_dimension_override_by_name(name, size)
    return options


def _read_placement(session: Any, provider: Provider) -> Placement | None:
    if provider.ort_name == CPU:
        return Placement(nodes={}, strays={})
    try:
        parts = session.get_provider_graph_assignment_info()
    except Exception:  # older ones have no such method, or raise types of their own
        return None
    nodes: Counter[str] = Counter()
    strays: Counter[str] = Counter()
    for part in parts:
        ops = [node.op_type for node in part.get_nodes()]
        nodes[part.ep_name] += len(ops)
        if part.ep_name == CPU:
            strays.update(op for op in ops if op not in _SHAPE_OPS)
    return Placement(nodes=dict(nodes), strays=dict(strays))


def _preload_libraries() -> None:
    """Load CUDA and cuDNN from their Python packages where they are installed so."""
    if hasattr(ort, "preload_dlls"):
        with redirect_stdout(StringIO()):  # it prints what it does not find
            ort.preload_dlls()


def _why_not_loaded(provider: Provider, loaded: str) -> str:
    name = _SHARED_LIBRARY[provider.ort_name]
    library = Path(ort.__file__).parent / "capi" / f"libonnxruntime_providers_{name}.so"
    reason = missing_library(str(library)) or "the GPU's driver is missing or too old"
    return (
        f"{provider.name} was asked for but did not load (ONNX Runtime fell back to {loaded}): "
        f"{reason}; type  {_INSTALL[provider.ort_name]}"
    )


def _check_available(provider: Provider) -> None:
    if provider.ort_name != CPU and (both := _installed_twice()):
        raise ProviderError(
            f"{both[0]} and {both[1]} are both installed and overwrite each other: type  pip "
            f"uninstall -y {' '.join(both)}  and then  pip install 'forerun[gpu]'"
        )
    available = ort.get_available_providers()
    if provider.ort_name not in available:
        raise ProviderError(
            f"provider {provider.name} is not part of the installed ONNX Runtime "
            f"{ort.__version__} (it offers {', '.join(available)}): for a GPU, uninstall "
            "onnxruntime and type  pip install 'forerun[gpu]'"
        )


def _installed_twice() -> list[str]:
    """Return the two distributions of ONNX Runtime if both are installed, else nothing."""
    found = []
    for name in ("onnxruntime", "onnxruntime-gpu"):
        try:
            version(name)
        except PackageNotFoundError:
            return []
        found.append(name)
    return found


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
