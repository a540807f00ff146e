// The page: state, controls, and which chart is drawn where.

const doc = JSON.parse(document.getElementById("data").textContent);
const byName = Object.fromEntries(doc.methods.map((method) => [method.name, method]));
const byId = (id) => document.getElementById(id);
const state = {
  after: doc.after, before: doc.before, points: "uniform", view: doc.positive ? "positive" : "top", metric: doc.rank_by,
  target: null, point: 0, sort: { key: "gap", descending: true },
};
const POINTS_NOTES = {
  uniform: "The bins of the ECE. Larger dots hold more rows. Lines: Wilson’s interval of the accuracy, at the same level as all intervals here.",
  quantile: "The bins of AdaECE: each dot holds as many rows as the next. Lines: Wilson’s interval.",
  smooth: "Kernel regression with a Gaussian of width 0.04; the band is a pointwise bootstrap interval.",
};

// What the charts show: the chosen method, and the one it is held against if that is another.
function shownMethods() {
  const shown = [{ method: byName[state.after], role: "after" }];
  if (state.before !== null && state.before !== state.after) {
    shown.push({ method: byName[state.before], role: "before" });
  }
  return shown;
}

function widthOf(element, most = Infinity) {
  return Math.max(240, Math.min(element.clientWidth, most));
}

function legend(shown) {
  return `<p class="legend">${shown.map(({ method, role }) =>
    `<span><span class="key stroke ${role}" aria-hidden="true"></span>${escapeText(method.name)}</span>`).join("")}</p>`;
}

// What a diagram of the predicted label says, and one of the positive class.
const VIEWS = {
  top: { share: "Share that is right", below: "underconfident", above: "overconfident", hit: "right", said: "confident", axis: "Confidence" },
  positive: { share: "Share that is positive", below: "too low", above: "too high", hit: "positive", said: "said", axis: "Probability of the positive class" },
};

function viewOf(method) {
  return state.view === "positive" ? { ...method, ...method.positive } : method;
}

function drawReliability() {
  const box = byId("reliability-chart"), shown = shownMethods().reverse();
  box.classList.toggle("single", shown.length === 1);
  box.innerHTML = shown.map(({ method, role }) =>
    `<figure><figcaption><span class="key ${role}" aria-hidden="true"></span> <b>${escapeText(method.name)}</b></figcaption><div></div></figure>`).join("");
  [...box.querySelectorAll("div")].forEach((slot, i) => {
    slot.innerHTML = reliabilityChart(viewOf(shown[i].method), state.points, shown[i].role, doc.smooth_grid, widthOf(slot), VIEWS[state.view]);
  });
  byId("points-note").textContent = POINTS_NOTES[state.points];
}

function reliabilityNumbers() {
  const words = VIEWS[state.view];
  const rows = shownMethods().flatMap(({ method: given }) => {
    const method = viewOf(given);
    const points = state.points === "smooth"
      ? { ...method.smooth, confidence: method.smooth.index.map((i) => doc.smooth_grid[i]) }
      : method.bins[state.points];
    return points.confidence.map((c, i) => [
      { text: method.name, csv: method.name, row: true },
      { text: points.count ? whole(points.count[i]) : "", csv: points.count?.[i] ?? null, number: true },
      share(c), share(points.accuracy[i]), share(points.low[i]), share(points.high[i]),
    ]);
  });
  return [["Method", num("Rows"), num(words.axis), num(words.share), num("Low"), num("High")], rows];
}

