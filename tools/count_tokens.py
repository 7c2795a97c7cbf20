"""Count the tokens of a target's own answers: `python -m tools.count_tokens BUNDLE --output FILE`.

In: a bundle and prompts. Out: a file of lines `id count`, the most frequent first, from which
`python -m export --draft-vocab N --vocab-counts FILE` chooses what a trimmed draft may propose. An
interrupted run writes what it has counted.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from export.progress import Progress
from runtime import Engine, ForerunError
from runtime.arguments import Parser
from runtime.storage import write_whole

from .errors import ToolError
from .parity import encode_questions


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    args = _make_parser().parse_args(argv)
    counts, interrupted = Counter[int](), False
    try:
        if args.output.is_dir() or not args.output.absolute().parent.is_dir():
            raise ToolError(f"--output {args.output} must be a file in a folder that exists")
        with Engine.open(args.bundle, threads=args.threads) as engine:
            prompts = encode_questions(engine, args.prompts, limit=args.limit)
            with Progress(quiet=args.quiet).stage("answers", total=len(prompts)) as stage:
                try:
                    for seed, prompt in enumerate(prompts):
                        answer = engine.complete(
                            prompt,
                            max_tokens=args.max_tokens,
                            temperature=args.temperature,
                            seed=seed,
                        )
                        counts.update(answer.token_ids)
                        stage.advance()
                except KeyboardInterrupt:
                    interrupted = True
            _write(args, engine, counts)
    except ForerunError as error:
        print(f"count_tokens: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    print(f"{args.output}: {counts.total()} tokens, {len(counts)} different ones")
    return 130 if interrupted else 0


def _write(args: argparse.Namespace, engine: Engine, counts: Counter[int]) -> None:
    manifest = engine.bundle.manifest
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    lines = [
        f"# tokenizer {manifest.tokenizer.fingerprint}",
        f"# answers of {manifest.target.source} at temperature {args.temperature:g}",
        *(f"{token} {count}" for token, count in order),
    ]
    try:
        write_whole(args.output, "\n".join(lines) + "\n")
    except OSError as error:
        raise ToolError(f"cannot write {args.output}: {error.strerror}") from None


def _make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m tools.count_tokens", description=(__doc__ or "").partition("\n")[0]
    )
    add = parser.add_argument
    add("bundle", metavar="BUNDLE", type=Path, help="folder that the export wrote")
    add("--output", metavar="FILE", type=Path, required=True, help="where the counts go")
    add("--prompts", type=Path, metavar="FILE", help="JSONL with turns; by default our own")
    add("--limit", type=int, metavar="N", help="how many prompts (default: all)")
    add("--max-tokens", type=int, default=256, metavar="N", help="per answer (default 256)")
    add("--temperature", type=float, default=0.0, metavar="T", help="default 0: greedy")
    add("--threads", type=int, metavar="N")
    add("--quiet", action="store_true", help="no progress on standard error")
    return parser


if __name__ == "__main__":
    sys.exit(main())
