"""The command that builds a bundle's n-gram stage, and the engine that drafts with it."""

import json
import shutil
from pathlib import Path

import pytest
from tiny_bundle import make_bundle

from export.bundle import Staging
from runtime import BundleError, Engine, RequestError
from runtime.__main__ import main as run
from runtime.bundle import open_bundle
from runtime.manifest import MANIFEST_NAME
from runtime.ngram_file import open_table
from runtime.request import make_request
from tools import ngram

TEXT = "abcaabbcacbbabcabcaab" * 3


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ngram") / "bundle"
    return make_bundle(folder, vocabulary=6, distance=0.5, end_ids=())


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "bundle"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "some text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def build(bundle: Path, *arguments: object) -> int:
    return ngram.main([str(bundle), *map(str, arguments), "--quiet"])


def folders(bundle: Path) -> list[str]:
    return sorted(path.name for path in bundle.iterdir() if path.name.startswith("ngram"))


def test_a_table_of_text_becomes_a_stage(
    bundle: Path, text: Path, capsys: pytest.CaptureFixture
) -> None:
    assert build(bundle, "--text", text, "--order", 4) == 0
    assert "--stages ngram" in capsys.readouterr().out
    opened = open_bundle(bundle, verify_hashes=True)
    entry = opened.manifest.ngram
    assert entry is not None
    assert (entry.order, entry.counted, entry.source) == (4, len(TEXT), "some text.txt")
    table = open_table(opened)
    assert table is not None
    assert sum(table.counts[0].tolist()) == len(TEXT)
    assert run(["info", str(bundle)]) == 0
    told = capsys.readouterr().out
    assert "n-grams 'ngram': up to 4 tokens, of some text.txt" in told
    assert f"counted       {len(TEXT)} tokens" in told


def test_another_table_takes_its_place_and_may_be_removed(
    bundle: Path, text: Path, capsys: pytest.CaptureFixture
) -> None:
    before = (bundle / MANIFEST_NAME).read_text(encoding="utf-8")
    build(bundle, "--text", text)
    first = folders(bundle)
    build(bundle, "--text", text)
    assert "has this very table already" in capsys.readouterr().out
    assert folders(bundle) == first
    build(bundle, "--text", text, "--order", 2)
    assert len(folders(bundle)) == 1
    assert folders(bundle) != first
    open_bundle(bundle, verify_hashes=True)
    assert build(bundle, "--remove") == 0
    assert folders(bundle) == []
    assert json.loads((bundle / MANIFEST_NAME).read_text("utf-8")) == json.loads(before)
    assert build(bundle, "--remove") == 2
    assert "has no n-gram table" in capsys.readouterr().err


def test_a_failed_build_leaves_the_bundle_as_it_was(
    bundle: Path, text: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(bundle, "--text", text)
    before = {path: path.read_bytes() for path in bundle.rglob("*") if path.is_file()}

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Staging, "_check_unchanged", fail)
    assert build(bundle, "--text", text, "--order", 2) == 1
    assert "no space left" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in bundle.rglob("*") if path.is_file()} == before
    assert [path.name for path in bundle.parent.iterdir() if path.name.startswith(".")] == []


