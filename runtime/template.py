"""Chat messages to a prompt, by the template that the checkpoint ships.

In: messages as in the public chat API. Out: the prompt's ids, in which control tokens come from
the template alone: texts of messages and tools are guarded (see `tokenizer.py`) before they are
rendered. The template is a program by a stranger: it runs in jinja2's sandbox on plain data.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .errors import BundleError, RequestError
from .tokenizer import Tokenizer


class ChatTemplate:
    """A compiled chat template; rendering does not change it."""

    def __init__(
        self, source: str, *, bos_token: str | None = None, eos_token: str | None = None
    ) -> None:
        """Compile a template; raises `BundleError` with the line when it is not valid jinja."""
        tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._tokens = {name: token for name, token in tokens.items() if token is not None}
        try:
            self._template = _make_environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise BundleError(
                f"the chat template is not valid: {error.message} (line {error.lineno})"
            ) from error

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[object] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Render messages to the prompt as it reads.

        `content` is a text, a list of text parts (joined by line breaks), or, in a message with
        `tool_calls`, null or absent (read as ""). `variables` are the template's own switches.
        Raises `RequestError` for other messages, and with the template's own words when it refuses.
        """
        return self._render(_plain_request(messages, tools, variables), add_generation_prompt)

    def encode(
        self,
        messages: Sequence[Mapping[str, object]],
        tokenizer: Tokenizer,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[object] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Render and encode; `render` describes the arguments.

        The ids are those of the rendered text, except that control tokens spelled in messages,
        tools or variables are encoded as plain text. Nothing is added: a template that wants a
        BOS prints it.
        """
        request = _plain_request(messages, tools, variables)
        guarded = _guard_values(request, tokenizer)
        text = self._render(request, add_generation_prompt)  # refuses what was really typed
        if guarded != request:
            text = self._render(guarded, add_generation_prompt)
        return tokenizer.encode_guarded(text)

    def _render(self, request: Mapping[str, Any], add_generation_prompt: bool) -> str:  # noqa: FBT001 # private
        switches = {"add_generation_prompt": add_generation_prompt}
        try:
            return self._template.render({**self._tokens, **request, **switches})
        except _RefusalError as error:
            raise RequestError(str(error)) from error
        except Exception as error:  # a stranger's program may fail in any way
            raise RequestError(f"the chat template failed on these messages: {error}") from error


class _RefusalError(Exception):
    """The template called `raise_exception`."""


class _GenerationBlocks(Extension):
    """Accept `{% generation %}…{% endgeneration %}`, which marks answers for training."""

    tags = {"generation"}  # noqa: RUF012 # jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _make_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _format_now}
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 # templates pass these by place
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    # jinja2's own filter escapes HTML, which models were not trained on.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: object) -> NoReturn:
    raise _RefusalError(str(message))


def _format_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _plain_request(
    messages: Sequence[Mapping[str, object]],
    tools: Sequence[object] | None,
    variables: Mapping[str, object] | None,
) -> dict[str, Any]:
    if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
        raise RequestError("messages must be a non-empty list of messages")
    plain = [_plain_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    own: dict[str, Any] = _plain_value(dict(variables or {}), "variables")
    return {"documents": None} | own | {"messages": plain, "tools": _plain_value(tools, "tools")}


def _plain_message(message: object, place: str) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(f"{place} must be an object with a role")
    plain: dict[str, Any] = _plain_value(message, place)
    plain["content"] = _plain_content(plain, f"{place}.content")
    return plain


def _plain_content(message: Mapping[str, Any], place: str) -> str:
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        return ""
    if isinstance(content, list):
        parts = [_plain_part(part, f"{place}[{i}]") for i, part in enumerate(content)]
        return "\n".join(parts)
    if not isinstance(content, str):
        raise RequestError(f"{place} must be a text or a list of text parts, not {content!r}")
    return content


def _plain_part(part: object, place: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get("text") if isinstance(part, dict) else None
    if kind != "text" or not isinstance(text, str):
        raise RequestError(f"{place} must be a part of type 'text' with a text, not {kind!r}")
    return text


def _plain_value(value: object, place: str) -> Any:
    """Copy what JSON can say; anything else could hand the template a way out of its sandbox."""
    if value is None or isinstance(value, bool):
        return value
    for plain in (str, int, float):
        if isinstance(value, plain):
            return plain(value)
    if isinstance(value, Mapping):
        return {str(key): _plain_value(v, f"{place}.{key}") for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(v, f"{place}[{i}]") for i, v in enumerate(value)]
    raise RequestError(f"{place} must be plain JSON data, not {type(value).__name__}")


def _guard_values(value: Any, tokenizer: Tokenizer) -> Any:
    if isinstance(value, str):
        return tokenizer.guard(value)
    if isinstance(value, dict):
        pairs = value.items()
        return {tokenizer.guard(key): _guard_values(v, tokenizer) for key, v in pairs}
    return [_guard_values(v, tokenizer) for v in value] if isinstance(value, list) else value
