"""Do a target and a draft make a pair?

In: the two languages and the ids that the draft can be fed. Out: nothing, or `PairMismatchError`
with the first entry that differs. The rule: every id of the target's vocabulary must mean the same
token to the draft. The draft may know more tokens at the end, and both may have padded logits.
"""

from runtime.vocabulary import compare_vocabularies, read_vocabulary

from .errors import PairMismatchError
from .language import Language

_USE_ANOTHER = "choose a draft that was trained with the target's tokenizer"


def check_languages(target: Language, draft: Language) -> None:
    """Compare the tokenizers of a target and a draft.

    Where one of the two comes from a GGUF file, which does not hold the rules that cut text, only
    what ids mean is compared. (The bundle holds the target's tokenizer, so the draft's rules are
    never used.)

    Raises PairMismatchError that shows the first difference.
    """
    _check_special(target, draft)
    if target.fingerprint == draft.fingerprint:
        return
    first, second = (read_vocabulary(side.tokenizer_json) for side in (target, draft))
    found = compare_vocabularies(first, second)
    is_rebuilt = target.is_rebuilt or draft.is_rebuilt
    difference = found.differing_token or (None if is_rebuilt else found.differing_rule)
    if difference is not None:
        raise PairMismatchError(
            f"target and draft do not speak the same language: {difference} (first is the target); "
            f"{_USE_ANOTHER}"
        )
    if found.only_in_first:
        raise PairMismatchError(
            f"the draft's tokenizer lacks {found.only_in_first} of the target's tokens, from id "
            f"{draft.vocabulary} on; {_USE_ANOTHER}"
        )


def check_width(
    target: Language, *, name: str, embeddings: int, logits: int, is_draft: bool
) -> None:
    """Check that a model can be fed, and can score, every id of the target's vocabulary.

    Raises PairMismatchError; wider is legal (padding).
    """
    for what, size in (("be fed", embeddings), ("score", logits)):
        if size < target.vocabulary:
            whose = "the target's" if is_draft else "its own"
            raise PairMismatchError(
                f"{name} can {what} only {size} ids, fewer than {whose} tokenizer's "
                f"{target.vocabulary}; {_USE_ANOTHER if is_draft else 'the checkpoint is damaged'}"
            )


def _check_special(target: Language, draft: Language) -> None:
    if None not in (target.bos_id, draft.bos_id) and target.bos_id != draft.bos_id:
        raise PairMismatchError(
            f"the beginning-of-text token is id {target.bos_id} ({target.bos_token!r}) for the "
            f"target, {draft.bos_id} ({draft.bos_token!r}) for the draft; {_USE_ANOTHER}"
        )
    if draft.eos_id is not None and draft.eos_id not in target.end_ids and target.end_ids:
        raise PairMismatchError(
            f"the draft ends a text by id {draft.eos_id} ({draft.eos_token!r}), which is none of "
            f"the target's end-of-text ids {list(target.end_ids)}; {_USE_ANOTHER}"
        )
