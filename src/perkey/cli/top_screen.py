"""The screen of `perkey top`; its lines come from top_lines.py."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import DataTable, Footer, Input, Sparkline, Static

from perkey.account.shown import counted
from perkey.cli.top_lines import (
    COLUMNS,
    LEFT,
    LIST_COLUMNS,
    NAME,
    NAME_CHARS,
    PARTITIONS_MAX,
    RECORD,
    Line,
    Wanted,
    lines,
    listed,
    middle,
    number,
)
from perkey.errors import PerkeyError
from perkey.observe.overview import ORDERS, overview
from perkey.observe.sentences import Sentence, record_sentence
from perkey.observe.why import why

HISTORY_MAX = 120
#: innermost lines of a hanging call's stack that fit below
STACK_LINES = 6
#: name in the snapshot -> the word for it
LISTS = {"parked": "parked", "on_hold": "held"}
HELP = (
    "Enter open or close · / filter · > next order · [ ] page · Space freeze\n"
    "b blocking records · s stack · f failures · r parked · d held · q quit\n"
    "left: true lag (end - frontier - done beyond) · map: how full the offset map is\n"
    "past: keys that wait for room in it · run, retry, park: records in that state"
)


class Top(App[None]):
    """A live view of one or several members."""

    TITLE = "perkey top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: $background; }
    #head { height: 1; text-style: bold; }
    #lines, #listed { height: 1fr; }
    #below { height: 7; border-top: solid $panel; padding: 0 1; }
    #text { display: none; height: 1; border: none; padding: 0 1; }
    #text.shown { display: block; }
    #spark { height: 2; }
    #spark > Horizontal { width: 1fr; height: 2; padding: 0 1; }
    #spark Static { width: 20; }
    #spark Sparkline { width: 1fr; height: 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,f10", "quit", "Quit"),
        Binding("enter", "open", "Open", show=False),
        Binding("slash,f4", "filter", "Filter", key_display="/"),
        Binding("greater_than_sign,f6", "order", "Order", key_display=">"),
        Binding("right_square_bracket,n", "page(1)", "Next", show=False),
        Binding("left_square_bracket,p", "page(-1)", "Back", show=False),
        Binding("b", "below('blockers')", "Blocking"),
        Binding("s", "below('stack')", "Stack", show=False),
        Binding("f", "below('failures')", "Failed"),
        Binding("r", "list('parked')", "Parked"),
        Binding("d", "list('on_hold')", "Held"),
        Binding("space", "hold", "Freeze"),
        Binding("question_mark,h,f1", "below('help')", "Help", key_display="?"),
        Binding("escape", "clear", "Clear", show=False),
    ]

    def __init__(
        self,
        ask: Callable[[], Sequence[Mapping[str, Any]]],
        every_s: float = 2.0,
        complete: Callable[[str, str], str] = lambda text, _group: text,
    ) -> None:
        """`complete` makes the commands of an advice reach this group: see `Where.completed`."""
        super().__init__()
        self._ask, self._every_s, self._complete = ask, every_s, complete
        self._view: dict[str, Any] | None = None
        self._state = self._missing = ""
        self._failed = ""
        self._received_at = 0.0
        self._held = False
        self._below = "blockers"
        #: the list of records in place of the partitions
        self._list = ""
        self._wanted = Wanted()
        self._of = 0
        self._history: dict[str, deque[float]] = {
            name: deque(maxlen=HISTORY_MAX) for name in ("rate", "left", "p99")
        }

    def compose(self) -> ComposeResult:
        """The screen from top to bottom."""
        yield Static("asking…", id="head")
        with Horizontal(id="spark"):
            for name in self._history:
                with Horizontal():
                    yield Static(name, id=f"{name}-now")
                    yield Sparkline([], id=f"{name}-line")
        for name in ("lines", "listed"):
            yield DataTable(id=name, cursor_type="row", zebra_stripes=False, cell_padding=0)
        yield Static("", id="below")
        yield Input(id="text", placeholder="topic, topic:3 or member; Enter", compact=True)
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Build the table and start the refresh."""
        for first, columns in ((NAME, COLUMNS), (RECORD, LIST_COLUMNS)):
            table = self._table(first)
            table.add_column(f" {first}", key=NAME, width=NAME_CHARS + 1)
            for name, wide in columns.items():
                table.add_column(_aligned(name, name), key=name, width=wide)
        self._table(RECORD).display = False
        self._table().focus()
        self._look_soon()
        self.set_interval(self._every_s, self._look_soon)

    def on_resize(self) -> None:
        """Give the name column the remaining width, with room for a scroll bar."""
        chars = max(NAME_CHARS, self.size.width - sum(COLUMNS.values()) - 3)
        if chars != self._wanted.chars:
            for name in (NAME, RECORD):
                columns = {str(key.value): one for key, one in self._table(name).columns.items()}
                if NAME in columns:
                    columns[NAME].width = chars + 1
            self._want(chars=chars)

    def _table(self, first: str = NAME) -> DataTable[Text]:
        """The table with this first column."""
        return self.query_one("#lines" if first == NAME else "#listed", DataTable)

    # -- looking -----------------------------------------------------------------------------------

    def _look_soon(self) -> None:
        self.run_worker(self._look, thread=True, exclusive=True, group="look")

    def _look(self) -> None:
        """On a thread: a run may take seconds to answer."""
        try:
            shots = self._ask()
        except PerkeyError as error:
            self.call_from_thread(self._received, None, str(error))
        else:
            self.call_from_thread(self._received, shots, "")

    def _received(self, shots: Sequence[Mapping[str, Any]] | None, failed: str) -> None:
        if not self.query("#head"):
            return  # the screen was closed meanwhile
        self._failed = failed
        if shots is not None and not self._held:
            self._view = view = overview(shots)
            self._state = ", ".join(sorted({str(shot["state"]) for shot in shots}))
            self._missing = ", ".join(getattr(self._ask, "missing", ()))
            self._received_at = time.monotonic()
            sums = view["totals"]
            p99 = [row["latency_ms"].get("p99") or 0.0 for row in view["handlers"]]
            latest = (sums["rate_per_s"], sums["remaining"], max(p99, default=0.0))
            for kept, value in zip(self._history.values(), latest, strict=True):
                kept.append(float(value or 0.0))
        self._show()

    # -- showing -----------------------------------------------------------------------------------

    def _show(self) -> None:
        if self._view is None:
            self._show_head()
            return
        found, self._of = lines(self._view, self._wanted)
        self._show_head()
        self._show_lines(self._table(), [(line.key, _cells(line)) for line in found], COLUMNS)
        if self._list:
            rows = listed(self._view, self._list, self._wanted.chars)
            cells = []
            for line in rows:
                aligned = map(_aligned, line.cells[1:], LIST_COLUMNS)
                cells.append((line.key, [Text(f" {line.cells[0]}"), *map(Text, aligned)]))
            self._show_lines(self._table(RECORD), cells, LIST_COLUMNS)
        units = {"rate": "per second", "left": "left", "p99": "ms p99"}
        for name, kept in self._history.items():
            now = f"{number(kept[-1]):>9}\n{units[name]:>9}"
            self.query_one(f"#{name}-now", Static).update(Text(now))
            self.query_one(f"#{name}-line", Sparkline).data = list(kept)
        self.query_one("#below", Static).update(self._below_text())

    def _show_head(self) -> None:
        view, head = self._view, Text(no_wrap=True, overflow="ellipsis")
        if view is not None:
            sums, wanted = view["totals"], self._wanted
            last = min(wanted.start + PARTITIONS_MAX, self._of)
            shown = f"{wanted.start + 1}-{last} of {self._of:,}" if self._of else "none"
            head.append(f" {middle(view['group'], NAME_CHARS)} ", "reverse")
            head.append(f" {counted(sums['members'], 'member')}, {self._state} · ")
            if self._list:
                here = len(view[self._list])
                every = here + view[f"{self._list}_left_out"]
                more = f" of {every:,}, longest first" if every > here else ""
                head.append(f"{LISTS[self._list]}: {here:,}{more}")
            else:
                text = f", with {wanted.text}" if wanted.text else ""
                head.append(f"partitions {shown} by {wanted.order}{text}")
            silent = [one["member"] for one in view["members"] if one["silent_s"]]
            if silent:
                head.append(f" · silent: {', '.join(silent)}", "bold red")
            if self._missing:
                head.append(f" · {self._missing}", "bold red")
        if self._held:
            head.append(" · frozen", "bold yellow")
        if self._failed:
            for_s = (
                f" for {time.monotonic() - self._received_at:.0f} s" if self._received_at else ""
            )
            head = Text(f" no answer{for_s}: {self._failed}", "bold red", overflow="ellipsis")
        self.query_one("#head", Static).update(head)

    def _show_lines(
        self, table: DataTable[Text], found: Sequence[tuple[str, list[Text]]], names: Iterable[str]
    ) -> None:
        at, keys = table.cursor_row, [key for key, _ in found]
        known = [str(key.value) for key in table.rows]
        before = known[at] if 0 <= at < len(known) else None
        if known != keys:
            table.clear()
            for key, cells in found:
                table.add_row(*cells, key=key)
            if keys:
                table.move_cursor(
                    row=keys.index(before) if before in keys else min(at, len(keys) - 1)
                )
            return
        for key, cells in found:
            for name, cell in zip((NAME, *names), cells, strict=True):
                table.update_cell(key, name, cell)

    def _below_text(self) -> Text:
        assert self._view is not None
        if self._below == "help":
            return Text(HELP)
        if self._list and self._below == "blockers":
            # The record under the cursor: its error, or the reason of its hold, and what to do
            rows = self._view[self._list]
            at = self._table(RECORD).cursor_row
            if not 0 <= at < len(rows):
                return Text(f"No record is {LISTS[self._list]}.")
            one = record_sentence(rows[at])
            return Text(f"{one.text}\n").append(f"  Next: {self._next(one)}", "cyan")
        text = Text()
        if self._below == "failures":
            for row in self._view["failures"][:5]:
                text.append(f"{row['attempts']:>6,} × {row['type']}", "bold")
                example = row["example"]
                where = f"{example['topic']}[{example['partition']}] {example['offset']}"
                text.append(f" {row['handler']}, last {where}: {example['message']}\n")
            return text or Text("No attempt has failed.")
        found = why({**self._view, "state": self._state})
        if self._below == "stack":
            stack: Sequence[str] = next((one.stack for one in found if one.stack), ())
            return Text("\n".join(stack[-STACK_LINES:]) or "No call hangs.")
        for one in found:
            if not text and one.next:
                text.append(f"{one.text}\n", "bold")
                text.append(f"  Next: {self._next(one)}\n", "cyan")
            else:
                text.append(f"{one.text}\n")
        return text

    def _next(self, one: Sentence) -> str:
        group = str((self._view or {}).get("group", ""))
        return self._complete(one.next, "" if ", " in group else group)  # of several: none

    # -- keys --------------------------------------------------------------------------------------

    def _want(self, **changed: Any) -> None:
        self._wanted = self._wanted._replace(**changed)
        self._show()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter: open or close the selected line."""
        if event.data_table is self._table():
            self._want(opened=self._wanted.opened ^ {str(event.row_key.value)})

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """The cursor is on another record of the list."""
        if self._list and event.data_table is self._table(RECORD):
            self.query_one("#below", Static).update(self._below_text())

    def action_order(self) -> None:
        """The next sort order."""
        names = list(ORDERS)
        self._want(order=names[(names.index(self._wanted.order) + 1) % len(names)], start=0)

    def action_page(self, by: int) -> None:
        """The next or previous partitions."""
        start = self._wanted.start + by * PARTITIONS_MAX
        if 0 <= start < max(1, self._of):
            self._want(start=start)

    def action_below(self, what: str) -> None:
        """Choose what is shown below the table."""
        self._below = "blockers" if self._below == what else what
        self._show()

    def action_list(self, name: str) -> None:
        """Parked or held records in place of the partitions, or these again."""
        self._list = "" if self._list == name else name
        self._below = "blockers"
        self._table().display, self._table(RECORD).display = not self._list, bool(self._list)
        self._table(RECORD if self._list else NAME).focus()
        self._show()

    def action_hold(self) -> None:
        """Freeze or resume."""
        self._held = not self._held
        self._show()

    def action_filter(self) -> None:
        """Ask for a text to filter partition names by."""
        field = self.query_one("#text", Input)
        field.add_class("shown")
        field.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Apply the filter."""
        self._close_filter()
        self._want(text=event.value.strip(), start=0)

    def action_clear(self) -> None:
        """Clear the filter."""
        self.query_one("#text", Input).value = ""
        self._close_filter()
        self._want(text="", start=0)
        if self._list:
            self.action_list(self._list)

    def _close_filter(self) -> None:
        self.query_one("#text", Input).remove_class("shown")
        self._table().focus()


def _cells(line: Line) -> list[Text]:
    style = (
        "bold red" if line.bad else "bold" if line.depth == 0 else "dim" if line.depth > 1 else ""
    )
    name, *numbers = line.cells
    cells = (one.rjust(wide) for one, wide in zip(numbers, COLUMNS.values(), strict=True))
    return [Text(f" {name}", style), *(Text(one, style) for one in cells)]


def _aligned(text: str, column: str) -> str:
    """Texts to the left, numbers to the right."""
    wide = {**COLUMNS, **LIST_COLUMNS}[column]
    return text.ljust(wide) if column in LEFT else text.rjust(wide)
