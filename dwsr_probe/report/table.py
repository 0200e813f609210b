"""A run for the terminal: the verdict, a table by task name, a line per process."""
from collections.abc import Callable
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dwsr_probe.report.outlook import Examples, Outlook
from dwsr_probe.report.summary import missing_tasks, process_limit, process_notes, process_outcome, sampler_health, summarise, worker_facts
from dwsr_probe.report.verdict import verdict
from dwsr_probe.report.words import bytes_text, count_text, line_of, percent_text, seconds_text

_NAMES_MOST = 10  # the rest with -v
_PROCESSES_MOST, _PROCESSES_AT_ALL = 20, 200
_GAP = 2  # between columns


def name_text(name):
    return Text(line_of(name), no_wrap=True, overflow="ellipsis")


def _outcome(summary):
    parts = [f"{n:,} {word}" for n, word in ((summary.errors, "error" if summary.errors == 1 else "errors"), (summary.killed, "killed"), (summary.cancelled, "cancelled")) if n]
    return Text(", ".join(parts) or "–", style="red" if summary.killed or summary.errors else "")


def _binding(summary):
    """"gpu 62 %, host 3 %": the one that binds first."""
    def share(word, ratio):
        return f"{word} {percent_text(ratio)}"

    parts = [share("gpu", summary.device_ratio), share("host", summary.host_ratio)]
    return ", ".join(parts if summary.binds == "device" else parts[::-1])


def _device_text(device):
    """"gpu 0 (A100): own peak 30.1 GiB of 40.0 GiB (75.2 %), pool 31.0 GiB, driver: 33.0 GiB used at most, 32.1 GiB by this process"."""
    limit, peak = device.get("pool_limit_bytes") or device.get("total_bytes"), device.get("peak_bytes")
    text = f"gpu {device['device']}" + (f" ({device['name']})" if device.get("name") else "") + f": own peak {bytes_text(peak)}"
    if limit:
        text += f" of {bytes_text(limit)}{' (the pool)' if device.get('pool_limit_bytes') else ''} ({100 * peak / limit:.1f} %)"
    for name, words in (("pool_total_bytes", "pool {}"), ("unseen_bytes", "{} unseen"), ("rmm_peak_bytes", "RMM's peak {}"),
                        ("used_max_bytes", "driver: {} used at most"), ("process_max_bytes", "{} by this process")):
        if device.get(name):
            text += ", " + words.format(bytes_text(device[name]))
    return text


class _Console(Console):
    def on_broken_pipe(self):
        """Leave it to the caller: rich would exit with a code of its own."""
        raise BrokenPipeError


