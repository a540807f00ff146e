// What each section shows of the view.

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

// A method by its name on the command line, and what that stands for.
function titled(method) {
  const words = method.stands_for ? ` <span>${escapeText(method.stands_for)}</span>` : "";
  return `<b>${escapeText(method.name)}</b>${words}`;
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
    `<figure><figcaption><span class="key ${role}" aria-hidden="true"></span> ${titled(method)}</figcaption><div></div></figure>`).join("");
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
  const found = state.target === null ? state.point : pointForTarget(method, state.target);
  state.point = clamp(found ?? 0, 0, method.risk.accepted.length - 1);
  const point = riskPoint(method, state.point);
  for (const range of document.querySelectorAll("input.threshold")) {
    range.max = method.risk.accepted.length - 1;
    range.value = state.point;
    range.setAttribute("aria-valuetext", `confidence ${percent(point.threshold)}, ${percent(point.coverage)} accepted`);
  }
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
  for (const place of document.querySelectorAll(".words")) place.innerHTML = `${words}</small>`;
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

function drawClasses() {
  const { classes, name: shownName } = byName[state.after];
  const other = state.before !== null && state.before !== state.after ? byName[state.before] : null;
  const entries = doc.class_labels.map((label, i) => ({
    label, name: doc.class_names?.[i] ?? label,
    count: classes.count[i], confidence: classes.confidence[i], accuracy: classes.accuracy[i],
    low: classes.low[i], high: classes.high[i],
    gap: classes.count[i] ? classes.confidence[i] - classes.accuracy[i] : null,
    other: other?.classes.count[i] ? other.classes.confidence[i] - other.classes.accuracy[i] : null,
  }));
  const reach = entries.flatMap((e) => [e.low, e.high, e.other]).filter((v) => v !== null);
  const span = [clamp(Math.min(...reach), -0.5, -0.005), clamp(Math.max(...reach), 0.005, 0.5)];
  const named = doc.class_names !== null;
  const head = [{ text: "Class", csv: named ? ["label", "name"] : "label" }, { text: "Rows", csv: "count", number: true },
    { text: "Confidence", csv: "confidence", number: true }, { text: "Right", csv: "accuracy", number: true },
    { text: "Gap", csv: "gap", number: true }, { text: "Interval", csv: ["gap_low", "gap_high"], number: true },
    { html: '<span class="visually-hidden">Picture of the gap</span>', csv: [], name: "gapbar" }];
  if (other) head.push({ text: `Gap, ${other.name}`, csv: `gap_${other.name}`, number: true });
  // Gaps sort by size whatever their sign.
  const gapCell = (gap) => ({ ...points(gap), order: gap === null ? null : Math.abs(gap) });
  const rows = entries.map((e) => {
    const row = [{ text: e.name, csv: named ? [e.label, e.name] : e.label, order: named ? e.name : e.label, row: true },
      { text: whole(e.count), csv: e.count, number: true }, share(e.confidence), share(e.accuracy), gapCell(e.gap),
      { text: e.gap === null ? "" : `${fixed(100 * e.low, 1)} to ${fixed(100 * e.high, 1)}`, csv: [e.low, e.high], number: true },
      { html: e.gap === null ? "" : gapBar(e.gap, e.low, e.high, e.other, span), csv: [], name: "gapbar" }];
    if (other) row.push(gapCell(e.other));
    return row;
  });
  const table = byId("classes-table");
  table.setAttribute("aria-label", `Classes, ${shownName}`);
  arranged[table.id] ??= { column: 4, descending: true, words: "" };
  buildTable(table, head, rows);
}

const rankedMethods = (name) => doc.ranked_by[name].map((method) => byName[method]);

// Rows that stand in any case: the first few, and what the page speaks of. Of the others, a run of
// those that are told apart from the best, or of those that aren't, is folded into one row.
const STANDING = 4;
const SHORTEST_FOLD = 3;

function foldedRuns(ranked, name) {
  const spoken = new Set([doc.recommended, doc.before, state.after, state.before]);
  const runs = [];
  ranked.forEach((method, i) => {
    if (i < STANDING || spoken.has(method.name)) return;
    const worse = method.differences[name].significant, last = runs.at(-1);
    if (last && last.worse === worse && last.to === i - 1) [last.to] = [i, last.names.push(method.name)];
    else runs.push({ from: i, to: i, worse, names: [method.name] });
  });
  return runs.filter(({ names }) => names.length >= SHORTEST_FOLD);
}

function markedWords(method, w) {
  // What may be the best can't be told from it either, nearly always; then one sign says both.
  const signs = { "may be the best": "<b>+</b> may be the best", tied: "<b>*</b> tied", best: "<b>best</b>" };
  const said = w.marks.map((m) => signs[m] ?? m);
  if (method.name === doc.recommended) said.unshift("<b>recommended</b>");
  return said.join(", ") || "worse than the best";
}

