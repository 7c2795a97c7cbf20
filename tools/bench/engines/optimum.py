"""The peer optimum-onnx: `python -m tools.bench.engines.optimum FOLDER THREADS`.

Runs in the peer's own environment. With `export SOURCE FOLDER` it first writes FOLDER by the
peer's own exporter, which knows no weight-only precision: the graph is float32.
"""

import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..serve import Emit, serve
from ..wire import Hello, Job


class Optimum:
    """A folder opened as `ORTModelForCausalLM`."""

    def __init__(self, folder: str, threads: int) -> None:
        self._folder = Path(folder)
        self._threads = threads
        options = import_module("onnxruntime").SessionOptions()
        options.intra_op_num_threads = threads
        self._model = load_class().from_pretrained(folder, session_options=options)

    def describe(self) -> Hello:
        """Return versions and threads."""
        names = ("optimum-onnx", "onnxruntime", "transformers", "torch")
        versions = {name: version(name) for name in names} | {"python": sys.version.split()[0]}
        return Hello(
            versions=versions, threads=self._threads, load_s=0.0, details={"weights": "float32"}
        )

    def reset(self) -> None:
        """Do nothing: every job has a cache of its own."""

    def run(self, job: Job, emit: Emit) -> dict[str, Any]:
        """Generate greedily through transformers' loop, as users of this peer do."""
        from .eager import stream_answer

        stream_answer(self._model, job, emit)
        return {}

    def memory(self) -> dict[str, int]:
        """Return the size of the graph and its weights on disk."""
        files = [file for file in self._folder.glob("*.onnx*") if file.is_file()]
        return {"weights": sum(file.stat().st_size for file in files)}


def load_class() -> Any:
    """Return the peer's class."""
    return import_module("optimum.onnxruntime").ORTModelForCausalLM


def main() -> int:
    """Serve the folder named on the command line, or export it."""
    if sys.argv[1] == "export":
        source, folder = sys.argv[2:]
        load_class().from_pretrained(source, export=True).save_pretrained(folder)
        return 0
    folder, threads = sys.argv[1:]
    return serve(lambda: Optimum(folder, int(threads)))


if __name__ == "__main__":
    sys.exit(main())
