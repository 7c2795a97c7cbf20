"""From a request to nested levels: which model speculates over which drafter, by which rule.

In: the bundle's models by name and a request. Out: a `Stack`, made anew for each request, so that
no request learns from another.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from .acceptance import RULES, Rule
from .candidate import (
    COPIER_PRIOR,
    MODEL_ACCEPTANCE,
    MODEL_PRIOR,
    NGRAM_ACCEPTANCE,
    NGRAM_PRIOR,
    SAMPLED_PRIOR,
    WINDOW_ACCEPTANCE,
    Candidate,
)
from .controller import LONGEST, Controller, PassCost
from .costs import CostTable, Mode
from .drafters import (
    Archive,
    Drafter,
    FirstOf,
    LookupDrafter,
    NgramDrafter,
    NoDrafter,
    SuffixDrafter,
)
from .errors import RequestError
from .model import Model
from .ngram import NgramTable
from .noise import Noise
from .request import Request
from .sampling import Sampler
from .speculate import Level, ModelDrafter, Verdict, Watch, watch_nothing
from .stages import LOOKUP, NGRAM, Stage, default_stages, parse_stages
from .stats import Choices, LevelStats
from .survival import Survival
from .window import Window

TARGET = "target"

# How many tokens a round asks for by default. Even pass widths suit the int4 kernels on CPUs, and
# a draft model's own steps cost a good part of the target's, so that one token pays best there.
_COPIER_K = 3
_MODEL_K = 1
# Beside a model a copier takes its place only where it is likely to be right for many tokens.
_LONG_MATCH = 8


@dataclass(frozen=True)
class Stack:
    """The levels of a request, the target's first.

    `controller` chooses how the target's level is drafted for, if anything is to be chosen.
    """

    levels: tuple[Level, ...]
    controller: Controller | None = None

    @property
    def target(self) -> Level:
        """The target's level."""
        return self.levels[0]

    def retract(self, *, accepted: int, rejected: int) -> None:
        """Uncount what of the target's last round a stop or the budget cut off."""
        self.target.stats.retract(accepted=accepted, rejected=rejected)
        if self.controller:
            self.controller.retract(accepted + 1)

    def choices(self) -> Choices | None:
        """Return what the controller chose so far."""
        return self.controller.choices() if self.controller else None


def make_stack(
    target: Model,
    drafts: Mapping[str, Model],
    request: Request,
    *,
    prompt: Sequence[int],
    end_ids: Sequence[int],
    noise: Noise,
    costs: CostTable | None = None,
    watch: Watch = watch_nothing,
    archive: Archive | None = None,
    ngrams: NgramTable | None = None,
) -> Stack:
    """Return the levels for this request; all caches keep what `prompt` shares with them.

    Args:
        target: the model whose law the output follows.
        drafts: the bundle's draft models by name, nearest to the target first.
        request: names the stages, bottom first; by default all drafts, or suffix without any.
        prompt: the prompt's token ids.
        end_ids: end-of-text ids.
        noise: the request's noise.
        costs: what passes cost here: stages without a k are then drafted as far as it pays.
        watch: told of every round of every level.
        archive: past sequences for the suffix drafter.
        ngrams: the bundle's n-gram table.

    Raises:
        RequestError: the stages do not fit the bundle.
    """
    levels: list[Level] = []
    stages = plan_stages(
        list(drafts), request, is_controlled=costs is not None, has_ngrams=ngrams is not None
    )

    def make_sampler(vocabulary: int, *, tells_certainty: bool) -> Sampler:
        return Sampler(
            request.sampling,
            vocabulary=vocabulary,
            prompt_length=len(prompt),
            end_ids=end_ids,
            noise=noise,
            tells_certainty=tells_certainty,
        )

    def make_free(name: str, *, is_alone: bool) -> Drafter:
        if name == NGRAM and ngrams is not None:
            return NgramDrafter(ngrams, make_sampler(target.vocabulary, tells_certainty=False))
        return _copier(name, archive, is_alone=is_alone)

    def make_level(name: str, model: Model, below: Stage | None, drafter: Drafter) -> Level:
        sampler = make_sampler(model.vocabulary, tells_certainty=name != TARGET)
        model.begin(prompt, even_widths=request.has_even_widths, best=sampler.best)
        level = Level(
            name=name,
            model=model,
            drafter=drafter,
            sampler=sampler,
            rule=_rule(request, below),
            k=LONGEST if isinstance(drafter, Controller) else _width(below),
            stats=LevelStats(),
            watch=_watch_with(drafter, watch) if isinstance(drafter, Controller) else watch,
        )
        levels.insert(0, level)
        return level

    drafts_for = [*(stage.model for stage in stages[1:]), TARGET][: len(stages)]
    below: Stage | None = None
    drafter: Drafter = NoDrafter()
    for stage, above in zip(stages, drafts_for, strict=True):
        has_choice = costs is not None and stage.k is None
        is_alone = stage.model is None or has_choice
        members = [make_free(name, is_alone=is_alone) for name in stage.free]
        if stage.model is not None:
            own: Model = drafts[stage.model]
            own = Window(own, keeps_known=request.sampling.is_matched) if has_choice else own
            level = make_level(stage.model, own, below, drafter)
            members.append(ModelDrafter(stage.model, level))
        below = stage
        if costs is not None and stage.k is None:
            models = {**drafts, TARGET: target}
            drafter = _control(members, above or TARGET, costs, request, models)
        else:
            drafter = members[0] if len(members) == 1 else FirstOf(members)
    make_level(TARGET, target, below, drafter)
    return Stack(tuple(levels), drafter if isinstance(drafter, Controller) else None)


