"""Make a family's config tiny, knowing nothing about the family.

In: a model type. Out: a config of that type's own class: few narrow layers that still hold every
kind of layer, window, expert and position scheme that the type's defaults have. What a field is
for is read off its name; what no rule names stays as it is.
"""

import re
from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig, PretrainedConfig

VOCABULARY = 300
WINDOW = 16
POSITIONS = 256
_LEAST_LAYERS = 2
_LAYERS, _KEEP = "layers", "keep"
_NAMES_OF_CLASSES = ("id2label", "label2id")

# The first rule whose pattern matches a field's whole name says what becomes of its number.
_RULES: tuple[tuple[str, Any], ...] = (
    (r".*_(id|index|offset|indices|start|end)|(type|segment|task_type)_.*|.*_types", _KEEP),
    (r"(.*_)?vocab_size(_.*)?", VOCABULARY),
    (r".*(num|n)_(key_value|kv)_heads|kv_n_heads", 2),
    (r".*attention_heads|n_heads?|num_heads|.*num_query_groups|.*num_(key|value)_heads", 4),
    (r".*(num_hidden|decoder|encoder|num|n)_layers?|depth|num_blocks", _LAYERS),
    (r"qk_nope_head_dim|rotary_dim", 8),
    (r"qk_head_dim", 24),
    (r".*head_dim|kv_channels|d_kv|d_head|dim_head|attention_head_size", 16),
    (r".*_rank", 32),
    (r".*(intermediate|ffn|inner|feed_forward|mlp).*(size|dim)|.*ffn_dim|dff|dim_ff|d_ff", 96),
    (r"d_inner|intermediate_size_mlp", 96),
    (r".*hidden_size(_.*)?|n_embd|d_model|emb_dim|.*embed_(proj_)?dim|.*embedding_(size|dim)", 64),
    (r"lru_width|.*hidden_dim", 64),
    (r".*experts_per_tok(en)?|moe_top_?k|moe_k", 2),
    (r".*shared_experts|zero_expert_num", 1),
    (r".*num_(local_)?experts|n_routed_experts", 4),
    (r"n_groups?|num_expert_group|topk_group", 1),
    (r".*sliding_window(_size)?|.*window_(size|len)|local_attention|attention_chunk_size", WINDOW),
    (r"(original_)?max_(position_embeddings|.*positions|seq_len)|n_positions|n_ctx", POSITIONS),
    (r"model_max_length|context_length", POSITIONS),
    (r"floor_scale|log_scaling_n_floor|rel_extent", WINDOW),
    (r".*(pattern|interval|period|every_n_layers|layer_group_size)", 2),
    (r"first_k_dense_replace|num_dense_layers|.*layer_(offset|start_index)", 1),
)
_COMPILED = tuple((re.compile(pattern), size) for pattern, size in _RULES)