function drawMargins() {
  const box = byId("margins-chart"), shown = shownMethods().reverse();
  const groups = shown[0].method.margin_groups;
  box.innerHTML = groups.map((group, i) => {
    const [low, high] = group.margin.map((m) => fixed(m, 2));
    const place = groups.length === 1 ? "All rows" : i === 0 ? "Smallest margins" : i === groups.length - 1 ? "Largest margins" : `${["", "Second", "Third"][i] ?? `${i + 1}th`} quarter`;
    const gaps = shown.map(({ method, role }) => {
      const g = method.margin_groups[i];
      return `<span class="key ${role}" aria-hidden="true"></span> ${escapeText(method.name)} <b>${gapWords(g.confidence - g.accuracy)}</b>`;
    });
    return `<figure><figcaption><b>${place}</b><br><span>${low} to ${high}, ${whole(group.rows)} rows</span><br>${gaps.join("<br>")}</figcaption><div></div></figure>`;
  }).join("");
  [...box.querySelectorAll("div")].forEach((slot, i) => {
    slot.innerHTML = marginChart(shown, i, widthOf(slot));
  });
}

function marginsNumbers() {
  const rows = shownMethods().flatMap(({ method }) => method.margin_groups.map((g) => [
    { text: method.name, csv: method.name, row: true },
    { text: g.margin.map((m) => fixed(m, 2)).join(" to "), csv: g.margin, number: true },
    { text: whole(g.rows), csv: g.rows, number: true },
    share(g.confidence), share(g.accuracy), share(g.low), share(g.high), points(g.confidence - g.accuracy),
  ]));
  return [["Method", { text: "Margin", csv: ["margin_low", "margin_high"], number: true }, num("Rows"),
    num("Confidence"), num("Right"), num("Low"), num("High"), num("Gap")], rows];
}

// Methods without a temperature are replaced by the best one that has it, and the note says so.
function temperatureShown() {
  const shown = shownMethods().filter(({ method }) => method.temperature);
  const chosen = byName[state.after];
  if (!chosen.temperature) {
    const other = doc.methods.find((m) => m.temperature && !shown.some(({ method }) => method === m));
    if (other) shown.unshift({ method: other, role: "after" });
  }
  const single = doc.methods.find((m) => m.name === "temperature" && m.temperature);
  if (single && shown.length === 1 && shown[0].method !== single) shown.push({ method: single, role: "before" });
  return shown.map((one) => ({ ...one, curve: one.method.temperature }));
}

function drawTemperature() {
  const box = byId("temperature-chart"), shown = temperatureShown(), chosen = byName[state.after];
  box.innerHTML = legend(shown) + temperatureChart(shown, doc.margin_histogram, widthOf(box));
  byId("temperature-note").textContent = chosen.temperature ? ""
    : `${chosen.name} doesn’t give each row a temperature; shown is ${shown[0].method.name}.`;
}

function temperatureNumbers() {
  const rows = temperatureShown().flatMap(({ method, curve }) => curve.margin.map((m, i) => [
    { text: method.name, csv: method.name, row: true },
    { text: fixed(m, 3), csv: m, number: true },
    { text: fixed(curve.temperature[i], 4), csv: curve.temperature[i], number: true },
  ]));
  return [["Method", num("Margin"), num("Temperature")], rows];
}

function wilson(successes, trials) {
  const z = doc.z, p = successes / trials, d = 1 + (z * z) / trials;
  const centre = (p + (z * z) / (2 * trials)) / d;
  const half = (z / d) * Math.sqrt((p * (1 - p)) / trials + (z * z) / (4 * trials * trials));
  return [successes === 0 ? 0 : centre - half, successes === trials ? 1 : centre + half];
}

function riskPoint(method, i) {
  const { threshold, accepted, wrong } = method.risk;
  const [low, high] = wilson(wrong[i], accepted[i]);
  return { threshold: threshold[i], coverage: accepted[i] / doc.worth, error: wrong[i] / accepted[i], low, high };
}

// The last point whose error is within the target; the curve isn't monotone, so the last one wins.
function pointForTarget(method, target) {
  const { accepted, wrong } = method.risk;
  for (let i = accepted.length - 1; i >= 0; i--) if (wrong[i] / accepted[i] <= target + 1e-12) return i;
  return null;
}

