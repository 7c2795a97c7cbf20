"""The peers: what each is pinned to, how its model is made, and which rows it runs.

In: the name of a peer and what is wanted of it. Out: a `Launch` and rows, or a `ToolError` that
says why the peer cannot run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from export.progress import Progress
from tools.errors import ToolError

from .conversions import (
    GENAI,
    Wanted,
    make_genai_model,
    make_genai_pair,
    make_gguf,
    make_optimum_model,
)
from .environments import make_environment
from .rows import Row
from .worker import Launch

_GENAI_PINS = ("onnxruntime-genai==0.18.0", "onnxruntime==1.32.0", "numpy==2.4.6")
_GENAI_WIDTHS = (2, 4)
_GENAI_NGRAM = 3


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A peer.

    Attributes:
        name: as typed.
        environment: name of its environment, which peers may share.
        pins: what is installed there.
        module: of `tools.bench.engines`, which serves it.
        make_model: makes its model.
        make_rows: returns its rows.
    """

    name: str
    environment: str
    pins: tuple[str, ...]
    module: str
    make_model: Callable[[Wanted, Path, Progress], Path]
    make_rows: Callable[[str, Wanted], list[Row]]


def find_peer(name: str) -> Peer:
    """Return the peer called `name`.

    Raises:
        ToolError: there is none; the text lists those that there are.
    """
    if name not in PEERS:
        raise ToolError(f"no peer is called {name!r}; known are {', '.join(PEERS)}")
    return PEERS[name]


def prepare_peer(peer: Peer, wanted: Wanted, *, progress: Progress) -> tuple[Launch, list[Row]]:
    """Return how to start the peer and what to ask it, after installing and converting.

    Raises:
        ToolError: the peer cannot be installed or given this model.
        ExportError: there is no such checkpoint.
    """
    python = make_environment(peer.environment, peer.pins, progress=progress)
    model = peer.make_model(wanted, python, progress)
    launch = Launch(
        name=peer.name,
        python=str(python),
        module=f"tools.bench.engines.{peer.module}",
        arguments=(str(model), str(wanted.threads)),
        threads=wanted.threads,
    )
    return launch, peer.make_rows(peer.name, wanted)


def make_plain_rows(name: str, _wanted: Wanted) -> list[Row]:
    """Return the one row of a peer that decodes token by token."""
    return [Row(name=name, worker=name)]


def make_ngram_rows(name: str, wanted: Wanted) -> list[Row]:
    """Return onnxruntime-genai's own n-gram decoding at each width."""
    return [
        make_drafting_row(name, {"ngram_size": _GENAI_NGRAM, "max_draft_tokens": width})
        for width in wanted.widths or _GENAI_WIDTHS
    ]


def make_draft_rows(name: str, wanted: Wanted) -> list[Row]:
    """Return onnxruntime-genai's decoding with a draft model at each width."""
    return [
        make_drafting_row(name, {"max_draft_tokens": width})
        for width in wanted.widths or _GENAI_WIDTHS
    ]


def make_drafting_row(name: str, options: dict[str, int]) -> Row:
    """Return a row of onnxruntime-genai with these speculative options."""
    width = options["max_draft_tokens"]
    return Row(name=f"{name} k={width}", worker=name, settings={"speculative": options})


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            name=GENAI,
            environment=GENAI,
            pins=_GENAI_PINS,
            module="genai",
            make_model=make_genai_model,
            make_rows=make_plain_rows,
        ),
        Peer(
            name=f"{GENAI}-ngram",
            environment=GENAI,
            pins=_GENAI_PINS,
            module="genai",
            make_model=make_genai_model,
            make_rows=make_ngram_rows,
        ),
        Peer(
            name=f"{GENAI}-draft",
            environment=GENAI,
            pins=_GENAI_PINS,
            module="genai",
            make_model=make_genai_pair,
            make_rows=make_draft_rows,
        ),
        Peer(
            name="llama-cpp",
            environment="llama-cpp",
            pins=("llama-cpp-python==0.3.36", "numpy==2.4.6"),
            module="llama",
            make_model=make_gguf,
            make_rows=make_plain_rows,
        ),
        Peer(
            name="openvino-genai",
            environment="openvino-genai",
            pins=("openvino-genai==2026.4.1.0", "numpy==2.4.6"),
            module="openvino",
            make_model=make_gguf,
            make_rows=make_plain_rows,
        ),
        Peer(
            name="optimum-onnx",
            environment="optimum-onnx",
            pins=("optimum-onnx[onnxruntime]==0.1.0", "onnxruntime==1.32.0", "torch==2.13.0"),
            module="optimum",
            make_model=make_optimum_model,
            make_rows=make_plain_rows,
        ),
    )
}
