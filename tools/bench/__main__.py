"""The command `python -m tools.bench BUNDLE …`: measure, print the table, write the files."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from export.progress import Progress
from runtime.errors import ForerunError

from .arguments import make_parser
from .measuring import measure_bundle
from .table import render_result

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    args = make_parser().parse_args(argv)
    try:
        result = measure_bundle(args, progress=Progress(quiet=args.quiet))
        print(render_result(result))
        if args.json:
            args.json.write_text(json.dumps(asdict(result), indent=1) + "\n", encoding="utf-8")
    except ForerunError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0 if result.complete else INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
