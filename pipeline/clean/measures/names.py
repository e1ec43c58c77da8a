"""Every measure by name, in families that are taken together, and the numbers of the papers that define some."""

from __future__ import annotations

SHORT_CHARS = 30
"""Lines of fewer characters are short: Penedo et al. 2024, section 3.6."""
BULLETS = "-•"
PUNCTUATION = ".!?\"'…”’»。！？．｡।॥؟۔։።។။"
"""Marks at which a line may end: those of C4 and FineWeb, and others that end sentences outside ASCII."""
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
"""The words of Rae et al. 2021, appendix A.1."""
TOP_SIZES = (2, 3, 4)
"""Words of the n-grams whose most frequent one is looked for: Rae et al. 2021, table A1."""
DUPLICATE_SIZES = (5, 6, 7, 8, 9, 10)
"""Words of the n-grams that are looked for a second time: Rae et al. 2021, table A1."""
MIN_LINE_WORDS = 5
"""Words that a line of C4 has at least (Raffel et al. 2020, section 2.2)."""
MAX_WORD_CHARS = 1000
"""Characters of a word of C4's lines at most (TensorFlow Datasets, `c4_utils.py`)."""
SENTENCE_ENDS = ".!?…。！？।؟۔"
"""Marks at which a sentence ends."""
CLOSERS = "\"')]”’»"
"""Quotes and brackets that may follow a sentence's mark, at most `MAX_CLOSERS`."""
MAX_CLOSERS = 2
HEAD_LINES = 5
"""Marks of generated files are looked for in this many lines, as CodeParrot does (Tunstall et al. 2022)."""
ENCODED_RUN_BYTES = 64
"""A run of the letters of base64 or hex counts from this length: Lozhkov et al. 2024 (StarCoder2 and The Stack v2)."""

FAMILIES: dict[str, dict[str, str]] = {
    "words": {
        "words": "words, split at white space",
        "mean_word_chars": "mean length of the words, in characters",
        "longest_word_chars": "length of the longest word, in characters",
        "alphabetic_words": "share of the words that have a letter",
        "stop_words": f"how many of the words {', '.join(STOP_WORDS)} occur, in any case",
        "hashes_per_word": "number signs (#) for each word",
        "ellipses_per_word": "ellipses (... or …) for each word",
        "newlines_per_word": "line feeds for each word",
    },
    "lines": {
        "mean_line_bytes": "mean length of all lines, in bytes without the line feeds",
        "longest_line_bytes": "length of the longest line, in bytes without the line feed",
        "bullet_lines": f"share of the lines that begin with a bullet ({' or '.join(BULLETS)})",
        "ellipsis_lines": "share of the lines that end with an ellipsis (... or …)",
        "punctuated_lines": f"share of the lines that end with one of {PUNCTUATION}",
        "short_lines": f"share of the lines with fewer than {SHORT_CHARS} characters",
    },
    "repeated_lines": {
        "duplicate_lines": "share of the lines that are equal to an earlier one",
        "duplicate_line_chars": "share of the characters in lines that are equal to an earlier one",
        "duplicate_paragraphs": "share of the paragraphs that are equal to an earlier one",
        "duplicate_paragraph_chars": "share of the characters in paragraphs that are equal to an earlier one",
    },
    "ngrams": {
        **{
            f"top_{size}gram_chars": f"share of the characters in the most frequent {size}-gram of words"
            for size in TOP_SIZES
        },
        **{
            f"duplicate_{size}gram_chars": f"share of the characters in {size}-grams of words that occurred before"
            for size in DUPLICATE_SIZES
        },
    },
    "phrases": {
        "lorem_ipsum": "how often lorem ipsum occurs",
        "curly_brackets": "how often { occurs",
    },
    "generated": {"generated_marks": f"marks of a generated file in the first {HEAD_LINES} lines"},
    "sentences": {
        "sentences": f"sentences in the lines that C4 would keep: {MIN_LINE_WORDS} words and more, a mark at the end, "
        "no JavaScript and no policy"
    },
    "alphanumeric": {"alphanumeric": "share of the characters that are letters and digits"},
    "literals": {
        "code_letters": "share of the characters that are letters outside strings and numbers, white space not counted"
    },
    "encoded": {
        "longest_encoded_run": f"longest run of base64 or hex, line feeds included, from {ENCODED_RUN_BYTES} bytes",
        "encoded": f"share of the bytes in runs of base64 or hex from {ENCODED_RUN_BYTES} bytes",
    },
}
"""Family -> name of a measure -> what it is, with its unit, in one line. A family's function returns its measures in
this order."""

MEASURES = {name: about for family in FAMILIES.values() for name, about in family.items()}
"""Name -> what it is, with its unit, in one line."""