def plan_stages(
    drafts: Sequence[str],
    request: Request,
    *,
    is_controlled: bool,
    has_ngrams: bool = False,
    left_out: Collection[str] = (),
) -> tuple[Stage, ...]:
    """Return the stages that the request asks of a bundle with these drafts, bottom first.

    Args:
        drafts: their names, nearest to the target first.
        request: what was asked.
        is_controlled: by default, copiers that only cost when they pay stand beside a model.
        has_ngrams: whether the bundle has an n-gram table.
        left_out: the names of drafts that are not loaded.

    Raises:
        RequestError: the stages do not fit the bundle.
    """
    if request.stages is None:
        stages = default_stages(drafts, is_controlled=is_controlled and request.k is None)
    else:
        stages = parse_stages(request.stages, drafts, has_ngrams=has_ngrams, left_out=left_out)
    if request.is_plain:
        return ()
    if request.k is None or not stages:
        return stages
    if stages[-1].k is not None:
        raise RequestError(
            f"k is {request.k}, but the last stage says {stages[-1]}: give one of the two"
        )
    return (*stages[:-1], replace(stages[-1], k=request.k))


def _copier(name: str, archive: Archive | None, *, is_alone: bool) -> Drafter:
    if name == LOOKUP:
        return (
            LookupDrafter()
            if is_alone
            else LookupDrafter(longest=_LONG_MATCH, shortest=_LONG_MATCH)
        )
    if is_alone:
        return SuffixDrafter(archive=archive)
    return SuffixDrafter(shortest=_LONG_MATCH, archive=archive)


def _rule(request: Request, below: Stage | None) -> Rule:
    """Return the level's rule: matching for point laws, the token rule for copied drafts."""
    if request.sampling.is_matched:
        return RULES["match"]
    if below is None or (below.model is None and NGRAM not in below.free):
        return RULES["token"]
    return RULES["block" if request.rule == "auto" else request.rule]


def _control(
    members: Sequence[Drafter],
    above: str,
    costs: CostTable,
    request: Request,
    models: Mapping[str, Model],
) -> Controller:
    """Return the members under a controller that knows what passes of the model above cost."""
    drawn = MODEL_PRIOR if request.sampling.is_matched else SAMPLED_PRIOR
    candidates = []
    for member in members:
        prior, acceptance = COPIER_PRIOR, MODEL_ACCEPTANCE
        if isinstance(member, NgramDrafter):
            prior, acceptance = NGRAM_PRIOR, NGRAM_ACCEPTANCE
        elif isinstance(member, ModelDrafter):
            model = member.level.model
            is_hidden = isinstance(model, Window) and model.unread > 0
            prior, acceptance = drawn, WINDOW_ACCEPTANCE if is_hidden else MODEL_ACCEPTANCE
        candidates.append(Candidate(member, Survival(prior), acceptance))
    names = [member.name for member in members if isinstance(member, ModelDrafter)]
    return Controller(
        candidates,
        pass_cost=_pass_cost(costs, above, models[above], request),
        draft_costs={name: _pass_cost(costs, name, models[name], request) for name in names},
    )


def _pass_cost(costs: CostTable, name: str, model: Model, request: Request) -> PassCost:
    """Return the seconds of a pass of this model with its laws, its draws and the acceptance."""
    sampling = request.sampling
    mode: Mode = "greedy" if sampling.is_greedy else "coupled" if sampling.coupled else "sampled"
    host = costs.host[mode]

    def seconds(width: int, depth: int) -> float:
        run = width + width % 2 if model.has_even_widths else width
        if run == 1 and name == TARGET:
            return costs.plain_seconds(depth) + host.law
        own = costs.seconds(name, width=run, depth=depth)
        return own + width * host.law + (width - 1) * host.judge

    return seconds


def _watch_with(controller: Controller, watch: Watch) -> Watch:
    def both(verdict: Verdict) -> None:
        controller.watch(verdict)
        watch(verdict)

    return both


def _width(below: Stage | None) -> int:
    if below is None:
        return 0
    if below.k is not None:
        return below.k
    return _COPIER_K if below.model is None else _MODEL_K
