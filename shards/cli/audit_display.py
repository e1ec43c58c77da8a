"""What `audit` prints: a line a check, then the worst findings of each, with the text that shows them.

Every name and text goes through `display.printable`: a document cannot control the terminal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shards.terminal.display import plain_table, printable, stdout_console

if TYPE_CHECKING:
    from shards.audit.audit import AuditResult
    from shards.audit.check import Check, Row

_SHOWN_CHARACTERS = 60


def print_audit(report: AuditResult, *, rows: int = 10) -> None:
    """Print the verdicts, then up to `rows` findings of each check that is not ok, or has nothing but numbers."""
    from rich.text import Text

    console = stdout_console()
    verdicts = plain_table("check", "verdict", "what was found", right=False)
    styles = {"ok": "green", "look": "yellow", "bad": "bold red"}
    for check in report.checks:
        verdicts.add_row(check.name, Text(check.verdict, styles[check.verdict]), Text(printable(check.summary)))
    for check in report.checks:
        if check.rows and (check.verdict != "ok" or not check.rows[0].examples):
            _print_rows(check, rows)
    console.print(verdicts)
    speed = report.tokens / max(report.seconds, 1e-9) / 1e6
    console.print(
        Text(
            f"{printable(str(report.path))}: {report.verdict} ({report.shards} shards, {report.tokens:,} tokens, "
            f"{report.documents:,} documents, {report.seconds:.2f} s, {speed:.1f} M tokens/s); "
            f"every id and finding: {printable(str(report.out))}"
        )
    )


def _print_rows(check: Check, rows: int) -> None:
    from rich.text import Text

    columns = [name for name in check.rows[0].values if name != "message"]
    table = plain_table(*columns, *(["example"] if check.rows[0].examples else []), right=False)
    for row in check.rows[:rows]:
        cells = [_show(row.values[name]) for name in columns]
        table.add_row(*(Text(cell) for cell in [*cells, *([_example(row)] if row.shown else [])]))
    console = stdout_console()
    more = f", {rows} of {len(check.rows)}" if len(check.rows) > rows else ""
    console.print(Text(f"{check.name}{more}", "bold"))
    console.print(table)


def _show(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{printable(str(key))} {count:,}" for key, count in value.items())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, int):
        return f"{value:,}"
    return printable(str(value))


def _example(row: Row) -> str:
    lines: list[str] = []
    for shown in row.shown:
        before, hit, after = shown["before"][-_SHOWN_CHARACTERS // 2 :], shown["hit"], shown["after"]
        text = printable(f"{before}>>>{hit[:_SHOWN_CHARACTERS]}<<<{after[: _SHOWN_CHARACTERS // 2]}")
        lines.append(f"{shown['shard']} document {shown['document']} ({printable(shown['source'])}): {text}")
    return "\n".join(lines)
