"""A draft that reads the end of a long prompt first: same positions, same law, bounded reading."""

import numpy as np
import pytest
from fakes import TableModel
from test_controller import Scripted, control, draft, level_over, line

from runtime.noise import Noise
from runtime.speculate import speculate
from runtime.window import AT_FIRST, Window

LONG = [i % 5 for i in range(3 * AT_FIRST)]


def make(context=400):
    return Window(TableModel(3, vocabulary=5, context=context, order=3), keeps_known=True)


def rows(model, tokens, count):
    return np.array(model.score(tokens, count))


def test_a_short_prompt_is_read_whole():
    window = make()
    window.begin(LONG[:AT_FIRST], even_widths=False)
    assert window.unread == window.length == 0
    window.score(LONG[:AT_FIRST], 1)
    assert window.length == AT_FIRST


def test_of_a_long_prompt_only_the_end_is_read_until_it_is_opened():
    window, whole = make(), TableModel(3, vocabulary=5, context=400, order=3)
    window.begin(LONG, even_widths=False)
    assert window.length == window.unread == len(LONG) - AT_FIRST
    assert window.context == 400 + window.unread
    inner = window._model
    assert rows(window, LONG, 2) == pytest.approx(rows(whole, LONG, 2))  # its laws see 3 tokens
    assert inner.fed == LONG[-AT_FIRST:]
    assert window.length == len(LONG)
    window.rewind(to=len(LONG) - 4)
    assert inner.fed == LONG[-AT_FIRST:-4]
    window.score([*LONG[:-4], 1, 2], 1)
    window.open()
    assert window.length == window.unread == 0
    assert rows(window, LONG, 2) == pytest.approx(rows(whole, LONG, 2))
    assert inner.fed == LONG


def test_what_an_earlier_request_read_is_kept_and_the_rest_is_read_on():
    model = TableModel(3, vocabulary=5, context=400, order=3)
    model.score(LONG, 1)
    window = Window(model, keeps_known=True)
    window.begin([*LONG, *LONG], even_widths=False)
    assert (window.unread, window.length) == (0, len(LONG))
    other = Window(model, keeps_known=True)
    other.begin([4, *LONG, *LONG], even_widths=False)
    assert other.unread == 2 * len(LONG) + 1 - AT_FIRST
    other.score([4, *LONG, *LONG], 1)
    again = Window(
        model, keeps_known=True
    )  # the cache holds a window now, not the start of anything
    again.begin([4, *LONG], even_widths=False)
    assert again.unread == len(LONG) + 1 - AT_FIRST


def test_what_an_earlier_request_read_is_left_where_the_text_would_depend_on_it():
    model = TableModel(3, vocabulary=5, context=400, order=3)
    model.score(LONG, 1)
    window = Window(model, keeps_known=False)
    window.begin([*LONG, *LONG], even_widths=False)
    assert window.unread == 2 * len(LONG) - AT_FIRST
    assert model.fed == []


@pytest.mark.parametrize(("agreement", "is_opened"), [(0.95, True), (0.0, False)])
def test_the_whole_prompt_is_read_once_drafting_has_earned_it(agreement, is_opened):
    costs = {"verify": line(0.1), "step": line(0.1, first=0.2)}
    model = Scripted(lambda _: agreement)
    drafter = draft(model)
    window = Window(model, keeps_known=True)
    object.__setattr__(drafter.level, "model", window)
    controller = control(drafter, **costs)
    level = level_over(Scripted(), controller, watch=controller.watch)
    context = [i % 7 for i in range(298)]  # a whole number of 7 is unread: it says the same
    level.model.length = 297  # the target has read the prompt
    window.begin(context, even_widths=False)
    while len(context) < 498:
        context += speculate(level, context, 16, noise=Noise(0)).tokens
    assert context == [i % 7 for i in range(len(context))]
    assert (window.unread == 0) == is_opened
    assert (max(model.passes) >= 298) == is_opened
    spent = sum(costs["verify"](m, 0) for m in level.model.passes)
    spent += sum(costs["step"](m, 0) for m in model.passes)
    plain = len(context) - 298
    first_look = costs["step"](AT_FIRST, 0)
    assert spent <= plain * 1.01 + 1.5 + first_look
