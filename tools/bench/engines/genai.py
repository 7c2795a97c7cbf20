"""The peer onnxruntime-genai: `python -m tools.bench.engines.genai MODEL THREADS`.

Runs in the peer's own environment, where neither this product nor NumPy's version is promised.
MODEL is a folder that the peer's own model builder wrote.
"""

import json
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..serve import Emit, serve
from ..wire import Hello, Job

# Its counters by our names. A step after a lookup without a match is a target pass, too.
_COUNTERS = {
    "draft_tokens_proposed": "drafted",
    "draft_tokens_evaluated": "tested",
    "draft_tokens_accepted": "accepted",
}


class Genai:
    """A model folder opened by onnxruntime-genai."""

    def __init__(self, folder: str, threads: int) -> None:
        self._library = import_module("onnxruntime_genai")
        self._folder = Path(folder)
        self._threads = threads
        config = self._library.Config(folder)
        options = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
        known = json.loads((self._folder / "genai_config.json").read_text(encoding="utf-8"))
        self._parts = [part for part in ("decoder", "draft") if part in known["model"]]
        self._graphs = [known["model"][part]["filename"] for part in self._parts]
        overlay = {part: {"session_options": options} for part in self._parts}
        config.overlay(json.dumps({"model": overlay}))
        self._model = self._library.Model(config)

    def describe(self) -> Hello:
        """Return versions and threads."""
        names = ("onnxruntime-genai", "onnxruntime")
        versions = {name: version(name) for name in names} | {"python": sys.version.split()[0]}
        return Hello(versions=versions, threads=self._threads, load_s=0.0)

    def reset(self) -> None:
        """Do nothing: every job has a generator of its own."""

    def run(self, job: Job, emit: Emit) -> dict[str, Any]:
        """Generate greedily, plainly or with the speculative options of the job."""
        arrays = import_module("numpy")
        params = self._library.GeneratorParams(self._model)
        params.set_search_options(
            do_sample=False, max_length=len(job.prompt_ids) + job.max_tokens, batch_size=1
        )
        if "speculative" in job.settings:
            params.set_speculative_options(**job.settings["speculative"])
        generator = self._library.Generator(self._model, params)
        generator.append_tokens(arrays.array(job.prompt_ids, dtype="int32"))
        length = generator.token_count()
        while not generator.is_done():
            generator.generate_next_token()
            count = generator.token_count()
            # A call may decide several tokens at once, or an end token that is not counted.
            emit([int(token) for token in generator.get_sequence(0)[length:count]])
            length = count
        if "speculative" not in job.settings:
            return {}
        found = generator.get_speculative_stats()
        return {ours: int(found[theirs]) for theirs, ours in _COUNTERS.items()}

    def memory(self) -> dict[str, int]:
        """Return the size of each model's weights on disk."""
        names = {"decoder": "weights", "draft": "draft weights"}
        return {
            names[part]: sum(
                file.stat().st_size
                for file in (self._folder / graph).parent.glob("*.onnx*")
                if file.is_file()
            )
            for part, graph in zip(self._parts, self._graphs, strict=True)
        }


def main() -> int:
    """Serve the folder named on the command line."""
    folder, threads = sys.argv[1:]
    return serve(lambda: Genai(folder, int(threads)))


if __name__ == "__main__":
    sys.exit(main())
