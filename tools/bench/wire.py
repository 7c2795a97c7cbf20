"""What the benchmark and its workers say to each other: one JSON object a line.

The benchmark sends `Job`s; a worker says `Hello` once it is ready, then one `Answer` or `Failure`
for each job. Standard library only, because workers run in environments of their own.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Job:
    """One prompt to answer: at most `max_tokens`, under the row's `settings`.

    `also` are further prompts that are asked of the same engine at the same moment.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    also: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Tokens that came out together, `at_s` seconds after the job was submitted.

    `shows_text` says whether text became visible with them; None where the engine has no text.
    `request` is the place of their prompt among those of the job.
    """

    at_s: float
    token_ids: tuple[int, ...]
    shows_text: bool | None = None
    request: int = 0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """All chunks of one answer, and what the worker saw of itself meanwhile.

    Attributes:
        chunks: in order; a chunk may hold any number of tokens, none included.
        stats: what the engine says of its own speculation (`target_passes`, `drafted`, …).
        cpu_s: processor time of all the worker's threads.
        wall_s: from submission to the end.
        busy_threads: threads that computed for a good part of it; None where this is not known.
        peak_bytes: the worker's greatest resident memory so far; None where this is not known.
        memory: parts of it by name, in bytes, where the engine knows them.
    """

    chunks: tuple[Timed, ...]
    stats: Mapping[str, Any] = field(default_factory=dict)
    cpu_s: float = 0.0
    wall_s: float = 0.0
    busy_threads: int | None = None
    peak_bytes: int | None = None
    memory: Mapping[str, int] = field(default_factory=dict)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The answer's tokens."""
        return tuple(token for chunk in self.chunks for token in chunk.token_ids)

    def split(self) -> "list[Answer]":
        """Return the answers of the job's prompts one by one."""
        requests = sorted({chunk.request for chunk in self.chunks})
        return [
            replace(self, chunks=tuple(chunk for chunk in self.chunks if chunk.request == request))
            for request in requests
        ]


@dataclass(frozen=True, kw_only=True)
class Hello:
    """What a worker is: versions of what it runs on, threads it was told to use, how it loaded."""

    versions: Mapping[str, str]
    threads: int
    load_s: float
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a worker could not do it, in one sentence."""

    reason: str


Message = Job | Answer | Hello | Failure
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Job, Answer, Hello, Failure)}


def encode(message: Message) -> str:
    """Return the message as one line of JSON, its newline included."""
    return json.dumps({"kind": type(message).__name__, **asdict(message)}) + "\n"


def decode(line: str) -> Message:
    """Return the message that `encode` spelled.

    Raises:
        ValueError: the line is no message.
    """
    fields = json.loads(line)
    if not isinstance(fields, dict) or fields.get("kind") not in _KINDS:
        raise ValueError(f"no message of a worker: {line[:200]!r}")
    kind = fields.pop("kind")
    if kind == "Answer":
        return make_answer(fields)
    if kind == "Job":
        fields["prompt_ids"] = tuple(fields["prompt_ids"])
        fields["also"] = tuple(tuple(ids) for ids in fields["also"])
    message: Message = _KINDS[kind](**fields)
    return message


def make_answer(fields: Mapping[str, Any]) -> Answer:
    """Return the answer whose fields JSON has turned into lists and objects."""
    chunks = tuple(
        Timed(**{**chunk, "token_ids": tuple(chunk["token_ids"])}) for chunk in fields["chunks"]
    )
    return Answer(**{**fields, "chunks": chunks})