# What a type's own defaults leave open although its code needs it.
_FILLED = {
    "head_dim": 16,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
}
# Types whose defaults do not make a model, or not a small one, by themselves.
_ONE_OF_EACH = ["linear_attention", "hybrid"] * 2
_INDEXER = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 16,
    "indexer_compress_ratio": 2,
}
_NEEDED: dict[str, dict[str, Any]] = {
    "blt": {"encoder_hash_byte_group_vocab": VOCABULARY},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "dory": {
        "num_hidden_layers": 4,
        "n_input_layers": 1,
        "n_output_layers": 1,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "dots3_note": {"text_config": {"head_dim": 32}},
    "dots3_note_text": {"head_dim": 32},
    "jamba": {"attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8},
    "qwen4_exp": {"text_config": _INDEXER},
    "qwen4_exp_text": _INDEXER,
    "reformer": {"axial_pos_embds_dim": [16, 48], "axial_pos_shape": [16, 16]},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "num_hidden_layers": 4,
        "layers_block_type": _ONE_OF_EACH,
    },
    "zamba2": {
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "mamba_headdim": 16,
        "num_hidden_layers": 4,
        "layers_block_type": _ONE_OF_EACH,
    },
}


def shrink_config(model_type: str) -> PretrainedConfig:
    """Return the tiny config of a model type."""
    original = AutoConfig.for_model(model_type).to_dict()
    small = _shrink(original)
    for name, value in _NEEDED.get(model_type, {}).items():
        nested = isinstance(value, dict) and isinstance(small.get(name), dict)
        small[name] = small[name] | value if nested else value
    if "is_decoder" in original:
        small["is_decoder"] = True
    return AutoConfig.for_model(model_type, **small)


def _shrink(original: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that change, nested ones whole."""
    depth = next((v for k, v in original.items() if _rule(k) == _LAYERS and type(v) is int), 0)
    layers = _choose_layers(original, depth)
    small: dict[str, Any] = {}
    for name, value in original.items():
        if name == "per_layer_config" and value:
            small[name] = {
                place: _alike_heads(
                    {field: _unlike(field, value[key][field], original) for field in value[key]},
                    value[key],
                )
                for place, layer in enumerate(layers)
                for key in value
                if int(key) == layer
            }
        elif isinstance(value, Mapping) and name not in _NAMES_OF_CLASSES:
            small[name] = {**value, **_shrink(value)}
        elif isinstance(value, list) and len(value) == depth > 1 and not _are_places(value, depth):
            small[name] = [_smaller(name, value[layer]) for layer in layers]
        elif isinstance(value, list) and _are_places(value, depth):
            small[name] = [place for place, layer in enumerate(layers) if layer in value]
        elif name == "num_kv_shared_layers" and value:
            small[name] = sum(layer >= depth - value for layer in layers)
        elif _rule(name) == _LAYERS and type(value) is int:
            small[name] = len(layers)
        else:
            small[name] = _smaller(name, value)
    small = _alike_heads(small, original)
    return {name: value for name, value in small.items() if value != original.get(name)}


def _alike_heads(small: dict[str, Any], original: Mapping[str, Any]) -> dict[str, Any]:
    """Keep as many heads of keys and values as of queries where they were as many."""
    heads = original.get("num_attention_heads")
    if heads is not None and original.get("num_key_value_heads") == heads:
        small["num_key_value_heads"] = small["num_attention_heads"]
    return small


def _rule(name: str) -> Any:
    return next((size for pattern, size in _COMPILED if pattern.fullmatch(name)), _KEEP)


def _smaller(name: str, value: Any) -> Any:
    """Return what becomes of one number (or of each in a list of token ids)."""
    if value is None:
        return _FILLED.get(name)
    if name.endswith("_token_id"):
        ids = value if isinstance(value, list) else [value]
        small = [token if token < VOCABULARY else 0 for token in ids]
        return small if isinstance(value, list) else small[0]
    rule = _rule(name)
    is_number = type(value) is int and value > 0
    return min(value, rule) if is_number and isinstance(rule, int) else value


def _unlike(name: str, value: Any, original: Mapping[str, Any]) -> Any:
    """Return what becomes of one layer's number, unlike that of the others where it was."""
    small, usual = _smaller(name, value), _smaller(name, original.get(name))
    if type(small) is not int or small != usual or value == original[name]:
        return small
    return 2 * small if value > original[name] else max(1, small // 2)


def _choose_layers(original: Mapping[str, Any], depth: int) -> list[int]:
    """Return the first layer of every kind, by all that the config says of single layers."""
    kinds: list[Any] = []
    chosen: list[int] = []
    for layer in range(depth):
        kind = [
            layer in value if _are_places(value, depth) else value[layer]
            for value in original.values()
            if isinstance(value, list) and (len(value) == depth or _are_places(value, depth))
        ]
        kind.append((original.get("per_layer_config") or {}).get(f"{layer:02}"))
        kind.append(layer >= depth - (original.get("num_kv_shared_layers") or 0))
        if kind not in kinds:
            kinds.append(kind)
            chosen.append(layer)
    return chosen if len(chosen) >= _LEAST_LAYERS else list(range(min(depth, _LEAST_LAYERS)))


def _are_places(value: Any, depth: int) -> bool:
    """Whether a list names layers by their number."""
    if not isinstance(value, list) or not value or any(type(item) is not int for item in value):
        return False
    return sorted(set(value)) == value and value[-1] < depth and len(value) > 1
