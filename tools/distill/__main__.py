"""Make a drafter for a target: `python -m tools.distill --target T --output DIR --minutes 30`.

In: a checkpoint of the target. Out: a checkpoint of a small decoder that foretells it, and the list
of the tokens it may propose: `python -m export --draft DIR --draft-vocab DIR/draft_vocab.txt` makes
a draft of it. `--help` answers without loading PyTorch.
"""

import sys

from export.progress import Progress
from runtime.errors import ForerunError

from .options import read_options

INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Distil, print what came of it, and return the exit status."""
    try:
        options = read_options(argv)
        from .job import distil

        lines = distil(options, progress=Progress(quiet=options.quiet))
    except ForerunError as error:
        print(f"distill: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("distill: interrupted; the same command goes on from here", file=sys.stderr)
        return INTERRUPTED
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
