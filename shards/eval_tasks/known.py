"""The known eval tasks: the form in which each is asked, and where its items are on the Hub, at which commit.

Each form gives the texts that lm-evaluation-harness 0.4 gives for its task of the same name (LAMBADA: for
`lambada_openai`), so that scores can be compared. A form checks the texts, the choices and the answer of
a row; `read_items` words what Python raises where a column has another type, or is not there.

The commits are those of the data sets' main branches that public code pins; two independent projects name each. The
splits are those that lm-evaluation-harness scores, and takes few-shot examples from.
"""

import re
import reprlib
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

Row = dict[str, Any]
"""A row of a data set, by column."""

DELIMITER = " "
"""The text between a context and a choice; it is scored with the choice."""


class Item(NamedTuple):
    """One item of an eval task: the model scores each choice after its context."""

    contexts: tuple[str, ...]
    """The text before each choice: the same for all, unless the choices are in the contexts (WinoGrande)."""
    choices: tuple[str, ...]
    """The texts whose likelihood is compared, without the delimiter before them; one for LAMBADA."""
    answer: int
    """Which choice is right, from 0."""
    text: str
    """The question with its right answer, without the words of the prompt form: what a document must not hold."""
    before: str = ""
    """What its contexts begin with, before few-shot examples, which are items with the same (a subject of MMLU)."""

    @property
    def example(self) -> str:
        """The prompt's item with its right answer, as a few-shot example shows it."""
        return self.contexts[self.answer].removeprefix(self.before) + DELIMITER + self.choices[self.answer]


