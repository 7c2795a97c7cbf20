"""One ONNX Runtime session with cached I/O bindings: the only file that imports onnxruntime.

In: the path of a graph and a provider. Out: `Session`, which allocates tensors where the graph
runs and replays bindings. Everything above sees NumPy arrays and the names of inputs and outputs.
Source: ONNX Runtime Python API (`InferenceSession`, `IOBinding`, `OrtValue`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import BundleError, ForerunError, ProviderError
from .providers import Provider, Threads

try:
    import onnxruntime as ort
except ImportError as error:
    raise ProviderError(
        "ONNX Runtime is not installed: type  pip install 'forerun[cpu]'  or, for an NVIDIA GPU, "
        f" pip install 'forerun[gpu]'  (never both) [{error}]"
    ) from None

Tensor = Any  # an onnxruntime.OrtValue: the library ships no types

_DTYPES = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(int32)": np.dtype(np.int32),
}


class Binding:
    """A set of bound tensors that can be run again and again without being named anew."""

    def __init__(self, session: Any, binding: Any, options: Any) -> None:
        self._session = session
        self._binding = binding
        self._options = options

    def run(self) -> None:
        """Run the graph once: read the bound inputs, write the bound outputs, wait for them.

        Raises:
            ForerunError: ONNX Runtime failed, out of memory for instance.
        """
        try:
            self._session.run_with_iobinding(self._binding, self._options)
        except Exception as error:  # the library raises many unrelated types
            raise ForerunError(f"ONNX Runtime failed in a run: {_first_line(error)}") from error


class Session:
    """A loaded graph on one provider.

    Args:
        path: the `.onnx` file; its weights lie beside it.
        provider: where to run; it must load, there is no silent fallback.
        threads: compute threads of this session.

    Raises:
        ProviderError: the provider is not in this build of ONNX Runtime or did not load.
        BundleError: ONNX Runtime refuses the graph.
    """

    def __init__(self, path: Path, *, provider: Provider, threads: Threads) -> None:
        _check_available(provider)
        try:
            self._session = ort.InferenceSession(
                str(path),
                sess_options=_session_options(threads),
                providers=[(provider.ort_name, dict(provider.options))],
            )
        except Exception as error:  # the library raises many unrelated types
            raise BundleError(
                f"ONNX Runtime {ort.__version__} cannot load {path}: {_first_line(error)}"
            ) from None
        loaded = self._session.get_providers()[0]
        if loaded != provider.ort_name:
            raise ProviderError(
                f"{provider.name} was asked for but did not load (ONNX Runtime fell back to "
                f"{loaded}): the GPU's driver or one of its libraries is missing"
            )
        self.provider = provider
        self.inputs = {arg.name: _DTYPES.get(arg.type) for arg in self._session.get_inputs()}
        self.outputs = {arg.name: _DTYPES.get(arg.type) for arg in self._session.get_outputs()}
        self._run_options = ort.RunOptions()

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

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Binding:
        """Return a binding of every named input and output to its tensor.

        One tensor may stand on both sides: then the graph updates it in place.
        """
        binding = self._session.io_binding()
        for name, tensor in inputs.items():
            binding.bind_ortvalue_input(name, tensor)
        for name, tensor in outputs.items():
            binding.bind_ortvalue_output(name, tensor)
        return Binding(self._session, binding, self._run_options)


def view(tensor: Tensor) -> NDArray[Any]:
    """Return a host tensor as an array that shares its memory."""
    return tensor.numpy()  # type: ignore[no-any-return]


def write(tensor: Tensor, values: NDArray[Any]) -> None:
    """Copy `values` (same shape and type) into `tensor`, wherever that lies."""
    tensor.update_inplace(values)


def onnxruntime_version() -> str:
    """Return the version of the ONNX Runtime that is loaded."""
    return str(ort.__version__)


def _session_options(threads: Threads) -> Any:
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
    return options


def _check_available(provider: Provider) -> None:
    available = ort.get_available_providers()
    if provider.ort_name not in available:
        raise ProviderError(
            f"provider {provider.name} is not part of the installed ONNX Runtime "
            f"{ort.__version__} (it offers {', '.join(available)}): for a GPU, uninstall "
            "onnxruntime and type  pip install 'forerun[gpu]'"
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
