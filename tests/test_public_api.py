"""The public names, pinned: a change here is a change for everyone who embeds the engine."""

import pytest

import runtime
from runtime.request import Options

NAMES = """BundleError CapacityError Chunk Completion Engine EngineClosedError ForerunError
PromptTooLongError ProviderError RequestError StageSeconds Stats StoreError"""

OPTIONS = """coupled frequency_penalty ignore_eos k logit_bias max_tokens min_p min_tokens
numerics presence_penalty repetition_penalty rule seed speculate stages stop temperature top_k
top_p"""


def test_the_public_names_are_these():
    assert sorted(runtime.__all__) == NAMES.split()
    assert sorted(Options.__annotations__) == OPTIONS.split()


def test_another_name_is_not_there():
    with pytest.raises(AttributeError, match="no attribute 'Server'"):
        _ = runtime.Server
