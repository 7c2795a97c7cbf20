"""Several sequences in one graph: each scored as if it were alone, whatever the others do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_bundle import make_entry, make_graph

import runtime.batch
from runtime.batch import BatchModel
from runtime.errors import BundleError, CapacityError
from runtime.model import OnnxModel

VOCABULARY, CONTEXT, SEQUENCES = 16, 300, 4
TEXTS = np.random.default_rng(1).integers(0, VOCABULARY, (SEQUENCES, CONTEXT)).tolist()


@pytest.fixture(scope="module", params=["portable", "trees"])
def single(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("graph") / "model.onnx"
    sizes = {"vocabulary": VOCABULARY, "context": CONTEXT, "flavour": request.param}
    make_graph(path, seed=0, sharpness=1.0, distance=0.0, **sizes)
    return OnnxModel.open(path, make_entry("target", **sizes), threads=1)


@pytest.fixture(scope="module")
def expected(single):
    """The logits of every position of every text, by one pass alone."""
    rows = []
    for text in TEXTS:
        single.rewind(to=0)
        rows.append(single.score(text, CONTEXT).copy())
    return rows


@pytest.fixture
def batch(single):
    return BatchModel(single.session, single._entry, sequences=SEQUENCES, vocabulary=VOCABULARY)


def check(batch, expected, lengths, rows):
    texts = [text[:length] for text, length in zip(TEXTS, lengths, strict=True)]
    found = batch.score(texts, rows)
    assert batch.lengths == lengths
    assert batch.cache.sequences == texts
    for logits, wanted, length, want in zip(found, expected, lengths, rows, strict=True):
        assert logits.shape == (want, VOCABULARY)
        assert np.allclose(logits, wanted[length - want : length], atol=1e-5)


@given(data=st.data())
def test_any_ragged_order_of_feeding_and_rewinding_gives_the_same_logits(single, expected, data):
    batch = BatchModel(single.session, single._entry, sequences=SEQUENCES, vocabulary=VOCABULARY)
    lengths = st.lists(st.integers(1, CONTEXT), min_size=SEQUENCES, max_size=SEQUENCES)
    for _ in range(4):
        ends = data.draw(lengths)
        rows = [data.draw(st.integers(0, min(end, 5))) for end in ends]
        check(batch, expected, ends, rows)
        batch.rewind(to=data.draw(lengths))


def test_sequences_that_wait_and_a_pass_without_any_row(batch, expected):
    check(batch, expected, [5, 9, 3, 20], [0, 0, 0, 0])
    check(batch, expected, [5, 9, 4, 20], [0, 0, 1, 0])
    check(batch, expected, [5, 9, 4, 20], [0, 0, 0, 0])
    check(batch, expected, [5, 9, 4, 20], [2, 1, 4, 0])


def test_long_texts_are_fed_in_pieces(batch, expected, monkeypatch):
    fed = []
    run = batch._feed
    monkeypatch.setattr(runtime.batch, "ATTENTION_CELLS", SEQUENCES * CONTEXT * 16)
    monkeypatch.setattr(batch, "_feed", lambda *args: fed.append(args[1]) or run(*args))
    check(batch, expected, [70, 3, 40, 300], [1, 2, 5, 1])
    assert max(map(max, fed)) == 16
    assert [sum(counts) for counts in zip(*fed, strict=True)] == [70, 3, 40, 300]


def test_idle_columns_at_the_end_of_the_context_hurt_no_one(batch, expected):
    check(batch, expected, [299, 2, 1, 150], [1, 1, 1, 1])
    check(batch, expected, [300, 2, 60, 150], [1, 1, 1, 1])


def test_past_the_context_nothing_is_fed(batch, expected):
    check(batch, expected, [5, 9, 3, 20], [1, 1, 1, 1])
    with pytest.raises(CapacityError, match="holds 300 tokens, but 301"):
        batch.score([TEXTS[0][:6], TEXTS[1][:10], TEXTS[2][:4], [*TEXTS[3], 0]], [1, 1, 1, 1])
    assert batch.lengths == [5, 9, 3, 20]


def test_a_fused_graph_holds_one_sequence(single):
    entry = make_entry("target", vocabulary=VOCABULARY, context=CONTEXT)
    with pytest.raises(BundleError, match=r"one sequence .* --flavour portable"):
        BatchModel(single.session, entry, sequences=2, vocabulary=VOCABULARY)
