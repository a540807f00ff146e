"""Chromium without a window, for tests of both packages: what a script sees, widths, axe."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
SWITCHES = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --virtual-time-budget=20000 "
    "--dump-dom"
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium on the PATH")
SCREENS = (390, 768, 1440)
FRAMES = "".join(
    f'<iframe width="{wide}" height="800" src="inner.html"></iframe>' for wide in SCREENS
)
OUTER = f"""<body><pre id="check"></pre>{FRAMES}
<script>const out = document.getElementById("check"), found = {{}};
addEventListener("message", (e) => {{
  found[e.data.width] = e.data.wide;
  if (Object.keys(found).length === {len(SCREENS)}) out.textContent = JSON.stringify(found);
}});
</script></body>"""
INNER = """<script type="module">
await new Promise((done) => setTimeout(done, 100));
const root = document.documentElement;
parent.postMessage({ wide: root.scrollWidth - root.clientWidth, width: innerWidth }, "*");
</script></body>"""


AXE = """
for (const details of document.querySelectorAll("details")) {
  details.open = true;
  if (typeof fillNumbers === "function") fillNumbers(details);
}
const found = await axe.run(document);
seen.checked = found.passes.length;
seen.violations = found.violations.map((v) => [v.id, v.nodes.map((n) => n.html.slice(0, 120))]);
"""


def seen_in(page: Path, folder: Path, script: str, hash: str = "", width: int = 1280) -> Any:
    """Return what a script, which sets `seen` and may wait, saw of a page."""
    check = f"""<script type="module">
const seen = {{}};
try {{ {script} }} catch (error) {{ seen.error = String(error); }}
const out = document.createElement("pre");
out.id = "check";
out.textContent = JSON.stringify(seen);
document.body.append(out);
</script>"""
    (folder / "check.html").write_text(
        page.read_text(encoding="utf-8").replace("</body>", check + "</body>"), encoding="utf-8"
    )
    seen = _check_in(folder / "check.html", folder, width, hash)
    assert "error" not in seen, seen["error"]
    return seen


def _check_in(page: Path, folder: Path, width: int, hash: str = "") -> Any:
    """Return what a page writes into its element `check`, as JSON."""
    done = subprocess.run(
        [
            str(BROWSER),
            *SWITCHES.split(),
            f"--window-size={width},900",
            f"--user-data-dir={folder / 'profile'}",
            page.as_uri() + hash,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = re.search(r'<pre id="check">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    return json.loads(html.unescape(found[1]))


def allowing_scripts(page: str) -> str:
    """Return a page that may run a test's script: the monitor's has none and says so."""
    if "script-src" in page:
        return page
    policy = "style-src 'unsafe-inline'"
    return page.replace(policy, f"{policy}; script-src 'unsafe-inline'")


def sideways(page: Path, folder: Path) -> dict[int, int]:
    """Return by how many pixels a page is wider than each of the screens."""
    text = page.read_text(encoding="utf-8").replace("</body>", INNER)
    (folder / "inner.html").write_text(allowing_scripts(text), encoding="utf-8")
    (folder / "outer.html").write_text(OUTER, encoding="utf-8")
    found = _check_in(folder / "outer.html", folder, 1600)
    return {int(wide): over for wide, over in found.items()}


def violations(page: Path, folder: Path) -> list[Any]:
    """Return what axe finds wrong with a page, its details opened; skips without axe-core."""
    pytest.importorskip("axe_core_python", reason="axe-core is not there")
    axe = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    text = page.read_text(encoding="utf-8").replace("</body>", f"<script>{axe}</script></body>")
    (folder / "axe.html").write_text(allowing_scripts(text), encoding="utf-8")
    seen = seen_in(folder / "axe.html", folder, AXE)
    assert seen["checked"] > 20
    return seen["violations"]