def console_for(file):
    console = _Console(file=file, highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console.width = max(console.width, 240)  # nobody wraps lines in a log
    return console


def print_report(store, file, verbose=False):
    """The whole report of one run. verbose: all task names, and the sampler's statistics."""
    console = console_for(file)
    wraps = console.is_terminal  # by words; nobody wraps lines in a log
    processes, exit_code, examples = store.processes(), store.meta().get("exit_code"), {}

    def noted():
        for record in store.tasks():
            if record.task_name not in examples:
                examples[record.task_name] = Examples()
            examples[record.task_name].add(record)
            yield record

    names = summarise(noted(), processes)
    # A model takes a second to load and learn: only where somebody must know which block fits.
    outlook = Outlook.of({names[0].task_name: examples[names[0].task_name]}) if names and names[0].killed else None
    found = verdict(names, processes, outlook, exit_code)
    for i, line in enumerate(found.lines()):
        console.print(Text(line, style=_STYLES.get(found.level, "bold") if i == 0 else ""), soft_wrap=not wraps)
    if names:
        _print_names(console, names if verbose else names[:_NAMES_MOST], names, processes)
    # The largest, and every one that a person should know about.
    by_size = sorted(processes, key=lambda row: -(row[0].rss_peak_bytes or 0))
    shown = [row for i, row in enumerate(by_size) if i < _PROCESSES_MOST or row[0].state not in ("ok", None) or process_notes(*row)]
    for record, health in sorted(shown[:_PROCESSES_AT_ALL], key=lambda row: row[0].start or 0):
        console.print(_process_line(record, health, exit_code, verbose), soft_wrap=not wraps)
    if len(processes) > len(shown[:_PROCESSES_AT_ALL]):
        console.print(f"and {count_text(len(processes) - len(shown[:_PROCESSES_AT_ALL]), 'more process', 'more processes', '1')} (all of them: --format json)", style="dim")
    if not names:
        console.print("Mark tasks to see each one's peak: `with dwsr_probe.task(\"name\"):` around the work.", markup=False, soft_wrap=not wraps)


_STYLES = {"bad": "bold red", "near": "bold yellow"}


@dataclass(frozen=True)
class _Column:
    """One column of the table. On a narrow terminal those of the highest rank go first."""

    title: str
    rank: int
    cell: Callable


def _columns(names):
    """What this run has figures for, in the page's order: a median stands behind its maximum and goes before it."""
    accounted, on_devices = any(s.alloc_peaks for s in names), any(s.gpu_peaks for s in names)
    failed = any(s.errors or s.killed or s.cancelled for s in names)
    columns = [_Column("count", 2, lambda s: f"{s.count:,}"), _Column("failed", 1 if failed else 11, _outcome)]
    if accounted:
        columns += [_Column("own peak, max", 0, lambda s: bytes_text(s.alloc_peak_max_bytes) + ("†" if s.shared else "")),
                    _Column("median", 3, lambda s: bytes_text(s.alloc_peak_median_bytes))]
    if on_devices:
        columns += [_Column("gpu peak, max", 0, lambda s: bytes_text(s.gpu_peak_max_bytes)),
                    _Column("median", 3, lambda s: bytes_text(s.gpu_peak_median_bytes)), _Column("binds", 4, _binding)]
    return columns + [
        _Column("rss growth, max", 7 if accounted else 0, lambda s: bytes_text(s.growth_max_bytes)), _Column("median", 9, lambda s: bytes_text(s.growth_median_bytes)),
        _Column("rss peak, max", 5, lambda s: bytes_text(s.rss_peak_bytes) + ("*" if s.sampled else "")),
        _Column("duration, max", 6, lambda s: seconds_text(s.duration_max)), _Column("median", 8, lambda s: seconds_text(s.duration_median)),
        _Column("overlap", 10, lambda s: str(s.overlap))]


def _print_names(console, shown, names, processes):
    columns = _columns(names)
    cells = {column: [cell if isinstance(cell := column.cell(s), Text) else Text(cell) for s in shown] for column in columns}
    wide = {column: max(cell_len(column.title), *(cell.cell_len for cell in cells[column])) + _GAP for column in columns}
    longest = max(cell_len("task"), *(name_text(s.task_name).cell_len for s in shown))
    least = min(longest, max(12, console.width // 3))
    while len(columns) > 1 and least + sum(wide[column] for column in columns) > console.width:
        columns.remove(max(columns, key=lambda column: column.rank))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("task", no_wrap=True, overflow="ellipsis", max_width=max(1, console.width - sum(wide[column] for column in columns)))
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    for i, s in enumerate(shown):
        table.add_row(name_text(s.task_name), *(cells[column][i] for column in columns))
    console.print(table)
    text = "\n".join(cell.plain for column in columns for cell in cells[column])
    for mark, note in (("≥", "≥ at least: a task was killed, and may have needed more"), ("*", "* sampled: short peaks may be higher"),
                       ("†", "† not this task's alone: native threads or coroutines of several tasks")):
        if mark in text:
            console.print(note, style="dim", soft_wrap=not console.is_terminal)
    if len(names) > len(shown):
        rest = names[len(shown):]
        console.print(f"and {count_text(len(rest), 'more task name', 'more task names', 'one')}, with smaller needs (all of them: -v)",
                      style="dim", soft_wrap=not console.is_terminal)
    if missing := sum(missing_tasks(processes)):
        console.print(f"not in the table: {count_text(missing, 'task', 'tasks', 'one')} without a record", style="bold yellow", soft_wrap=not console.is_terminal)


def _process_line(record, health, exit_code, verbose):
    line = Text("process ", style="dim", no_wrap=False)
    line.append_text(name_text(record.task_name)).append(f" (pid {record.pid}): ", style="default")
    line.append(process_outcome(record, health, exit_code), style="red" if record.state in ("killed", "error") else "green")
    limit = process_limit(health)
    below = health.get("peak_below_bytes")
    peak = f"below {bytes_text(below)}" if below else bytes_text(record.rss_peak_bytes)
    share = f" ({100 * record.rss_peak_bytes / limit:.1f} %)" if limit and record.rss_peak_bytes else ""
    parts = [f"max rss {peak} of {bytes_text(limit)}{share}", seconds_text(record.duration)]
    parts += worker_facts(health)
    parts += map(_device_text, health.get("devices") or ())
    if health.get("pinned_peak_bytes"):
        parts.append(f"page-locked for CuPy {bytes_text(health['pinned_peak_bytes'])}")
    if verbose:
        parts += filter(None, [sampler_health(record, health)])
    parts += process_notes(record, health)
    return line.append("; " + "; ".join(parts))
