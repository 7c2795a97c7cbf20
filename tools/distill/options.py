"""The command's options, checked and frozen, and what they say of the folders around the work.

In: what was typed. Out: `Options`, or `ToolError` that names the option. Standard library only.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runtime.arguments import Parser
from runtime.storage import user_path
from tools.errors import ToolError

LOSSES = ("kl", "tv", "ce")
DEVICES = ("auto", "cpu", "cuda")
DEFAULT_LAYERS = 2
DEFAULT_VOCABULARY = 16000


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to make, from what, for how long; the command's `--help` says what each is."""

    target: str
    output: Path
    layers: int | None
    init_from: str | None
    init_layers: str | None
    vocabulary: int
    train_embeddings: bool
    prompts: Path | None
    texts: tuple[Path, ...]
    data: Path | None
    data_tokens: int
    writer: Path | None
    precision: str
    provider: str
    answer_tokens: int
    sequences: int
    minutes: float | None
    tokens: int | None
    loss: Literal["kl", "tv", "ce"]
    rate: float
    batch: int | None
    points: int
    seed: int
    device: str
    bundle: Path | None
    plot: Path | None
    threads: int | None
    overwrite: bool
    quiet: bool


def read_options(argv: list[str] | None) -> Options:
    """Parse and check the command line.

    Raises:
        ToolError: options contradict each other or are out of range.
    """
    args = _make_parser().parse_args(argv)
    texts = tuple(file for path in args.text or () for file in _text_files(user_path(path)))
    named = {"--prompts": args.prompts, "--writer": args.writer, "--bundle": args.bundle}
    paths = {option: None if p is None else user_path(p) for option, p in named.items()}
    for option, path in paths.items():
        if path is not None and not path.exists():
            raise ToolError(f"{option} {path} does not exist")
    if texts and args.prompts:
        raise ToolError("--prompts asks the target to write, --text is written already: give one")
    init_from, init_layers = _split_layers(args.init_from)
    if init_layers is not None and args.layers is not None:
        raise ToolError(
            f"--init-from names layers {init_layers} already: leave out --layers {args.layers}"
        )
    return Options(
        target=args.target,
        output=user_path(args.output),
        layers=args.layers,
        init_from=init_from,
        init_layers=init_layers,
        vocabulary=args.vocab,
        train_embeddings=args.train_embeddings,
        prompts=paths["--prompts"],
        texts=texts,
        data=None if args.data is None else user_path(args.data),
        data_tokens=args.data_tokens,
        writer=paths["--writer"],
        precision=args.precision,
        provider=args.provider,
        answer_tokens=args.answer_tokens,
        sequences=args.sequences,
        minutes=args.minutes,
        tokens=args.tokens,
        loss=args.loss,
        rate=args.rate,
        batch=args.batch,
        points=args.points,
        seed=args.seed,
        device=args.device,
        bundle=paths["--bundle"],
        plot=args.plot,
        threads=args.threads,
        overwrite=args.overwrite,
        quiet=args.quiet,
    )


def _split_layers(text: str | None) -> tuple[str | None, str | None]:
    """Return the checkpoint and the layers of `CHECKPOINT:0,29`; a colon of a path stays."""
    if text is None:
        return None, None
    head, colon, tail = text.rpartition(":")
    is_list = bool(colon) and bool(tail) and set(tail) <= set("0123456789,- ")
    return (head or None, tail) if is_list else (text, None)


def _text_files(path: Path) -> list[Path]:
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    if not files:
        raise ToolError(f"--text {path} is a folder without files")
    return files


def _make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m tools.distill",
        description="Train a small drafter for a target on text that the target writes.",
        epilog="Interrupted, the same command goes on where it was. To train on another machine, "
        "copy the --data folder there: with enough text in it only the checkpoint is needed.",
    )
    add = parser.add_argument_group("what to make").add_argument
    add("--target", required=True, metavar="T", help="recipe, folder, GGUF file or hub id")
    add("--output", required=True, type=Path, metavar="DIR", help="the drafter's checkpoint")
    add("--layers", type=_count, metavar="N", help="decoder layers (default 2), evenly chosen")
    add(
        "--init-from",
        metavar="CHECKPOINT[:LAYERS]",
        help="where layers, embedding and head come from, such as qwen2.5-coder-0.5b-instruct, "
        "DIR:0,23 or, for the target's own, :0,29 (default: the target)",
    )
    add("--vocab", type=_count, default=DEFAULT_VOCABULARY, metavar="N",
        help=f"tokens that it may propose (default {DEFAULT_VOCABULARY})")  # fmt: skip
    add("--train-embeddings", action="store_true", help="train embedding and head as well")
    add("--overwrite", action="store_true", help="replace what is at DIR")
    add = parser.add_argument_group("text").add_argument
    add("--prompts", type=Path, metavar="FILE|FOLDER", help="JSONL with turns (default: our own)")
    add("--text", type=Path, nargs="+", metavar="FILE|FOLDER", help="plain text, nothing written")
    add("--data", type=Path, metavar="FOLDER", help="where text is kept (default: the cache)")
    add("--data-tokens", type=_whole, default=300_000, metavar="N",
        help="have at least so many tokens there (default 300000; 0: what there is)")  # fmt: skip
    add("--writer", type=Path, metavar="BUNDLE",
        help="the target as a bundle of --flavour portable (default: exported here)")  # fmt: skip
    add("--precision", default="int4", metavar="P", help="of that export (default int4)")
    add("--provider", default="cpu", metavar="P", help="where it runs: cpu (default) or cuda")
    add("--answer-tokens", type=_count, default=192, metavar="N", help="longest answer (192)")
    add("--sequences", type=_count, default=64, metavar="N", help="written at once (64)")
    add = parser.add_argument_group("training").add_argument
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=_positive, metavar="M", help="budget (default 30)")
    budget.add_argument("--tokens", type=_count, metavar="N", help="budget in trained tokens")
    add("--loss", choices=LOSSES, default="kl", help="kl (default), total variation, samples")
    add("--rate", type=_positive, default=1e-3, metavar="R", help="learning rate (default 0.001)")
    add("--batch", type=_count, metavar="N", help="tokens a step (default 1024; CUDA 8192)")
    add("--points", type=_count, default=10, metavar="N", help="measurements (default 10)")
    add("--seed", type=_whole, default=0, metavar="N")
    add("--device", choices=DEVICES, default="auto", help="auto (default): CUDA if there")
    add("--bundle", type=Path, metavar="BUNDLE", help="predict speed-ups from its cost table")
    add("--plot", type=Path, metavar="FILE", help="the learning curve: .png, .svg or .pdf")
    add("--threads", type=_count, metavar="N")
    add("--quiet", action="store_true", help="no progress on standard error")
    return parser


def _count(text: str) -> int:
    if (count := int(text)) < 1:
        raise ValueError
    return count


def _whole(text: str) -> int:
    if (count := int(text)) < 0:
        raise ValueError
    return count


def _positive(text: str) -> float:
    if not 0 < (value := float(text)) < float("inf"):
        raise ValueError
    return value


_count.__name__ = "whole number of at least 1"
_whole.__name__ = "whole number of at least 0"
_positive.__name__ = "number above 0"
