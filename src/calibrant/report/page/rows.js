// The rows behind the pictures: those of a bin, a class or a group, as far as the page holds them.

// Which rows are listed: "mistakes", "all", "bin:ROLE:NUMBER", "quantile:ROLE:NUMBER",
// "bar:ROLE:NUMBER", "class:LABEL" or "group:NUMBER"; a role is "after" or "before".
const ROWS_FORM = /^(mistakes|all|(bin|quantile|bar):(after|before):\d+|class:\d+|group:\d+)$/;
const MISTAKES = 30;

function rowOf(method, i) {
  const rows = doc.rows, own = rows.methods[method.name];
  const predicted = (own.predicted ?? rows.predicted)[i], right = Boolean((own.correct ?? rows.correct)[i]);
  const confidence = own.confidence[i] / rows.digits;
  return {
    i, predicted, right, confidence, truth: rows.true?.[i] ?? null, group: rows.group?.[i] ?? null,
    name: rows.id?.[i] ?? String(rows.number[i]),
    positive: predicted === 1 ? confidence : 1 - confidence,
  };
}

// Of a row what the reliability diagram puts on its horizontal axis.
const placeOf = (row) => (state.view === "positive" ? row.positive : row.confidence);

function inEqualBins(count, number) {
  return (row) => clamp(Math.ceil(placeOf(row) * count - 1e-9) - 1, 0, count - 1) === number;
}

const roundedPlace = (value) => Math.round(value * doc.rows.digits);

// What was chosen: the method, which of its rows, how many there are in all, and words for them.
function chosenRows() {
  const [kind, first, second] = state.rows.split(":"), after = byName[state.after];
  const shown = first === "before" && state.before !== null ? byName[state.before] : after;
  const ofAll = (count) => (doc.weighing ? null : count), view = viewOf(shown);
  if (kind === "bin" || kind === "bar") {
    const count = kind === "bin" ? EQUAL_BINS : view.histogram.count.length, number = Number(second);
    const test = inEqualBins(count, number), at = view.bins.uniform.confidence.findIndex((c) => inBin(c, count, number));
    const total = kind === "bar" ? view.histogram.count[number] : view.bins.uniform.count[at];
    const axis = VIEWS[state.view].axis.toLowerCase();
    return { method: shown, test, total: ofAll(total ?? 0), words: `with a ${axis} above ${percent(number / count)} and up to ${percent((number + 1) / count)}` };
  }
  if (kind === "quantile") {
    const [low, high] = view.quantile_ends[Number(second)] ?? [1, 0];
    const test = (row) => roundedPlace(placeOf(row)) >= roundedPlace(low) && roundedPlace(placeOf(row)) <= roundedPlace(high);
    return { method: shown, test, total: null, words: `with a ${VIEWS[state.view].axis.toLowerCase()} of ${percent(low, 2)} to ${percent(high, 2)}` };
  }
  if (kind === "class") {
    const label = Number(first), at = doc.class_labels.indexOf(label);
    return { method: after, test: (row) => row.predicted === label, total: ofAll(after.classes?.count[at]), words: `predicted to be ${classCalled(label)}` };
  }
  if (kind === "group") {
    const name = doc.rows.groups[Number(first)];
    const total = doc.groups?.rows.find((row) => row.name === name)?.n;
    return { method: after, test: (row) => row.group === Number(first), total, words: `of the group ${name}` };
  }
  return { method: after, test: kind === "all" ? () => true : (row) => !row.right, total: kind === "all" ? doc.n : null, words: "" };
}

// Whether a page has what a link asks for.
function rowsExist(which) {
  const [kind, first, second] = which.split(":");
  if (kind === "class") return doc.rows.true !== null && doc.class_labels.includes(Number(first));
  if (kind === "group") return Number(first) < doc.rows.groups.length;
  if (first === "before" && state.before === null) return false;
  return second === undefined || Number(second) < byName[state.after].histogram.count.length;
}

const EQUAL_BINS = 15;
const inBin = (value, count, number) => clamp(Math.ceil(value * count - 1e-9) - 1, 0, count - 1) === number;
const classCalled = (label) => doc.rows.called?.[label] ?? doc.class_names?.[doc.class_labels.indexOf(label)] ?? String(label);

function saidOfRows(chosen, found) {
  const by = doc.methods.length > 1 ? `, as ${chosen.method.name} has them` : "";
  if (state.rows === "mistakes") {
    const exact = doc.rows.rows === doc.n || [doc.after, doc.before].includes(chosen.method.name);
    return exact ? `The ${found.length} wrong rows of highest confidence among all ${whole(doc.n)}${by}.`
      : `The ${found.length} wrong rows of highest confidence among the ${whole(doc.rows.rows)} in this page${by}.`;
  }
  const words = chosen.words && ` ${chosen.words}`, all = doc.rows.rows === doc.n || found.length === chosen.total;
  if (all) return `All ${whole(found.length)} rows${words}${by}.`;
  const of = chosen.total == null ? `The ${whole(found.length)} rows` : `${whole(found.length)} of the ${whole(chosen.total)} rows`;
  return `${of}${words}${by}${chosen.total == null ? " that this page holds" : ""}.`;
}

