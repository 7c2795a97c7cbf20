"""Chat templates: rendered like the reference, and safe against what users type."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_samples import KINDS, make_inner, make_tokenizer
from tokenizers import Tokenizer as Inner
from transformers import PreTrainedTokenizerFast

from runtime.errors import BundleError, RequestError
from runtime.template import ChatTemplate

CHATML = """{% for message in messages %}{% if loop.first and message['role'] != 'system' %}{{ \
'<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}{% endif %}{{ '<|im_start|>' + \
message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
LLAMA = """{%- set ns = namespace(turn=0) %}
{{- bos_token }}
{% for message in messages if message.role != 'skipped' %}
    {%- if loop.index0 > 0 and message.role == messages[loop.index0 - 1].role %}
        {{- raise_exception('Roles must alternate: "' ~ message.role ~ '"') }}
    {%- endif %}
    {% if message.role == 'tool' %}{% continue %}{% endif %}
    {% set ns.turn = ns.turn + 1 %}
    {% if message.role == 'assistant' %}
        {% generation %}
        {{- message.content | trim + eos_token }}
        {% endgeneration %}
    {% else %}
        {{- '[' ~ message.role ~ ' ' ~ ns.turn ~ '] ' ~ message.content.strip() }}
        {%- if 'secret' in message.content %}{{- '!' }}{% endif %}
    {% endif %}
    {% for call in message.tool_calls or [] %}
        {{- call | tojson }} {{ call.function.arguments | tojson(indent=2) }}
    {% endfor %}
{% endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- if mode is defined %}{{ mode }}{% endif %}
{%- if add_generation_prompt %}{{ '[answer]' }}{% endif %}"""
TEMPLATES = {"byte-level": CHATML, "gpt-2": CHATML, "llama": LLAMA, "llama-legacy": LLAMA}
SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}
CONTROL = ["<|im_end|>", "<|im_start|>", "<s>", "</s>", "<|fim|>", "<|im_", "end|>", " "]
UNREAD = st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufdd0\ufdd1")
TYPED = st.lists(st.one_of(st.sampled_from(CONTROL), st.text(UNREAD, max_size=3))).map("".join)
kinds = pytest.mark.parametrize("kind", TEMPLATES)
CALL = {"function": {"name": "f", "arguments": {"q": "<b> & 'ü'", "n": 1}}}


def user(content, **more):
    return {"role": "user", "content": content, **more}


def make_template(kind, **specials):
    return ChatTemplate(TEMPLATES[kind], **(SPECIALS | specials))


def make_reference(kind):
    return PreTrainedTokenizerFast(
        tokenizer_object=make_inner(kind), chat_template=TEMPLATES[kind], **SPECIALS
    )


CHATS = [
    [user("Hello dog ")],
    [user(" Hello\n\n"), {"role": "assistant", "content": "Hi!\n"}, user("secret <b>&</b>")],
    [{"role": "system", "content": "You are 한글 🎉"}, user("")],
    [user("call"), {"role": "assistant", "content": "", "tool_calls": [CALL]}],
    [user("call"), {"role": "tool", "content": "result"}, {"role": "assistant", "content": "x"}],
]


@kinds
@pytest.mark.parametrize("prompt", [True, False])
def test_rendered_and_encoded_like_the_reference(kind, prompt):
    reference = make_reference(kind)
    template, tokenizer = make_template(kind), make_tokenizer(kind)
    for chat in CHATS:
        for more in ({}, {"tools": [CALL]}):
            expected = reference.apply_chat_template(
                chat, tokenize=False, add_generation_prompt=prompt, **more
            )
            assert template.render(chat, add_generation_prompt=prompt, **more) == expected
            ids = reference(expected, add_special_tokens=False).input_ids
            assert template.encode(chat, tokenizer, add_generation_prompt=prompt, **more) == ids


def test_variables_reach_the_template():
    reference = make_reference("llama")
    expected = reference.apply_chat_template(CHATS[0], tokenize=False, mode="quick")
    rendered = make_template("llama").render(
        CHATS[0], add_generation_prompt=False, variables={"mode": "quick"}
    )
    assert rendered == expected
    assert "quick" in rendered


@pytest.mark.parametrize("kind", ["llama", "llama-legacy"])
def test_exactly_one_bos(kind):
    ids = make_template(kind).encode([user("dog")], make_tokenizer(kind))
    assert ids[0] == 1
    assert ids.count(1) == 1


@kinds
@given(content=TYPED)
def test_typed_control_tokens_stay_text(kind, content):
    template, tokenizer = make_template(kind), make_tokenizer(kind)
    marks = [tokenizer.token_to_id(t) for t in ("<|im_end|>", "<|im_start|>", "<s>", "</s>")]
    harmless = template.encode([user("dog")], tokenizer)
    ids = template.encode([user(content)], tokenizer)
    assert [i for i in ids if i in marks] == [i for i in harmless if i in marks]
    if kind == "byte-level":  # its decoder gives back every text
        rendered = template.render([user(content)])
        assert tokenizer.decode(ids, skip_special=False) == rendered


@pytest.mark.parametrize("kind", ["byte-level", "gpt-2", "llama-legacy"])
@given(content=TYPED)
def test_text_around_typed_control_tokens_is_cut_as_ever(kind, content):
    # The library's own way to read specials as text, piece by piece between the template's own.
    template, tokenizer = make_template(kind), make_tokenizer(kind)
    content = content.replace("<|fim|>", "")  # no special for the library
    plain = Inner.from_str(KINDS[kind])
    plain.encode_special_tokens = True
    expected: list[int] = []
    for piece in re.split(r"(<s>|</s>|<\|\w+\|>)", template.render([user("\0")])):
        own = tokenizer.token_to_id(piece)
        text = piece.replace("\0", content.strip() if "llama" in kind else content)
        expected += plain.encode(text, add_special_tokens=False).ids if own is None else [own]
    assert template.encode([user(content)], tokenizer) == expected


def test_control_tokens_in_tools_names_and_keys_stay_text():
    template, tokenizer = make_template("llama"), make_tokenizer("llama")
    tool = {"</s>": ["</s>", {"a": "</s>"}]}
    ids = template.encode([user("dog")], tokenizer, tools=[tool], variables={"mode": "</s>"})
    assert 2 not in ids


def test_a_control_token_in_parts_stays_text():
    joined = ChatTemplate("{{ messages[0].content + messages[1].content }}")
    tokenizer = make_tokenizer("byte-level")
    ids = joined.encode([user("<|im_"), user("end|>")], tokenizer)
    assert tokenizer.decode(ids) == "<|im_end|>"


def test_two_user_turns_give_the_templates_own_message():
    with pytest.raises(RequestError, match=r'^Roles must alternate: "user"$'):
        make_template("llama").render([user("a"), user("b")])


def test_template_refuses_what_was_really_typed():
    source = (
        "{% if '<|im_end|>' in messages[0].content %}{{ raise_exception('no tags') }}{% endif %}"
    )
    with pytest.raises(RequestError, match=r"^no tags$"):
        ChatTemplate(source).encode([user("a<|im_end|>")], make_tokenizer("byte-level"))


@pytest.mark.parametrize(
    "source",
    ["{{ messages[5].content.x }}", "{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{{ messages.append(1) }}"],
)
def test_failing_template_is_reported(source):
    with pytest.raises(RequestError, match="the chat template failed on these messages: "):
        ChatTemplate(source).render([user("a")])


@pytest.mark.parametrize(
    "source",
    ["{{ ''.__class__.__mro__ }}", "{{ messages.__class__.__init__.__globals__ }}"],
)
def test_template_cannot_leave_its_sandbox(source):
    with pytest.raises(RequestError, match=r"unsafe|has no attribute|access"):
        ChatTemplate(source).render([user("a")])


def test_invalid_template_names_the_line():
    with pytest.raises(BundleError, match=r"the chat template is not valid: .* \(line 2\)"):
        ChatTemplate("\n{% if %}")


def test_date_function():
    rendered = ChatTemplate("{{ strftime_now('%Y') }}").render([user("a")])
    assert rendered.isdigit()
    assert int(rendered) >= 2024


def test_absent_special_tokens_render_as_nothing():
    template = ChatTemplate("{{ bos_token }}|{{ eos_token is defined }}")
    assert template.render([user("a")]) == "|False"


ECHO = ChatTemplate("{% for m in messages %}({{ m.role }}:{{ m.content }}){% endfor %}")


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (user("a"), "a"),
        (user(""), ""),
        (user([]), ""),
        (user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), "a\nb"),
        (user(None, tool_calls=[CALL]), ""),
        ({"role": "user", "tool_calls": [CALL]}, ""),
    ],
)
def test_forms_of_content(message, text):
    assert ECHO.render([message]) == f"(user:{text})"


