// The page: its controls, and what happens when it opens.

// Set the controls to what the view says, and draw all of it.
function showView() {
  for (const id of ["after", "before", "metric"]) if (byId(id)) byId(id).value = state[id];
  for (const name of ["points", "view"]) {
    const radio = document.querySelector(`input[name="${name}"][value="${state[name]}"]`);
    if (radio) radio.checked = true;
  }
  draw();
}

function showFolds() {
  byId("ranking-table").classList.toggle("unfolded", state.unfolded);
  hint(byId("ranking-table").closest(".scroll"));
}

function wireControls() {
  for (const side of ["after", "before"]) {
    byId(side)?.addEventListener("change", (event) => { state[side] = event.target.value; draw(); keepView(); });
  }
  byId("swap")?.addEventListener("click", () => {
    [state.after, state.before] = [state.before, state.after];
    showView();
    keepView();
  });
  byId("metric")?.addEventListener("change", (event) => {
    state.metric = event.target.value;
    draw(["heading", "ranking"]);
    keepView();
  });
  byId("ranking-table")?.addEventListener("click", (event) => {
    if (!event.target.closest(".fold")) return;
    state.unfolded = true;
    showFolds();
  });
  for (const radio of document.querySelectorAll('input[name="points"]')) {
    radio.addEventListener("change", () => { state.points = radio.value; draw(["reliability"]); keepView(); });
  }
  for (const radio of document.querySelectorAll('input[name="view"]')) {
    radio.addEventListener("change", () => { state.view = radio.value; draw(["reliability", "rows"]); keepView(); });
  }
  for (const range of document.querySelectorAll("input.threshold")) {
    range.addEventListener("input", () => {
      state.target = null;
      state.point = Number(range.value);
      draw(["accept"]);
      keepView();
    });
  }
  byId("target").addEventListener("input", (event) => {
    const value = Number.parseFloat(event.target.value);
    if (!(value >= 0)) return;
    state.target = value / 100;
    draw(["accept"]);
    keepView();
  });
  for (const details of document.querySelectorAll("details.numbers")) {
    details.addEventListener("toggle", () => { if (details.open) fillNumbers(details); });
  }
}

function wireTheme() {
  const button = byId("theme"), root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const say = () => {
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to ${dark() ? "light" : "dark"} colours`);
  };
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; say(); });
  system.addEventListener("change", say);
  say();
}

// Links to sections keep the view; the address then says both.
function wireLinks() {
  for (const link of document.querySelectorAll('a[href^="#"]')) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      const at = link.getAttribute("href").slice(1);
      keepView(at);
      byId(at).scrollIntoView();
      byId(`${at}-title`).tabIndex = -1;
      byId(`${at}-title`).focus({ preventScroll: true });
    });
  }
  byId("link").addEventListener("click", async () => {
    await copyText(location.href);
    say(byId("link"), "Copied", "The link was copied.");
  });
  window.addEventListener("hashchange", openView);
}

function openView() {
  const at = takeView();
  if (state.target === null && !viewInAddress().threshold) {
    state.target = doc.risk_target;
    byId("target").value = fixed(100 * doc.risk_target, doc.risk_target < 0.01 ? 1 : 0);
  }
  showView();
  if (at) byId(at).scrollIntoView();
}

// Paper has no place to scroll: what is folded or goes on to the right is laid out.
function wirePaper() {
  const table = byId("numbers-table");
  if (table) byId("numbers-paper").innerHTML = paperTables(table);
}

for (const id of ["metrics-table", "numbers-table", "groups-table"]) if (byId(id)) arrangeable(byId(id));
wirePaper();
wireCopies();
wireFigures();
wireControls();
wireRows();
wireTheme();
wireLinks();
openView();
let drawnWidth = document.body.clientWidth;
new ResizeObserver(() => {
  if (document.body.clientWidth === drawnWidth) return;
  drawnWidth = document.body.clientWidth;
  draw();
  document.querySelectorAll(".scroll").forEach(hint);
}).observe(document.body);
document.documentElement.dataset.ready = "true";
