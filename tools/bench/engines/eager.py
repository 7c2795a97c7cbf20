"""PyTorch eager as an engine to be measured: transformers' own `generate`, KV cache on.

`python -m tools.bench.engines.eager FOLDER DTYPE THREADS [DRAFT]`. The setting `assist` of a job is
`draft` (assisted generation with the model in DRAFT) or `lookup` (prompt lookup); without it every
token is decoded by itself. Assisted generation runs with the library's default settings.
"""

import sys
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.streamers import BaseStreamer

from ..serve import Emit, serve
from ..wire import Hello, Job

_LOOKUP_TOKENS = 3  # as many as our own lookup drafts by default


class Eager:
    """A model of transformers, and its draft if there is one."""

    def __init__(self, folder: str, dtype: str, threads: int, draft: str | None) -> None:
        torch.set_num_threads(threads)
        self._dtype = dtype
        self._model = load(folder, dtype)
        self._draft = load(draft, dtype) if draft else None

    def describe(self) -> Hello:
        """Return versions and the threads that torch says it uses."""
        versions = {name: version(name) for name in ("torch", "transformers")}
        return Hello(
            versions=versions | {"python": sys.version.split()[0]},
            threads=torch.get_num_threads(),
            load_s=0.0,
            details={"weights": self._dtype, "attention": self._model.config._attn_implementation},
        )

    def reset(self) -> None:
        """Do nothing: every job has a cache of its own."""

    def run(self, job: Job, emit: Emit) -> dict[str, Any]:
        """Generate greedily."""
        assist: Mapping[str | None, dict[str, Any]] = {
            None: {},
            "draft": {"assistant_model": self._draft},
            "lookup": {"prompt_lookup_num_tokens": _LOOKUP_TOKENS},
        }
        stream_answer(self._model, job, emit, **assist[job.settings.get("assist")])
        return {}

    def memory(self) -> dict[str, int]:
        """Return the size of each model's weights."""
        models = {"weights": self._model, "draft weights": self._draft}
        return {name: count_bytes(model) for name, model in models.items() if model is not None}


class Hand(BaseStreamer):
    """Hands over what `generate` puts out; the first thing it puts out is the prompt."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._is_prompt = True

    def put(self, value: Any) -> None:
        """Take new tokens, `[tokens]` or `[1, tokens]`."""
        if self._is_prompt:
            self._is_prompt = False
            return
        self._emit(value.flatten().tolist())

    def end(self) -> None:
        """Take the end of the answer."""


def stream_answer(model: Any, job: Job, emit: Emit, **more: Any) -> None:
    """Let `generate` answer the job greedily with the model's own end tokens."""
    ids = torch.tensor([job.prompt_ids])
    ends = model.generation_config.eos_token_id
    config: Any = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=job.max_tokens,
        do_sample=False,
        use_cache=True,
        eos_token_id=ends,
        pad_token_id=ends[0] if isinstance(ends, list) else ends,
    )
    with torch.inference_mode():
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            streamer=Hand(emit),
            **more,
        )


def load(folder: str, dtype: str) -> Any:
    """Return the model in `folder` with weights of the given type."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    return model.eval()


def count_bytes(model: Any) -> int:
    """Return the size of a model's weights, shared ones counted once."""
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


def main() -> int:
    """Serve the folder named on the command line."""
    folder, dtype, threads, *draft = sys.argv[1:]
    return serve(lambda: Eager(folder, dtype, int(threads), draft[0] if draft else None))


if __name__ == "__main__":
    sys.exit(main())
