"""The peer openvino-genai: `python -m tools.bench.engines.openvino MODEL THREADS`.

Runs in the peer's own environment. MODEL is a GGUF file, which the peer reads by itself.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..serve import Emit, serve
from ..wire import Hello, Job


class Openvino:
    """A model opened as `LLMPipeline` on the processor."""

    def __init__(self, model: str, threads: int) -> None:
        self._library = import_module("openvino_genai")
        self._tensor = import_module("openvino").Tensor
        self._arrays = import_module("numpy")
        self._model = Path(model)
        self._threads = threads
        # The cache of earlier prompts would answer a repeated one without reading it.
        scheduler = self._library.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        self._pipeline = self._library.LLMPipeline(
            model, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=threads
        )

    def describe(self) -> Hello:
        """Return versions and threads."""
        names = ("openvino-genai", "openvino")
        versions = {name: version(name) for name in names} | {"python": sys.version.split()[0]}
        return Hello(versions=versions, threads=self._threads, load_s=0.0)

    def reset(self) -> None:
        """Do nothing: without a chat every job begins anew."""

    def run(self, job: Job, emit: Emit) -> dict[str, Any]:
        """Generate greedily."""
        library = self._library

        class Hand(library.StreamerBase):  # type: ignore[misc, name-defined]
            """Hands over what the pipeline writes."""

            def write(self, tokens: int | Sequence[int]) -> Any:
                emit([tokens] if isinstance(tokens, int) else list(tokens))
                return library.StreamingStatus.RUNNING

            def end(self) -> None:
                """Take the end of the answer."""

        ids = self._arrays.array([job.prompt_ids], dtype="int64")
        inputs = library.TokenizedInputs(
            self._tensor(ids), self._tensor(self._arrays.ones_like(ids))
        )
        config = self._pipeline.get_generation_config()
        config.max_new_tokens, config.do_sample = job.max_tokens, False
        self._pipeline.generate(inputs, config, Hand())
        return {}

    def memory(self) -> dict[str, int]:
        """Return the size of the weights on disk."""
        return {"weights": self._model.stat().st_size}


def main() -> int:
    """Serve the model named on the command line."""
    model, threads = sys.argv[1:]
    return serve(lambda: Openvino(model, int(threads)))


if __name__ == "__main__":
    sys.exit(main())
