"""The peer llama.cpp by llama-cpp-python: `python -m tools.bench.engines.llama MODEL THREADS`.

Runs in the peer's own environment. MODEL is a GGUF file.
"""

import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..serve import Emit, serve
from ..wire import Hello, Job

_CONTEXT = 4096


class Llama:
    """A GGUF file opened by llama.cpp."""

    def __init__(self, model: str, threads: int) -> None:
        self._path = Path(model)
        self._threads = threads
        self._library = import_module("llama_cpp")
        self._model = self._library.Llama(
            model_path=model,
            n_ctx=_CONTEXT,
            n_threads=threads,
            n_threads_batch=threads,
            n_gpu_layers=0,
            verbose=False,
        )
        self._is_end = self._library.llama_vocab_is_eog
        self._words = self._library.llama_model_get_vocab(self._model.model)

    def describe(self) -> Hello:
        """Return versions and the threads that the library says it uses."""
        versions = {"llama-cpp-python": version("llama-cpp-python")}
        return Hello(
            versions=versions | {"python": sys.version.split()[0]},
            threads=int(self._model.n_threads),
            load_s=0.0,
        )

    def reset(self) -> None:
        """Empty the cache."""
        self._model.reset()

    def run(self, job: Job, emit: Emit) -> dict[str, Any]:
        """Generate greedily until an end token or the budget."""
        tokens = self._model.generate(list(job.prompt_ids), temp=0.0, repeat_penalty=1.0)
        for count, token in enumerate(tokens, start=1):
            emit([int(token)])
            if count == job.max_tokens or self._is_end(self._words, token):
                break
        return {}

    def memory(self) -> dict[str, int]:
        """Return the size of the weights on disk."""
        return {"weights": self._path.stat().st_size}


def main() -> int:
    """Serve the model named on the command line."""
    model, threads = sys.argv[1:]
    return serve(lambda: Llama(model, int(threads)))


if __name__ == "__main__":
    sys.exit(main())
