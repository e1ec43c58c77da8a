"""Every measure by name, in families that are taken together, and the numbers of the papers that define some."""

SHORT_CHARS = 30
"""Lines of fewer characters are short: Penedo et al. 2024, section 3.6."""
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

FAMILIES: dict[str, tuple[str, ...]] = {
    "words": (
        "words",
        "mean_word_chars",
        "longest_word_chars",
        "alphabetic_words",
        "stop_words",
        "hashes_per_word",
        "ellipses_per_word",
        "newlines_per_word",
    ),
    "lines": (
        "mean_line_bytes",
        "longest_line_bytes",
        "bullet_lines",
        "ellipsis_lines",
        "punctuated_lines",
        "short_lines",
    ),
    "repeated_lines": (
        "duplicate_lines",
        "duplicate_line_chars",
        "duplicate_paragraphs",
        "duplicate_paragraph_chars",
    ),
    "ngrams": (
        *(f"top_{size}gram_chars" for size in TOP_SIZES),
        *(f"duplicate_{size}gram_chars" for size in DUPLICATE_SIZES),
    ),
    "phrases": ("lorem_ipsum", "curly_brackets"),
    "generated": ("generated_marks",),
    "sentences": ("sentences",),
    "alphanumeric": ("alphanumeric",),
    "literals": ("code_letters",),
    "encoded": ("longest_encoded_run", "encoded"),
}
"""Family -> names of its measures, which its function returns in this order; docs/lab/cleaning.md says what each is."""

MEASURES = [name for family in FAMILIES.values() for name in family]
"""The names of all measures."""