def test_own_answers_are_counted_the_same_every_time(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    lines = [
        json.dumps({"question_id": i, "turns": [turn]}) for i, turn in enumerate(("abc", "cab"))
    ]
    prompts.write_text("\n".join(lines), encoding="utf-8")
    tables = []
    for _ in range(2):
        assert build(bundle, "--generate", 300, "--prompts", prompts) == 0
        tables += folders(bundle)
        opened = open_bundle(bundle)
        table, entry = open_table(opened), opened.manifest.ngram
        assert entry is not None
        assert table is not None
        assert "300 tokens of own answers" in entry.source
        assert 300 < sum(table.counts[0].tolist()) == entry.counted < 330
        build(bundle, "--remove")
    assert tables[0] == tables[1]


def test_stored_answers_are_counted(bundle: Path, tmp_path: Path, capsys) -> None:
    store = tmp_path / "past.store"
    with Engine.open(bundle, store=store, measure_costs=False) as engine:
        engine.complete("abca", max_tokens=20)
    assert build(bundle, "--store", store) == 0
    entry = open_bundle(bundle).manifest.ngram
    assert entry is not None
    assert (entry.counted, entry.source) == (24, "stored answers")
    store.write_bytes(store.read_bytes().replace(b"0" * 64, b"ab" * 32))
    assert build(bundle, "--store", store) == 2
    assert "another tokenizer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "give --generate N, --text FILE"),
        (["--remove", "--generate", 5], "give --generate N, --text FILE"),
        (["--text", "absent.txt"], "absent.txt cannot be read: No such file"),
        (["--text", "{binary}"], "is not UTF-8 at byte 2"),
        (["--text", "{text}", "--order", 1], "--order must be from 2 to 8"),
        (["--text", "{text}", "--order", 9], "--order must be from 2 to 8"),
        (["--text", "{text}", "--max-size", 0], "--max-size must be"),
        (["--text", "{text}", "--max-size", "nan"], "--max-size must be"),
        (["--text", "{text}", "--max-size", 0.00001], "hold no n-gram"),
        (["--generate", -1], "--generate must be"),
        (["--store", "absent.store"], "there is no store at absent.store"),
    ],
)
def test_what_cannot_be_built_is_one_sentence(
    bundle: Path, text: Path, tmp_path: Path, capsys, arguments: list[object], why: str
) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"ab\xff")
    spelled = [str(a).format(text=text, binary=binary) for a in arguments]
    assert build(bundle, *spelled) in (1, 2)
    error = capsys.readouterr().err
    assert error.startswith("ngram: ")
    assert why in error
    assert error.count("\n") == 1
    assert folders(bundle) == []


# --- in the engine --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(made: Path, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("engine")
    (folder / "text").write_text(TEXT, encoding="utf-8")
    bundle = Path(shutil.copytree(made, folder / "bundle"))
    build(bundle, "--text", folder / "text")
    with Engine.open(bundle, measure_costs=False) as engine:
        yield engine


@pytest.mark.parametrize("stages", [["ngram"], ["suffix|ngram"], ["ngram", "draft"]], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"repetition_penalty": 1.3},
        {"temperature": 1.0, "coupled": True, "seed": 3},
        {"temperature": 0.8, "top_k": 3, "coupled": True, "seed": 4, "frequency_penalty": 0.5},
    ],
    ids=str,
)
def test_matched_text_does_not_depend_on_n_grams(engine: Engine, stages, options) -> None:
    plain = engine.complete("abca", max_tokens=40, speculate="off", **options)
    drafted = engine.complete("abca", max_tokens=40, stages=stages, k=3, **options)
    assert drafted.token_ids == plain.token_ids
    levels = drafted.stats.levels
    assert any(d.name == "ngram" and d.drafted for level in levels for d in level.drafters)


def test_its_law_is_judged_by_the_block_rule(engine: Engine) -> None:
    answer = engine.complete(
        "abca", max_tokens=40, stages=["ngram"], k=3, temperature=1.0, seed=1, rule="auto"
    )
    assert 0 < answer.stats.accepted < answer.stats.drafted
    request = make_request({"temperature": 1.0, "stages": ["ngram"]})
    assert engine.make_stack(request, [0, 1]).target.rule.name == "block"


def test_a_bundle_without_a_table_says_how_to_build_one(made: Path) -> None:
    with (
        Engine.open(made, measure_costs=False) as engine,
        pytest.raises(RequestError, match=r"not 'ngram': build it with"),
    ):
        engine.complete("ab", stages=["ngram"])


def test_a_table_that_does_not_fit_the_bundle_is_refused(bundle: Path, text: Path) -> None:
    build(bundle, "--text", text)
    manifest = bundle / MANIFEST_NAME
    raw = json.loads(manifest.read_text("utf-8"))
    raw["tokenizer"]["fingerprint"] = "1" * 64
    manifest.write_text(json.dumps(raw), "utf-8")
    with pytest.raises(BundleError, match="another tokenizer"):
        Engine.open(bundle)
    raw["ngram"]["file"] = "ngram/absent.npz"
    manifest.write_text(json.dumps(raw), "utf-8")
    with pytest.raises(BundleError, match="does not list it"):
        Engine.open(bundle)
    raw["ngram"] = {"file": "x"}
    manifest.write_text(json.dumps(raw), "utf-8")
    with pytest.raises(BundleError, match="lacks the field ngram: order"):
        Engine.open(bundle)
