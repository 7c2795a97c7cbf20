"""The folder of training text: what is there, and writing what is missing.

In: a folder, and a bundle of the target whose graph holds several sequences. Out: shards of samples
in it, `train-00000.safetensors` and so on, and `held-…`, which are never trained on; beside them
`corpus.json` says whose words they are. A run that was stopped goes on at the next shard. A folder
with enough text needs no bundle: copy it to where the training is to be.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from export.bundle import writing
from export.progress import Progress
from runtime.storage import write_whole
from tools.errors import ToolError

from .samples import Sample, count_judged, read_samples, write_samples
from .source import Source, make_batches, make_held_out
from .writer import Writer

_HEAD = "corpus.json"
_FORMAT = 1


@dataclass(frozen=True)
class Corpus:
    """What has been written: files of samples to train on and to measure on, and their tokens."""

    folder: Path
    train: tuple[Path, ...]
    held: tuple[Path, ...]
    tokens: int

    def read_train(self) -> list[Sample]:
        """Return all samples to train on."""
        return [sample for path in self.train for sample in read_samples(path)]

    def read_held(self) -> list[Sample]:
        """Return all samples to measure on."""
        return [sample for path in self.held for sample in read_samples(path)]

    @property
    def digest(self) -> str:
        """Which samples these are."""
        names = [f"{path.name} {path.stat().st_size}" for path in (*self.train, *self.held)]
        head = (self.folder / _HEAD).read_text(encoding="utf-8")
        return hashlib.sha256("\n".join([head, *names]).encode()).hexdigest()


def open_corpus(folder: Path, *, fingerprint: str) -> Corpus:
    """Return what is in the folder, which may be nothing yet.

    Raises:
        ToolError: it holds the tokens of another tokenizer than `fingerprint`'s, or is no corpus.
    """
    head = _read_head(folder)
    if head is not None and head["fingerprint"] != fingerprint:
        raise ToolError(
            f"--data {folder} holds the tokens of another tokenizer than the target's: name "
            "another folder"
        )
    train = tuple(sorted(folder.glob("train-*.safetensors")))
    held = tuple(sorted(folder.glob("held-*.safetensors")))
    if head is None and (train or held):
        raise ToolError(f"--data {folder} holds samples, but no {_HEAD}: name another folder")
    return Corpus(folder, train, held, sum(count_judged(path) for path in train))


def extend_corpus(
    folder: Path,
    open_writer: Callable[[], Writer],
    source: Source,
    *,
    tokens: int,
    progress: Progress,
) -> Corpus:
    """Let the target write, or judge, until so many tokens to train on are there.

    Raises:
        ToolError: no prompt or text is left or fits, or the folder was begun with another source.
        PublishError: the disk is full, or the folder cannot be written to; finished shards stay.
    """
    writer = open_writer()
    _claim(folder, writer, source)
    corpus = open_corpus(folder, fingerprint=writer.fingerprint)
    with progress.stage(
        "the target's text", total=tokens, done=min(corpus.tokens, tokens)
    ) as stage:
        if not corpus.held:
            _write_held_out(folder, writer, source, progress)
        there = corpus.tokens
        batches = enumerate(make_batches(source, writer))
        while there < tokens:
            number, batch = next(batches)
            path = folder / f"train-{number:05}.safetensors"
            if path in corpus.train:
                continue
            samples = writer.make_samples(batch, seed=[0, number], on_tokens=stage.advance)
            write_samples(path, samples)
            there += sum(len(sample.laws) for sample in samples)
            stage.move_to(min(there, tokens))
    return open_corpus(folder, fingerprint=writer.fingerprint)


def _write_held_out(folder: Path, writer: Writer, source: Source, progress: Progress) -> None:
    items = make_held_out(source, writer)
    samples: list[Sample] = []
    progress.note(f"{len(items)} prompts or texts are held out to measure on")
    for place in range(0, len(items), source.batch):
        batch = items[place : place + source.batch]
        samples += writer.make_samples(batch, seed=[1, place], is_held_out=True)
    write_samples(folder / "held-00000.safetensors", samples)


def _claim(folder: Path, writer: Writer, source: Source) -> None:
    """Write down whose words go into the folder, or check that they are those begun there."""
    files = _read_sources(source)
    head = {
        "format": _FORMAT,
        "fingerprint": writer.fingerprint,
        "writer": writer.digest,
        "source": {
            **{k: v for k, v in asdict(source).items() if k not in ("prompts", "texts")},
            "given": files,
        },
    }
    found = _read_head(folder)
    if found is None:
        with writing(folder / _HEAD):
            write_whole(folder / _HEAD, json.dumps(head, indent=2) + "\n")
    elif found != head:
        different = [name for name in head if found.get(name) != head[name]]
        raise ToolError(
            f"--data {folder} was begun with another {' and '.join(different)}: name another "
            "folder, or train on what it holds with --data-tokens 0"
        )


def _read_sources(source: Source) -> str:
    """Return a digest of the files that a person named, empty without any."""
    paths: Sequence[Path] = source.texts
    if source.prompts is not None:
        is_folder = source.prompts.is_dir()
        paths = sorted(source.prompts.glob("*.jsonl")) if is_folder else [source.prompts]
    digest = hashlib.sha256()
    for path in paths:
        try:
            digest.update(path.read_bytes())
        except OSError as error:
            raise ToolError(f"{path} cannot be read: {error.strerror}") from None
    return digest.hexdigest() if paths else ""


def _read_head(folder: Path) -> dict[str, Any] | None:
    if folder.exists() and not folder.is_dir():
        raise ToolError(f"--data {folder} is a file: name a folder")
    path = folder / _HEAD
    try:
        head = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ToolError(f"{path} cannot be read ({error}): name another folder") from None
    if not isinstance(head, dict) or head.get("format") != _FORMAT or "fingerprint" not in head:
        raise ToolError(f"{path} is of another format: name another folder with --data")
    return head