function drawAccept() {
  const shown = shownMethods(), { method } = shown[0], box = byId("accept-chart");
  const range = byId("threshold");
  range.max = method.risk.accepted.length - 1;
  const found = state.target === null ? state.point : pointForTarget(method, state.target);
  state.point = clamp(found ?? 0, 0, method.risk.accepted.length - 1);
  range.value = state.point;
  const point = riskPoint(method, state.point);
  range.setAttribute("aria-valuetext", `confidence ${percent(point.threshold)}, ${percent(point.coverage)} accepted`);
  if (state.target === null) byId("target").value = (100 * point.error).toFixed(2);
  const cut = thresholdText(point.threshold);
  let words = found === null
    ? `No threshold keeps the error within ${percent(state.target, 2)}. The strictest one, a confidence of at least ${cut}, accepts`
    : `With a confidence of at least ${cut}, accept`;
  words += ` <b>${percent(point.coverage)} of inputs at an error of ${percent(point.error, 2)}</b>.`;
  words += `<small>${Math.round(100 * doc.level)}\u202f% interval of that error: ${percent(point.low, 2)} to ${percent(point.high, 2)} (Wilson; a threshold picked on these very rows looks a little better than it is).`;
  if (shown.length > 1) {
    const rival = shown[1].method, i = rival.risk.threshold.findLastIndex((t) => t >= point.threshold);
    if (i >= 0) {
      const theirs = riskPoint(rival, i);
      words += ` The same threshold on ${escapeText(rival.name)}: ${percent(theirs.coverage)} accepted, ${percent(theirs.error, 2)} of them wrong.`;
    }
  }
  byId("accept-words").innerHTML = `${words}</small>`;
  box.innerHTML = legend(shown) + acceptChart(shown, point, doc.worth, widthOf(box));
}

function thresholdText(threshold) {
  const digits = threshold > 0.9999 ? 6 : threshold > 0.99 ? 4 : 3;
  return fixed(threshold, digits);
}

function acceptNumbers() {
  const rows = shownMethods().flatMap(({ method }) => method.risk.accepted.map((_, i) => {
    const p = riskPoint(method, i);
    return [{ text: method.name, csv: method.name, row: true },
      { text: thresholdText(p.threshold), csv: p.threshold, number: true },
      share(p.coverage), share(p.error), share(p.low), share(p.high)];
  }));
  return [["Method", num("Threshold"), num("Accepted"), num("Wrong"), num("Low"), num("High")], rows];
}

const CLASS_COLUMNS = [
  ["label", "Class"], ["count", "Rows"], ["confidence", "Confidence"], ["accuracy", "Right"], ["gap", "Gap"],
];

function drawClasses() {
  const { classes, name: shownName } = byName[state.after];
  const other = state.before !== null && state.before !== state.after ? byName[state.before] : null;
  const entries = doc.class_labels.map((label, i) => ({
    label, name: doc.class_names?.[i] ?? label, count: classes.count[i], confidence: classes.confidence[i], accuracy: classes.accuracy[i],
    low: classes.low[i], high: classes.high[i],
    gap: classes.count[i] ? classes.confidence[i] - classes.accuracy[i] : null,
    other: other?.classes.count[i] ? other.classes.confidence[i] - other.classes.accuracy[i] : null,
  }));
  const { key, descending } = state.sort, sign = descending ? -1 : 1;
  // Gaps sort by size whatever their sign; classes without rows come last.
  const value = (e) => (key === "gap" && e.gap !== null ? Math.abs(e.gap) : e[key]);
  entries.sort((a, b) => (value(a) === null) - (value(b) === null) || sign * (value(a) - value(b)) || a.label - b.label);
  const reach = entries.flatMap((e) => [e.low, e.high, e.other]).filter((v) => v !== null);
  const span = [clamp(Math.min(...reach), -0.5, -0.005), clamp(Math.max(...reach), 0.005, 0.5)];
  const head = CLASS_COLUMNS.map(([name, words]) => ({
    html: `<button type="button" data-sort="${name}">${words}</button>`, csv: name, number: name !== "label",
    sort: name === key ? (descending ? "descending" : "ascending") : undefined,
  }));
  head.push({ text: "Interval", csv: ["gap_low", "gap_high"], number: true }, { text: "", csv: [], name: "gapbar" });
  if (other) head.push({ text: `Gap, ${other.name}`, csv: `gap_${other.name}`, number: true });
  const rows = entries.map((e) => {
    const row = [{ text: e.name, csv: e.name, row: true }, { text: whole(e.count), csv: e.count, number: true },
      share(e.confidence), share(e.accuracy), points(e.gap),
      { text: e.gap === null ? "" : `${fixed(100 * e.low, 1)} to ${fixed(100 * e.high, 1)}`, csv: [e.low, e.high], number: true },
      { html: e.gap === null ? "" : gapBar(e.gap, e.low, e.high, e.other, span), csv: [], name: "gapbar" }];
    if (other) row.push(points(e.other));
    return row;
  });
  const table = byId("classes-table");
  table.setAttribute("aria-label", `Classes, ${shownName}`);
  buildTable(table, head, rows);
}

