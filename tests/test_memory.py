"""What a bundle needs in memory, and which drafts a cap lets in."""

import pytest
from tiny_bundle import make_bundle

from runtime import Engine, RequestError
from runtime.bundle import open_bundle
from runtime.memory import CACHED_TOKENS, choose_drafts, memory_bytes, token_bytes


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return open_bundle(make_bundle(tmp_path_factory.mktemp("bundle"), drafts=2))


def test_a_model_counts_its_weights_and_a_cache(bundle):
    target = bundle.manifest.target
    cache = target.cache
    assert token_bytes(target) == 2 * cache.layers * cache.kv_heads * cache.head_dim * 4
    tokens = min(CACHED_TOKENS, target.context)
    assert memory_bytes(bundle, target) == bundle.weight_bytes(target) + tokens * token_bytes(
        target
    )


def test_drafts_are_loaded_from_the_target_on_while_they_fit(bundle, caplog):
    needs = [memory_bytes(bundle, model) for model in bundle.manifest.models]
    names = [draft.name for draft in bundle.manifest.drafts]

    def loaded(cap):
        return [draft.name for draft in choose_drafts(bundle, cap)]

    assert loaded(None) == loaded(sum(needs)) == names
    assert not caplog.messages
    assert loaded(sum(needs) - 1) == names[:1]
    assert "is not loaded" in caplog.text
    assert loaded(needs[0]) == []
    with pytest.raises(RequestError, match="the target alone needs"):
        choose_drafts(bundle, needs[0] - 1)


def test_an_engine_keeps_to_the_cap(bundle):
    cap = memory_bytes(bundle, bundle.manifest.target)
    with Engine.open(bundle.folder, threads=1, max_memory=cap) as engine:
        assert not engine.drafts
        assert engine.complete("abc", max_tokens=3, ignore_eos=True).token_ids
        with pytest.raises(RequestError, match="is not loaded, max_memory"):
            engine.complete("abc", stages=[bundle.manifest.drafts[0].name])
