"""Rows of the known eval tasks, in the columns of their data sets."""

from typing import Any

ROWS: dict[str, dict[str, Any]] = {
    "arc_easy": {
        "question": "What is 1 + 1?",
        "choices": {"text": ["one", "two"], "label": ["1", "2"]},
        "answerKey": "2",
    },
    "openbookqa": {
        "question_stem": "The sun is",
        "choices": {"text": ["hot", "cold"], "label": ["A", "B"]},
        "answerKey": " B",
    },
    "piqa": {"goal": "How to grind?", "sol1": "with a mill", "sol2": "with a river", "label": 0},
    "sciq": {
        "question": "What turns?",
        "support": "  The mill turns. ",
        "distractor1": "a",
        "distractor2": "b",
        "distractor3": "c",
        "correct_answer": "the mill",
    },
    "hellaswag": {
        "activity_label": "Milling",
        "ctx_a": "A miller comes [title] How",
        "ctx_b": "THE stone",
        "endings": [" turns [step] once.", "stops."],
        "label": "1",
    },
    "winogrande": {
        "sentence": "The mill beat the river, for _ was loud.",
        "option1": "the mill",
        "option2": "the river",
        "answer": "2",
    },
    "mmlu": {
        "question": " What turns? ",
        "subject": "high_school_us_history",
        "choices": ["a wheel", "a wall", "a 'well'", "rain"],
        "answer": 2,
    },
    "truthfulqa_mc1": {
        "question": "Do mills talk?",
        "mc1_targets": {"choices": ["No, they do not.", "Yes", "At night"], "labels": [1, 0, 0]},
    },
    "lambada": {"text": "the river sings to the mill"},
}
