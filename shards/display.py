"""What the commands print: the table of a set, one document, the list of problems, progress.

Names and texts come from files that others wrote: whatever goes to a terminal passes through `printable`, so that no
document can move the cursor, rename the window or reverse the line. `--json` output keeps texts exact.
"""

from __future__ import annotations

import json
import sys
import time
import unicodedata
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast

from shards.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from rich.table import Table

    from shards.reader import Shard, ShardSet
    from shards.validate import Report

PLAIN_SECONDS = 5.0
"""Where stderr is no terminal, a line of progress this often."""

# Control, format (bidirectional overrides, zero-width), surrogate and line-separator characters. Newline and tab stay.
_ESCAPED_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


def printable(text: str, *, keep: str = "") -> str:
    """Return text with every control character escaped, such as `\\x1b`, except those in `keep`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode("ascii")
        if char not in keep and unicodedata.category(char) in _ESCAPED_CATEGORIES
        else char
        for char in text
    )


def say(message: str) -> None:
    """Print a line for the user on stderr; above the bar where there is one."""
    print(printable(message, keep="\n\t"), file=sys.stderr, flush=True)


def describe_set(shard_set: ShardSet) -> dict[str, Any]:
    """Return what `inspect --json` prints of a set: the manifest's numbers, with sizes and ratios beside them."""
    manifest = shard_set.manifest
    return {
        "path": str(shard_set.path),
        "manifest_sha256": shard_set.manifest_sha256,
        "name": manifest.name,
        "dtype": manifest.dtype,
        "vocab_size": manifest.vocab_size,
        "tokenizer": manifest.tokenizer.model_dump(),
        "splits": {name: split.model_dump() for name, split in manifest.splits.items()},
        "sources": [source.model_dump() for source in manifest.sources],
        "mix": [row.model_dump() for row in manifest.mix],
        "shards": [
            {
                "name": shard.name,
                "split": shard.entry.split,
                "tokens": shard.num_tokens,
                "documents": shard.num_documents,
                "bytes": sum(file.bytes for file in _files(shard)),
                "compression_ratio": compression_ratio(shard),
            }
            for shard in shard_set.shards
        ],
    }


def compression_ratio(shard: Shard) -> float:
    """Return the plain tokens' bytes for each byte of the compressed tokens file."""
    return shard.num_tokens * shard.dtype.itemsize / max(1, shard.entry.files.tokens.bytes)


def print_set(shard_set: ShardSet) -> None:
    """Print the set's tables: splits, sources with what was asked for and got, shards."""
    from rich.text import Text

    manifest = shard_set.manifest
    train = manifest.splits.get("train")
    head = (
        f"{printable(manifest.name)}: {len(manifest.shards)} shards, {manifest.dtype}, vocabulary of "
        f"{manifest.vocab_size:,}, EOS {manifest.tokenizer.eos_id}, manifest {shard_set.manifest_sha256[:12]}"
    )
    found = {source.name: source for source in manifest.sources}
    partly = any(source.unread_files or source.unread_bytes for source in manifest.sources)
    unread = ("unread files", "unread bytes") if partly else ()
    sources = plain_table("source", "requested", "achieved", "tokens", "documents", "dropped", "epochs", *unread)
    for row in manifest.mix:
        source = found.get(row.source)
        counts = train.sources.get(row.source) if train else None
        sources.add_row(
            Text(printable(row.source)),
            f"{row.requested:.4%}",
            f"{row.achieved:.4%}",
            f"{row.achieved_tokens:,}",
            f"{counts.documents:,}" if counts else "0",
            f"{sum(source.dropped.values()):,}" if source else "",
            str(source.epochs) if source else "",
            *((f"{source.unread_files:,}", f"{source.unread_bytes:,}") if partly and source else ()),
        )
    splits = plain_table("split", "tokens", "documents", "shards")
    for name, split in manifest.splits.items():
        splits.add_row(name, f"{split.tokens:,}", f"{split.documents:,}", str(len(shard_set.splits[name])))
    shards = plain_table("shard", "tokens", "documents", "bytes", "ratio")
    for shard in shard_set.shards:
        size = sum(file.bytes for file in _files(shard))
        ratio = f"{compression_ratio(shard):.2f}"
        shards.add_row(shard.name, f"{shard.num_tokens:,}", f"{shard.num_documents:,}", f"{size:,}", ratio)
    console = stdout_console()
    console.print(Text(head))
    for table in (splits, sources, shards):
        console.print(table)


def print_document(document: dict[str, Any]) -> None:
    """Print a document's text under a line that tells where it came from."""
    about = (
        f"{document['shard']} document {document['document']}: {document['tokens']} tokens from {document['start']}, "
        f"source {document['source']}, unit {document['unit']}, row {document['row']}, hash {document['hash']}"
    )
    print(f"# {printable(about)}")
    print(printable(document["text"], keep="\n\t"))


