"""The public names, pinned: a change here is a change for everyone who embeds the engine."""

import runtime
from runtime.request import Options


def test_public_names():
    assert (
        sorted(runtime.__all__)
        == (
            "BundleError CapacityError Chunk Completion Engine EngineClosedError ForerunError "
            "PromptTooLongError ProviderError RequestError StageSeconds Stats"
        ).split()
    )


def test_option_names():
    assert (
        sorted(Options.__annotations__)
        == (
            "coupled frequency_penalty ignore_eos k logit_bias max_tokens min_p min_tokens "
            "presence_penalty repetition_penalty rule seed speculate stages stop temperature top_k "
            "top_p"
        ).split()
    )
