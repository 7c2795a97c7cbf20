"""`python -m tools.fetch NAME`: bring a known model's file into the cache folder.

In: the name of a recipe. Out: the file's path on standard output, progress on standard error.
Without a name, or with `--list`, the known recipes are listed.
"""

import argparse
import sys
from collections.abc import Sequence

from export.fetch import fetch
from export.progress import Progress
from export.recipes import find_recipe, read_recipes
from runtime.errors import ForerunError
from runtime.storage import CACHE_VARIABLE, cache_folder

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = make_parser().parse_args(arguments)
    try:
        if options.list or options.name is None:
            print_recipes()
        else:
            print(fetch(find_recipe(options.name), progress=Progress(quiet=options.quiet)))
    except ForerunError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted: what has arrived is kept, run again to go on", file=sys.stderr)
        return INTERRUPTED
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.fetch",
        description="Fetch a known model's file, verify it, and print its path.",
        epilog=f"Files are kept in {cache_folder()} (set {CACHE_VARIABLE} to change it).",
    )
    parser.add_argument("name", nargs="?", help="the recipe's name; without it, recipes are listed")
    parser.add_argument("--list", action="store_true", help="list the known recipes")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    return parser


def print_recipes() -> None:
    """Print each known recipe: name, kind, size, licence, and what it is."""
    for recipe in read_recipes():
        print(
            f"{recipe.name:<30}{recipe.kind:<6}{recipe.bytes / 1e6:>7.0f} MB  "
            f"{recipe.licence}  {recipe.description}"
        )


if __name__ == "__main__":
    sys.exit(main())
