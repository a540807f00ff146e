"""The benchmark's table, and the file that keeps it."""

from __future__ import annotations

import json
import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.cases import OURS, Line

PACKAGES = (
    "calibrant",
    "numpy",
    "scipy",
    "torch",
    "scikit-learn",
    "netcal",
    "probmetrics",
    "uncertainty-calibration",
    "relplot",
    "torchmetrics",
    "torch-uncertainty",
)


def table(lines: list[Line]) -> str:
    """Return the lines as a table: our time, its multiple of the unit, and the peers' ratios.

    A ratio in brackets belongs to a peer whose result is not the same.
    """
    head = ["kernel", "N", "K", "ms", "spread", "multiple of", "peers: times as long as ours"]
    rows = [head]
    for line in lines:
        low, high = line.spread[OURS]
        peers = []
        for name, ratio in sorted(line.ratios.items(), key=lambda item: item[1]):
            text = f"{name} {ratio:.2g}" if ratio < 9.95 else f"{name} {ratio:.0f}"
            peers.append(f"({text})" if line.agrees.get(name) else text)
        peers += [f"{name} -" for name in line.errors]
        wrong = " WRONG: " + line.agrees[OURS] if line.agrees.get(OURS) else ""
        rows.append(
            [
                line.kernel,
                str(line.rows),
                str(line.classes),
                f"{1e3 * line.seconds[OURS]:.1f}",
                f"{1e3 * low:.1f}-{1e3 * high:.1f}",
                f"{line.multiple:.2f} {line.unit}",
                ", ".join(peers) + wrong,
            ]
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head) - 1)]
    padded = [[*map(str.ljust, row, widths), row[-1]] for row in rows]
    return "\n".join("  ".join(row).rstrip() for row in padded)


def machine() -> dict[str, Any]:
    """Return the kind of machine, without its name."""
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [row for row in info.read_text().splitlines() if row.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    usable = getattr(os, "sched_getaffinity", None)
    return {
        "processor": model,
        "cores": len(usable(0)) if usable is not None else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def versions() -> dict[str, str]:
    """Return the versions of everything that is compared."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def keep(path: Path, content: dict[str, Any]) -> None:
    """Write the results as JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=1, allow_nan=True) + "\n")
    partial.replace(path)


def today() -> str:
    """Return the date in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime())
