"""Keep the libraries' remarks about themselves out of our own lines.

What matters in them is checked by us and said in a sentence; errors are never held back.
"""

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

from transformers.utils import logging as transformers_logging


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No advice and no progress bars of transformers."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.ERROR)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def quiet_loader() -> Iterator[None]:
    """No remarks while a checkpoint is read; the GGUF reader's bar obeys no setting."""
    with quiet_transformers(), warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """No remarks of PyTorch's exporter on absent packages, its own types, or what it gave up on."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.fx")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\)")
            warnings.filterwarnings("ignore", message=r"\s*# The axis name")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
