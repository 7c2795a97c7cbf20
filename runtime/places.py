"""Where each model of a bundle runs: one provider for all, and others for some by name.

In: the options of `Engine.open`. Out: `Places`, and the models opened there. A draft on the CPU
beside a target on a GPU, or the reverse, changes no law: only numbers on the host meet.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .bundle import Bundle
from .columns import read_token_ids
from .errors import ProviderError, RequestError
from .manifest import ModelEntry
from .model import OnnxModel
from .providers import Provider, Threads, make_provider


@dataclass(frozen=True, kw_only=True)
class Places:
    """Providers by the names of models; `default` for those that are not among `others`."""

    default: Provider
    others: Mapping[str, Provider]

    def of(self, name: str) -> Provider:
        """Return where the model called `name` runs."""
        return self.others.get(name, self.default)

    def joined(self, names: Iterable[str]) -> Provider:
        """Return the default, its name telling which of the models `names` run elsewhere."""
        elsewhere = [
            f"{name}={self.of(name).name}"
            for name in sorted(names)
            if self.of(name).name != self.default.name
        ]
        return replace(self.default, name=" ".join([self.default.name, *elsewhere]))


def make_places(
    bundle: Bundle,
    *,
    provider: str,
    providers: Mapping[str, str],
    device_id: int,
    cuda_graphs: bool,
) -> Places:
    """Check the options and return the places.

    Raises:
        ProviderError: a provider is unknown, or cannot replay CUDA graphs.
        RequestError: `providers` names no model of the bundle.
    """
    names = [model.name for model in bundle.manifest.models]
    for name in providers:
        if name not in names:
            raise RequestError(
                f"providers must name models of this bundle ({', '.join(names)}), not {name!r}"
            )

    def make(name: str) -> Provider:
        return make_provider(name, device_id=device_id, captures=cuda_graphs and name == "cuda")

    places = Places(
        default=make(provider), others={name: make(where) for name, where in providers.items()}
    )
    if cuda_graphs and not any(places.of(name).captures for name in names):
        raise ProviderError("CUDA graphs need a model on the provider cuda, and there is none")
    return places


def open_models(
    bundle: Bundle,
    entries: Sequence[ModelEntry],
    places: Places,
    threads: Threads,
    *,
    is_strict: bool,
) -> list[OnnxModel]:
    """Open models of a bundle where they are to run.

    Raises:
        BundleError: a graph cannot be loaded.
        ProviderError: a provider did not load, or `is_strict` and it left nodes to the CPU.
    """
    models = []
    for entry in entries:
        model = OnnxModel(
            bundle.graph(entry),
            entry,
            vocabulary=bundle.manifest.tokenizer.vocabulary,
            token_ids=read_token_ids(bundle, entry),
            provider=places.of(entry.name),
            threads=threads,
        )
        if is_strict:
            check_placement(model)
        models.append(model)
    return models


def check_placement(model: OnnxModel) -> None:
    """Raise ProviderError when nodes that compute were left to the CPU, or nobody can tell."""
    placement = model.session.placement
    if placement is None:
        raise ProviderError(
            "this ONNX Runtime does not say which nodes fell back to the CPU: update it, or leave "
            "out --strict-provider"
        )
    if placement.strays:
        where = model.session.provider.name
        raise ProviderError(
            f"{where} leaves {sum(placement.strays.values())} nodes of {model.name!r} to the CPU "
            f"({', '.join(sorted(placement.strays))}): export with --provider {where}, or leave "
            "out --strict-provider"
        )


def joint_provider(target: OnnxModel, drafts: Mapping[str, OnnxModel]) -> Provider:
    """Return the target's provider, its name telling which drafts run elsewhere."""
    others = {name: draft.session.provider for name, draft in drafts.items()}
    return Places(default=target.session.provider, others=others).joined(drafts)
