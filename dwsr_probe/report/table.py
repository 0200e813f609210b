"""The summary as a table for the terminal."""
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dwsr_probe.report.summary import process_limit, process_notes, sampler_health, summarise, worker_facts
from dwsr_probe.report.verdict import verdict
from dwsr_probe.report.words import bytes_text, line_of, percent_text, seconds_text

_PROCESSES_MOST, _PROCESSES_AT_ALL = 20, 200


def name_text(name):
    return Text(line_of(name), no_wrap=True, overflow="ellipsis")


def _outcome(summary):
    parts = [f"{n} {word}" for n, word in ((summary.errors, "error"), (summary.killed, "killed"), (summary.cancelled, "cancelled")) if n]
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


def print_report(store, file):
    """The whole report of one run."""
    console = console_for(file)
    processes = store.processes()
    names = summarise(store.tasks(), processes)
    if names:
        console.print(_task_table(names))
    # The largest, and every one that a person should know about.
    by_size = sorted(processes, key=lambda row: -(row[0].rss_peak_bytes or 0))
    shown = [row for i, row in enumerate(by_size) if i < _PROCESSES_MOST or row[0].state not in ("ok", None) or process_notes(*row)]
    for record, health in sorted(shown[:_PROCESSES_AT_ALL], key=lambda row: row[0].start or 0):
        console.print(_process_line(record, health), soft_wrap=True)
    if len(processes) > len(shown[:_PROCESSES_AT_ALL]):
        console.print(f"and {len(processes) - len(shown[:_PROCESSES_AT_ALL]):,} more processes (all of them: --format json)", style="dim")
    if names:
        found = verdict(names, processes)
        console.print(Text(found.line(), style={"bad": "bold red", "near": "bold yellow"}.get(found.level, "bold")), soft_wrap=True)
    else:
        console.print("No task was marked: `with dwsr_probe.task(\"name\"):` around the work shows each one's peak.", markup=False, soft_wrap=True)


def _task_table(names):
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("task", no_wrap=True, overflow="ellipsis")
    accounted = any(s.alloc_peaks for s in names)
    own = ("own peak, median", "max") if accounted else ()
    on_devices = any(s.gpu_peaks for s in names)
    gpu = ("gpu peak, median", "max", "binds") if on_devices else ()
    for title in ("count", "failed", *own, *gpu, "rss growth, median", "max", "rss peak, max", "duration, median", "max", "overlap"):
        table.add_column(title, justify="right", no_wrap=title == "binds")
    for s in names:
        own = (bytes_text(s.alloc_peak_median_bytes), bytes_text(s.alloc_peak_max_bytes) + ("†" if s.shared else "")) if accounted else ()
        gpu = (bytes_text(s.gpu_peak_median_bytes), bytes_text(s.gpu_peak_max_bytes), _binding(s)) if on_devices else ()
        table.add_row(
            name_text(s.task_name), f"{s.count:,}", _outcome(s), *own, *gpu, bytes_text(s.growth_median_bytes), bytes_text(s.growth_max_bytes),
            bytes_text(s.rss_peak_bytes) + ("*" if s.sampled else ""), seconds_text(s.duration_median), seconds_text(s.duration_max),
            str(s.overlap))
    notes = [text for wanted, text in (
        (any(s.sampled for s in names), "* sampled: short peaks may be higher"),
        (accounted and any(s.shared for s in names), "† not this task's alone: native threads or coroutines of several tasks")) if wanted]
    if notes:
        table.caption, table.caption_justify = "; ".join(notes), "left"
    return table


def _process_line(record, health):
    line = Text("process ", style="dim", no_wrap=False)
    line.append_text(name_text(record.task_name)).append(f" {record.pid}: ", style="default")
    line.append(record.state or "ended, how is not known", style="red" if record.state in ("killed", "error") else "green")
    limit = process_limit(health)
    below = health.get("peak_below_bytes")
    peak = f"below {bytes_text(below)}" if below else bytes_text(record.rss_peak_bytes)
    share = f" ({100 * record.rss_peak_bytes / limit:.1f} %)" if limit and record.rss_peak_bytes else ""
    parts = [f"max rss {peak} of {bytes_text(limit)}{share}", seconds_text(record.duration)]
    parts += worker_facts(health)
    parts += map(_device_text, health.get("devices") or ())
    if health.get("pinned_peak_bytes"):
        parts.append(f"page-locked for CuPy {bytes_text(health['pinned_peak_bytes'])}")
    parts += filter(None, [sampler_health(record, health)])
    parts += process_notes(record, health)
    return line.append("; " + "; ".join(parts))
