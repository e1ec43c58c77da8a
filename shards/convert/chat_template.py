"""The chat template of an exported tokenizer, written from the table of a set's format; none is ever read.

Its marks of generation are what `transformers` makes the mask of a loss from: they hold an answer and the special token
that follows it, as `shards.format.chat` counts targets.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

import numpy as np

from shards.convert.tokenizer_proof import iter_document_tokens
from shards.errors import InputError
from shards.format.chat import ROLE_MARKS, TRAINED_ROLE, Message, find_targets, locate_messages, split_special
from shards.format.manifest import ChatEntry
from shards.format.reader import ShardSet

_TEMPLATE = (
    "{{%- set before = {before} -%}}{{%- set heads = {heads} -%}}{{{{- bos_token -}}}}"
    "{{%- set state = namespace(head=true) -%}}"
    "{{%- for message in messages -%}}"
    "{{%- if message['role'] not in before -%}}"
    "{{{{- raise_exception('unknown role: ' ~ message['role']) -}}}}"
    "{{%- endif -%}}"
    # The head of a role is printed here, unless the answer before it has ended with it.
    "{{%- if state.head -%}}{{{{- heads[message['role']] -}}}}{{%- endif -%}}{{{{- before[message['role']] -}}}}"
    "{{%- set state.head = true -%}}"
    "{{%- if message['role'] != {trained} -%}}{{{{- message['content'] ~ {after} -}}}}"
    "{{%- else -%}}{{%- generation -%}}{{{{- message['content'] -}}}}{end}{{%- endgeneration -%}}{{{{- {rest} -}}}}"
    "{{%- endif -%}}"
    "{{%- endfor -%}}"
    "{{%- if add_generation_prompt -%}}"
    "{{%- if state.head -%}}{{{{- heads[{trained}] -}}}}{{%- endif -%}}{{{{- before[{trained}] -}}}}"
    "{{%- elif state.head -%}}{{{{- eos_token -}}}}{{%- endif -%}}"
)
_NEXT = (
    "{%- set state.head = false -%}"
    "{%- if not loop.last -%}{{- heads[messages[loop.index]['role']] -}}"
    "{%- elif add_generation_prompt -%}{{- heads[TRAINED] -}}"
    "{%- else -%}{{- eos_token -}}{%- endif -%}"
)
"""What ends an answer where nothing stands after a message: the special token of the next message, or EOS."""


def write_chat_template(chat: ChatEntry, special: Mapping[str, int]) -> str:
    """Return the Jinja template of a format: BOS, the messages, and EOS or, to ask a model, the assistant's opening.

    Args:
        chat: the format's table.
        special: the special tokens of the set.
    """
    parts = {role: split_special(chat.before[role], special) for role in ROLE_MARKS}
    after = split_special(chat.after, special)
    trained = json.dumps(TRAINED_ROLE)
    end = f"{{{{- {json.dumps(after[0])} -}}}}" if after else _NEXT.replace("TRAINED", trained)
    return _TEMPLATE.format(
        before=json.dumps({role: "".join(own[1:]) for role, own in parts.items()}),
        heads=json.dumps({role: own[0] for role, own in parts.items()}),
        trained=trained,
        after=json.dumps(chat.after),
        end=end,
        rest=json.dumps("".join(after[1:])),
    )


Apply = Callable[[list[dict[str, str]], bool], tuple[list[int], list[int] | None]]
"""Returns the ids of messages by a template, and the mask, if any; of the prompt for another answer, if asked."""
CONVERSATIONS = 300
"""So many conversations of a set are compared."""


def prove_template(shard_set: ShardSet, program: str, apply: Apply) -> int:
    """Compare conversations of a set with what an exported template makes of them: ids, targets and prompts.

    Left out are those in which a content spells a special token, which a template takes for control, or an answer
    begins with white space, which a template joins with its opening.

    Args:
        shard_set: the set.
        program: what applies the template.
        apply: the template, as its user calls it.

    Returns:
        How many were compared.

    Raises:
        InputError: one differs.
        ShardSetError: a file of the set is not what the manifest says.
    """
    compared = 0
    for ids, records, targets in islice(_iter_conversations(shard_set), CONVERSATIONS):
        found, mask = apply(records, False)
        # A program may refuse to apply a template to nothing.
        asks = len(records) > 1 and records[-1]["role"] == TRAINED_ROLE
        prompt = apply(records[:-1], True)[0] if asks else []
        pairs = {"ids": (found, ids), "targets": (mask, targets), "a prompt": (prompt, ids[: len(prompt)])}
        for what, (theirs, ours) in pairs.items():
            if theirs is not None and theirs != ours:
                raise InputError(
                    f"chat_template: {program} gives other {what} than training to {records!s:.200}: {theirs}, "
                    f"expected {ours}. Nothing was exported. Report it with the tokenizer."
                )
        compared += 1
    return compared


def _iter_conversations(shard_set: ShardSet) -> Iterator[tuple[list[int], list[dict[str, str]], list[int]]]:
    """Yield ids, messages and targets of the conversations of a set that a template writes as the set does."""
    manifest, vocabulary, chat = shard_set.manifest, shard_set.vocabulary, shard_set.manifest.chat
    begin = [shard_set.eos_id] if shard_set.bos_id is None else []  # what stands before a document, if not BOS
    if chat is None:
        return
    for ids in iter_document_tokens(shard_set):
        messages: list[Message] = [
            (role, vocabulary.decode(ids[first:stop]).decode(errors="replace"))
            for role, _, first, stop in locate_messages(chat, vocabulary, ids)
        ]
        written = "".join(chat.before[role] + content + chat.after for role, content in messages)
        # A token may have the end of a header and the beginning of a content: then it is in neither.
        is_whole = written == vocabulary.decode_document(ids[:-1]).decode(errors="replace")
        spells_token = any(token in content for _, content in messages for token in vocabulary.special)
        begins_with_space = any(role == TRAINED_ROLE and content[:1].isspace() for role, content in messages)
        if not messages or not is_whole or spells_token or begins_with_space:
            continue
        records = [{"role": role, "content": content} for role, content in messages]
        targets = find_targets(manifest, ids, np.array([0, len(ids)])).astype(int).tolist()
        yield [*begin, *ids.tolist()], records, [*([0] * len(begin)), *targets]
