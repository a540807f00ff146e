"""The page of a monitor: one HTML file in the style of the other reports, without a script."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from calibrant._version import __version__
from calibrant.evaluation.formatting import percent
from calibrant.files import StrPath
from calibrant.monitor import words
from calibrant.monitor.charts import ece_chart, gap_chart
from calibrant.monitor.monitor import Monitor
from calibrant.report.render import grouped, resource, typeset, write_page


def write_monitor_report(path: StrPath, monitor: Monitor) -> None:
    """Write the page of what a monitor has found so far.

    Args:
        path: the HTML file; an old one is replaced.
        monitor: with or without rows.

    Raises:
        InputError: the folder doesn't exist, or `path` is no regular file.
    """
    write_page(path, monitor_page(monitor))


def monitor_page(monitor: Monitor) -> str:
    """Return the page as text."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = files("calibrant.monitor").joinpath("page.html.jinja").read_text(encoding="utf-8")
    return environment.from_string(source).render(**_content(monitor))


def _content(monitor: Monitor) -> dict[str, Any]:
    windows, diagnosis = monitor.windows(), monitor.diagnosis()
    alarm = monitor.alarms.get("change") or monitor.alarms.get("level")
    row, since = (None, None) if alarm is None else (alarm.row, alarm.since)
    return {
        "version": __version__,
        "monitor": monitor,
        "headline": typeset(words.headline(monitor)),
        "evidence": typeset(words.evidence_words(monitor)),
        "alarms": [
            (alarm.test, typeset(words.alarm_words(alarm, monitor)))
            for alarm in monitor.alarms.values()
        ],
        "windows": windows,
        "gaps": gap_chart(windows, monitor.tolerance, row, since) if windows else "",
        "eces": ece_chart(windows, row, since) if windows else "",
        "diagnosis": diagnosis,
        "deck": "" if diagnosis is None else _sentence(diagnosis.which_way()),
        "refit": "" if diagnosis is None else typeset(diagnosis.what_a_refit_gives()),
        "groups": monitor.groups(),
        "unlabelled": typeset(str(monitor.unlabelled)) if monitor.unlabelled.rows else "",
        "run_length": typeset(words.spaced(monitor.average_run_length)),
        "percent": _percent,
        "grouped": grouped,
        "typeset": typeset,
        "css": resource("page.css"),
    }


def _sentence(clause: str) -> str:
    return typeset(f"{clause[:1].upper()}{clause[1:]}.")


def _percent(fraction: float) -> str:
    return typeset(percent(fraction))
