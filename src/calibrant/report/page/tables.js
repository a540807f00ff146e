// Tables: built from cells that know both what is read and what is copied.

// A cell is text, or {text, csv, html, number, row}: `csv` may hold several values.
function buildTable(table, head, rows) {
  const cell = (value, tag) => {
    const c = typeof value === "object" && value !== null ? value : { text: value };
    const name = c.row ? "th" : tag;
    const attributes = [
      tag === "th" ? 'scope="col"' : c.row ? 'scope="row"' : "",
      c.number || c.name ? `class="${[c.number ? "number" : "", c.name ?? ""].join(" ").trim()}"` : "",
      c.csv === undefined ? "" : `data-csv="${escapeText(JSON.stringify([c.csv].flat()))}"`,
      c.sort ? `aria-sort="${c.sort}"` : "",
    ];
    return `<${name} ${attributes.filter(Boolean).join(" ")}>${c.html ?? escapeText(c.text ?? "")}</${name}>`;
  };
  table.innerHTML =
    `<thead><tr>${head.map((h) => cell(h, "th")).join("")}</tr></thead>` +
    `<tbody>${rows.map((row) => `<tr>${row.map((c) => cell(c, "td")).join("")}</tr>`).join("")}</tbody>`;
}

function csvOf(table) {
  const field = (value) => {
    const written = value == null ? "" : String(value);
    return /[",\n]/.test(written) ? `"${written.replaceAll('"', '""')}"` : written;
  };
  return [...table.rows].map((row) => [...row.cells].flatMap((cell) =>
    cell.dataset.csv === undefined ? [visibleText(cell)] : JSON.parse(cell.dataset.csv)
  ).map(field).join(",")).join("\n") + "\n";
}

function markdownOf(table) {
  const rows = [...table.rows].map((row) => [...row.cells]);
  const written = (cells) => `| ${cells.map((c) => visibleText(c).replaceAll("|", "\\|")).join(" | ")} |`;
  const rule = rows[0].map((cell) => (cell.classList.contains("number") ? "---:" : "---"));
  return [written(rows[0]), `| ${rule.join(" | ")} |`, ...rows.slice(1).map(written)].join("\n") + "\n";
}

// What is small in a cell, such as an interval, follows in parentheses.
function visibleText(cell) {
  const tidy = (words) => words.replace(/\s+/g, " ").trim();
  const nodes = [...cell.childNodes].filter((node) => node.nodeName !== "svg");
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

function wireCopies() {
  for (const button of document.querySelectorAll("[data-copy-table]")) {
    const label = button.textContent;
    button.addEventListener("click", async () => {
      const table = document.getElementById(button.dataset.copyTable);
      await copyText(button.dataset.format === "csv" ? csvOf(table) : markdownOf(table));
      button.textContent = "Copied";
      document.getElementById("said").textContent = "The table was copied.";
      setTimeout(() => { button.textContent = label; }, 1500);
    });
  }
}