// The number that ranks, lower for better; a value that could not be computed comes last.
function cost(metric, value) {
  if (value === null) return Infinity;
  if (metric.ideal !== null) return Math.abs(value - metric.ideal);
  return metric.lower_is_better ? value : -value;
}

function stripScale(metric, results) {
  const lows = results.map((r) => r.low ?? r.value ?? 0), highs = results.map((r) => r.high ?? r.value ?? 0);
  const low = metric.has_floor ? 0 : Math.min(...lows);
  const high = Math.max(...highs, ...results.map((r) => r.floor_95 ?? -Infinity));
  // A method that is off by far would leave the others no room.
  const usual = highs.sort((a, b) => a - b)[Math.floor(highs.length / 2)];
  return [low, metric.has_floor && high > 5 * usual ? 3 * usual : high];
}

function drawRanking() {
  const name = state.metric, metric = doc.metrics[name];
  const ranked = doc.methods.filter((m) => m.ranked)
    .sort((a, b) => cost(metric, a.metrics[name].value) - cost(metric, b.metrics[name].value));
  const results = ranked.map((m) => m.metrics[name]);
  const [low, high] = stripScale(metric, results);
  const figure = (v) => (v == null ? "" : metric.percent ? fixed(100 * v, 2) : fixed(v, 4));
  const range = (a, b) => (a === "" ? "" : `${a} to ${b}`);
  const unit = metric.percent ? "\u202f%" : "";
  const rows = ranked.map((method, i) => {
    const r = method.metrics[name], d = method.differences[name], w = method.words[name];
    const said = w.marks.map((m) => `<b>${m}</b>`).join(", ") || "worse than the best";
    return [
      { html: `${escapeText(method.name)} <span class="marks">${said}</span>`, csv: [method.name, w.marks.join(", ")], row: true },
      { html: r.value == null ? "" : strip(r, low, high, results[0].value), csv: [], name: "strip" },
      { html: `<b>${w.value}${w.value && unit}</b> <small>${range(w.low, w.high)}</small>`, csv: [r.value, r.low, r.high], number: true },
      { html: r.floor == null ? "" : `${w.floor} <small>95\u202f%: ${w.floor_95}</small>`, csv: [r.floor, r.floor_95], number: true },
      { html: i === 0 ? "" : `${w.difference} <small>${range(w.difference_low, w.difference_high)}</small>`, csv: [d.value, d.low, d.high, d.p_adjusted], number: true },
    ];
  });
  const ends = `<span class="ends"><span>${figure(low)}</span><span>${figure(high)}${unit}</span></span>`;
  buildTable(byId("ranking-table"), [
    { text: "Method", csv: ["method", "marks"] },
    { html: ends, csv: [], name: "strip" },
    { text: metric.title, csv: [name, `${name}_low`, `${name}_high`], number: true },
    { text: "Floor", csv: ["floor", "floor_95"], number: true },
    { text: "To the best", csv: ["difference", "difference_low", "difference_high", "p_adjusted"], number: true },
  ], rows);
  byId("metric-definition").textContent = `${metric.title}: ${metric.definition}.`;
}

