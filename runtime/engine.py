"""The embeddable engine: a bundle opened once, answers streamed from it.

In: a bundle's folder and a request. Out: chunks, or the whole answer. One engine serves several
threads one answer at a time; its caches keep what the next prompt shares with the last sequence.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, get_ident
from time import perf_counter
from types import TracebackType
from typing import Unpack

from .bundle import Bundle, open_bundle
from .cost_keeper import CostKeeper
from .costs import TARGET, CostTable
from .errors import EngineClosedError, PromptTooLongError, RequestError
from .generation import Chunk, generate_chunks
from .kept_costs import CostKey, make_key, read_costs
from .memory import choose_drafts
from .model import OnnxModel
from .ngram import NgramTable
from .ngram_file import open_table
from .noise import Noise
from .places import joint_provider, make_places, open_models
from .providers import Threads, count_threads
from .request import Options, Request, check_ids, make_request
from .sampling import check_bias
from .speculate import Watch, watch_nothing
from .stack import Stack, make_stack, plan_stages
from .stages import Stage
from .stats import Stats
from .store import Store
from .template import ChatTemplate
from .text import TextStream
from .tokenizer import Tokenizer

Messages = Sequence[Mapping[str, object]]


@dataclass(frozen=True, kw_only=True)
class Completion:
    """A whole answer; `Chunk` says what the fields mean."""

    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    finish_reason: str
    stats: Stats
    seed: int


class Engine:
    """An opened bundle. Make it with `Engine.open`; close it, or use it in a `with` block."""

    def __init__(
        self,
        bundle: Bundle,
        target: OnnxModel,
        drafts: Mapping[str, OnnxModel],
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        measure_costs: bool = True,
        store: Store | None = None,
        threads_asked: int | None = None,
        ngrams: NgramTable | None = None,
    ) -> None:
        self.bundle = bundle
        self._target: OnnxModel | None = target
        self._drafts = dict(drafts)
        self.tokenizer = tokenizer
        self._template = template
        self._has_costs = measure_costs
        where = joint_provider(target, drafts)
        self._costs = CostKeeper(make_key(bundle, provider=where, threads=threads_asked))
        self._store = store
        self._ngrams = ngrams
        self._lock = Lock()
        self._holder: int | None = None

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        provider: str = "cpu",
        device_id: int = 0,
        providers: Mapping[str, str] | None = None,
        strict_provider: bool = False,
        cuda_graphs: bool = False,
        threads: int | None = None,
        verify_hashes: bool = True,
        measure_costs: bool = True,
        max_memory: int | None = None,
        store: str | Path | None = None,
    ) -> "Engine":
        """Open the bundle at `path`.

        Args:
            path: the folder that `python -m export` wrote.
            provider: `cpu`, `cuda` or `tensorrt`; it must load, nothing falls back silently.
            device_id: which GPU.
            providers: other providers for some models, by name: `{"draft": "cpu"}`.
            strict_provider: refuse a model of which the provider leaves nodes to the CPU.
            cuda_graphs: replay passes of a few tokens as CUDA graphs, for models on `cuda`.
            threads: compute threads per model; by default the fastest number known from `costs`,
                or one per usable core.
            verify_hashes: check every file's SHA-256 (about a second for each gigabyte).
            measure_costs: time the models when an answer first needs to know how far drafting pays
                (a few seconds, once for a bundle on a machine); without it lengths are fixed.
            max_memory: bytes for weights and caches of a thousand tokens: drafts that do not fit
                are not loaded, the nearest to the target comes first.
            store: a file that keeps the tokens of prompts and finished answers, for the suffix
                drafter of later ones; made if absent, readable by its owner only.

        Raises:
            BundleError: no bundle, or incomplete, altered, or of a newer format version.
            ProviderError: a provider is unknown, does not load, or is not what was asked for.
            RequestError: `threads` is out of range, `providers` names no model, or `max_memory`
                does not hold the target.
            StoreError: `store` is no store, or of another tokenizer.
        """
        asked = Threads(count=count_threads(threads))
        bundle = open_bundle(path, verify_hashes=verify_hashes)
        places = make_places(
            bundle,
            provider=provider,
            providers=providers or {},
            device_id=device_id,
            cuda_graphs=cuda_graphs,
        )
        words = bundle.manifest.tokenizer
        past = None
        if store is not None:
            past = Store(store, fingerprint=words.fingerprint, vocabulary=words.vocabulary)
        entries = choose_drafts(bundle, max_memory)
        key = make_key(bundle, provider=places.joined(e.name for e in entries), threads=None)
        kept = read_costs(key) if threads is None else None
        setting = kept.threads if kept else asked
        entries = [bundle.manifest.target, *entries]
        target, *drafts = open_models(bundle, entries, places, setting, is_strict=strict_provider)
        source = bundle.chat_template()
        template = None
        if source is not None:
            template = ChatTemplate(source, bos_token=words.bos_token, eos_token=words.eos_token)
        return cls(
            bundle,
            target,
            {draft.name: draft for draft in drafts},
            Tokenizer.load(bundle.tokenizer),
            template,
            measure_costs=measure_costs,
            store=past,
            threads_asked=threads,
            ngrams=open_table(bundle),
        )

    @property
    def target(self) -> OnnxModel:
        """The target model; raises `EngineClosedError` once the engine is closed."""
        target = self._target  # read once: another thread may close the engine
        if target is None:
            raise EngineClosedError("the engine is closed: open the bundle again")
        return target

    @property
    def drafts(self) -> Mapping[str, OnnxModel]:
        """The draft models by name, nearest to the target first."""
        return self._drafts

    @property
    def has_chat_template(self) -> bool:
        """Whether `messages` can be given: the checkpoint came with a chat template."""
        return self._template is not None

    def costs(
        self, *, refresh: bool = False, on_pass: Callable[[], None] = lambda: None
    ) -> CostTable:
        """Return what passes cost on this machine: kept from an earlier run, or measured now.

        Measuring takes a few seconds and empties the caches. Unless the engine was opened with a
        number of threads, it also finds the fastest setting for these models and switches to it.

        Args:
            refresh: measure even if a table is kept.
            on_pass: called after every pass while measuring.

        Raises:
            EngineClosedError: the engine was closed.
        """
        with self._turn():
            return self._costs.obtain(self.target, self._drafts, refresh=refresh, on_pass=on_pass)

    @property
    def cost_key(self) -> CostKey:
        """What a cost table of this engine holds for."""
        return self._costs.key

    def encode(
        self, prompt: str | Sequence[int] | None = None, *, messages: Messages | None = None
    ) -> list[int]:
        """Return the token ids of a prompt or of chat messages.

        A text prompt honours control tokens spelled in it and opens as the tokenizer wants; what
        stands in messages is plain text, control tokens come from the chat template alone.

        Raises:
            RequestError: both or neither are given, a token id is unknown, or the bundle has no
                chat template.
            PromptTooLongError: no room is left for one new token.
        """
        ids = self._encode(prompt, messages)
        context = self.target.context
        if not ids:
            raise RequestError("the prompt holds no token: give at least one character")
        if len(ids) >= context:
            raise PromptTooLongError(
                f"the prompt has {len(ids)} tokens, but the context holds {context}, one new token "
                "included: shorten the prompt, or export with a larger --context"
            )
        return ids

    def generate(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        messages: Messages | None = None,
        watch: Watch = watch_nothing,
        **options: Unpack[Options],
    ) -> Generator[Chunk, None, None]:
        """Stream the answer to a prompt (text or token ids) or to chat `messages`.

        Args:
            prompt: text or token ids, without `messages`.
            messages: `[{"role": "user", "content": "…"}, …]`, without `prompt`.
            watch: called after every round of every level with a `runtime.speculate.Verdict`.
            **options: see `runtime.request.Options` and `runtime.sampling.Sampling`.

        Returns:
            Chunks; the last one carries `finish_reason`. Dropping the iterator ends the answer.

        Raises:
            RequestError: an option or the prompt cannot be served; raised before anything runs.
            EngineClosedError: the engine was closed.
        """
        started = perf_counter()
        request, ids = self._prepare(prompt, messages, options)
        return self._answer(ids, request, started, watch)

    def complete(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        messages: Messages | None = None,
        watch: Watch = watch_nothing,
        **options: Unpack[Options],
    ) -> Completion:
        """Return the whole answer; the arguments are those of `generate`."""
        started = perf_counter()
        request, ids = self._prepare(prompt, messages, options)
        chunks = list(self._answer(ids, request, started, watch))
        last = chunks[-1]
        return Completion(
            text="".join(chunk.text for chunk in chunks),
            token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
            prompt_tokens=len(ids),
            finish_reason=last.finish_reason or "length",
            stats=last.stats,
            seed=last.seed,
        )

    def make_stack(
        self, request: Request, prompt: Sequence[int], *, watch: Watch = watch_nothing
    ) -> Stack:
        """Return the levels that would answer a request, for tools that run rounds themselves.

        Args:
            request: what is asked.
            prompt: the prompt's token ids.
            watch: called after every round of every level.
        """
        stages = self._plan_stages(request)
        has_choice = self._has_costs and any(stage.k is None for stage in stages)
        costs = self._costs.obtain(self.target, self._drafts) if has_choice else None
        return make_stack(
            self.target,
            self.drafts,
            request,
            prompt=prompt,
            end_ids=self.bundle.manifest.end_ids,
            noise=Noise(request.seed),
            costs=costs,
            watch=self._costs.watch_with({TARGET: self.target, **self._drafts}, watch),
            archive=self._store.archive if self._store else None,
            ngrams=self._ngrams,
        )

    def close(self) -> None:
        """Free the models; closing twice is harmless.

        An answer that another thread reads is waited for; one that this thread has not read to
        its end is over: reading on raises `EngineClosedError`.
        """
        with nullcontext() if self._holder == get_ident() else self._lock:
            if self._target is None:
                return
            self._target = None
            self._drafts = {}

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _prepare(
        self, prompt: str | Sequence[int] | None, messages: Messages | None, options: Options
    ) -> tuple[Request, list[int]]:
        ids = self.encode(prompt, messages=messages)
        request = make_request(options)
        self._plan_stages(request)  # is it possible?
        check_bias(request.sampling.logit_bias, self.target.vocabulary)
        return request, ids

    def _plan_stages(self, request: Request) -> tuple[Stage, ...]:
        return plan_stages(
            list(self.drafts),
            request,
            is_controlled=self._has_costs,
            has_ngrams=self._ngrams is not None,
            left_out=[
                draft.name for draft in self.bundle.manifest.drafts if draft.name not in self.drafts
            ],
        )

    def _encode(self, prompt: str | Sequence[int] | None, messages: Messages | None) -> list[int]:
        target = self.target
        if (prompt is None) == (messages is None):
            raise RequestError("give either a prompt or messages, and not both")
        if messages is not None:
            if self._template is None:
                raise RequestError(
                    "this bundle has no chat template (its checkpoint is a base model): give a "
                    "prompt instead of messages"
                )
            return self._template.encode(messages, self.tokenizer)
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, add_special=True)
        return check_ids(prompt, target.vocabulary)

    def _answer(
        self, ids: list[int], request: Request, started: float, watch: Watch
    ) -> Generator[Chunk, None, None]:
        with self._turn():
            stack = self.make_stack(request, ids, watch=watch)
            sequence = list(ids)
            for chunk in generate_chunks(
                stack,
                ids,
                request,
                stream=TextStream(self.tokenizer, request.stop),
                end_ids=frozenset(self.bundle.manifest.end_ids),
                started=started,
            ):
                sequence += chunk.token_ids
                if chunk.finish_reason is not None:
                    break
                yield chunk
                self._holder = get_ident()  # another thread may read on
                _ = self.target  # closed by the reader?
            if self._store is not None:
                self._store.add(sequence)
            self._costs.doubt()
        # The turn is over before the last chunk is read: the reader may keep the iterator.
        yield chunk

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait until no other answer is being written."""
        if self._holder == get_ident():
            raise RequestError(
                "another answer of this engine is still being read in this thread: read it to its "
                "end, or close its iterator, before asking again"
            )
        with self._lock:
            _ = self.target  # closed while this answer waited?
            self._holder = get_ident()
            try:
                yield
            finally:
                self._holder = None
