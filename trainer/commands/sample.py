"""Continue prompts with a run's newest checkpoint, or with the one that `--checkpoint` names, or talk with it.

`--chat` answers instead: each line that you type, until the input ends (Ctrl-D), or each `--prompt` by itself.
Ctrl-C ends an answer."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from shards.errors import InputError, plural
from shards.terminal.arguments import add_run, number_in, positive_number

if TYPE_CHECKING:
    from trainer.model.generate import Completion, TrainedModel
    from trainer.recipe.eval_config import SamplingOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `sample`."""
    add_run(parser, checkpoint=True)
    parser.add_argument(
        "--prompt",
        dest="prompts",
        action="append",
        default=[],
        type=utf8,
        metavar="TEXT",
        help="the beginning of a document; may be empty. Repeat the flag to continue several at once",
    )
    parser.add_argument("--chat", action="store_true", help="answer, as a model of conversations does")
    parser.epilog = "--json prints one line for each prompt."
    flags = (
        ("--max-new-tokens", 100, positive_number, "1 or more"),
        ("--temperature", 0.8, number_in(0, 100), "0 to 100; 0 always takes the likeliest token"),
        ("--top-k", 0, number_in(0, 1 << 31, int), "choose among the N likeliest tokens; 0: all"),
        ("--top-p", 0.95, number_in(1e-6, 1), "choose among the likeliest tokens whose probabilities add up to N"),
        (
            "--repetition-penalty",
            1.1,
            number_in(0.01, 100),
            "0.01 to 100; above 1, tokens that have occurred become less likely",
        ),
        ("--seed", 1337, number_in(0, (1 << 63) - 1, int), "0 or more"),
    )
    for flag, default, kind, note in flags:
        parser.add_argument(flag, type=kind, default=default, metavar="N", help=f"{note} (default: %(default)s)")


def utf8(text: str) -> str:
    """Return the text of a prompt to sample from.

    Raises:
        ArgumentTypeError: its bytes are not UTF-8; Python shows these as lone surrogates.
    """
    try:
        return text.encode().decode()
    except UnicodeError as error:
        raise argparse.ArgumentTypeError(f"expected text in UTF-8, got {text!r:.40}") from error


def run(options: argparse.Namespace) -> int:
    """Run `sample`: print prompts with continuations, a single one as it is generated; a line each with `--json`."""
    if not options.prompts and not options.chat:
        raise InputError("--prompt: missing. Give the beginning of a text, or --chat to talk.")
    from shards.terminal.display import printable, say
    from trainer.model.generate import generate_texts
    from trainer.recipe.eval_config import SamplingOptions
    from trainer.weights.trained_model import load_model

    chosen = SamplingOptions(**{name: getattr(options, name) for name in SamplingOptions.model_fields})
    trained = load_model(options.run, say, options.checkpoint)

    def show(text: str) -> None:
        print(printable(text, keep="\n\t"), end="", flush=True)

    def tell(completion: Completion) -> None:
        """Show a completion that has not been shown yet, or in JSON; say if it could not end."""
        if options.json:
            print(json.dumps({**asdict(completion), "options": chosen.model_dump()}, ensure_ascii=False), flush=True)
        elif completion.finish == "context":
            say(f"stopped after {plural(len(completion.token_ids), 'token')}: the model's context is full")

    if options.chat:
        for answer in _answer(trained, options, chosen, show):
            if not options.json:
                show("\n")
            tell(answer)
        return 0
    # One prompt is shown as it is generated; several, when all are done.
    stream = len(options.prompts) == 1 and not options.json
    completions = generate_texts(trained, options.prompts, chosen, on_text=show if stream else None)
    for index, completion in enumerate(completions):
        if not options.json:
            blank = "\n" if index else ""
            show("\n" if stream else f"{blank}{completion.prompt}{completion.text}\n")
        tell(completion)
    return 0


def _answer(
    trained: TrainedModel, options: argparse.Namespace, chosen: SamplingOptions, show: Callable[[str], None]
) -> Iterator[Completion]:
    """Yield the answers to the prompts, each by itself, or to what a person types, one conversation."""
    from shards.terminal.display import say
    from trainer.model.generate import Conversation

    on_text = None if options.json else show
    for prompt in options.prompts:
        yield Conversation(trained, chosen).ask(prompt, on_text)
    conversation = Conversation(trained, chosen)
    while not options.prompts:
        try:
            question = input("> " if sys.stdin.isatty() and not options.json else "")
            question.encode()
        except EOFError:
            return
        except UnicodeError as error:  # Python may read such bytes as lone surrogates
            raise InputError(f"the input is not UTF-8: {error}. Type or pipe text in UTF-8.") from error
        if not question.strip():
            continue
        try:
            yield conversation.ask(question, on_text)
        except InputError as error:
            say(str(error))
        except KeyboardInterrupt:
            show("\n")
