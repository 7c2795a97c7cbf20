"""Every error that the export toolchain raises on purpose, as one branch of forerun's tree.

ForerunError                      (runtime.errors) its text is one clear sentence for the caller
└── ExportError                   something between a model's name and a finished bundle went wrong
    ├── PlanError                 the options do not make a plan (a wrong precision, a bad size)
    ├── RecipeError               a recipe is unknown or cannot be read
    ├── FetchError                a recipe's file could not be brought into the cache folder
    │   ├── NoNetworkError        the package index did not answer
    │   └── HashMismatchError     a file is not the one that the recipe pins
    ├── CheckpointError           a checkpoint is missing, incomplete, cut short or not a checkpoint
    ├── UnsupportedModelError     the checkpoint is sound, but its kind cannot be exported
    ├── PairMismatchError         target and draft do not speak the same language
    ├── ParityError               a finished graph does not compute what the checkpoint computes
    └── PublishError              the bundle could not be written or put in its place
"""

from runtime.errors import ForerunError


class ExportError(ForerunError):
    """Something between a model's name and a finished bundle went wrong."""


class PlanError(ExportError):
    """The options do not make a plan: one is unknown, out of range or contradicts another."""

    exit_code = 2


class RecipeError(ExportError):
    """A recipe is unknown, or its file does not hold what a recipe must hold."""

    exit_code = 2


class FetchError(ExportError):
    """A recipe's file could not be brought into the cache folder."""


class NoNetworkError(FetchError):
    """The package index, or the server that holds its files, did not answer."""


class HashMismatchError(FetchError):
    """A file has another size or SHA-256 than the recipe pins."""


class CheckpointError(ExportError):
    """A checkpoint is missing, incomplete, cut short, or not a checkpoint at all."""


class UnsupportedModelError(ExportError):
    """The checkpoint is sound, but its family or form cannot be exported."""


class PairMismatchError(ExportError):
    """Target and draft do not share the tokenizer that speculation needs."""


class ParityError(ExportError):
    """A finished graph does not compute what the checkpoint computes."""


class PublishError(ExportError):
    """The bundle could not be written or put in its place."""


def first_line(error: BaseException) -> str:
    """Return what a library's error says first, for a sentence of our own."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    while len(lines) > 1 and lines[0].endswith(":"):
        lines[:2] = [f"{lines[0]} {lines[1]}"]
    return lines[0][:300] if lines else type(error).__name__