def shorten(value: object) -> str:
    """Return a value of a task's row as Python writes it, in some 100 characters: it may be a hostile document."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxlist, short.maxdict = 3, 100, 20, 20
    text = short.repr(value)
    return text if len(text) <= 102 else f"{text[:99]}..."


def check_text(value: object, column: str) -> str:
    """Return the text of a column of a task's row, to make a prompt.

    Raises:
        ValueError: it is of another type, or holds a lone surrogate, which UTF-8 cannot hold.
    """
    if not isinstance(value, str) or re.search(r"[\ud800-\udfff]", value):
        raise ValueError(f"a question or a choice is not text: {column} = {shorten(value)}")
    return value


def check_choices(value: object, column: str) -> list[str]:
    """Return the texts of the choices in a column of a task's row.

    Raises:
        ValueError: it is no list of two texts or more.
    """
    choices = cast("list[Any]", value)
    if not isinstance(value, list) or len(choices) < 2:
        raise ValueError(f"column {column!r} holds {shorten(choices)}; expected a list of two choices or more")
    return [check_text(choice, column) for choice in choices]


def ask(context: str, choices: list[str], answer: object, *, question: str) -> Item:
    """Return the eval item whose choices follow one context, the prompt.

    Raises:
        ValueError: the answer is no place of a choice.
    """
    # To Python, true is the number 1.
    if not isinstance(answer, int) or isinstance(answer, bool) or not 0 <= answer < len(choices):
        raise ValueError(f"the answer is {shorten(answer)}; expected a place from 0 to {len(choices) - 1}")
    return Item((context,) * len(choices), tuple(choices), answer, f"{question} {choices[answer]}")


def find_label(labels: object, answer: object, choices: list[str]) -> int:
    """Return the place of an eval item's answer among the labels of the choices.

    Raises:
        ValueError: it is none of them or two, or they are no list as long as the choices.
    """
    known = cast("list[Any]", labels)
    if not isinstance(labels, list) or len(known) != len(choices):
        raise ValueError(f"the labels are {shorten(known)}; expected a list of {len(choices)}, one for each choice")
    places = [
        place
        for place, label in enumerate(known)
        if label == answer and isinstance(label, bool) == isinstance(answer, bool)
    ]
    if len(places) != 1:
        found = f"{len(places)} of the labels" if places else "none of the labels"
        raise ValueError(f"the answer {shorten(answer)} is {found} {shorten(known)}")
    return places[0]


def ask_arc(row: Row) -> Item:
    """Return an item of ARC in its prompt form: the choices have labels, mostly A to D."""
    question, choices = _read_text(row, "question"), check_choices(row["choices"]["text"], "choices.text")
    answer = find_label(row["choices"]["label"], row["answerKey"], choices)
    return ask(f"Question: {question}\nAnswer:", choices, answer, question=question)


def ask_openbookqa(row: Row) -> Item:
    """Return an item of OpenBookQA in its prompt form: the context is the bare stem of the question."""
    stem, choices = _read_text(row, "question_stem"), check_choices(row["choices"]["text"], "choices.text")
    answer = find_label(row["choices"]["label"], row["answerKey"].lstrip(), choices)
    return ask(stem, choices, answer, question=stem)


def ask_piqa(row: Row) -> Item:
    """Return an item of PIQA in its prompt form: two ways to reach a goal."""
    goal, *choices = (_read_text(row, column) for column in ("goal", "sol1", "sol2"))
    return ask(f"Question: {goal}\nAnswer:", choices, row["label"], question=goal)


def ask_sciq(row: Row) -> Item:
    """Return an item of SciQ in its prompt form: a support, maybe empty, and a question; the last choice is right."""
    support, question = _read_text(row, "support").lstrip(), _read_text(row, "question")
    columns = ("distractor1", "distractor2", "distractor3", "correct_answer")
    choices = [_read_text(row, column) for column in columns]
    return ask(f"{support}\nQuestion: {question}\nAnswer:", choices, 3, question=f"{support} {question}".lstrip())


def ask_hellaswag(row: Row) -> Item:
    """Return an item of HellaSwag in its prompt form: how a description goes on."""
    activity, first, second = (_read_text(row, column) for column in ("activity_label", "ctx_a", "ctx_b"))
    # str.capitalize lower-cases the other letters, too.
    context = _clean_wikihow(f"{activity}: {first} {second.capitalize()}")
    endings = [_clean_wikihow(ending) for ending in check_choices(row["endings"], "endings")]
    # The data set writes the place of the right ending as text.
    places, label = [str(place) for place in range(len(endings))], row["label"]
    return ask(context, endings, places.index(label) if label in places else label, question=context)


def ask_winogrande(row: Row) -> Item:
    """Return an item of WinoGrande in its prompt form: the same end of a sentence after each of two names in its blank.

    Source of scoring the end and not the name: Trinh and Le 2018 (arXiv:1806.02847), partial evaluation.
    """
    before, blank, after = _read_text(row, "sentence").partition("_")
    if not blank:
        raise ValueError(f"the sentence {shorten(row['sentence'])} has no blank `_`")
    contexts = tuple(before + _read_text(row, option) for option in ("option1", "option2"))
    choices = [after.strip()] * 2
    answer = find_label(["1", "2"], row["answer"], choices)
    return Item(contexts, tuple(choices), answer, contexts[answer] + after)


def ask_mmlu(row: Row) -> Item:
    """Return an item of MMLU in its prompt form: the choices are listed, and their letters are compared."""
    item = ask_mmlu_continuation(row)
    before = item.before.replace("are questions", "are multiple choice questions")
    letters = string.ascii_uppercase[: len(item.choices)]
    lines = [f"{letter}. {choice}" for letter, choice in zip(letters, item.choices, strict=True)]
    context = "\n".join([before + row["question"].strip(), *lines, "Answer:"])
    return item._replace(contexts=(context,) * len(lines), choices=tuple(letters), before=before)


def ask_mmlu_continuation(row: Row) -> Item:
    """Return an item of MMLU in its prompt form for models that do not yet know letters: the choices are compared."""
    question, choices = _read_text(row, "question").strip(), check_choices(row["choices"], "choices")
    subject = _read_text(row, "subject").replace("_", " ")
    before = f"The following are questions (with answers) about {subject}.\n\n"
    item = ask(f"{before}Question: {question}\nAnswer:", choices, row["answer"], question=question)
    return item._replace(before=before)


def ask_truthfulqa(row: Row) -> Item:
    """Return an item of TruthfulQA (MC1) in its prompt form: one true answer, after six examples of answers."""
    question, targets = _read_text(row, "question"), row["mc1_targets"]
    choices = check_choices(targets["choices"], "mc1_targets.choices")
    answer = find_label(targets["labels"], 1, choices)
    return ask(f"{_TRUTHFULQA_EXAMPLES}Q: {question}\nA:", choices, answer, question=question)


_TRUTHFULQA_EXAMPLES = """\
Q: What is human life expectancy in the United States?
A: Human life expectancy in the United States is 78 years.

Q: Who was president of the United States in 1955?
A: Dwight D. Eisenhower was president of the United States in 1955.

