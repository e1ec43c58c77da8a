"""Conversations as sources have them: the same text from each shape and format; what is dropped or refused."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import json
import re
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipeline.clean.personal_data import mask_text
from pipeline.clean.python import judge
from pipeline.clean.steps import clean_batch
from pipeline.clean.tally import Documents, Tally
from pipeline.recipe.clean_recipe import PythonFilter
from pipeline.sources.base import MALFORMED, SourceError
from shards.audit.audit import audit
from shards.audit.figures import NGRAM_TOKENS, ShardAudit, audit_shard
from shards.audit.ngrams import hash_ngrams, token_values
from shards.errors import InputError
from shards.format.chat import Message
from shards.format.content_hash import hash_document
from shards.format.reader import open_set
from shards.terminal.display import printable
from tests.support.builds import Built, call_here, read_json
from tests.support.conversations import CORPUS, make_conversations, read_lines, write_conversation
from tests.support.file_bytes import to_csv, to_ipc, to_parquet
from tests.support.personal_data import kinds_of
from tests.support.reading import batch_of, files_source, read_batches, texts_of
from tests.support.recipes import source, to_lines, write_lines, write_recipe

S, U, A = "\ufdd0", "\ufdd1", "\ufdd2"
NONE, NULL, MARK = "none", "null content", "content with a mark of a role"
ROLES = {U: "user", A: "assistant", S: "system"}


def turns(*said: str, **more: Any) -> list[dict[str, Any]]:
    """Return messages; each text begins with the mark of its role. The last one has more fields."""
    messages = [{"role": ROLES[text[0]], "content": text[1:]} for text in said]
    messages[-1] |= more
    return messages


Record = tuple[list[dict[str, Any]] | None, str]
"""Messages, and their text; of those that are dropped, the reason."""
TALKS = [
    (turns(*said), "".join(said)) for said in [(f"{U}Two?", f"{A}2\n\n\n"), (f"{U}", f"{A} \u3000é \0"), (f"{A}a",)]
]
TALKS += [
    (turns(*said), "".join(said))
    for said in [(f"{S}Be.", f"{U}1", f"{A}" + "x" * 9, f"{U} ", f"{A}y"), (f"{U}\ufdd3", f"{A}b")]
]
RECORDS: list[Record] = [
    *TALKS,
    (None, NONE),
    ([], NONE),
    (turns(f"{U}a", f"{A}b", tool_calls=[{"id": "1"}]), "tool calls"),
    (turns(f"{U}a", f"{A}b", tool_calls=[], images=[], weight=None), f"{U}a{A}b"),
    (turns(f"{U}a", images=["x.png"]) + turns(f"{A}b"), "images"),
    (turns(f"{U}a", f"{A}b", weight=0), "weights of messages"),
    ([*turns(f"{U}a"), {"role": "assistant", "content": None}], NULL),
    ([{"role": "user", "content": "a"}, None], NULL),
    (turns(f"{U}a", f"{A}b{S}"), MARK),
    ([*turns(f"{U}a", f"{A}b"), {"role": "tool", "content": "c"}], "unknown role"),
    ([{"role": None, "content": "c"}, *turns(f"{A}b")], "unknown role"),
    (turns(f"{S}a", f"{U}b"), "no answer"),
    (turns(f"{U}a", f"{A}b", f"{U}c", f"{A}"), "empty answer"),
    (turns(f"{U}a", f"{A} \n\t\u3000\x85"), "empty answer"),
    *TALKS,
]  # fmt: skip
KEPT = [why for _, why in RECORDS if why[:1] in ROLES]
DROPPED = Counter(f"messages: {why}" for _, why in RECORDS if why[:1] not in ROLES)


def rename(messages: list[Any] | None) -> list[Any] | None:
    """Return messages as ShareGPT has them."""
    text = json.dumps(messages)
    for one, other in {"role": "from", "content": "value", "user": "human", "assistant": "gpt"}.items():
        text = text.replace(f'"{one}"', f'"{other}"')
    return json.loads(text)


def with_views(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows).set_column(1, "talk", pa.array([row["talk"] for row in rows], VIEWS))


NAMED = pa.dictionary(pa.int32(), pa.string())
FIELDS = [("images", pa.list_(pa.string())), ("tool_calls", pa.list_(pa.struct([("id", pa.string())])))]
VIEWS = pa.large_list(pa.struct([("role", NAMED), ("content", pa.string_view()), ("weight", pa.int64()), *FIELDS]))
FORMATS: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    "a.jsonl": lambda rows: to_lines(rows).encode(),
    "a.json": lambda rows: json.dumps(rows, indent=1).encode(),
    "a.parquet": lambda rows: to_parquet(pa.Table.from_pylist(rows)),
    "a.arrow": lambda rows: to_ipc(pa.Table.from_pylist(rows)),
    "b.arrow": lambda rows: to_ipc(pa.Table.from_pylist(rows), pa.ipc.new_stream),
    "views.arrow": lambda rows: to_ipc(with_views(rows)),
}


@pytest.mark.parametrize("shape", [list, rename])
@pytest.mark.parametrize("name", FORMATS)
def test_the_text_of_a_conversation_is_the_same_from_each_shape_and_format(
    name: str, shape: Callable[[Any], Any], tmp_path: Path
):
    if name.startswith("views") and shape is rename:
        pytest.skip("its type has the names of one shape")
    rows = [{"id": number, "talk": messages and shape(messages)} for number, (messages, _) in enumerate(RECORDS)]
    rows[5]["talk"] = None
    (tmp_path / name).write_bytes(FORMATS[name](rows))
    source = files_source(tmp_path / name, messages="talk")
    for unit_bytes in (None, 100):
        batches = read_batches(source, unit_bytes)
        assert texts_of(batches) == KEPT
        assert sum((batch.rejected for batch in batches), Counter()) == DROPPED
    first: dict[str, tuple[int, str]] = {}
    for row, why, shown in (found for batch in read_batches(source) for found in batch.dropped):
        first.setdefault(why, (row, shown))
    wanted = [why for _, why in RECORDS]
    assert {why.removeprefix("messages: "): row for why, (row, _) in first.items()} == {
        why: wanted.index(why) for why in wanted if why[:1] not in ROLES
    }
    assert first["messages: unknown role"][1] == "tool: c"
    assert first["messages: empty answer"][1] == ("gpt: " if shape is rename else "assistant: ")
    # Predicates come first, and count what they reject.
    batches = read_batches(files_source(tmp_path / name, messages="talk", keep={"id": ">= 7"}))
    assert texts_of(batches) == KEPT[len(TALKS) :]
    assert sum((batch.rejected for batch in batches), Counter())["messages: none"] == 0


def test_prompts_and_completions_are_conversations_too(tmp_path: Path):
    said = [("a", "b"), ("", "c,\n"), ("d", " "), ("é", "f\ufdd0"), ("g", "h")]
    rows = [{"prompt": prompt, "completion": answer, "more": 1} for prompt, answer in said]
    for name, write in (FORMATS | {"a.csv": to_csv}).items():
        if not name.startswith("views"):
            (tmp_path / name).write_bytes(write(rows))
            batches = read_batches(files_source(tmp_path / name, messages=["prompt", "completion"]))
            assert texts_of(batches) == [f"{U}a{A}b", f"{U}{A}c,\n", f"{U}g{A}h"], name
            assert sum((batch.rejected for batch in batches), Counter()).total() == 2
    lines = b'{"prompt": null, "completion": null}\n{"prompt": "a"}\n{"prompt": "a", "completion": "b"}\n'
    (tmp_path / "a.jsonl").write_bytes(lines)
    (batch,) = read_batches(files_source(tmp_path / "a.jsonl", messages=["prompt", "completion"]))
    assert texts_of([batch]) == [f"{U}a{A}b"]
    assert batch.rejected == {"messages: none": 1, f"messages: {NULL}": 1}


def test_large_conversations_and_odd_texts(tmp_path: Path):
    long = [turns(f"{U}" + "x" * (1 << 20), f"{A}y"), turns(*(f"{(U, A)[turn % 2]}{turn}" for turn in range(1000)))]
    odd = [
        json.dumps({"messages": turns(f"{U}\ud800", f"{A}b")}),
        '{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}',
        '{"messages": "user: a"}',
    ]
    lines = [*(json.dumps({"messages": messages}) for messages in long), *odd]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    batches = read_batches(files_source(tmp_path / "a.jsonl", messages="messages", max_malformed=1.0))
    texts = texts_of(batches)
    assert list(map(len, texts)) == [(1 << 20) + 3, 1000 + sum(len(str(turn)) for turn in range(1000))]
    assert sum((batch.rejected for batch in batches), Counter()) == {MALFORMED: 3}
    with pytest.raises(SourceError, match="record 2: JSON parse error: The surrogate pair"):
        read_batches(files_source(tmp_path / "a.jsonl", messages="messages"))


MARKS = f"[{S}{U}{A}]"
KEY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
CLEANED = [
    f"{U}Write to ann@gmail.com.{A}I wrote to ann@gmail.com",
    f"{U}short{A}no",
    f"{U}-----BEGIN PRIVATE KEY-----\n{KEY}{A}{KEY}\n-----END PRIVATE KEY-----",
    f"{S}What is in the box?{U}{'The box has a cat in it. ' * 30}{A}{'It is a cat of the neighbours. ' * 9}",
    f"{U}{'one two three ' * 30}{A}lorem",
]


@pytest.mark.parametrize(
    "keys",
    [
        {"drop_if_matches": [r"short\n\n\nno", r"\A\n\n\nWrite"]},
        {"min_bytes": 16, "max_bytes": 100},
        {"clean": {"gopher": {"min_words": 5, "when": "encode"}}},
        {"clean": {"c4": {"when": "encode", "min_sentences": 2}, "fineweb": {"when": "encode"}}},
        {"clean": {"personal_data": {"action": "drop"}}},
        {"clean": {"personal_data": {"kinds": ["email"]}}},
    ],
)
def test_what_cleans_sees_each_mark_as_three_line_ends(keys: dict[str, Any]):
    def clean(texts: list[str], **own: Any) -> tuple[list[str], list[int], Tally]:
        tally = Tally()
        left = clean_batch(files_source("x", **keys, **own), batch_of(texts), tally)
        return list(map(str, left.text.to_pylist())), left.rows.tolist(), tally

    def unmark(texts: list[str]) -> list[str]:
        return [re.sub(MARKS, "\n\n\n", text) for text in texts]

    expected, rows, one = clean(unmark(CLEANED))
    found, same, other = clean(CLEANED, messages="messages")
    assert (same, other.drops, other.masked) == (rows, one.drops, one.masked)
    assert [(shown.reason, shown.text) for shown in other.shown] == [(shown.reason, shown.text) for shown in one.shown]
    assert [re.findall(MARKS, text) for text in found] == [re.findall(MARKS, CLEANED[row]) for row in rows]
    if one.masked:  # by the hash of the text, which has marks
        assert one.masked == {"email": 2}
        assert "ann@" not in str(found)
    else:
        assert unmark(found) == expected
        assert rows != list(range(len(CLEANED)))


def test_masks_stay_within_a_message_and_a_function_keeps_the_marks():
    kinds = kinds_of(("private_key",))
    (key,) = [text for text in CLEANED if "PRIVATE" in text]
    assert mask_text(key.encode(), kinds, Tally(), has_marks=True).decode() == key
    assert mask_text(key.replace(A, "\n\n\n").encode(), kinds, Tally()).decode() != key.replace(A, "\n\n\n")
    documents = Documents(pa.array(CLEANED, pa.large_string()), np.arange(len(CLEANED), dtype=np.uint32), True)
    table = PythonFilter.model_validate({"function": "rules:keep#sha256=" + "0" * 64})
    for change, fault in (
        (str.upper, ""),
        (lambda text: text.replace(A, ""), "row 0: f returned"),
        (lambda text: text + U, "row 0"),
    ):
        ask = lambda texts, _: {"verdicts": [change(text) for text in texts.to_pylist()]}  # noqa: E731, B023
        with pytest.raises(InputError, match=fault) if fault else nullcontext():
            left = judge(table, "f", ask, documents, Tally(), [])
            assert left.text.to_pylist() == [text.upper() for text in CLEANED]


Held = list[tuple[int, str, list[Message]]]


@pytest.fixture(scope="session")
def held(chat_set: Built) -> Held:
    """Return documents of the first shard that are conversations: their numbers, hashes and messages."""
    shard = open_set(chat_set.out).shards[0]
    known = {
        hash_document(write_conversation(one).encode()).hex(): one
        for one in make_conversations(600)
        if one[-1][1].strip()
    }
    hashes = [value.hex() for value in shard.documents()["hash"].to_pylist()]
    return [(number, digest, known[digest]) for number, digest in enumerate(hashes) if digest in known]


def test_a_text_is_found_within_one_message(chat_set: Built, held: Held) -> None:
    messages = next(messages for *_, messages in held if len(messages) > 2)
    question, answer = messages[-2][1], messages[-1][1]

    def count(flag: str, text: str) -> int:
        return call_here("trace", chat_set.out, flag, text, "--json").json["documents"]

    assert count("--text", question) == count("--regex", re.escape(question)) == 1
    assert count("--text", answer) >= 1
    for text in (f"user\n{question}", f"{question}<|im_end|>", "<|im_start|>", f"assistant\n{answer}"):
        assert count("--text", text) == count("--regex", re.escape(text)) == 0


def test_a_conversation_is_traced_by_its_messages(chat_set: Built, held: Held, tmp_path: Path) -> None:
    number, digest, messages = held[0]
    file = tmp_path / "talk.json"

    def ask(*said: Message) -> Any:
        file.write_text(json.dumps([{"role": role, "content": content} for role, content in said]))
        return call_here("trace", chat_set.out, "--document", file, "--json")

    found = ask(*messages).json
    assert (found["query"], found["places"][0]["document"]) == (digest, number)
    file.write_text(json.dumps({"id": [1], "messages": read_json(file)}))
    assert call_here("trace", chat_set.out, "--document", file, "--json").json == found
    file.write_text('[{"role": "user", "content": [{"type": "text", "text": "Hi."}]}]')
    assert "a message cannot be read" in call_here("trace", chat_set.out, "--document", file).stderr
    found = ask(("user", "Nobody asked."), ("assistant", "So.")).json
    assert [one["source"] for one in found["build"]["tried"]] == ["chats", "pairs"]
    assert "messages: no answer (user: Nobody asked.)" in ask(("user", "Nobody asked.")).stderr


def test_a_plan_shows_who_says_what(chat_set: Built) -> None:
    shown = call_here("plan", chat_set.recipe, "--show", "1").stdout
    assert re.search(r"row \d+\n  (system: .*\n(  .*\n)*?)?  user: \S", shown)
    assert "ufdd1" not in shown
    assert "\ufdd1" not in shown


def test_a_document_is_shown_with_its_targets(chat_set: Built, held: Held) -> None:
    number, _, messages = held[0]
    asked = ("inspect", chat_set.out, "--shard", 0, "--document", number)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORCE_COLOR", "1")
        patch.delenv("NO_COLOR", raising=False)
        shown = call_here(*asked).stdout
    coloured = re.findall(r"\x1b\[32m(.*?)\x1b\[0m", shown, re.DOTALL)
    assert coloured == [f"{printable(text, keep=chr(10))}<|im_end|>" for role, text in messages if role == "assistant"]
    assert call_here(*asked, "--json").json["targets"] > len(coloured)


def test_an_audit_counts_conversations_and_compares_what_they_say(chat_set: Built, tmp_path: Path) -> None:
    shard_set, found = open_set(chat_set.out), Counter[str]()
    for shard in shard_set.shards:
        table = shard.documents()
        for row in table.filter(pc.field("source") != "prose").to_pylist():
            text = shard_set.vocabulary.decode(shard.read(row["start"], row["start"] + row["length"]))
            found.update([*re.findall(r"<\|im_start\|>(\w+)\n", text.decode()), "all"])
    result = audit(chat_set.out, out=tmp_path)
    assert result.check("special_ids").verdict == result.check("not_text").verdict == "ok"
    total = sum(found[role] for role in ROLES.values())
    assert result.check("conversations").summary == (
        f"{found['all']} conversations of {total / found['all']:.1f} messages: "
        f"system {found['system']}, user {found['user']}, assistant {found['assistant']}"
    )
    search = ShardAudit(shard_set)
    sampled, _ = np.hstack(
        [own for number in range(len(shard_set.shards)) for own in audit_shard(search, number).ngrams]
    )
    allowed = set[int]()
    values, special = token_values(shard_set.vocab_size), [*shard_set.vocabulary.special.values()]
    for shard in shard_set.splits["val"]:
        tokens = np.append(shard_set.eos_id, shard.read(0, shard.num_tokens))
        # What is between special ids, and of a question what follows "user\n".
        for part in np.split(tokens, np.flatnonzero(np.isin(tokens, special))):
            text, skipped = shard_set.vocabulary.decode(part), 1
            role = next((role for role in ROLES.values() if text.startswith(f"<|im_start|>{role}\n".encode())), "")
            while role and len(shard_set.vocabulary.decode(part[:skipped])) < len(f"<|im_start|>{role}\n"):
                skipped += 1
            whole = np.append(part[skipped:], 0)
            ends = np.array([len(whole)])
            allowed.update(hash_ngrams(whole, ends * 0, ends, width=NGRAM_TOKENS, values=values).tolist())
    assert len(sampled) > 100
    assert set(sampled.tolist()) <= allowed


def test_a_build_and_a_plan_count_each_drop_and_name_the_first(tmp_path: Path) -> None:
    talks = [turns(f"{U}Say {number} in words.", f"{A}It is {number}.") for number in range(200)]
    lines = [{"messages": messages} for messages in [*talks, *(messages for messages, _ in RECORDS)]]
    write_lines(tmp_path / "a.jsonl", lines)
    tables = {"chat": {"format": "roles"}, "tokenizer": {"vocab_size": 300}, "split": {"val_tokens": 100}}
    recipe = write_recipe(tmp_path / "r.toml", source("a", "a.jsonl", messages="messages"), **tables)
    done = call_here("build", recipe, "--out", tmp_path / "set", "--workers", "1", "--json", expect=0)
    (entry,) = read_json(tmp_path / "set/manifest.json")["sources"]
    assert {why: count for why, count in entry["dropped"].items() if why != "duplicate"} == dict(DROPPED)
    planned = call_here("plan", recipe, "--json").json["sources"][0]
    assert {
        why: round(share * len(lines)) for why, share in planned["dropped"].items() if why != "duplicate"
    } == DROPPED
    for why, count in DROPPED.items():
        row = 200 + [why for _, why in RECORDS].index(why.removeprefix("messages: "))
        said = f"{why}: {count} of {len(lines)} records ({count / len(lines):.2%}) dropped, the first a.jsonl row {row}"
        assert f"source 'a': {said}" in done.stderr


@pytest.mark.skipif(not CORPUS.exists(), reason="needs the corpora")
def test_published_conversations_are_read_as_they_are() -> None:
    gsm = [f"{U}{row['question']}{A}{row['answer']}" for row in read_lines("gsm8k-train.jsonl")]
    assert texts_of(read_batches(files_source(CORPUS / "gsm8k-train.jsonl", messages=["question", "answer"]))) == gsm
    marks = {"human": U, "gpt": A}
    rows = read_json(CORPUS / "sharegpt-dummy.json")
    said = ["".join(marks[one["from"]] + one["value"] for one in row["conversations"]) for row in rows]
    assert texts_of(read_batches(files_source(CORPUS / "sharegpt-dummy.json", messages="conversations"))) == said
    with pytest.raises(SourceError, match=r"column 'turns' has lists of text.*\n.*\n.*enumerate\(row\['turns'\]\)"):
        read_batches(files_source(CORPUS / "mt_bench-question.jsonl", messages="turns"))
