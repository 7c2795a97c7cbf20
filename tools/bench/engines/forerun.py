"""This product as an engine to be measured: raw passes of the graph, plain, and speculative.

`python -m tools.bench.engines.forerun BUNDLE THREADS`. The settings of a job hold its `mode`:
`raw` runs the target's graph back to back on one token over and over, which is the most that a
loop of single passes can reach; `widths` times passes over several tokens of the model `model`;
`engine` is a generation with the remaining settings as options.
"""

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from runtime import Engine, Stats
from runtime.session import onnxruntime_version
from runtime.stack import TARGET

from ..serve import Emit, serve
from ..wire import Hello, Job
from .widths import time_widths

RAW, WIDTHS = "raw", "widths"


class Forerun:
    """An opened bundle; raw passes share the target's session with the generations."""

    def __init__(self, bundle: str, threads: int) -> None:
        self._threads = threads
        self._engine = Engine.open(bundle, threads=threads)

    def describe(self) -> Hello:
        """Return versions and threads."""
        versions = {"onnxruntime": onnxruntime_version(), "python": sys.version.split()[0]}
        return Hello(versions=versions, threads=self._threads, load_s=0.0)

    def reset(self) -> None:
        """Empty all caches, or the next prompt would find its own keys and values there."""
        for model in (self._engine.target, *self._engine.drafts.values()):
            model.rewind(to=0)

    def run(self, job: Job, emit: Emit) -> dict[str, Any]:
        """Run the job in its mode."""
        settings = dict(job.settings)
        mode = settings.pop("mode")
        if mode == RAW:
            self._run_raw(job, emit)
            return {}
        if mode == WIDTHS:
            name = settings["model"]
            model = self._engine.target if name == TARGET else self._engine.drafts[name]
            return {"widths": time_widths(model, len(job.prompt_ids))}
        if job.also:
            self._generate_together(job, settings, emit)
            return {}
        return self._generate(job.prompt_ids, job.max_tokens, settings, emit)

    def memory(self) -> dict[str, int]:
        """Return the size of each model's weights on disk and of its cache now."""
        bundle = self._engine.bundle
        models = bundle.manifest.models
        parts = {f"{entry.name} weights": bundle.weight_bytes(entry) for entry in models}
        for model in (self._engine.target, *self._engine.drafts.values()):
            parts[f"{model.name} cache"] = model.cache.bytes
        return parts

    def _generate(
        self,
        ids: Sequence[int],
        max_tokens: int,
        settings: Mapping[str, Any],
        emit: Emit,
        request: int = 0,
    ) -> dict[str, Any]:
        stats: Stats | None = None
        chunks = self._engine.generate(
            list(ids), max_tokens=max_tokens, temperature=0.0, **settings
        )
        for chunk in chunks:
            emit(chunk.token_ids, shows_text=bool(chunk.text), request=request)
            stats = chunk.stats
        return asdict(stats) if stats else {}

    def _generate_together(self, job: Job, settings: Mapping[str, Any], emit: Emit) -> None:
        """Ask all prompts of the job at once, each in a thread of its own."""
        prompts = [job.prompt_ids, *job.also]
        with ThreadPoolExecutor(len(prompts)) as threads:
            futures = [
                threads.submit(self._generate, ids, job.max_tokens, settings, emit, i)
                for i, ids in enumerate(prompts)
            ]
            for future in futures:
                future.result()

    def _run_raw(self, job: Job, emit: Emit) -> None:
        target = self._engine.target
        length = len(job.prompt_ids)
        # Growing the cache belongs to no pass, so that room is made before the first one.
        target.cache.reserve(min(length + job.max_tokens, target.context))
        target.score(job.prompt_ids, 1)
        token = job.prompt_ids[-1]
        emit([token])
        # The session's cached binding: nothing stands between two passes but its three integers.
        step = target.steps.of(1, 1)
        for past in range(length, length + job.max_tokens - 1):
            step.run([[token]], [past])
            emit([token])


def main() -> int:
    """Serve the bundle named on the command line."""
    bundle, threads = sys.argv[1:]
    return serve(lambda: Forerun(bundle, int(threads)))


if __name__ == "__main__":
    sys.exit(main())