def print_report(report: Report) -> None:
    """Print the problems as a table, then one line that sums up."""
    print_problems(report.problems)
    for reason in report.not_run:
        print(f"could not run: {printable(reason)}")
    number = len(report.problems)
    verdict = "whole" if report.ok else f"{number} problem{'' if number == 1 else 's'}"
    if report.not_run and not report.problems:
        verdict = "no problem found, but not everything could be checked"
    speed = f", {report.tokens / report.seconds / 1e6:.0f} M tokens/s" if report.level == "full" else ""
    compared = (
        f", {report.compared_documents} documents compared with their sources" if report.compared_documents else ""
    )
    print(
        f"{printable(str(report.path))}: {verdict} ({report.level}: {report.shards} shards, {report.tokens:,} tokens, "
        f"{report.documents:,} documents{compared}, {report.seconds:.2f} s{speed})"
    )


def print_problems(problems: Sequence[Problem]) -> None:
    """Print a table of problems; plain lines where stdout is no terminal."""
    if not problems:
        return
    if not sys.stdout.isatty():
        for problem in problems:
            print(printable(f"{problem.kind}: {problem.where}: {problem.message}"))
        return
    from rich.text import Text

    table = plain_table("kind", "where", "what is wrong", right=False)
    for problem in problems:
        table.add_row(problem.kind, Text(printable(problem.where)), Text(printable(problem.message)))
    stdout_console().print(table)


def print_set_problems(problems: Sequence[Problem], *, as_json: bool) -> None:
    """Print why a set cannot be used, as JSON or as a table."""
    if as_json:
        print(json.dumps({"problems": [problem.to_dict() for problem in problems]}, indent=2))
    else:
        print_problems(problems)


class ReportProgress(Protocol):
    """Shows how much of a work is done, with figures beside it."""

    def __call__(self, done: int, total: int, figures: str = "") -> None: ...


@contextmanager
def show_progress(command: str = "validate", *, unit: str = "tokens", show: bool = True) -> Generator[ReportProgress]:
    """Show a command's progress on stderr: a bar on a terminal, else a line every few seconds; or nothing."""
    command = printable(command)
    if not (show and sys.stderr.isatty()):
        last = time.monotonic()

        def report_line(done: int, total: int, figures: str = "") -> None:
            nonlocal last
            if show and time.monotonic() - last >= PLAIN_SECONDS:
                last = time.monotonic()
                line = f"{command}: {done:,} of {total:,} {unit} ({done / max(total, 1):.0%})  {figures}"
                say(line.rstrip())

        yield report_line
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    name, figures = (TextColumn(f"{{task.{field}}}", markup=False) for field in ("description", "fields[figures]"))
    columns = (name, BarColumn(), TaskProgressColumn(show_speed=True), figures, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(command, total=None, figures="")

        def move_bar(done: int, total: int, figures: str = "") -> None:
            bar.update(task, completed=done, total=total, figures=figures)

        yield move_bar


def _files(shard: Shard) -> tuple[Any, ...]:
    return (shard.entry.files.tokens, shard.entry.files.documents, shard.entry.files.metadata)


def plain_table(*columns: str, right: bool = True) -> Table:
    """Return an empty table of the look that all commands share; columns but the first are numbers, if `right`."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if right and number else "left", overflow="fold")
    return table


def stdout_console() -> Any:
    """Return a rich console on stdout that takes text as it is."""
    from rich.console import Console

    class _Console(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would end the process with status 1

    # Where stdout is no terminal, lines are not folded to a width that no one has.
    return _Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False, emoji=False)


def print_rows(rows: list[dict[str, Any]], *, title: str = "", header: bool = True) -> None:
    """Print a table on stdout: a column for each key, a row for each dict; all rows have the keys of the first."""
    if not rows:
        return
    table = plain_table(*(key.replace("_", " ") for key in rows[0]), right=header)
    table.show_header = header
    for row in rows:
        table.add_row(*map(format_value, row.values()))
    stdout_console().print(*filter(None, (printable(title), table)), sep="\n")


def print_summary(title: str, values: dict[str, Any]) -> None:
    """Print names and values on stdout, those that are not None."""
    rows = [{"name": name.replace("_", " "), "value": value} for name, value in values.items() if value is not None]
    print_rows(rows, title=title, header=False)


def format_value(value: Any) -> str:
    """Return a value as people read it: figures in groups, no more digits than one looks at."""
    if isinstance(value, dict):
        parts = cast("dict[str, Any]", value)
        return "  ".join(f"{printable(name)} {format_value(part)}" for name, part in parts.items())
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, float):
        return f"{value:,.{2 if abs(value) >= 100 else 3}f}" if abs(value) >= 1 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else printable(str(value))
