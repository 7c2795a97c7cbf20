"""From a request to nested levels: which model speculates over which drafter, by which rule.

In: the bundle's models by name and a request. Out: the target's `Level` with everything below it,
made anew for each request, so that no request learns from another.
"""

from collections.abc import Callable, Mapping, Sequence

from .acceptance import RULES, Rule
from .drafters import Drafter, LookupDrafter, NoDrafter, SuffixDrafter
from .errors import RequestError
from .model import Model
from .noise import Noise
from .request import Request
from .sampling import Sampler
from .speculate import Level, ModelDrafter, Watch, watch_nothing
from .stats import LevelStats

TARGET = "target"
SUFFIX = "suffix"
# Drafters that need no model: they copy from the sequence itself.
COPIERS: dict[str, Callable[[], Drafter]] = {SUFFIX: SuffixDrafter, "lookup": LookupDrafter}

# How many tokens a round asks for by default. Even pass widths suit the int4 kernels on CPUs, and
# a draft model's own steps cost a good part of the target's, so that one token pays best there.
_DEFAULT_K = dict.fromkeys(COPIERS, 3)
_DEFAULT_MODEL_K = 1


def make_stack(
    target: Model,
    drafts: Mapping[str, Model],
    request: Request,
    *,
    prompt: Sequence[int],
    end_ids: Sequence[int],
    noise: Noise,
    watch: Watch = watch_nothing,
) -> Level:
    """Return the target's level for this request; all caches keep what `prompt` shares with them.

    Args:
        target: the model whose law the output follows.
        drafts: the bundle's draft models by name, nearest to the target first.
        request: names the stages, bottom first; by default all drafts, or suffix without any.
        prompt: the prompt's token ids.
        end_ids: end-of-text ids.
        noise: the request's noise.
        watch: told of every round of every level.

    Raises:
        RequestError: a stage is neither a copier nor a draft of the bundle, or stands too high.
    """
    stages = name_stages(drafts, request)
    drafter: Drafter = NoDrafter()
    for i, name in enumerate([*stages, ""]):
        is_target = i == len(stages)
        if name in COPIERS:
            drafter = COPIERS[name]()
            continue
        model = target if is_target else drafts[name]
        model.begin(prompt, even_widths=request.has_even_widths)
        below = stages[i - 1] if i else None
        level = Level(
            name=name or TARGET,
            model=model,
            drafter=drafter,
            sampler=Sampler(
                request.sampling,
                vocabulary=model.vocabulary,
                prompt_length=len(prompt),
                end_ids=end_ids,
                noise=noise,
            ),
            rule=_rule(request, below),
            k=_width(request if is_target else None, below),
            stats=LevelStats(),
            watch=watch,
        )
        drafter = ModelDrafter(name, level)
    return level


def name_stages(drafts: Mapping[str, Model], request: Request) -> list[str]:
    """Return the names of the drafters that the request stacks, bottom first.

    Raises:
        RequestError: a stage is neither a copier nor a draft of the bundle, or stands too high.
    """
    if request.is_plain:
        return []
    if request.stages is None:
        return list(drafts)[::-1] or [SUFFIX]
    for i, name in enumerate(request.stages):
        if name in COPIERS and i > 0:
            raise RequestError(f"stages: {name} has no model to guard, so it can only stand first")
        if name not in COPIERS and name not in drafts:
            offer = ", ".join([*COPIERS, *drafts])
            raise RequestError(f"stages must name drafters of this bundle ({offer}), not {name!r}")
    if len(set(request.stages)) != len(request.stages):
        raise RequestError(f"stages must not name a drafter twice, but are {request.stages}")
    return list(request.stages)


def _rule(request: Request, below: str | None) -> Rule:
    """Return the level's rule: matching for point laws, the token rule for point-mass drafts."""
    if request.sampling.is_matched:
        return RULES["match"]
    if below is None or below in COPIERS:
        return RULES["token"]
    return RULES["block" if request.rule == "auto" else request.rule]


def _width(request: Request | None, below: str | None) -> int:
    if below is None:
        return 0
    if request is not None and request.k is not None:
        return request.k
    return _DEFAULT_K.get(below, _DEFAULT_MODEL_K)
