// Figures as files: what is drawn on the page, on white ground, as one SVG or PNG.

const LOOKS = [
  "fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "opacity",
  "font-family", "font-size", "font-weight", "paint-order",
];
const PNG_SCALE = 3;

// A copy of an SVG element that looks the same without the page's styles.
function standalone(drawn) {
  const copy = drawn.cloneNode(true);
  const originals = [drawn, ...drawn.querySelectorAll("*")], copies = [copy, ...copy.querySelectorAll("*")];
  originals.forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const look of LOOKS) copies[i].setAttribute(look, style.getPropertyValue(look));
    copies[i].removeAttribute("class");
  });
  return copy;
}

// The panels of a figure side by side, each under its caption, as the text of one SVG file.
function figureText(name) {
  const root = document.documentElement, box = byId(`${name}-chart`);
  const offPage = box ?? document.createElement("div");
  // White ground and dark ink, whatever the page is set to; nothing is painted in between.
  root.classList.add("paper");
  if (!box) {
    offPage.className = "off-page";
    offPage.innerHTML = FIGURES[name]();
    document.body.append(offPage);
  }
  const panels = [...offPage.querySelectorAll("svg")].map((drawn) => ({
    copy: standalone(drawn),
    size: drawn.viewBox.baseVal,
    lines: (drawn.closest("figure")?.querySelector("figcaption") ?? offPage.querySelector(".legend"))
      ?.innerText.split("\n").map((words) => words.trim()).filter(Boolean) ?? [],
  }));
  const ink = getComputedStyle(document.body);
  const font = `font-family="${escapeText(ink.fontFamily)}" font-size="13" fill="${ink.color}"`;
  const gap = 24, head = Math.max(...panels.map(({ lines }) => lines.length)) * 18 + 10;
  let left = gap, content = "";
  for (const { copy, size, lines } of panels) {
    content += lines.map((words, i) => `<text x="${left}" y="${gap + 18 * i}" ${font}>${escapeText(words)}</text>`).join("");
    for (const [key, value] of Object.entries({ x: left, y: gap + head - 10, width: size.width, height: size.height, overflow: "visible" })) copy.setAttribute(key, value);
    content += new XMLSerializer().serializeToString(copy);
    left += size.width + gap;
  }
  const height = gap + head + Math.max(...panels.map(({ size }) => size.height)) + gap / 2;
  const empty = document.createElementNS(offPage.querySelector("svg").namespaceURI, "svg");
  if (!box) offPage.remove();
  root.classList.remove("paper");
  const open = new XMLSerializer().serializeToString(empty).replace(/\/?>.*$/, "");
  return `${open} width="${left}" height="${height}" viewBox="0 0 ${left} ${height}">` +
    `<rect width="100%" height="100%" fill="white"/>${content}</svg>`;
}

function saveFile(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

async function pngOf(text) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [PNG_SCALE * image.width, PNG_SCALE * image.height];
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

function wireFigures() {
  for (const button of document.querySelectorAll("[data-figure]")) {
    button.addEventListener("click", async () => {
      const { figure, format } = button.dataset, text = figureText(figure);
      const blob = format === "svg" ? new Blob([text], { type: "image/svg+xml" }) : await pngOf(text);
      saveFile(`${figure}.${format}`, blob);
      say(button, "Saved", "The figure was saved.");
    });
  }
}
