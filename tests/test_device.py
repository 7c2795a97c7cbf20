"""What lies where and what is told to whom, with a GPU that only pretends."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from fake_device import CUDA, TENSORRT, Record, make_fake_ort
from tiny_bundle import make_bundle, make_entry, make_graph

import runtime.session
from runtime import Engine, profiles
from runtime.__main__ import main
from runtime.errors import ProviderError, RequestError
from runtime.logits import Best, Logits, Side
from runtime.model import OnnxModel
from runtime.providers import Threads, make_provider
from runtime.session import Session, write
from runtime.side_graphs import best_graph, copy_graph

VOCABULARY, CONTEXT = 16, 3000
TOKENS = np.random.default_rng(3).integers(0, VOCABULARY, CONTEXT).tolist()
FLAVOURS = ["fused", "portable", "trees"]


@pytest.fixture
def record(monkeypatch):
    record = Record()
    monkeypatch.setattr(runtime.session, "ort", make_fake_ort(record))
    monkeypatch.setattr(runtime.session, "_installed_twice", list)
    return record


@pytest.fixture
def open_model(tmp_path):
    def make(flavour="fused", provider="cuda", captures=False, **changes):
        sizes = {"vocabulary": VOCABULARY, "context": CONTEXT, "flavour": flavour}
        path = tmp_path / flavour / "model.onnx"
        if not path.exists():
            make_graph(path, seed=0, sharpness=1.0, distance=0.0, **sizes)
        return OnnxModel(
            path,
            make_entry("target", **sizes),
            vocabulary=VOCABULARY,
            provider=make_provider(provider, captures=captures, **changes),
            threads=Threads(count=1),
        )

    return make


@pytest.fixture
def expected(tmp_path):
    """The logits of the first tokens, on the CPU by the real library."""
    sizes = {"vocabulary": VOCABULARY, "context": CONTEXT}
    make_graph(tmp_path / "model.onnx", seed=0, sharpness=1.0, distance=0.0, **sizes)
    model = OnnxModel.open(tmp_path / "model.onnx", make_entry("target", **sizes), threads=1)
    return model.score(TOKENS[:100], 100).copy()


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_caches_stay_on_the_device_and_only_ids_places_and_rows_cross(
    expected, record, open_model, flavour
):
    model = open_model(flavour)
    model.score(TOKENS[:30], 1)
    record.to_device.clear()
    for length, rows in ((31, 1), (36, 4), (37, 1), (42, 4)):
        found = model.score(TOKENS[:length], rows)
        assert np.allclose(found, expected[length - rows : length], atol=1e-5)
    assert record.from_device == []
    assert record.read[-4:] == [4 * rows * VOCABULARY for rows in (1, 4, 1, 4)]
    for binding in record.sessions[0].bindings:
        logits = binding.outputs.pop("logits")
        assert logits.device == "cuda"
        for name, tensor in binding.outputs.items():
            assert tensor is binding.inputs[name.replace("present", "past")]  # in place
            assert tensor.device == "cuda"
        hosted = {name for name, tensor in binding.inputs.items() if tensor.device == "cpu"}
        assert hosted == ({"total_sequence_length"} if flavour == "fused" else set())
    crossed = {  # bytes of a pass of n tokens: ids, and where they stand
        "fused": lambda n: 8 * n + 4,
        "portable": lambda n: 8 * n + 8 * n + 8,
        "trees": lambda n: 8 * n + 8 * n + 8 + n * model.cache.capacity,
    }[flavour]
    assert sum(record.to_device) == sum(map(crossed, (1, 5, 1, 5)))


@pytest.mark.parametrize(
    ("settings", "best"),
    [
        ({"temperature": 0}, 1),
        ({"temperature": 0.7, "top_k": 3}, 3),
        ({"temperature": 1.0, "top_k": 3, "top_p": 0.8, "coupled": True}, 3),
        ({"temperature": 1.0, "top_k": VOCABULARY}, None),
        ({"temperature": 1.0, "top_k": 3, "presence_penalty": 0.5}, None),
        ({"temperature": 1.0}, None),
    ],
)
@pytest.mark.parametrize("kept", [None, range(0, VOCABULARY, 2)])
def test_only_the_best_of_a_row_cross_where_a_law_looks_at_no_other(
    record, tmp_path, settings, best, kept
):
    shape = {"drafts": 1, "vocabulary": VOCABULARY, "padding": (3, 0), "end_ids": ()}
    bundle = make_bundle(tmp_path / "bundle", kept=kept, **shape)
    asked = {"max_tokens": 30, "seed": 5, "stages": ["draft"], "k": 3, **settings}
    with Engine.open(bundle, threads=1, measure_costs=False) as engine:
        wanted = engine.complete("abcabc", **asked).token_ids
    record.read.clear()
    with Engine.open(bundle, provider="cuda", threads=1, measure_costs=False) as engine:
        assert engine.complete("abcabc", **asked).token_ids == wanted
    whole = {4 * rows * width for rows in (1, 2, 3, 4) for width in (19, 16, 8)}
    if best is None:
        assert set(record.read) <= whole
    else:
        parts = {
            rows * each for rows in (1, 2, 3, 4) for each in (4, 4 * (best + 1), 8 * (best + 1))
        }
        assert set(record.read) <= parts


@pytest.mark.parametrize("flaw", ["tie", "nan", "tie by rounding"])
def test_rows_are_read_whole_where_the_best_are_not_clear(record, flaw):
    session = Session(copy_graph(), provider=make_provider("cuda"), threads=Threads(count=1))
    logits = Logits(Side(session, 6), rows=2, width=8)
    rows = np.arange(16, dtype=np.float32).reshape(2, 8)
    best = Best(count=2)
    write(logits.tensor, rows[None])
    found = logits.read(best)
    assert np.isneginf(found[:, [0, 1, 2, 6, 7]]).all()  # 6 and 7 are padding
    assert (found[:, 3:6] == rows[:, 3:6]).all()
    if flaw == "tie":
        rows[1, 3] = rows[1, 4]
    elif flaw == "nan":
        rows[1, 0] = np.nan
    else:
        best = Best(count=2, temperature=1e-310)  # scaled, all but the first are −inf
    write(logits.tensor, rows[None])
    assert np.array_equal(logits.read(best), rows, equal_nan=True)
    rows[:] = rows[:, ::-1]
    write(logits.tensor, rows[None])
    if flaw == "tie":
        rows[1, 4] = 0.5
        write(logits.tensor, rows[None])
        found = logits.read(best)  # nothing of an earlier reading stays
        assert np.count_nonzero(np.isneginf(found)) == 2 * 5


def test_the_small_graphs_are_what_a_library_would_write():
    for graph in (copy_graph(), best_graph(130_000)):
        onnx.checker.check_model(onnx.load_from_string(graph), full_check=True)


@pytest.mark.parametrize("flavour", ["fused", "portable"])
def test_every_width_has_a_graph_of_its_own_and_prompts_have_none(
    expected, record, open_model, flavour
):
    model = open_model(flavour, captures=True)
    session = record.sessions[0]
    for length, rows in ((40, 1), (41, 1), (46, 5), (47, 1), (52, 5)):
        found = model.score(TOKENS[:length], rows)
        assert np.allclose(found, expected[length - rows : length], atol=1e-5)
    assert session.graphs == ["-1", "1", "2", "1", "2"]
    assert session.providers[0][1]["enable_cuda_graph"] == "1"
    if flavour == "fused":  # a replay repeats what the host said: it must hold for any filling
        totals = [int(b.inputs["total_sequence_length"].real.numpy()[0]) for b in session.bindings]
        assert totals == [40, model.cache.capacity - 1, model.cache.capacity - 1]
    session.graphs.clear()
    model.score(TOKENS[:2100], 1)  # the cache moves: what was recorded holds old addresses
    model.score(TOKENS[:2101], 1)
    assert session.graphs[-1] == "3"
    assert record.from_device != []


def test_a_pass_that_cannot_be_recorded_is_run_without_a_graph(
    expected, record, open_model, caplog
):
    model = open_model(captures=True)
    (session,) = record.sessions
    model.score(TOKENS[:40], 1)
    record.fails = lambda number: number not in ("-1", "")
    for length in (41, 42, 43):
        found = model.score(TOKENS[:length], 1)
        assert np.allclose(found, expected[length - 1 : length], atol=1e-5)
    assert session.graphs == ["-1"] * 4
    assert not model.session.captures
    assert [r.message for r in caplog.records] == [
        "CUDA graphs are off: a pass could not be recorded"
    ]
    record.fails = lambda number: True
    with pytest.raises(runtime.errors.ForerunError, match="failed in a run"):
        model.score(TOKENS[:44], 1)


def test_a_graph_that_graphs_cannot_hold_is_opened_without(record, open_model, caplog):
    record.refuses = lambda options: options.get("enable_cuda_graph") == "1"
    model = open_model(captures=True)
    assert not model.session.captures
    assert "model.onnx has nodes that they cannot hold" in caplog.text
    model.score(TOKENS[:3], 1)
    assert record.sessions[0].graphs == [""]


def test_a_provider_that_does_not_load_names_what_is_missing(record, open_model, monkeypatch):
    record.loads = False
    monkeypatch.setattr(runtime.session, "missing_library", lambda path: f"no libx.so for {path}")
    with pytest.raises(ProviderError, match=r"did not load .* no libx.so .*_cuda.so; type  pip"):
        open_model()
    with pytest.raises(ProviderError, match=r"_tensorrt.so; type  pip install tensorrt"):
        open_model("portable", "tensorrt")
    monkeypatch.setattr(runtime.session, "missing_library", lambda path: None)
    with pytest.raises(ProviderError, match="the GPU's driver is missing or too old"):
        open_model()


def test_two_distributions_of_one_package_are_refused(record, open_model, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(runtime.session, "version", lambda name: "1.31")
    with pytest.raises(ProviderError, match="pip uninstall -y onnxruntime onnxruntime-gpu  and"):
        open_model()
    open_model(provider="cpu")


def test_info_counts_what_fell_back(record, tmp_path, capsys):
    bundle = str(make_bundle(tmp_path / "bundle", drafts=0))
    record.on_cpu = ["Shape", "Attention", "Attention"]
    assert main(["info", bundle, "--provider", "cuda"]) == 0
    told = capsys.readouterr().err
    assert "7 on CUDAExecutionProvider" in told
    assert told.endswith("; fell back: 2 Attention\n")
    assert main(["info", bundle, "--provider", "cuda", "--strict-provider"]) == 1
    assert "2 nodes of 'target'" in capsys.readouterr().err
    record.on_cpu = None
    assert main(["info", bundle, "--provider", "cuda"]) == 0
    assert "does not say" in capsys.readouterr().err


def test_nodes_left_to_the_cpu_are_counted_and_refused_where_asked(record, tmp_path):
    bundle = make_bundle(tmp_path / "bundle", drafts=1)
    record.on_cpu = ["Shape", "Concat"]  # where shapes are computed: meant so
    with Engine.open(bundle, provider="cuda", strict_provider=True, threads=1) as engine:
        assert engine.target.session.placement.nodes == {CUDA: 7, "CPUExecutionProvider": 2}
    record.on_cpu = ["Shape", "Attention", "Attention"]
    with Engine.open(bundle, provider="cuda", threads=1) as engine:
        assert engine.target.session.placement.strays == {"Attention": 2}
    with pytest.raises(ProviderError, match=r"2 nodes of 'target' to the CPU \(Attention\)"):
        Engine.open(bundle, provider="cuda", strict_provider=True, threads=1)
    with Engine.open(bundle, strict_provider=True, threads=1):
        pass  # on the CPU nothing can stray
    record.on_cpu = None
    with pytest.raises(ProviderError, match="does not say which nodes"):
        Engine.open(bundle, provider="cuda", strict_provider=True, threads=1)


@pytest.mark.parametrize(
    ("provider", "others", "devices"),
    [
        ("cuda", {"draft": "cpu"}, ("cuda", "cpu", "cuda")),
        ("cpu", {"draft": "cuda", "draft1": "cuda"}, ("cpu", "cuda", "cuda")),
    ],
)
def test_a_stack_over_two_devices_writes_what_one_does(record, tmp_path, provider, others, devices):
    bundle = make_bundle(tmp_path / "bundle", drafts=2, vocabulary=16, end_ids=())
    asked = {"max_tokens": 30, "temperature": 1.0, "seed": 5, "coupled": True}
    with Engine.open(bundle, threads=1, measure_costs=False) as engine:
        wanted = engine.complete("abcabc", speculate="off", **asked).token_ids
    with Engine.open(
        bundle, provider=provider, providers=others, threads=1, measure_costs=False
    ) as engine:
        models = (engine.target, *engine.drafts.values())
        assert tuple(m.cache.named("past")["past.0.key"].device for m in models) == devices
        stages = ["draft1", "draft"]
        assert engine.complete("abcabc", stages=stages, k=3, **asked).token_ids == wanted
        names = [name for name, place in others.items() if place != provider]
        assert engine.cost_key.provider == " ".join(
            [provider, *(f"{name}={others[name]}" for name in names)]
        )


def test_places_that_mean_nothing_are_refused(record, tmp_path):
    bundle = make_bundle(tmp_path / "bundle")
    with pytest.raises(RequestError, match=r"models of this bundle \(target, draft\), not 'dratf'"):
        Engine.open(bundle, providers={"dratf": "cpu"})
    with pytest.raises(ProviderError, match="one of cpu, cuda, tensorrt, but is 'npu'"):
        Engine.open(bundle, providers={"draft": "npu"})
    with pytest.raises(ProviderError, match="CUDA graphs need a model on the provider cuda"):
        Engine.open(bundle, cuda_graphs=True)


@pytest.mark.parametrize("flavour", ["portable", "trees"])
def test_tensorrt_is_told_every_shape_and_where_to_keep_its_engines(
    expected, record, open_model, monkeypatch, tmp_path, flavour
):
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(profiles, "gpu_name", lambda device: f"NVIDIA Orin {device}")
    monkeypatch.setattr(profiles, "tensorrt_version", lambda: "10.15.1")
    model = open_model(flavour, "tensorrt", device_id=1)
    (session,) = record.sessions
    (first, options), (second, _) = session.providers
    assert (first, second) == (TENSORRT, CUDA)
    version = runtime.session.onnxruntime_version()
    folder = tmp_path / "cache" / "tensorrt" / f"nvidia_orin_1-tensorrt-10.15.1-ort-{version}"
    assert options["trt_timing_cache_path"] == str(folder)
    assert Path(options["trt_engine_cache_path"]).parent == folder
    assert Path(options["trt_engine_cache_path"]).is_dir()
    assert options["trt_fp16_enable"] == "0"
    capacity = 3008  # whole 64s that hold the context and a scratch column
    inputs = {i.name: i.shape for i in session.get_inputs()}
    assert inputs["past.0.key"][2] == model.cache.capacity == capacity
    shapes = {
        place: [item.split(":") for item in options[f"trt_profile_{place}_shapes"].split(",")]
        for place in ("min", "opt", "max")
    }
    varying = {name for name, shape in inputs.items() if any(isinstance(n, str) for n in shape)}
    assert {name for name, _ in shapes["min"]} == varying
    for (name, low), (_, usual), (_, high) in zip(*shapes.values(), strict=True):
        sizes = [tuple(map(int, text.split("x"))) for text in (low, usual, high)]
        assert all(a <= b <= c for a, b, c in zip(*sizes, strict=True)), name
    assert sum(name == "input_ids" for name, _ in shapes["min"]) == 2  # proposals, and prompts
    for length in (60, 64, 70):
        assert np.allclose(
            model.score(TOKENS[:length], 4), expected[length - 4 : length], atol=1e-5
        )
    model.score(TOKENS, 1)
    assert model.cache.generation == 0
    assert folder.is_dir()


def test_an_engine_is_not_kept_for_other_weights(record, open_model, monkeypatch, tmp_path):
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))

    def folder():
        open_model("portable", "tensorrt")
        return record.sessions[-1].providers[0][1]["trt_engine_cache_path"]

    first = folder()
    assert folder() == first
    (tmp_path / "portable" / "more.weights").write_bytes(b"1")
    assert folder() != first


def test_cuda_keeps_all_bits_and_grows_by_what_is_asked_for(record, open_model):
    open_model()
    ((name, options),) = record.sessions[0].providers
    assert (name, options["use_tf32"]) == (CUDA, "0")
    assert options["arena_extend_strategy"] == "kSameAsRequested"
