"""Every error that forerun raises on purpose, as one tree.

    ForerunError              something the caller can act on; its text is one clear sentence
    ├── BundleError           the folder is not a bundle that this version can open
    ├── StoreError            a store of past answers is no store, or of another tokenizer
    ├── ProviderError         an execution provider is unknown, absent or did not load
    ├── RequestError          a request cannot be served as asked (also a ValueError)
    │   └── PromptTooLongError   prompt and at least one new token do not fit the context
    ├── NoTokenLeftError      a model gives no token that the request allows a probability
    ├── CapacityError         a graph would be fed beyond its context (also a ValueError)
    └── EngineClosedError     the engine was closed before or during the call

The export toolchain adds its own branch (`export.errors.ExportError`) below `ForerunError`.
Commands print the text of a `ForerunError` on one line and exit with its `exit_code`.
"""


class ForerunError(Exception):
    """Base of all errors whose text is meant for the person at the other end."""

    exit_code = 1


class BundleError(ForerunError):
    """The folder is not a bundle, is incomplete or altered, or is of a newer format version."""


class StoreError(ForerunError):
    """A store of past answers cannot be used: no store, absent, or of another tokenizer."""


class ProviderError(ForerunError):
    """An execution provider is unknown, not installed, or refused to load."""


class RequestError(ForerunError, ValueError):
    """A request cannot be served as asked: the text names the field, the limit and the value."""

    exit_code = 2


class PromptTooLongError(RequestError):
    """The prompt and at least one new token do not fit into the context window."""


class NoTokenLeftError(ForerunError):
    """A model gives no token that the request allows a probability above zero."""


class CapacityError(ForerunError, ValueError):
    """A model was asked to hold more tokens than its context allows."""


class EngineClosedError(ForerunError):
    """The engine was closed before or during the call."""
