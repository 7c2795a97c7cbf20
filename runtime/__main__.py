"""Commands: `generate` and `chat` answer, `info` and `store` tell of files, `costs` times passes.

Text goes to standard output, everything else to standard error. A failure is one sentence and a
non-zero exit: 1 for what is broken, 2 for what was asked wrongly, 130 after Ctrl-C.
"""

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from io import TextIOWrapper

from .arguments import make_parser, read_options, read_prompt
from .bundle import open_bundle
from .cost_plot import check_plot, draw_costs
from .cost_report import CostReport, describe_costs
from .describe import describe_bundle, describe_placement, describe_store, explain
from .engine import Engine
from .errors import ForerunError, RequestError
from .generation import Chunk
from .kept_costs import make_key, read_costs
from .manifest import dump_manifest
from .pass_counter import PassCounter
from .places import make_places, open_models
from .providers import Threads, count_threads, make_provider
from .store import clear_store
from .trace import open_trace

_INTERRUPTED = 128 + signal.SIGINT


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # whatever the locale, text leaves unharmed
            stream.reconfigure(encoding="utf-8", errors="replace")
    logging.basicConfig(level=logging.INFO, format="forerun: %(message)s", stream=sys.stderr)
    args = make_parser().parse_args(argv)
    commands = {
        "generate": _generate,
        "chat": _chat,
        "info": _info,
        "store": _store,
        "costs": _costs,
    }
    try:
        return commands[args.command](args)
    except ForerunError as error:
        print(f"forerun: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return _INTERRUPTED
    except OSError as error:
        # What Python flushes at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # a reader that went away knows
            print(f"forerun: cannot write the answer: {error.strerror}", file=sys.stderr)
        return 1


def _generate(args: argparse.Namespace) -> int:
    prompt = _prompt(args)
    if args.system is not None and not args.chat:
        raise RequestError("--system needs --chat: a plain prompt has no system message")
    options = read_options(args)
    with _open(args) as engine, open_trace(args.trace) as watch:
        messages = [*_system(args.system), {"role": "user", "content": prompt}]
        if args.json:
            asked = {"messages": messages} if args.chat else {"prompt": prompt}
            completion = engine.complete(**asked, watch=watch, **options)
            print(json.dumps(asdict(completion), ensure_ascii=False))
            if args.explain:
                print("\n".join(explain(completion.stats)), file=sys.stderr)
            return 0
        if args.chat:
            chunks = engine.generate(messages=messages, watch=watch, **options)
        else:
            chunks = engine.generate(prompt, watch=watch, **options)
        _show(chunks, [], explained=args.explain)
    return 0


def _chat(args: argparse.Namespace) -> int:
    options = read_options(args)
    history = _system(args.system)
    with _open(args) as engine, open_trace(args.trace) as watch:
        if not engine.has_chat_template:
            raise RequestError(
                f"{args.bundle} has no chat template (its checkpoint is a base model): use "
                " python -m runtime generate"
            )
        print("Ctrl-C ends an answer; Ctrl-D, or Ctrl-C again, the chat.", file=sys.stderr)
        while (question := _ask()) is not None:
            if not question.strip():
                continue
            asked = [*history, {"role": "user", "content": question}]
            shown: list[str] = []
            try:
                with closing(engine.generate(messages=asked, watch=watch, **options)) as chunks:
                    _show(chunks, shown, explained=args.explain)
            except RequestError as error:
                print(f"forerun: {error}", file=sys.stderr)
            except KeyboardInterrupt:
                pass
            # What the person saw is the history; a question without any answer is forgotten.
            if answer := "".join(shown):
                history = [*asked, {"role": "assistant", "content": answer}]
    return 0


def _ask() -> str | None:
    """Return a line from the person, or `None` at the end of input."""
    prompt = "> " if sys.stdin.isatty() else ""
    try:
        return input(prompt)
    except EOFError:
        return None


def _show(chunks: Iterator[Chunk], shown: list[str], *, explained: bool) -> None:
    """Print an answer while it grows, and append what was printed to `shown`."""
    chunk = None
    try:
        for chunk in chunks:
            print(chunk.text, end="", flush=True)
            shown.append(chunk.text)
    except BaseException:
        if shown:
            print(flush=True)
        raise
    print(flush=True)
    if explained and chunk is not None:
        print("\n".join(explain(chunk.stats)), file=sys.stderr)


def _info(args: argparse.Namespace) -> int:
    bundle = open_bundle(args.bundle, verify_hashes=not args.no_verify)
    if args.json:
        print(dump_manifest(bundle.manifest), end="")
    else:
        key = make_key(bundle, provider=make_provider("cpu"), threads=None)
        print("\n".join(describe_bundle(bundle, read_costs(key))))
    if args.provider is not None:
        places = make_places(
            bundle,
            provider=args.provider,
            providers=args.providers,
            device_id=args.device_id,
            cuda_graphs=False,
        )
        models = open_models(
            bundle,
            bundle.manifest.models,
            places,
            Threads(count=count_threads(None)),
            is_strict=args.strict_provider,
        )
        print("\n".join(["", *map(describe_placement, models)]), file=sys.stderr)
    return 0


def _store(args: argparse.Namespace) -> int:
    if args.clear:
        clear_store(args.path)
    elif args.json:
        print(json.dumps(describe_store(args.path)))
    else:
        for name, value in describe_store(args.path).items():
            print(f"{name:<12}{value}")
    return 0


def _costs(args: argparse.Namespace) -> int:
    if args.plot is not None:
        check_plot(args.plot)
    with _open(args) as engine:
        if args.depth is not None and args.depth >= engine.target.context:
            raise RequestError(
                f"--depth is {args.depth}, but the context holds {engine.target.context} tokens, "
                "the new one included"
            )
        with PassCounter() as counter:
            table = engine.costs(refresh=args.refresh, on_pass=counter)
        report = CostReport(
            key=engine.cost_key,
            table=table.at_even_widths() if args.numerics == "fixed-width" else table,
            mode=args.mode,
            depth=args.depth,
            acceptances=args.acceptance,
        )
    if args.json:
        print(json.dumps(report.as_json()))
    else:
        print("\n".join(describe_costs(report)))
    if args.plot is not None:
        try:
            draw_costs(report, args.plot)
        except OSError as error:
            raise RequestError(f"--plot {args.plot}: {error.strerror}") from None
    return 0


def _open(args: argparse.Namespace) -> Engine:
    return Engine.open(
        args.bundle,
        provider=args.provider,
        device_id=args.device_id,
        providers=args.providers,
        strict_provider=args.strict_provider,
        cuda_graphs=args.cuda_graphs,
        threads=args.threads,
        verify_hashes=not args.no_verify,
        max_memory=args.max_memory,
        store=args.store,
    )


def _system(text: str | None) -> list[dict[str, str]]:
    return [] if text is None else [{"role": "system", "content": text}]


def _prompt(args: argparse.Namespace) -> str:
    try:
        return read_prompt(args)
    except OSError as error:
        raise RequestError(f"--prompt-file {args.prompt_file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise RequestError(
            f"the prompt must be UTF-8 text, but byte {error.start} is not: convert the file"
        ) from None


if __name__ == "__main__":
    sys.exit(main())
