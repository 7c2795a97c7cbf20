"""The draft stages of a bundle that is already there: which names are free, where each one stands.

In: a bundle's folder. Out: the bundle, checked to the last byte, and the manifest that it will
have; `Staging.amend` then puts a stage's files and that manifest into the bundle.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from runtime.bundle import Bundle, open_bundle
from runtime.manifest import Manifest, ModelEntry

from .bundle import check_free, staged
from .errors import PlanError
from .plan import ModelPlan, draft_name
from .progress import Progress
from .report import Report


def open_whole(folder: Path, *, progress: Progress) -> Bundle:
    """Open the bundle that is to be changed, every file compared with its hash.

    Raises:
        BundleError: there is none, or it is not what its manifest says.
    """
    with progress.stage("check the bundle"):
        return open_bundle(folder, verify_hashes=True)


def name_drafts(bundle: Bundle, drafts: Sequence[ModelPlan]) -> list[ModelPlan]:
    """Give each draft that has no name the first of draft, draft2, … that is free.

    Raises:
        PlanError: the bundle has a stage of a wished name.
        PublishError: something else lies where a stage's folder is to be.
    """
    taken = [model.name for model in bundle.manifest.models]
    named = []
    for draft in drafts:
        if draft.name in taken:
            raise PlanError(
                f"{bundle.folder} has a stage called {draft.name!r} already: give another --name, "
                f"or drop that one first with  --remove-draft {draft.name}"
            )
        free = (draft_name(i) for i in count(1) if draft_name(i) not in taken)
        named.append(replace(draft, name=draft.name or next(free)))
        check_free(bundle.folder, named[-1].name)
        taken.append(named[-1].name)
    return named


def with_drafts(manifest: Manifest, drafts: Sequence[ModelEntry]) -> Manifest:
    """Return the manifest with more drafts.

    Their places are by the number of weights, the largest nearest to the target: each stage of a
    stack is to cost less than the one above it. Drafts that were there keep their order.
    """
    placed = list(manifest.drafts)
    for draft in drafts:
        smaller = (i for i, other in enumerate(placed) if other.parameters < draft.parameters)
        placed.insert(next(smaller, len(placed)), draft)
    return replace(manifest, models=(manifest.target, *placed))


def remove_drafts(folder: Path, names: Sequence[str], *, progress: Progress) -> Report:
    """Drop the drafts of these names from the bundle at `folder`; nothing else of it changes.

    Raises:
        BundleError: there is no whole bundle.
        PlanError: it has no draft of such a name.
        PublishError: it cannot be written to.
    """
    bundle = open_whole(folder, progress=progress)
    before = bundle.manifest
    offer = [draft.name for draft in before.drafts]
    for name in names:
        if name not in offer:
            known = f"its drafts are {', '.join(offer)}" if offer else "it has no draft"
            raise PlanError(f"{folder} has no draft called {name!r}: {known}")
    kept = tuple(model for model in before.models if model.name not in names)
    with staged(folder) as staging, progress.stage("publish"):
        after = staging.amend(before, replace(before, models=kept), dropped=names)
    return Report(output=folder, manifest=after, seconds=dict(progress.seconds))
