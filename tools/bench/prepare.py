"""Getting ready: which workers a run starts and which rows they serve.

In: options and a bundle. Out: `Prepared`. Peers are installed and models converted here, before
anything is loaded; what cannot be had becomes a row with its reason.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from export.progress import Progress
from runtime.bundle import Bundle
from runtime.errors import ForerunError

from .conversions import Wanted, find_checkpoint, unpack_checkpoint
from .peers import find_peer, prepare_peer
from .rows import OURS, Row, make_own_rows
from .worker import Launch

TORCH_ROWS = ("torch float32", "torch bfloat16", "torch bfloat16 assisted")


@dataclass(kw_only=True)
class Prepared:
    """What is to be loaded, the rows it serves, and rows that cannot run with their reasons."""

    launches: list[Launch] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, make: Callable[[], tuple[Launch, list[Row]]]) -> None:
        """Add what `make` returns, or a row with the reason why it cannot."""
        try:
            launch, rows = make()
        except ForerunError as error:
            self.failed[name] = str(error)
            self.rows.append(Row(name=name, worker=name))
            return
        self.launches.append(launch)
        self.rows += rows


def prepare(
    args: argparse.Namespace, bundle: Bundle, threads: int, *, progress: Progress
) -> Prepared:
    """Return workers and rows: our own, PyTorch's and the peers'."""
    prepared = Prepared()
    widths = args.k or [None]
    rows = make_own_rows(args.stages or [None], widths, ignore_eos=args.ignore_eos)
    prepared.add(OURS, lambda: (launch_own(bundle, threads), rows))
    if args.torch is not None:
        for name in TORCH_ROWS:
            prepared.add(name, partial(prepare_torch, name, args, bundle, threads, progress))
    for name in args.peers:
        prepared.add(name, partial(prepare_known, name, args, bundle, threads, progress))
    return prepared


def launch_own(bundle: Bundle, threads: int) -> Launch:
    """Return how our own worker starts."""
    return Launch(
        name=OURS,
        python=sys.executable,
        module="tools.bench.engines.forerun",
        arguments=(str(bundle.folder.resolve()), str(threads)),
        threads=threads,
    )


def prepare_torch(
    name: str, args: argparse.Namespace, bundle: Bundle, threads: int, progress: Progress
) -> tuple[Launch, list[Row]]:
    """Return PyTorch's worker: assisted by the bundle's draft, or by prompt lookup without one."""
    _, dtype, *assisted = name.split()
    folder = unpack_checkpoint(_source(args, bundle), progress=progress)
    arguments, settings, row = [str(folder), dtype, str(threads)], {}, name
    if assisted:
        draft = _draft_source(args, bundle)
        settings = {"assist": "draft" if draft else "lookup"}
        row = f"{name} by {settings['assist']}"
        if draft:
            arguments.append(str(unpack_checkpoint(draft, progress=progress)))
    launch = Launch(
        name=name,
        python=sys.executable,
        module="tools.bench.engines.eager",
        arguments=tuple(arguments),
        threads=threads,
    )
    return launch, [Row(name=row, worker=name, settings=settings)]


def prepare_known(
    name: str, args: argparse.Namespace, bundle: Bundle, threads: int, progress: Progress
) -> tuple[Launch, list[Row]]:
    """Return a peer's worker and rows."""
    peer = find_peer(name)
    wanted = Wanted(
        checkpoint=_source(args, bundle),
        draft=_draft_source(args, bundle),
        target=bundle.manifest.target,
        threads=threads,
        widths=tuple(width for width in args.k or () if width is not None),
    )
    return prepare_peer(peer, wanted, progress=progress)


def _source(args: argparse.Namespace, bundle: Bundle) -> str:
    """Return the checkpoint that was named, or the one that the bundle was exported from."""
    return args.torch or args.checkpoint or find_checkpoint(bundle.manifest.target.source)


def _draft_source(args: argparse.Namespace, bundle: Bundle) -> str | None:
    drafts = bundle.manifest.drafts
    if args.draft_checkpoint:
        return str(args.draft_checkpoint)
    return find_checkpoint(drafts[0].source) if drafts else None
