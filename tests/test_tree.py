"""A tree in one pass: every node's law is that of its own branch fed alone."""

import numpy as np
import pytest
from tiny_bundle import make_entry, make_graph

import runtime.tree
from runtime.errors import BundleError, CapacityError
from runtime.model import OnnxModel
from runtime.tree import score_tree

VOCABULARY, CONTEXT = 16, 80
TEXT = np.random.default_rng(2).integers(0, VOCABULARY, 60).tolist()
# Two branches that fork again, the second before the first has ended.
NODES, PARENTS = [3, 5, 5, 9, 1, 7, 3], [-1, 0, -1, 1, 2, 1, 4]


def open_tiny(folder, flavour):
    sizes = {"vocabulary": VOCABULARY, "context": CONTEXT, "flavour": flavour}
    make_graph(folder / "model.onnx", seed=0, sharpness=1.0, distance=0.0, **sizes)
    return OnnxModel.open(folder / "model.onnx", make_entry("target", **sizes), threads=1)


@pytest.fixture
def model(tmp_path):
    return open_tiny(tmp_path, "trees")


def branch_of(node):
    return [] if node < 0 else [*branch_of(PARENTS[node]), NODES[node]]


@pytest.mark.parametrize(("held", "chunk"), [(0, 512), (0, 20), (59, 512), (60, 512)])
def test_every_node_sees_its_own_branch(model, monkeypatch, held, chunk):
    monkeypatch.setattr(runtime.tree, "PREFILL_CHUNK", chunk)
    if held:
        model.score(TEXT[:held], 1)
    found = score_tree(model, TEXT, NODES, PARENTS).copy()
    assert model.cache.tokens == TEXT
    assert found.shape == (1 + len(NODES), VOCABULARY)
    for node in range(-1, len(NODES)):
        model.rewind(to=len(TEXT))
        alone = model.score([*TEXT, *branch_of(node)], 1)[0]
        assert np.allclose(found[1 + node], alone, atol=1e-5)


def test_what_is_kept_of_a_tree_is_fed_with_the_next_text(model):
    score_tree(model, TEXT, NODES, PARENTS)
    longer = [*TEXT, *branch_of(3)]
    found = score_tree(model, longer, [4], [-1]).copy()
    model.rewind(to=0)
    assert np.allclose(found, model.score([*longer, 4], 2), atol=1e-5)


def test_a_tree_beyond_the_context_is_refused(model):
    with pytest.raises(CapacityError, match="holds 80 tokens"):
        score_tree(model, TEXT + TEXT[:15], NODES, PARENTS)


@pytest.mark.parametrize("flavour", ["fused", "portable"])
def test_a_graph_without_a_mask_is_refused(tmp_path, flavour):
    with pytest.raises(BundleError, match="--flavour trees"):
        score_tree(open_tiny(tmp_path, flavour), TEXT, NODES, PARENTS)
