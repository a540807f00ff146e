"""Chromium without a window, for tests of both packages: what a script sees, widths, axe."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from importlib.resources import files
from importlib.util import find_spec
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
INNER = """<script type="module">
await new Promise((done) => setTimeout(done, 100));
const root = document.documentElement;
parent.postMessage({ wide: root.scrollWidth - root.clientWidth, width: innerWidth }, "*");
</script></body>"""


# What axe says comes before there are frames in the page.
AXE = """
for (const details of document.querySelectorAll("details")) {
  details.open = true;
  if (typeof fillNumbers === "function") fillNumbers(details);
}
const found = await axe.run(document);
seen.checked = found.passes.length;
seen.violations = found.violations.map((v) => [v.id, v.nodes.map((n) => n.html.slice(0, 120))]);
"""
WIDTHS = f"""
seen.sideways = await new Promise((done) => {{
  const over = {{}};
  addEventListener("message", (e) => {{
    over[e.data.width] = e.data.wide;
    if (Object.keys(over).length === {len(SCREENS)}) done(over);
  }});
  for (const width of {list(SCREENS)}) {{
    const frame = Object.assign(document.createElement("iframe"), {{ width, height: 800 }});
    frame.src = "inner.html";
    frame.style = "position: absolute; border: 0; max-width: none";  // whatever the page's style is
    document.body.append(frame);
  }}
}});
"""


def seen_in(page: Path, folder: Path, script: str, hash: str = "") -> Any:
    """Return what a script, which sets `seen` and may wait, saw of a page."""
    check = f"""<script type="module">
const seen = {{}};
try {{ {script} }} catch (error) {{ seen.error = String(error); }}
const out = document.createElement("pre");
out.id = "check";
out.textContent = JSON.stringify(seen);
document.body.append(out);
</script>"""
    checked = folder / "check.html"
    text = page.read_text(encoding="utf-8")
    checked.write_text(text.replace("</body>", check + "</body>"), encoding="utf-8")
    done = subprocess.run(
        [
            str(BROWSER),
            *SWITCHES.split(),
            "--window-size=1280,900",
            f"--user-data-dir={folder / 'profile'}",
            checked.as_uri() + hash,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = re.search(r'<pre id="check">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    seen = json.loads(html.unescape(found[1]))
    assert "error" not in seen, seen["error"]
    return seen


def allowing_scripts(page: str) -> str:
    """Return a page that may run a test's script: the monitor's has none and says so."""
    if "script-src" in page:
        return page
    policy = "style-src 'unsafe-inline'"
    return page.replace(policy, f"{policy}; script-src 'unsafe-inline'")


def assert_fits_screens_and_passes_axe(page: Path, folder: Path) -> None:
    """Hold a page to no scrolling sideways on any screen and, if axe-core is there, to axe.

    Both in one window, as a browser takes longer to start than to look.
    """
    text = allowing_scripts(page.read_text(encoding="utf-8"))
    (folder / "inner.html").write_text(text.replace("</body>", INNER), encoding="utf-8")
    with_axe = find_spec("axe_core_python") is not None
    axe = files("axe_core_python").joinpath("axe.min.js").read_text("utf-8") if with_axe else ""
    outer = text.replace("default-src 'none'", "default-src 'none'; frame-src file:")
    outer = outer.replace("</body>", f"<script>{axe}</script></body>")
    (folder / "outer.html").write_text(outer, encoding="utf-8")
    seen = seen_in(folder / "outer.html", folder, AXE * with_axe + WIDTHS)
    assert seen["sideways"] == {str(width): 0 for width in SCREENS}, seen["sideways"]
    if not with_axe:
        pytest.skip("axe-core is not there")
    assert seen["checked"] > 20
    assert seen["violations"] == [], seen["violations"]