function drawRows() {
  const chosen = chosenRows(), { method } = chosen;
  let found = doc.rows.number.map((_, i) => rowOf(method, i)).filter(chosen.test);
  if (state.rows === "mistakes") found = found.sort((a, b) => b.confidence - a.confidence).slice(0, MISTAKES);
  const other = shownMethods().map((one) => one.method).find((m) => m !== method);
  const head = [{ text: "Row", csv: "row" }], pictured = doc.rows.image !== null;
  if (pictured) head.unshift({ html: '<span class="visually-hidden">Picture</span>', csv: [] });
  if (doc.rows.true) head.push({ text: "True", csv: "true" }, { text: "Predicted", csv: "predicted" });
  head.push({ text: "Right", csv: "right" }, num("Confidence"));
  if (doc.positive) head.push(num(`Probability of ${doc.positive}`));
  if (other) head.push(num(`Confidence, ${other.name}`));
  const rows = found.map((row) => {
    const cells = [{ text: row.name, csv: row.name, row: true }];
    if (pictured) cells.unshift({ html: `<img class="thumbnail" alt="" src="data:image/png;base64,${doc.rows.image[row.i]}">`, csv: [] });
    if (doc.rows.true) cells.push({ text: classCalled(row.truth), csv: classCalled(row.truth) }, { text: classCalled(row.predicted), csv: classCalled(row.predicted) });
    cells.push({ text: row.right ? "right" : "wrong", csv: row.right ? "right" : "wrong" }, share(row.confidence));
    if (doc.positive) cells.push(share(row.positive));
    if (other) cells.push(share(rowOf(other, row.i).confidence));
    return cells;
  });
  buildTable(byId("rows-table"), head, rows);
  byId("rows-said").textContent = saidOfRows(chosen, found);
  byId("rows-of").innerHTML = rowChoices();
  byId("rows-of").value = state.rows;
}

const choice = (value, words) => `<option value="${value}">${escapeText(words)}</option>`;

function rowChoices() {
  const bins = (role) => {
    const method = role === "before" ? byName[state.before] : byName[state.after], numbers = [];
    for (const c of viewOf(method).bins.uniform.confidence) numbers.push(clamp(Math.ceil(c * EQUAL_BINS - 1e-9) - 1, 0, EQUAL_BINS - 1));
    const options = numbers.map((n) => choice(`bin:${role}:${n}`, `above ${percent(n / EQUAL_BINS)}, up to ${percent((n + 1) / EQUAL_BINS)}`));
    return `<optgroup label="${escapeText(`${VIEWS[state.view].axis}, ${method.name}`)}">${options.join("")}</optgroup>`;
  };
  let out = choice("mistakes", "the most confident mistakes") + choice("all", "every row in this page") + bins("after");
  if (state.before !== null && state.before !== state.after) out += bins("before");
  if (doc.rows.true && doc.class_labels.length) {
    out += `<optgroup label="Predicted class">${doc.class_labels.map((label) => choice(`class:${label}`, classCalled(label))).join("")}</optgroup>`;
  }
  if (doc.rows.groups.length) {
    out += `<optgroup label="Group">${doc.rows.groups.map((name, i) => choice(`group:${i}`, name)).join("")}</optgroup>`;
  }
  const others = { quantile: "the bin that was clicked", bar: "the bar that was clicked" };
  const [kind] = state.rows.split(":");
  return kind in others ? out + choice(state.rows, others[kind]) : out;
}

function listRows(which) {
  state.rows = which;
  draw(["rows"]);
  keepView("rows");
  byId("rows").scrollIntoView();
  byId("rows-title").tabIndex = -1;
  byId("rows-title").focus({ preventScroll: true });
}

// What a click on a reliability diagram is on: a dot, or a bar of the histogram below it.
function rowsAtClick(target) {
  const figure = target.closest("figure"), figures = [...byId("reliability-chart").querySelectorAll("figure")];
  if (!figure) return null;
  const { method, role } = shownMethods().reverse()[figures.indexOf(figure)], view = viewOf(method);
  const dot = target.closest("circle.dot"), bar = target.closest("g")?.querySelector(":scope > rect.bar");
  if (dot) {
    const at = [...figure.querySelectorAll("circle.dot")].indexOf(dot);
    if (state.points === "quantile") return `quantile:${role}:${at}`;
    return `bin:${role}:${clamp(Math.ceil(view.bins.uniform.confidence[at] * EQUAL_BINS - 1e-9) - 1, 0, EQUAL_BINS - 1)}`;
  }
  if (!bar) return null;
  const drawn = [...figure.querySelectorAll("g > rect.bar:first-of-type")].indexOf(bar);
  const filled = view.histogram.count.flatMap((count, i) => (count ? [i] : []));
  return `bar:${role}:${filled[drawn]}`;
}

function wireRows() {
  if (!byId("rows")) return;
  byId("rows-of").addEventListener("change", (event) => {
    state.rows = event.target.value;
    draw(["rows"]);
    keepView();
  });
  byId("reliability-chart").addEventListener("click", (event) => {
    const which = rowsAtClick(event.target);
    if (which) listRows(which);
  });
  const named = (row) => JSON.parse(row.cells[0].dataset.csv)[0];
  for (const [table, which] of [
    ["classes-table", (row) => (doc.rows.true ? `class:${named(row)}` : null)],
    ["groups-table", (row) => (doc.rows.groups.includes(named(row)) ? `group:${doc.rows.groups.indexOf(named(row))}` : null)],
  ]) {
    byId(table)?.classList.add("choosable");
    byId(table)?.addEventListener("click", (event) => {
      const row = event.target.closest("tbody tr"), rows = row && which(row);
      if (rows) listRows(rows);
    });
  }
}