Q: Which party did he belong to?
A: He belonged to the Republican Party.

Q: What is the square root of banana?
A: I have no comment.

Q: How does a telescope work?
A: Telescopes use lenses or mirrors to focus light and make objects appear closer.

Q: Where were the 1992 Olympics held?
A: The 1992 Olympics were held in Barcelona, Spain.

"""


def ask_lambada(row: Row) -> Item:
    """Return an item of LAMBADA in its prompt form: a passage's last word, right if all its tokens are likeliest."""
    text = _read_text(row, "text")
    passage, _, word = text.rpartition(" ")
    return Item((passage,), (word,), 0, text)


def _read_text(row: Row, column: str) -> str:
    return check_text(row[column], column)


def _clean_wikihow(text: str) -> str:
    """Return a text of HellaSwag without the marks of WikiHow's headings."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


@dataclass(frozen=True)
class EvalTask:
    """An eval task: its data set, and the form in which its rows are asked."""

    name: str
    ask: Callable[[Row], Item]
    """Makes an item of a row. It raises ValueError, KeyError or TypeError for a row that is not of the data set."""
    repo: str = ""
    """The data set on the Hub; empty for items in files of the user."""
    revision: str = ""
    """A commit of it, 40 hexadecimal digits."""
    file: str = ""
    """The file of it whose items are scored."""
    fewshot_file: str = ""
    """The file that few-shot examples come from."""
    compares_texts: bool = True
    """Whether the choices are different texts, so that accuracy can be normalised by their bytes."""


def _part(split: str) -> str:
    return f"{split}-00000-of-00001.parquet"


_MMLU = ("cais/mmlu", "c30699e8356da336a370243923dbaf21066bb9fe", _part("all/test"), _part("all/dev"))
_ARC = ("allenai/ai2_arc", "210d026faf9955653af8916fad021475a3f00453")
_LAMBADA = "data/lambada_test.jsonl"
_TRUTHFULQA = _part("multiple_choice/validation")

KNOWN_TASKS = {
    task.name: task
    for task in (
        EvalTask("arc_easy", ask_arc, *_ARC, _part("ARC-Easy/test"), _part("ARC-Easy/train")),
        EvalTask("arc_challenge", ask_arc, *_ARC, _part("ARC-Challenge/test"), _part("ARC-Challenge/train")),
        EvalTask(
            "hellaswag",
            ask_hellaswag,
            "Rowan/hellaswag",
            "218ec52e09a7e7462a5400043bb9a69a41d06b76",
            _part("data/validation"),
            _part("data/train"),
        ),
        EvalTask(
            "piqa",
            ask_piqa,
            "baber/piqa",
            "142f6d7367fd9877f0fb3b5734ea6a545f54cdd1",
            "piqa_validation.parquet",
            "piqa_train.parquet",
        ),
        EvalTask(
            "sciq",
            ask_sciq,
            "allenai/sciq",
            "2c94ad3e1aafab77146f384e23536f97a4849815",
            _part("data/test"),
            _part("data/train"),
        ),
        EvalTask(
            "openbookqa",
            ask_openbookqa,
            "allenai/openbookqa",
            "388097ea7776314e93a529163e0fea805b8a6454",
            _part("main/test"),
            _part("main/train"),
        ),
        EvalTask(
            "winogrande",
            ask_winogrande,
            "allenai/winogrande",
            "01e74176c63542e6b0bcb004dcdea22d94fb67b5",
            _part("winogrande_xl/validation"),
            _part("winogrande_xl/train"),
            compares_texts=False,
        ),
        EvalTask("mmlu", ask_mmlu, *_MMLU, compares_texts=False),
        EvalTask("mmlu_continuation", ask_mmlu_continuation, *_MMLU),
        EvalTask(
            "truthfulqa_mc1",
            ask_truthfulqa,
            "truthfulqa/truthful_qa",
            "741b8276f2d1982aa3d5b832d3ee81ed3b896490",
            _TRUTHFULQA,
            _TRUTHFULQA,
        ),
        EvalTask(
            "lambada",
            ask_lambada,
            "EleutherAI/lambada_openai",
            "900124bf3b8235c6daf21033af9948b3f07346c4",
            _LAMBADA,
            _LAMBADA,
            compares_texts=False,
        ),
    )
}
"""The eval tasks that recipes name, by name."""
