"""The chat template of an exported tokenizer, written from the table of a set's format; none is ever read.

Its marks of generation are what `transformers` makes the mask of a loss from: they hold an answer and the special token
that follows it, as `shards.format.chat` counts targets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from shards.format.chat import ROLE_MARKS, TRAINED_ROLE, split_special
from shards.format.manifest import ChatEntry

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
