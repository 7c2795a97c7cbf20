"""Checkpoints that are incomplete, of another kind or cut short: one clear sentence, in time."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_exports import checkpoint_of
from tiny_models import SPECIAL, VOCABULARY, tiny_model, tiny_tokenizer, write_checkpoint
from tiny_models import write_tokenizer as write_tiny_tokenizer

from export.checkpoint import Checkpoint, resolve
from export.errors import CheckpointError, NoNetworkError, RecipeError, UnsupportedModelError
from export.gguf_file import read_gguf
from export.integrity import check_checkpoint, count_parameters
from export.language import read_language
from export.progress import Progress
from export.source_model import load_source

QUIET = Progress(quiet=True)


def found(path: Path) -> Checkpoint:
    return resolve(str(path), progress=QUIET)


def edit_json(file: Path, **changes: object) -> None:
    content = json.loads(file.read_text(encoding="utf-8")) | changes
    kept = {key: value for key, value in content.items() if value is not ...}
    file.write_text(json.dumps(kept), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound checkpoint in two shards, to be damaged."""
    model = tiny_model("llama", tie_word_embeddings=False)
    return write_checkpoint(tmp_path / "mö dèl 模型 #1", model, max_shard_size="150KB")


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("model-*.safetensors"))


def write_gguf(path: Path, *, leave_out: str = "", extra: str = "", feed_forward: int = 96) -> Path:
    """Write a tiny Llama with the tiny tokenizer as GGUF."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCABULARY)
    vocab = tiny_tokenizer().get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens])
    writer.add_token_merges(["e r", "t h", "i n", "Ġ t", "Ġt h", "o n", "a n"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_eot_token_id(2)
    rng = np.random.default_rng(0)
    shapes = {
        "token_embd.weight": (VOCABULARY, 64),
        "output_norm.weight": (64,),
        "blk.0.attn_q.weight": (64, 64),
        "blk.0.attn_k.weight": (32, 64),
        "blk.0.attn_v.weight": (32, 64),
        "blk.0.attn_output.weight": (64, 64),
        "blk.0.attn_norm.weight": (64,),
        "blk.0.ffn_norm.weight": (64,),
        "blk.0.ffn_gate.weight": (96, 64),
        "blk.0.ffn_up.weight": (96, 64),
        "blk.0.ffn_down.weight": (64, 96),
    }
    for name, shape in shapes.items():
        if name != leave_out:
            writer.add_tensor(name, rng.standard_normal(shape).astype(np.float32))
    if extra:
        writer.add_tensor(extra, np.ones(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_sound_folder_passes_whatever_it_is_called(folder: Path) -> None:
    assert len(shards(folder)) > 1
    checkpoint = found(folder)
    check_checkpoint(checkpoint)
    assert checkpoint.source == "mö dèl 模型 #1"
    source = load_source(checkpoint, context=None)
    assert count_parameters(checkpoint) == source.parameters
    assert source.notes == ()
    assert source.context == 128


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def adapter_only(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "adapter_config.json").write_text("{}", encoding="utf-8")


def adapter_with_config(folder: Path) -> None:
    for file in folder.glob("model*"):
        file.unlink()
    (folder / "adapter_config.json").write_text("{}", encoding="utf-8")
    save_file({"a": torch.ones(1)}, folder / "adapter_model.safetensors")


def missing_shard(folder: Path) -> None:
    shards(folder)[1].unlink()


def truncated_shard(folder: Path) -> None:
    content = shards(folder)[1].read_bytes()
    shards(folder)[1].write_bytes(content[:-1024])


def shard_cut_in_its_table(folder: Path) -> None:
    shards(folder)[1].write_bytes(shards(folder)[1].read_bytes()[:100])


def empty_shard(folder: Path) -> None:
    shards(folder)[0].write_bytes(b"")


def tensor_missing_from_its_shard(folder: Path) -> None:
    tensors = load_file(shards(folder)[0])
    tensors.pop(next(iter(sorted(tensors))))
    save_file(tensors, shards(folder)[0])


def head_missing(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    mapping = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    file = folder / mapping.pop("lm_head.weight")
    tensors = load_file(file)
    del tensors["lm_head.weight"]
    save_file(tensors, file)
    edit_json(index, weight_map=mapping)


def pickled_weights(folder: Path) -> None:
    for file in folder.glob("model*"):
        file.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"PK")


def no_weights(folder: Path) -> None:
    for file in folder.glob("model*"):
        file.unlink()


def damaged_config(folder: Path) -> None:
    (folder / "config.json").write_text("{", encoding="utf-8")


def config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: edit_json(folder / "config.json", **changes)


DAMAGES: dict[str, tuple[Callable[[Path], None], type[Exception], str]] = {
    "no config": (without_config, CheckpointError, r"no config\.json"),
    "adapter only": (adapter_only, UnsupportedModelError, "adapter.*merge"),
    "adapter beside a config": (adapter_with_config, UnsupportedModelError, "adapter.*merge"),
    "missing shard": (missing_shard, CheckpointError, r"lacks the shard model-00002-of"),
    "truncated shard": (truncated_shard, CheckpointError, r"model-00002-of.* is cut short.*\d+"),
    "cut in the table": (shard_cut_in_its_table, CheckpointError, "inside the tensor table"),
    "empty shard": (empty_shard, CheckpointError, "model-00001-of.* is cut short"),
    "missing tensor": (tensor_missing_from_its_shard, CheckpointError, "lacks the tensor"),
    "missing head": (head_missing, CheckpointError, "no shard holds an output head"),
    "pickled": (pickled_weights, UnsupportedModelError, r"pytorch_model\.bin.*safetensors"),
    "no weights": (no_weights, CheckpointError, "holds no weights"),
    "damaged config": (damaged_config, CheckpointError, r"config\.json cannot be read as JSON"),
    "quantised": (
        config(quantization_config={"quant_method": "gptq"}),
        UnsupportedModelError,
        r"already quantised \(gptq\)",
    ),
    "encoder-decoder": (
        config(model_type="t5", is_encoder_decoder=True),
        UnsupportedModelError,
        r"encoder-decoder model \(t5\)",
    ),
    "encoder": (
        config(model_type="bert", architectures=["BertForMaskedLM"]),
        UnsupportedModelError,
        "BertForMaskedLM, which does not predict the next token",
    ),
    "unknown family": (
        config(model_type="nonesuch", architectures=["NonesuchForCausalLM"]),
        UnsupportedModelError,
        "model type 'nonesuch'",
    ),
    "own code": (
        config(model_type="nonesuch", architectures=[], auto_map={}),
        UnsupportedModelError,
        "code of its own, which is never run",
    ),
    "no family": (config(model_type=...), CheckpointError, "names no model_type"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_cannot_be_exported_is_refused_early(damage: str, folder: Path) -> None:
    harm, error, words = DAMAGES[damage]
    harm(folder)
    with pytest.raises(error, match=words):
        check_checkpoint(found(folder))


def test_a_tensor_that_no_file_promises_is_missed_when_it_is_loaded(folder: Path) -> None:
    mapping = folder / "model.safetensors.index.json"
    names = json.loads(mapping.read_text(encoding="utf-8"))["weight_map"]
    gone = "model.layers.1.mlp.up_proj.weight"
    file = folder / names.pop(gone)
    tensors = load_file(file)
    del tensors[gone]
    save_file(tensors, file)
    edit_json(mapping, weight_map=names)
    check_checkpoint(found(folder))
    with pytest.raises(CheckpointError, match=f"lacks 1 of the model's tensors, first {gone}"):
        load_source(found(folder), context=None)


def test_weights_in_bfloat16_are_cast_and_it_is_said(tmp_path: Path) -> None:
    model = tiny_model("llama").to(torch.bfloat16)
    source = load_source(found(write_checkpoint(tmp_path / "half", model)), context=None)
    assert {p.dtype for p in source.model.parameters()} == {torch.float32}
    assert {b.dtype for b in source.model.buffers()} <= {torch.float32, torch.int64, torch.bool}
    assert source.notes == ("weights are cast from bfloat16 to float32",)


def test_a_context_can_be_capped_but_not_stretched() -> None:
    checkpoint = found(checkpoint_of("llama"))
    assert load_source(checkpoint, context=100).context == 100
    with pytest.raises(UnsupportedModelError, match=r"--context 4096 exceeds .* 128 tokens"):
        load_source(checkpoint, context=4096)


def test_a_model_for_very_short_texts_is_refused(tmp_path: Path) -> None:
    model = tiny_model("gpt2", n_positions=32)
    with pytest.raises(UnsupportedModelError, match="made for 32 tokens"):
        load_source(found(write_checkpoint(tmp_path / "short", model)), context=None)


def test_names_that_mean_nothing_say_what_they_could_be(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="did you mean 'smollm2-135m-instruct'"):
        resolve("smollm2-135m-instruckt", progress=QUIET)
    with pytest.raises(CheckpointError, match="there is no folder or file"):
        resolve(str(tmp_path / "absent"), progress=QUIET)
    (tmp_path / "weights.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"is a file, but neither \.gguf nor \.onnx"):
        resolve(str(tmp_path / "weights.pt"), progress=QUIET)


def test_a_folder_with_something_else_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"")
    with pytest.raises(
        CheckpointError, match=r"GGUF files: name the file itself, such as .*a\.gguf"
    ):
        check_checkpoint(found(tmp_path))
    (tmp_path / "a.gguf").unlink()
    (tmp_path / "manifest.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match="a finished bundle"):
        check_checkpoint(found(tmp_path))


def test_local_files_never_ask_the_network(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    checkpoint = found(folder)
    check_checkpoint(checkpoint)
    read_language(checkpoint)
    load_source(checkpoint, context=None)


def test_a_hub_id_without_a_network_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import huggingface_hub

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no route")

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    with pytest.raises(NoNetworkError, match=r"nobody/nothing is no local folder, and the hub"):
        resolve("nobody/nothing", progress=QUIET)


def test_the_licence_of_the_model_card_is_kept(folder: Path) -> None:
    assert found(folder).licence is None
    card = "---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\n"
    (folder / "README.md").write_text(card, encoding="utf-8")
    assert found(folder).licence == "apache-2.0"


def test_a_gguf_file_is_read_whole(tmp_path: Path) -> None:
    checkpoint = found(write_gguf(tmp_path / "tiny.gguf"))
    check_checkpoint(checkpoint)
    source = load_source(checkpoint, context=None)
    assert source.architecture == "llama"
    assert source.model.get_output_embeddings().weight is source.model.get_input_embeddings().weight
    assert source.parameters == count_parameters(checkpoint)
    language = read_language(checkpoint)
    assert language.end_ids == (1, 2)
    assert language.encode("at  12")[-3:] == [language.encode(d)[0] for d in " 12"]


@pytest.mark.parametrize("cut", [1, 1000, 20_000, 80_000])
def test_a_gguf_file_that_is_cut_short_is_refused(tmp_path: Path, cut: int) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    content = path.read_bytes()
    path.write_bytes(content[: max(10, len(content) - cut)])
    with pytest.raises(CheckpointError, match=r"cut short|no GGUF file"):
        check_checkpoint(found(path))
    path.write_bytes(content[:3000])  # inside the token list
    with pytest.raises(CheckpointError, match="cut short or damaged"):
        check_checkpoint(found(path))


def test_other_files_called_gguf_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"not a model at all, but long enough to be looked into")
    with pytest.raises(CheckpointError, match="does not start with 'GGUF'"):
        check_checkpoint(found(path))
    path.write_bytes(b"GGUF" + (9).to_bytes(4, "little") + bytes(32))
    with pytest.raises(CheckpointError, match="GGUF version 9"):
        check_checkpoint(found(path))


def test_a_gguf_without_one_of_its_tensors_is_not_made_up(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", leave_out="blk.0.ffn_up.weight")
    with pytest.raises(CheckpointError, match="lacks 1 of the model's tensors"):
        load_source(found(path), context=None)
    path = write_gguf(tmp_path / "wide.gguf", feed_forward=128)
    with pytest.raises(CheckpointError, match=r"down_proj.* has the shape \[64, 96\]"):
        load_source(found(path), context=None)
    path = write_gguf(tmp_path / "head.gguf", leave_out="token_embd.weight")
    with pytest.raises(CheckpointError, match=r"lacks the tensor token_embd\.weight"):
        check_checkpoint(found(path))


def test_a_gguf_with_rotary_factors_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", extra="rope_freqs.weight")
    assert "rope_freqs.weight" in {tensor.name for tensor in read_gguf(path).tensors}
    with pytest.raises(UnsupportedModelError, match=r"rope_freqs\.weight"):
        check_checkpoint(found(path))


END_SOURCES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "one": ({}, (1,)),
    "list in the generation config": ({"generation_config.json": [2, 7]}, (1, 2, 7)),
    "another in the config": ({"config.json": 2}, (1, 2)),
    "all": ({"config.json": [2], "generation_config.json": 5}, (1, 2, 5)),
    "none in the configs": ({"config.json": None, "generation_config.json": None}, (1,)),
}


@pytest.mark.parametrize("sources", END_SOURCES)
def test_end_ids_are_the_union_of_all_sources(folder: Path, sources: str) -> None:
    changes, expected = END_SOURCES[sources]
    (folder / "generation_config.json").write_text("{}", encoding="utf-8")
    edit_json(folder / "config.json", eos_token_id=1)
    for file, value in changes.items():
        edit_json(folder / file, eos_token_id=value)
    assert read_language(found(folder)).end_ids == expected


def test_an_end_id_outside_the_vocabulary_is_refused(folder: Path) -> None:
    edit_json(folder / "config.json", eos_token_id=[1, VOCABULARY + 5])
    with pytest.raises(CheckpointError, match=r"id 305 in the config\.json lies outside"):
        read_language(found(folder))
    edit_json(folder / "config.json", eos_token_id="1")
    with pytest.raises(CheckpointError, match=r"eos_token_id in the config\.json must be an id"):
        read_language(found(folder))


def test_an_end_of_turn_that_only_the_template_knows_ends_a_text(folder: Path) -> None:
    write_tiny_tokenizer(folder, template="{{ messages[0].content }}<|im_end|>")
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    renamed = json.dumps(tokenizer).replace("<|turn|>", "<|im_end|>")
    (folder / "tokenizer.json").write_text(renamed, encoding="utf-8")
    language = read_language(found(folder))
    assert language.end_ids == (1, 2)
    assert any("<|im_end|>" in note for note in language.notes)


def test_the_language_of_a_folder_is_kept_as_it_is_written(folder: Path) -> None:
    language = read_language(found(folder))
    assert language.tokenizer_json == (folder / "tokenizer.json").read_bytes()
    assert language.vocabulary == tiny_tokenizer().get_vocab_size()
    assert (language.bos_token, language.bos_id) == ("<|begin|>", 0)
    assert (language.eos_token, language.eos_id) == ("<|end|>", 1)
    assert not language.adds_bos
    assert language.chat_template is not None
    assert "message.content" in language.chat_template


def test_a_folder_without_a_tokenizer_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="no usable tokenizer"):
        read_language(found(folder))
