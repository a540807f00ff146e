// Tables: built from cells that know both what is read and what is copied; sorted and filtered.

// A cell is text, or {text, csv, html, number, row, order}: `csv` may hold several values, `order` is
// what it sorts by if that isn't the first of them.
function cellOf(value, tag) {
  const c = typeof value === "object" && value !== null ? value : { text: value };
  const name = c.row ? "th" : tag;
  const attributes = [
    tag === "th" ? 'scope="col"' : c.row ? 'scope="row"' : "",
    c.number || c.name ? `class="${[c.number ? "number" : "", c.name ?? ""].join(" ").trim()}"` : "",
    c.csv === undefined ? "" : `data-csv="${escapeText(JSON.stringify([c.csv].flat()))}"`,
    c.order === undefined ? "" : `data-order="${escapeText(JSON.stringify(c.order))}"`,
  ];
  return `<${name} ${attributes.filter(Boolean).join(" ")}>${c.html ?? escapeText(c.text ?? "")}</${name}>`;
}

// A row is its cells, and `kind` the class of the row.
function buildTable(table, head, rows) {
  table.innerHTML =
    `<thead><tr>${head.map((h) => cellOf(h, "th")).join("")}</tr></thead>` +
    `<tbody>${rows.map((row) => `<tr${row.kind ? ` class="${row.kind}"` : ""}>${row.map((c) => cellOf(c, "td")).join("")}</tr>`).join("")}</tbody>`;
  arrangeable(table);
}

const FEW_ROWS = 6;
// How each table is sorted and filtered, by its id; what it was built with where nothing is said.
const arranged = {};

// Give a table buttons that sort and a field that filters, and arrange it as it was before.
function arrangeable(table) {
  const state = (arranged[table.id] ??= { column: null, descending: false, words: "" });
  [...table.tHead.rows[0].cells].forEach((cell, i) => {
    const csv = cell.dataset.csv === undefined ? [visibleText(cell)] : JSON.parse(cell.dataset.csv);
    if (!csv.length) return;
    const words = cell.innerHTML;
    cell.innerHTML = `<button type="button" data-sort="${escapeText(csv[0])}">${words}</button>`;
    cell.firstChild.addEventListener("click", () => {
      state.descending = state.column === i ? !state.descending : cell.classList.contains("number");
      state.column = i;
      arrange(table);
    });
  });
  if (!table.dataset.filtered) {
    table.dataset.filtered = "true";
    const place = table.closest(".scroll"), field = document.createElement("input");
    Object.assign(field, { type: "search", className: "filter", placeholder: "Filter rows", id: `${table.id}-filter` });
    field.setAttribute("aria-label", `Filter: ${place.getAttribute("aria-label")}`);
    field.addEventListener("input", () => { state.words = field.value; arrange(table); });
    place.before(field);
  }
  byId(`${table.id}-filter`).hidden = table.tBodies[0].rows.length < FEW_ROWS;
  [...table.tBodies[0].rows].forEach((row, i) => { row.dataset.place = i; });
  arrange(table);
}

function orderOf(row, column) {
  const cell = row.cells[column];
  if (cell.dataset.order !== undefined) return JSON.parse(cell.dataset.order);
  const [first] = cell.dataset.csv === undefined ? [visibleText(cell)] : JSON.parse(cell.dataset.csv);
  if (typeof first !== "string") return first ?? null;
  const bare = first.replace(/[\u202f\s,]/g, "");
  return bare !== "" && Number.isFinite(Number(bare)) ? Number(bare) : first;
}

function before(a, b) {
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}

