"""A graph with its cache: however tokens are fed, the same logits; and no stale memory is read."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_bundle import make_entry, make_graph

import runtime.model as model_module
from runtime.errors import BundleError, CapacityError, ForerunError
from runtime.model import OnnxModel
from runtime.providers import Threads
from runtime.steps import KEPT_STEPS

VOCABULARY = 16
CONTEXT = 700
TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, CONTEXT).tolist()


@pytest.fixture(scope="module", params=["fused", "portable", "trees"])
def flavour(request):
    return request.param


@pytest.fixture(scope="module")
def entry(flavour):
    sizes = {"vocabulary": VOCABULARY, "context": CONTEXT, "padding": 3}
    return make_entry("target", flavour=flavour, **sizes)


@pytest.fixture(scope="module")
def graph(flavour, tmp_path_factory):
    path = tmp_path_factory.mktemp("graph") / "model.onnx"
    shape = {"vocabulary": VOCABULARY, "context": CONTEXT, "padding": 3, "flavour": flavour}
    make_graph(path, seed=0, sharpness=1.0, distance=0.0, **shape)
    return path


@pytest.fixture
def open_model(graph, entry):
    return lambda **changes: OnnxModel.open(graph, replace(entry, **changes), threads=1)


@pytest.fixture(scope="module")
def model(graph, entry):
    return OnnxModel.open(graph, entry, threads=1)


@pytest.fixture(scope="module")
def expected(model):
    """The logits of every position, by single steps from an empty cache."""
    model.rewind(to=0)
    rows = [model.score(TOKENS[:n], 1)[0].copy() for n in range(1, CONTEXT + 1)]
    model.rewind(to=0)
    return np.array(rows)


def near(actual, wanted):
    return np.abs(actual - wanted).max() < 1e-5


def test_one_pass_is_single_steps(model, expected):
    model.rewind(to=0)
    assert near(model.score(TOKENS, CONTEXT), expected)
    assert model.length == CONTEXT


@pytest.mark.parametrize("length", [1, 2, 255, 256, 257, 511, 512, 513, CONTEXT])
@pytest.mark.parametrize("rows", [1, 2, 9])
def test_the_last_rows_of_a_prompt_in_pieces(model, expected, monkeypatch, length, rows):
    rows = min(rows, length)
    for chunk in (512, 100, 7, 1):
        monkeypatch.setattr(model_module, "PREFILL_CHUNK", chunk)
        model.rewind(to=0)
        logits = model.score(TOKENS[:length], rows)
        assert logits.shape[0] == rows
        assert near(logits, expected[length - rows : length])
        assert model.cache.tokens == TOKENS[:length]


def test_a_long_prompt_never_needs_a_large_attention_buffer(model, monkeypatch):
    fed = []
    monkeypatch.setattr(model_module, "ATTENTION_CELLS", 4000)
    real = model._feed
    monkeypatch.setattr(model, "_feed", lambda new, rows: fed.append(len(new)) or real(new, rows))
    model.rewind(to=0)
    model.score(TOKENS[:400], 3)
    assert sum(fed) == 400
    assert max(fed) * 400 <= 4000


@given(data=st.data())
def test_any_order_of_feeding_and_rewinding_gives_the_same_logits(model, expected, data):
    model.rewind(to=0)
    for _ in range(4):
        length = data.draw(st.integers(1, 300))
        rows = data.draw(st.integers(1, min(length, 6)))
        logits = model.score(TOKENS[:length], rows)
        assert near(logits, expected[length - rows : length])
        assert model.length == length
        model.rewind(to=data.draw(st.integers(0, length + 3)))
        assert model.length <= length


def test_what_was_fed_before_a_rewind_leaves_no_trace(model, expected):
    model.rewind(to=0)
    model.score([*TOKENS[:20], *reversed(TOKENS[:30])], 4)
    model.rewind(to=20)
    assert near(model.score(TOKENS[:40], 20), expected[20:40])


def test_rows_that_were_fed_already_are_fed_again(model, expected):
    model.rewind(to=0)
    model.score(TOKENS[:30], 1)
    assert near(model.score(TOKENS[:30], 5), expected[25:30])
    assert near(model.score(TOKENS[:10], 2), expected[8:10])
    assert model.length == 10


def test_memory_beyond_the_length_is_never_looked_at(open_model, expected, flavour):
    # The standard op weighs what is masked with 0, and 0 times NaN is NaN.
    for poison in (1e9, np.nan) if flavour == "fused" else (1e9,):
        model = open_model()
        for start in (0, 5, 100, 256, 300):
            model.score(TOKENS[: max(start, 1)], 1)
            model.rewind(to=start)
            for tensor in model.cache.named("past").values():
                tensor.numpy()[:, :, start:] = poison
            assert near(model.score(TOKENS[: start + 4], 4), expected[start : start + 4])


def test_a_growing_cache_keeps_its_contents(open_model, expected, flavour):
    model = open_model()
    assert model.cache.capacity == 256
    sizes = []
    for length in (250, 256, 257, 300, 512, 513, CONTEXT):
        assert near(model.score(TOKENS[:length], 3), expected[length - 3 : length])
        sizes.append((model.cache.capacity, model.cache.generation))
        assert model.cache.bytes == 2 * 4 * 16 * model.cache.capacity
    if flavour == "fused":
        assert sizes == [(256, 0), *3 * [(512, 1)], *3 * [(701, 2)]]  # one is scratch
    else:  # such kernels read the whole capacity
        finer = [(256, 0), (320, 1), (320, 1), (320, 1), (640, 2), (640, 2), (701, 3)]
        assert sizes == finer


def test_a_cache_much_too_large_is_given_up_where_kernels_read_all_of_it(
    open_model, expected, flavour
):
    model = open_model()
    model.score(TOKENS[:600], 1)
    model.begin(TOKENS[:20], even_widths=False)
    assert model.cache.capacity == (701 if flavour == "fused" else 256)
    assert near(model.score(TOKENS[:23], 3), expected[20:23])
    model.begin(TOKENS[:200], even_widths=False)
    assert model.length == 23
    assert model.cache.generation == (1 if flavour == "fused" else 2)


def test_past_the_context_nothing_is_fed(model, expected):
    model.rewind(to=0)
    model.score(TOKENS[:20], 1)
    with pytest.raises(CapacityError, match="holds 700 tokens, but 701"):
        model.score([*TOKENS, 0], 1)
    assert model.cache.tokens == TOKENS[:20]
    assert near(model.score(TOKENS[:22], 2), expected[20:22])


def test_bindings_are_made_once_per_shape_and_again_after_a_move(open_model):
    model = open_model()
    made = []
    bind = model.session.bind
    model.session.bind = lambda *args, **how: made.append(1) or bind(*args, **how)
    for _ in range(3):
        model.rewind(to=0)
        for length, rows in ((10, 1), (11, 1), (14, 3), (17, 3)):
            model.score(TOKENS[:length], rows)
    assert len(made) == 3  # (10, 1), (1, 1), (3, 3)
    model.score(TOKENS[:300], 1)
    assert len(made) == 4
    model.score(TOKENS[:301], 1)
    assert len(made) == 5


def test_few_bindings_are_kept(open_model, expected):
    model = open_model()
    for length in [*range(1, 80), *range(1, 80)]:
        model.rewind(to=0)
        assert near(model.score(TOKENS[:length], 1)[0], expected[length - 1])
    assert len(model.steps) == KEPT_STEPS


def test_a_request_keeps_what_is_shared(model):
    def begin(tokens):
        model.begin(tokens, even_widths=True)  # decides nothing here: this graph is steady
        assert not model.has_even_widths
        return model.length

    model.rewind(to=0)
    model.score(TOKENS[:20], 1)
    other = [*TOKENS[:12], (TOKENS[12] + 1) % VOCABULARY, *TOKENS[13:20]]
    assert begin(other) == 12
    assert begin(TOKENS[:5]) == 5
    assert begin(TOKENS) == 5
    assert begin([]) == 0


def test_what_was_computed_at_other_widths_is_not_kept(open_model):
    model = open_model(parity={"block_error": 0.01})
    model.score(TOKENS[:9], 1)
    model.begin(TOKENS, even_widths=False)
    assert model.length == 9
    model.begin(TOKENS, even_widths=True)
    assert (model.length, model.has_even_widths) == (0, True)
    model.score(TOKENS[:9], 1)
    model.begin(TOKENS, even_widths=True)
    assert model.length == 9
    model.begin(TOKENS, even_widths=False)
    assert (model.length, model.has_even_widths) == (0, False)


def test_padded_columns_are_not_part_of_the_logits(graph, model, entry):
    assert model.score(TOKENS[:3], 2).shape == (2, VOCABULARY + 3)  # opened by itself: all of them
    bounded = OnnxModel(
        graph,
        entry,
        vocabulary=VOCABULARY,
        provider=model.session.provider,
        threads=Threads(count=1),
    )
    logits = bounded.score(TOKENS[:3], 2)
    assert logits.shape == (2, VOCABULARY)
    assert logits.max() < 1e3


def test_a_graph_with_other_inputs_than_promised_is_refused(open_model, entry, flavour):
    with pytest.raises(BundleError, match=r"inputs that its manifest promises .*past\.1\.key"):
        open_model(cache=replace(entry.cache, layers=2))
    other = "fused" if flavour != "fused" else "portable"
    with pytest.raises(BundleError, match=r"inputs that its manifest promises .*position_ids"):
        open_model(flavour=other)


@pytest.mark.parametrize("changes", [{"head_dim": 32}, {"kv_heads": 2}, {"dtype": "float16"}])
def test_a_cache_of_another_shape_than_promised_is_one_clear_error(open_model, entry, changes):
    with pytest.raises(ForerunError):
        open_model(cache=replace(entry.cache, **changes)).score([1, 2], 1)


def test_a_failed_run_feeds_nothing(open_model, expected):
    model = open_model()
    model.score(TOKENS[:5], 1)
    with pytest.raises(ForerunError, match="ONNX Runtime failed"):
        model.score([*TOKENS[:5], VOCABULARY + 100], 1)
    assert model.cache.tokens == TOKENS[:5]
    assert near(model.score(TOKENS[:7], 2), expected[5:7])


def test_even_widths_feed_and_project_pairs(open_model, expected):
    model = open_model()
    model.has_even_widths = True
    for length, rows in ((1, 1), (2, 1), (5, 3), (8, 2), (11, 2), (12, 4), (300, 1), (303, 3)):
        assert near(model.score(TOKENS[:length], rows), expected[length - rows : length])
        assert model.length == length
    assert all(count % 2 == rows % 2 == 0 for count, rows in model.steps)
    assert near(model.score(TOKENS[:CONTEXT], 1), expected[CONTEXT - 1 : CONTEXT])


def test_a_cache_that_cannot_grow_stays_as_it_was(open_model, expected, monkeypatch):
    model = open_model()
    model.score(TOKENS[:200], 1)
    calls = []

    def fail_at_the_second(values):
        calls.append(values)
        if len(calls) == 2:
            raise MemoryError
        return place(values)

    place = model.session.place
    monkeypatch.setattr(model.session, "place", fail_at_the_second)
    with pytest.raises(MemoryError):
        model.score(TOKENS[:300], 1)
    monkeypatch.undo()
    assert (model.cache.capacity, model.cache.generation, model.length) == (256, 0, 200)
    assert near(model.score(TOKENS[:300], 1), expected[299:300])