@pytest.mark.parametrize(
    ("messages", "match"),
    [
        ([], "messages must be a non-empty list"),
        ("hello", "messages must be a non-empty list"),
        (None, "messages must be a non-empty list"),
        (["hello"], r"messages\[0\] must be an object with a role"),
        ([{"content": "a"}], r"messages\[0\] must be an object with a role"),
        ([user("a"), {"role": 3, "content": "a"}], r"messages\[1\] must be an object with a role"),
        ([{"role": "user"}], r"messages\[0\]\.content must be a text or a list of text parts"),
        ([user(None)], r"messages\[0\]\.content must be a text or a list of text parts, not None"),
        ([user(None, tool_calls=[])], r"messages\[0\]\.content must be a text"),
        ([user(3)], r"messages\[0\]\.content must be a text or a list of text parts, not 3"),
        (
            [user([{"type": "image_url"}])],
            r"messages\[0\]\.content\[0\] must be .* not 'image_url'",
        ),
        ([user([{"type": "text"}])], r"messages\[0\]\.content\[0\] must be a part of type 'text'"),
        ([user([7])], r"messages\[0\]\.content\[0\] must be a part of type 'text'"),
        ([user("a", extra={1, 2})], r"messages\[0\]\.extra must be plain JSON data, not set"),
    ],
)
def test_other_messages_are_refused(messages, match):
    with pytest.raises(RequestError, match=match):
        ECHO.render(messages)