function arrange(table) {
  const { column, descending, words } = arranged[table.id], body = table.tBodies[0];
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = [...body.rows].sort((a, b) => a.dataset.place - b.dataset.place);
  if (column !== null) {
    const found = new Map(rows.map((row) => [row, row.classList.contains("fold") ? null : orderOf(row, column)]));
    // What has no value comes last, whichever way the others go.
    rows.sort((a, b) => {
      const [x, y] = [found.get(a), found.get(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      return (descending ? -1 : 1) * before(x, y);
    });
  }
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !row.classList.contains("fold") && !wanted.every((word) => text.includes(word));
    body.append(row);
  }
  table.classList.toggle("arranged", column !== null || wanted.length > 0);
  [...table.tHead.rows[0].cells].forEach((cell, i) => {
    if (i === column) cell.setAttribute("aria-sort", descending ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
  });
  hint(table.closest(".scroll"));
}

// Say that a table goes on to the right, where it does.
function hint(place) {
  place.classList.toggle("more", place.scrollWidth > place.clientWidth + 1);
}

// The rows that a copy holds: all but those that a filter left out; folds are no rows.
function rowsOf(table) {
  return [...table.rows].filter((row) => !row.hidden && !row.classList.contains("fold"));
}

function csvOf(table) {
  const field = (value) => {
    const written = value == null ? "" : String(value);
    return /[",\n]/.test(written) ? `"${written.replaceAll('"', '""')}"` : written;
  };
  return rowsOf(table).map((row) => [...row.cells].flatMap((cell) =>
    cell.dataset.csv === undefined ? [visibleText(cell)] : JSON.parse(cell.dataset.csv)
  ).map(field).join(",")).join("\n") + "\n";
}

// The columns that hold words: pictures are left out.
function wordedColumns(table) {
  return [...table.tHead.rows[0].cells].flatMap((cell, i) => (cell.dataset.csv === "[]" ? [] : [i]));
}

function markdownOf(table) {
  const columns = wordedColumns(table), rows = rowsOf(table).map((row) => columns.map((i) => row.cells[i]));
  const written = (cells) => `| ${cells.map((c) => visibleText(c).replaceAll("|", "\\|")).join(" | ")} |`;
  const rule = rows[0].map((cell) => (cell.classList.contains("number") ? "---:" : "---"));
  return [written(rows[0]), `| ${rule.join(" | ")} |`, ...rows.slice(1).map(written)].join("\n") + "\n";
}

const LATEX = {
  "\\": "\\textbackslash{}", "&": "\\&", "%": "\\%", "$": "\\$", "#": "\\#", "_": "\\_", "{": "\\{", "}": "\\}",
  "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "\u2212": "$-$", "\u202f": "\\,", "\u2013": "--", "\u2019": "'",
  "\u25e6": "$\\circ$",
};

// A tabular of the package booktabs.
function latexOf(table) {
  const columns = wordedColumns(table), rows = rowsOf(table).map((row) => columns.map((i) => row.cells[i]));
  const escaped = (cell) => visibleText(cell).replace(/[\\&%$#_{}~^\u2212\u202f\u2013\u2019\u25e6]/g, (c) => LATEX[c]);
  const lines = rows.map((row) => `${row.map(escaped).join(" & ")} \\\\`);
  const form = rows[0].map((cell) => (cell.classList.contains("number") ? "r" : "l")).join("");
  return [`\\begin{tabular}{${form}}`, "\\toprule", lines[0], "\\midrule", ...lines.slice(1), "\\bottomrule", "\\end{tabular}"].join("\n") + "\n";
}

// What is small in a cell, such as an interval, follows in parentheses.
function visibleText(cell) {
  const tidy = (words) => words.replace(/[^\S\u202f]+/g, " ").trim();
  const inner = cell.firstElementChild?.nodeName === "BUTTON" ? cell.firstElementChild : cell;
  const nodes = [...inner.childNodes].filter((node) => node.nodeName !== "svg");
  const small = nodes.filter((node) => node.nodeName === "SMALL" || node.className === "marks");
  const main = tidy(nodes.filter((node) => !small.includes(node)).map((node) => node.textContent).join(" "));
  const aside = small.map((node) => tidy(node.textContent)).filter(Boolean).join("; ");
  return aside ? `${main} (${aside})` : main;
}

async function copyText(content) {
  try {
    await navigator.clipboard.writeText(content);
  } catch {
    // Browsers that keep the clipboard from files on disk still copy a selection.
    const box = document.createElement("textarea");
    box.value = content;
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
}

function say(button, words, spoken) {
  const label = button.textContent;
  button.textContent = words;
  document.getElementById("said").textContent = spoken;
  setTimeout(() => { button.textContent = label; }, 1500);
}

const FORMATS = { csv: csvOf, markdown: markdownOf, latex: latexOf };

function wireCopies() {
  for (const button of document.querySelectorAll("[data-copy-table]")) {
    button.addEventListener("click", async () => {
      await copyText(FORMATS[button.dataset.format](document.getElementById(button.dataset.copyTable)));
      say(button, "Copied", "The table was copied.");
    });
  }
}

// A wide table on paper: the same rows again and again, each time with as many columns as fit. A
// column of values with intervals takes as much room as three bare ones.
const ROOM_ON_PAPER = 9;

function paperTables(table) {
  const [head] = table.tHead.rows, rows = [...table.tBodies[0].rows], parts = [[]];
  let room = ROOM_ON_PAPER;
  for (let i = 1; i < head.cells.length; i++) {
    const takes = rows.some((row) => row.cells[i].querySelector("small")) ? 3 : 1;
    if (takes > room) [room] = [ROOM_ON_PAPER, parts.push([])];
    room -= takes;
    parts.at(-1).push(i);
  }
  return parts.map((columns) => {
    const taken = (row) => [0, ...columns].map((i) => row.cells[i]);
    const named = taken(head).map((cell) => `<th class="${cell.className}">${escapeText(visibleText(cell))}</th>`);
    const lines = rows.map((row) => `<tr>${taken(row).map((cell) => cell.outerHTML).join("")}</tr>`);
    return `<table><thead><tr>${named.join("")}</tr></thead><tbody>${lines.join("")}</tbody></table>`;
  }).join("");
}
