"""Build the n-gram stage of a bundle: `python -m tools.ngram BUNDLE --generate 100000`.

In: the target's own answers to prompts (`--generate`), text files (`--text`), a store of past
answers (`--store`), or several of them. Out: a table of counted n-grams in the bundle, its stage
`ngram`; one that was there is replaced. What the target is likely to say itself teaches most.
"""

import argparse
import hashlib
import sys
from dataclasses import replace
from pathlib import Path, PurePosixPath

from export.bundle import staged
from export.progress import Progress
from export.stages import open_whole
from runtime import Engine, ForerunError
from runtime.arguments import Parser
from runtime.bundle import Bundle
from runtime.manifest import Manifest, NgramEntry
from runtime.ngram import NgramTable
from runtime.ngram_file import write_table

from .counting import count_ngrams, prune
from .errors import ToolError
from .ngram_text import TokenText, read_answers, read_texts, write_answers
from .parity import encode_questions

_MIB = 1 << 20
_ORDERS = range(2, 9)
_FILE = "table.npz"


def main(argv: list[str] | None = None) -> int:
    """Build or remove the table; return the exit status."""
    args = _make_parser().parse_args(argv)
    progress = Progress(quiet=args.quiet)
    try:
        _check(args)
        bundle = open_whole(args.bundle, progress=progress)
        print(remove(bundle) if args.remove else _build(bundle, args, progress))
    except ForerunError as error:
        print(f"ngram: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def add(bundle: Bundle, table: NgramTable, *, counted: int, source: str) -> str:
    """Put a table into a bundle, in the place of one that was there; say what was done.

    Raises:
        PublishError: the bundle cannot be written to, or was changed meanwhile.
    """
    words = bundle.manifest.tokenizer
    with staged(bundle.folder) as staging:
        draft = staging.make_folder("ngram")
        write_table(
            draft / _FILE, table, fingerprint=words.fingerprint, vocabulary=words.vocabulary
        )
        content = (draft / _FILE).read_bytes()
        # A name of its own for each content, so that old and new can lie side by side.
        folder = f"ngram-{hashlib.sha256(content).hexdigest()[:8]}"
        entry = NgramEntry(
            file=f"{folder}/{_FILE}", order=table.order, counted=counted, source=source
        )
        grams = sum(map(len, table.tokens))
        told = f"{grams} n-grams of up to {table.order} tokens, {len(content) / _MIB:.1f} MiB"
        old = _folders(bundle.manifest)
        if old == [folder]:
            return f"{bundle.folder} has this very table already: {told}"
        draft.rename(draft.with_name(folder))
        staging.amend(bundle.manifest, replace(bundle.manifest, ngram=entry), dropped=old)
    return f"{bundle.folder}: {told}, drafts as  --stages ngram"


def remove(bundle: Bundle) -> str:
    """Drop the table from a bundle; say what was done.

    Raises:
        ToolError: there is none.
        PublishError: the bundle cannot be written to, or was changed meanwhile.
    """
    before = bundle.manifest
    if before.ngram is None:
        raise ToolError(f"{bundle.folder} has no n-gram table")
    with staged(bundle.folder) as staging:
        staging.amend(before, replace(before, ngram=None), dropped=_folders(before))
    return f"{bundle.folder}: the n-gram table is gone"


def _folders(manifest: Manifest) -> list[str]:
    entry = manifest.ngram
    return [] if entry is None else [PurePosixPath(entry.file).parts[0]]


def _build(bundle: Bundle, args: argparse.Namespace, progress: Progress) -> str:
    texts = [read_texts(bundle, args.text, progress=progress)] if args.text else []
    if args.store is not None:
        texts.append(read_answers(bundle, args.store))
    if args.generate:
        texts.append(_generate(args, progress))
    with progress.stage("count"):
        table = count_ngrams(
            [sequence for text in texts for sequence in text.sequences],
            order=args.order,
            vocabulary=bundle.manifest.tokenizer.vocabulary,
        )
        table = prune(table, most_bytes=int(args.max_size * _MIB))
    counted = sum(text.tokens for text in texts)
    return add(bundle, table, counted=counted, source=", ".join(text.name for text in texts))


def _generate(args: argparse.Namespace, progress: Progress) -> TokenText:
    with Engine.open(args.bundle, threads=args.threads, verify_hashes=False) as engine:
        prompts = encode_questions(engine, args.prompts)
        return write_answers(engine, prompts, args.generate, progress=progress)


def _check(args: argparse.Namespace) -> None:
    has_source = bool(args.text or args.generate or args.store)
    if args.remove == has_source:
        raise ToolError("give --generate N, --text FILE… or --store PATH to count, or --remove")
    if args.order not in _ORDERS:
        raise ToolError(f"--order must be from {_ORDERS[0]} to {_ORDERS[-1]}, but is {args.order}")
    if args.generate < 0:
        raise ToolError(f"--generate must be a number of tokens, but is {args.generate}")
    if not 0 < args.max_size < 1 << 20:
        raise ToolError(f"--max-size must be a number of MiB above 0, but is {args.max_size}")


def _make_parser() -> Parser:
    parser = Parser(prog="python -m tools.ngram", description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("bundle", metavar="BUNDLE", type=Path, help="folder that the export wrote")
    add("--generate", type=int, default=0, metavar="N", help="tokens of own answers to prompts")
    add("--prompts", type=Path, metavar="FILE", help="JSONL with turns; by default our own")
    add("--text", type=Path, nargs="+", default=[], metavar="FILE", help="UTF-8 text to count")
    add("--store", type=Path, metavar="PATH", help="count a store of past answers")
    add("--order", type=int, default=3, metavar="N", help="longest n-gram (default 3)")
    add("--max-size", type=float, default=16, metavar="MiB", help="of the table (default 16)")
    add("--remove", action="store_true", help="take the table out of the bundle")
    add("--threads", type=int, metavar="N")
    add("--quiet", action="store_true", help="no progress on standard error")
    return parser


if __name__ == "__main__":
    sys.exit(main())