const num = (words) => ({ text: words, number: true });
const share = (value) => ({ text: percent(value, 2), csv: value, number: true });
const points = (value) => ({ text: value === null ? "" : fixed(100 * value, 2), csv: value, number: true });
const gapWords = (gap) => `${fixed(100 * Math.abs(gap), 1)} points ${gap >= 0 ? "over" : "under"}`;

const DRAW = {
  reliability: drawReliability, margins: drawMargins, temperature: drawTemperature,
  accept: drawAccept, classes: drawClasses,
};
const NUMBERS = {
  reliability: reliabilityNumbers, margins: marginsNumbers, temperature: temperatureNumbers, accept: acceptNumbers,
};

function draw(names = Object.keys(DRAW)) {
  for (const name of names) {
    if (!byId(name)) continue;
    DRAW[name]();
    const details = document.querySelector(`details[data-chart="${name}"]`);
    if (details?.open) fillNumbers(details);
  }
}

function fillNumbers(details) {
  buildTable(byId(`${details.dataset.chart}-numbers`), ...NUMBERS[details.dataset.chart]());
}

function wireControls() {
  for (const side of ["after", "before"]) {
    byId(side)?.addEventListener("change", (event) => { state[side] = event.target.value; draw(); });
  }
  byId("swap")?.addEventListener("click", () => {
    [state.after, state.before] = [state.before, state.after];
    byId("after").value = state.after;
    byId("before").value = state.before;
    draw();
  });
  byId("metric")?.addEventListener("change", (event) => { state.metric = event.target.value; drawRanking(); });
  for (const radio of document.querySelectorAll('input[name="points"]')) {
    radio.addEventListener("change", () => { state.points = radio.value; draw(["reliability"]); });
  }
  for (const radio of document.querySelectorAll('input[name="view"]')) {
    radio.addEventListener("change", () => { state.view = radio.value; draw(["reliability"]); });
  }
  byId("threshold").addEventListener("input", (event) => {
    state.target = null;
    state.point = Number(event.target.value);
    draw(["accept"]);
  });
  byId("target").addEventListener("input", (event) => {
    const value = Number.parseFloat(event.target.value);
    if (!(value >= 0)) return;
    state.target = value / 100;
    draw(["accept"]);
  });
  byId("classes-table").addEventListener("click", (event) => {
    const key = event.target.closest("[data-sort]")?.dataset.sort;
    if (!key) return;
    state.sort = { key, descending: state.sort.key === key ? !state.sort.descending : key !== "label" };
    drawClasses();
    document.querySelector(`[data-sort="${key}"]`).focus();
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

// A round target that most of the rows can meet: half of the error at full coverage.
function firstTarget() {
  const { accepted, wrong } = byName[state.after].risk;
  const half = (wrong.at(-1) / accepted.at(-1)) / 2;
  const target = [0.1, 0.05, 0.02, 0.01, 0.005, 0.001].find((t) => t <= half) ?? half;
  byId("target").value = fixed(100 * target, target < 0.01 ? 1 : 0);
  return target;
}

state.target = firstTarget();
wireCopies();
wireControls();
wireTheme();
if (byId("ranking")) drawRanking();
draw();
let drawnWidth = document.body.clientWidth;
new ResizeObserver(() => {
  if (document.body.clientWidth === drawnWidth) return;
  drawnWidth = document.body.clientWidth;
  draw();
}).observe(document.body);
document.documentElement.dataset.ready = "true";
