"""The picture of the study of calibration sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from calibrant.studies.calibration_size.fits import BASE, Results, relative

# matplotlib's types leave keyword arguments open.
# pyright: reportUnknownMemberType=false

# What stands out in the figure; the others are thin and grey.
COLOURS = {
    "auto": "black",
    "smart": "tab:orange",
    "top-rest": "tab:blue",
    "svs": "tab:green",
    "svs-top-rest": "tab:purple",
    "probit-top-rest": "tab:red",
}


def draw_figure(
    path: Path, found: dict[str, Results], methods: list[str], sizes: list[int]
) -> None:
    """Draw a panel for each source and metric."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        2, len(found), figsize=(4.6 * len(found), 6.2), sharex=True, squeeze=False
    )
    handles: dict[str, Any] = {}
    for column, (name, results) in enumerate(found.items()):
        for row, metric in enumerate(("ece", "nll")):
            axis = axes[row][column]
            low: list[float] = [0.0]
            for method in sorted(methods, key=lambda m: m in COLOURS):
                if method == BASE:
                    continue
                points = [relative(results, method, size, metric) for size in sizes]
                value, reach = (np.array(part) for part in zip(*points, strict=True))
                loud = method in COLOURS
                style = {"color": COLOURS.get(method, "0.75"), "lw": 1.8 if loud else 0.8}
                (line,) = axis.plot(sizes, value, **style, zorder=3 if loud else 1)
                handles[method if loud else "others"] = line
                if method == "auto":  # a band for each would hide the lines
                    band = np.nan_to_num(reach)
                    axis.fill_between(
                        sizes, value - band, value + band, color="black", alpha=0.12, lw=0
                    )
                low.append(float(np.nanmin(value)))
            axis.axhline(0, color="tab:red", lw=1)
            reach_of_axis = abs(min(low))
            axis.set_ylim(-1.25 * reach_of_axis, 0.8 * reach_of_axis)
            axis.set_xscale("log")
            axis.set_xticks(sizes, [str(size) for size in sizes], rotation=45)
            axis.minorticks_off()
            axis.set_title(f"{name}: {metric.upper()}" + (" in %" if metric == "ece" else ""))
            if column == 0:
                axis.set_ylabel(f"minus {BASE} scaling")
            if row == 1:
                axis.set_xlabel("rows fitted to")
    order = [*(m for m in COLOURS if m in handles), *(["others"] if "others" in handles else [])]
    figure.legend([handles[m] for m in order], order, ncols=3, loc="lower center")
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    figure.savefig(path, dpi=110)
    print(f"\nwrote {path}")