function drawRanking() {
  const name = state.metric, metric = doc.metrics[name], ranked = rankedMethods(name);
  const [low, high] = doc.scales[name], best = ranked[0].metrics[name].value;
  const figure = (v) => (v == null ? "" : metric.percent ? fixed(100 * v, 2) : fixed(v, 4));
  const range = (a, b) => (a === "" ? "" : `${a} to ${b}`);
  const unit = metric.percent ? "\u202f%" : "";
  const rows = ranked.map((method, i) => {
    const r = method.metrics[name], d = method.differences[name], w = method.words[name];
    return [
      { html: `${escapeText(method.name)} <span class="marks">${markedWords(method, w)}</span>`, csv: [method.name, w.marks.join(", ")], order: method.name, row: true },
      { html: escapeText(method.stands_for), csv: [method.stands_for], name: "title" },
      { html: r.value == null ? "" : strip(r, low, high, best), csv: [], name: "strip" },
      { html: `<b>${w.value}${w.value && unit}</b> <small>${range(w.low, w.high)}</small>`, csv: [r.value, r.low, r.high], order: r.value == null ? null : i, number: true },
      { html: r.floor == null ? "" : `${w.floor} <small>95\u202f%: ${w.floor_95}</small>`, csv: [r.floor, r.floor_95], number: true },
      { html: i === 0 ? "" : `${w.difference} <small>${range(w.difference_low, w.difference_high)}</small>`, csv: [d.value, d.low, d.high, d.p_adjusted], number: true },
    ];
  });
  const runs = foldedRuns(ranked, name);
  for (const { from, to } of runs) for (let i = from; i <= to; i++) rows[i].kind = "folded";
  for (const run of runs.reverse()) {
    const words = `${run.names.length} more, ${run.worse ? "worse than the best" : "tied with the best"}`;
    const fold = [{ html: `<button type="button" aria-expanded="false">${words}</button> <small>${escapeText(run.names.join(", "))}</small>`, csv: [] }];
    fold.kind = "fold";
    rows.splice(run.from, 0, fold);
  }
  const ends = `<span class="visually-hidden">Picture, </span><span class="ends"><span>${figure(low)}</span><span>${figure(high)}${unit}</span></span>`;
  const table = byId("ranking-table");
  buildTable(table, [
    { text: "Method", csv: ["method", "marks"] },
    { text: "In words", csv: ["stands_for"], name: "title" },
    { html: ends, csv: [], name: "strip" },
    { text: metric.title, csv: [name, `${name}_low`, `${name}_high`], number: true },
    { text: "Floor", csv: ["floor", "floor_95"], number: true },
    { text: "To the best", csv: ["difference", "difference_low", "difference_high", "p_adjusted"], number: true },
  ], rows);
  for (const cell of table.querySelectorAll(".fold td")) cell.colSpan = 6;
  byId("metric-title").textContent = metric.title;
  byId("metric-definition").textContent = `${metric.title}: ${metric.definition}.`;
  byId("deck").textContent = doc.words_by[name].deck;
}

// What stands at the top is of the method that is shown: title, headline, verdict, numbers.
function drawHeading() {
  if (state.metric === null) return;
  const method = byName[state.after];
  // The headline is of the recommended method, or of another one that is looked at.
  const own = state.after === doc.after ? undefined : method.headlines?.[state.metric] ?? method.headline;
  document.querySelector("h1").textContent = own ?? doc.words_by[state.metric].headline;
  document.title = `Calibration of ${doc.source}, ${method.name}`;
  byId("shown").innerHTML = `<b>${escapeText(method.name)}</b>${method.numbers ? `, ${escapeText(method.numbers)}` : ""}`;
  const use = document.querySelector(".verdict .use");
  if (!use || !method.method) return;
  const recommended = method.name === doc.recommended;
  use.innerHTML = `${recommended ? "Use" : "You are looking at"} <b>${escapeText(method.name)}</b> <code>--method ${escapeText(method.method)}</code>`;
  document.querySelector(".verdict .why").textContent = recommended ? doc.why : `Recommended is ${doc.recommended}. ${doc.why}`;
  document.querySelector(".verdict .stands").innerHTML = `<b>${escapeText(method.stands_for)}</b>: ${escapeText(method.formula)}`;
}

// The ranking as a figure to save: what the table shows, on one scale.
function rankingFigure() {
  const name = state.metric, metric = doc.metrics[name], ranked = rankedMethods(name);
  const hidden = state.unfolded ? [] : foldedRuns(ranked, name).flatMap(({ names }) => names);
  const shown = ranked.filter((m) => !hidden.includes(m.name));
  return rankingChart(shown, name, metric, doc.scales[name]);
}

const num = (words) => ({ text: words, number: true });
const share = (value) => ({ text: percent(value, 2), csv: value, number: true });
const points = (value) => ({ text: value === null ? "" : fixed(100 * value, 2), csv: value, number: true });
const gapWords = (gap) => `${fixed(100 * Math.abs(gap), 1)} points ${gap >= 0 ? "over" : "under"}`;

const FIGURES = { ranking: rankingFigure };
const DRAW = {
  heading: drawHeading, ranking: drawRanking, reliability: drawReliability, margins: drawMargins, temperature: drawTemperature,
  accept: drawAccept, classes: drawClasses, rows: drawRows,
};
const NUMBERS = {
  reliability: reliabilityNumbers, margins: marginsNumbers, temperature: temperatureNumbers, accept: acceptNumbers,
};

function draw(names = Object.keys(DRAW)) {
  for (const name of names) {
    if (name !== "heading" && !byId(name)) continue;
    DRAW[name]();
    const details = document.querySelector(`details[data-chart="${name}"]`);
    if (details?.open) fillNumbers(details);
  }
}

function fillNumbers(details) {
  buildTable(byId(`${details.dataset.chart}-numbers`), ...NUMBERS[details.dataset.chart]());
}

