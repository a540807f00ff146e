"use strict";
// Charts: pure functions from numbers and a width to the text of an SVG element.

const escapeText = (text) =>
  String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
const fixed = (value, digits) => value.toFixed(digits).replace("-", "\u2212");
const percent = (fraction, digits = 1) =>
  fraction == null ? "" : `${fixed(100 * fraction, digits)}\u202f%`;
const whole = (count) => Math.round(count).toString().replace(/\B(?=(\d{3})+$)/g, "\u202f");
const px = (value) => Math.round(value * 10) / 10;
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

function scale(d0, d1, r0, r1) {
  return (value) => px(r0 + ((value - d0) / (d1 - d0 || 1)) * (r1 - r0));
}

// Round numbers that cover [low, high] in about `count` steps.
function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((m) => m * power >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

function tickDigits(values, unit = 100) {
  const step = values.length > 1 ? unit * (values[1] - values[0]) : 1;
  return [0, 1, 2, 3].find((d) => Math.abs(step * 10 ** d - Math.round(step * 10 ** d)) < 1e-6) ?? 3;
}

const line = (x1, y1, x2, y2, name, more = "") =>
  `<line class="${name}" x1="${x1}" y1="${y1}" x2="${x2}" y2="${y2}" ${more}/>`;
const text = (x, y, content, more = "") => `<text x="${x}" y="${y}" ${more}>${escapeText(content)}</text>`;
const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x} ${y}`).join("");

function svg(width, height, label, content) {
  return `<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="${escapeText(label)}">${content}</svg>`;
}

// Gridlines and tick labels of both axes of a plot area.
function axes(area, x, y, xs, ys, format = {}) {
  const xDigits = tickDigits(xs), yDigits = tickDigits(ys);
  const xText = format.x ?? ((v, last) => fixed(100 * v, xDigits) + (last ? "\u202f%" : ""));
  const yText = format.y ?? ((v, last) => fixed(100 * v, yDigits) + (last ? "\u202f%" : ""));
  let out = "";
  ys.forEach((v, i) => {
    out += line(area.left, y(v), area.right, y(v), "grid");
    out += text(area.left - 7, y(v) + 4, yText(v, i === ys.length - 1), 'text-anchor="end"');
  });
  xs.forEach((v, i) => {
    if (format.xGrid !== false) out += line(x(v), area.top, x(v), area.bottom, "grid");
    out += text(x(v), (format.xTextAt ?? area.bottom) + 17, xText(v, i === xs.length - 1), 'text-anchor="middle"');
  });
  return out;
}

function dots(points, x, y, biggest, sizes) {
  const most = Math.max(...points.count);
  let out = "";
  points.confidence.forEach((c, i) => {
    const [cx, low, high] = [x(c), y(points.low[i]), y(points.high[i])];
    out += line(cx, y(c), cx, y(points.accuracy[i]), "gap", `stroke-width="${sizes ? 7 : 5}"`);
    out += line(cx, low, cx, high, "whisker");
  });
  points.confidence.forEach((c, i) => {
    const radius = sizes ? 3 + (biggest - 3) * Math.sqrt(points.count[i] / most) : biggest;
    out += `<circle class="dot" cx="${x(c)}" cy="${y(points.accuracy[i])}" r="${px(radius)}">` +
      `<title>confidence ${percent(c)}, right ${percent(points.accuracy[i])} ` +
      `(${percent(points.low[i])} to ${percent(points.high[i])}), ${whole(points.count[i])} rows</title></circle>`;
  });
  return out;
}

function ribbon(xs, curve, x, y) {
  // The curve has holes where rows are too few; each piece is drawn by itself.
  const pieces = [];
  curve.index.forEach((at, i) => {
    if (i === 0 || at !== curve.index[i - 1] + 1) pieces.push([]);
    pieces.at(-1).push(i);
  });
  return pieces.map((piece) => {
    const at = (values) => piece.map((i) => [x(xs[curve.index[i]]), y(values[i])]);
    return `<path class="area" d="${path([...at(curve.high), ...at(curve.low).reverse()])}Z"/>` +
      `<path class="line" d="${path(at(curve.accuracy))}"/>`;
  }).join("");
}

// A reliability diagram with its confidence histogram below, on one horizontal axis.
function reliabilityChart(method, strategy, role, grid, width, words) {
  const side = width - 52;
  const area = { left: 42, right: 42 + side, top: 28, bottom: 28 + side };
  const foot = { top: area.bottom + 46, bottom: area.bottom + 128 };
  const x = scale(0, 1, area.left, area.right), y = scale(0, 1, area.bottom, area.top);
  const steps = [0, 0.2, 0.4, 0.6, 0.8, 1];
  let out = axes(area, x, y, steps, steps, { xTextAt: foot.bottom });
  out += line(x(0), y(0), x(1), y(1), "diagonal");
  out += text(area.left - 28, 12, words.share, 'class="strong"');
  out += text(area.left + 8, area.top + 18, words.below);
  out += text(area.right - 8, area.bottom - 10, words.above, 'text-anchor="end"');
  const drawn = strategy === "smooth"
    ? ribbon(grid, method.smooth, x, y) : dots(method.bins[strategy], x, y, 8, strategy === "uniform");
  out += `<g class="${role}">${drawn}</g>`;

  const { count, correct } = method.histogram;
  const rows = count.reduce((a, b) => a + b, 0);
  const h = scale(0, Math.max(...count), foot.bottom, foot.top);
  const bin = side / count.length;
  let bars = "";
  count.forEach((n, i) => {
    if (!n) return;
    const left = px(area.left + i * bin + 0.5), wide = px(bin - 1);
    const title = `<title>${percent(i / count.length, 0)} to ${percent((i + 1) / count.length, 0)}: ${whole(n)} rows, ${whole(correct[i])} ${words.hit}</title>`;
    bars += `<g>${title}<rect class="bar wrong" x="${left}" y="${h(n)}" width="${wide}" height="${px(foot.bottom - h(n))}"/>`;
    bars += `<rect class="bar" x="${left}" y="${h(correct[i])}" width="${wide}" height="${px(foot.bottom - h(correct[i]))}"/></g>`;
  });
  out += `<g class="${role}">${bars}</g>` + line(area.left, foot.bottom, area.right, foot.bottom, "axis");
  out += text(area.left, foot.top - 22, `${whole(rows)} predictions, by ${words.axis.toLowerCase()}`, 'class="strong"');
  out += text(area.right, foot.bottom + 33, words.axis, 'class="strong" text-anchor="end"');
  out += meanMarkers(x, foot, [
    [method.accuracy, `${words.hit} ${percent(method.accuracy)}`],
    [method.confidence, `${words.said} ${percent(method.confidence)}`],
  ]);
  const label = `Reliability diagram of ${method.name}: mean ${words.axis.toLowerCase()} ${percent(method.confidence)}, ` +
    `${words.hit} ${percent(method.accuracy)}. The numbers are in the table below.`;
  return svg(width, foot.bottom + 38, label, out);
}

// Two labelled lines whose labels cross neither line: the upper label may run above the other line,
// which starts below it; the lower one runs away from it.
function meanMarkers(x, foot, means) {
  const [first, second] = means.sort((a, b) => a[0] - b[0]);
  const leftwards = first[0] > 0.36;
  const placed = leftwards
    ? [[second, "end"], [first, "end"]]
    : [[first, "start"], [second, second[0] < 0.62 ? "start" : "end"]];
  return placed.map(([[value, label], anchor], i) => {
    const at = x(value), top = foot.top - 2 + 17 * i;
    return line(at, top, at, foot.bottom, "marker") +
      text(at + (anchor === "end" ? -6 : 6), top + 10, label, `class="strong halo" text-anchor="${anchor}"`);
  }).join("");
}

// One margin group, zoomed: the diagonal tells over- from underconfidence all the same.
function marginChart(shown, index, width) {
  const all = shown.flatMap(({ method }) => {
    const { points } = method.margin_groups[index];
    return [...points.confidence, ...points.low, ...points.high];
  });
  let low = Math.min(...all), high = Math.max(...all);
  const room = Math.max(0.06 * (high - low), 0.002);
  [low, high] = [Math.max(0, low - room), Math.min(1, high + room)];
  const side = width - 54;
  const area = { left: 46, right: 46 + side, top: 6, bottom: 6 + side };
  const x = scale(low, high, area.left, area.right), y = scale(low, high, area.bottom, area.top);
  const steps = ticks(low, high, 4);
  let out = axes(area, x, y, steps, steps) + line(x(low), y(low), x(high), y(high), "diagonal");
  for (const { method, role } of shown) {
    out += `<g class="${role}">${dots(method.margin_groups[index].points, x, y, 4.5, false)}</g>`;
  }
  const words = shown.map(({ method }) => {
    const group = method.margin_groups[index];
    return `${method.name}: confidence ${percent(group.confidence)}, right ${percent(group.accuracy)}`;
  });
  return svg(width, area.bottom + 24, words.join("; "), out);
}

function temperatureChart(shown, histogram, width) {
  const narrow = width < 500, height = narrow ? 300 : 380;
  const area = { left: 42, right: width - 10, top: 26, bottom: height - 84 };
  const values = shown.flatMap(({ curve }) => curve.temperature);
  const [least, most] = [Math.min(1, ...values), Math.max(1, ...values)];
  const room = 0.08 * (most - least) + 0.02;
  const x = scale(0, histogram.high, area.left, area.right);
  const y = scale(least - room, most + room, area.bottom, area.top);
  const xs = ticks(0, histogram.high, narrow ? 5 : 8), ys = ticks(least - room, most + room, 5);
  const yDigits = tickDigits(ys, 1), xDigits = tickDigits(xs, 1);
  const foot = { top: area.bottom + 12, bottom: height - 24 };
  let out = axes(area, x, y, xs, ys, {
    x: (v) => fixed(v, xDigits), y: (v) => fixed(v, yDigits), xGrid: false, xTextAt: foot.bottom,
  });
  out += text(area.left - 28, 12, "Temperature", 'class="strong"');
  out += text(area.right, height - 24 + 17 + 15, "Margin between the two largest logits", 'class="strong" text-anchor="end"');
  out += line(area.left, y(1), area.right, y(1), "axis");
  out += text(area.right, y(1) + 16, "1: unchanged", 'text-anchor="end" class="halo"');
  const h = scale(0, Math.max(...histogram.count), foot.bottom, foot.top);
  const step = (histogram.high - histogram.low) / histogram.count.length;
  histogram.count.forEach((n, i) => {
    const left = x(histogram.low + i * step);
    out += `<rect class="bar rows" x="${left}" y="${h(n)}" width="${px(Math.max(1, x(histogram.low + (i + 1) * step) - left - 1))}" height="${px(foot.bottom - h(n))}"/>`;
  });
  for (const { curve, role, method } of shown) {
    const points = curve.margin.map((m, i) => [x(m), y(curve.temperature[i])]);
    out += `<g class="${role}">`;
    out += curve.is_function ? `<path class="line" d="${path(points)}"/>`
      : points.map(([cx, cy]) => `<circle class="dot" cx="${cx}" cy="${cy}" r="2.6"/>`).join("");
    out += "</g>";
  }
  const label = shown.map(({ method, curve }) =>
    `${method.name}: temperature from ${fixed(Math.min(...curve.temperature), 2)} to ${fixed(Math.max(...curve.temperature), 2)}`);
  return svg(width, height + 12, label.join("; "), out);
}

function acceptChart(shown, point, rows, width) {
  const narrow = width < 500, height = narrow ? 300 : 400;
  const area = { left: 42, right: width - 12, top: 26, bottom: height - 40 };
  const curves = shown.map(({ method, role }) => ({
    role, method,
    at: method.risk.accepted.map((a, i) => [a / rows, method.risk.wrong[i] / a]),
  }));
  const top = Math.max(0.001, ...curves.flatMap(({ at }) => at.filter(([c]) => c > 0.02).map(([, e]) => e))) * 1.12;
  const x = scale(0, 1, area.left, area.right), y = scale(0, top, area.bottom, area.top);
  let out = axes(area, x, y, ticks(0, 1, 5), ticks(0, top, 5));
  out += text(area.left - 28, 12, "Wrong among the accepted", 'class="strong"');
  out += text(area.right, height - 4, "Accepted, of all inputs", 'class="strong" text-anchor="end"');
  const [{ role: first, method: drawn, at: below }] = curves;
  const above = below.map(([c], i) => [x(c), y(Math.min(drawn.risk.bound[i], top))]).reverse();
  out += `<g class="${first}"><path class="area" d="${path([...below.map(([c, e]) => [x(c), y(Math.min(e, top))]), ...above])}Z"/></g>`;
  for (const { role, at } of [...curves].reverse()) {
    out += `<g class="${role}"><path class="line" d="${path(at.map(([c, e]) => [x(c), y(Math.min(e, top))]))}"/></g>`;
  }
  const cx = x(point.coverage), cy = y(Math.min(point.error, top));
  out += line(cx, cy, cx, area.bottom, "marker") + line(area.left, cy, cx, cy, "marker");
  out += `<g class="after"><circle class="dot" cx="${cx}" cy="${cy}" r="7"/></g>`;
  const left = point.coverage > 0.5;
  out += text(cx + (left ? -12 : 12), cy - 12, `${percent(point.coverage)} accepted, ${percent(point.error, 2)} wrong`, `class="strong halo" text-anchor="${left ? "end" : "start"}"`);
  const label = `Risk-coverage curve. At a confidence of ${percent(point.threshold)} or more, ` +
    `${percent(point.coverage)} are accepted and ${percent(point.error, 2)} of those are wrong.`;
  return svg(width, height, label, out);
}

// One row of the ranking: interval, value and the band of the floor on a scale that all rows share.
// The strip is stretched to its cell; a dot of no length with round ends stays round all the same.
function strip(result, low, high, best) {
  const width = 400, x = scale(low, high, 8, width - 8), keep = 'vector-effect="non-scaling-stroke"';
  let out = "";
  if (result.floor_95 != null) {
    const right = x(clamp(result.floor_95, low, high));
    out += `<rect class="floor" x="${x(low)}" y="0" width="${px(right - x(low))}" height="30"/>`;
  }
  out += line(x(best), 0, x(best), 30, "diagonal", keep);
  if (result.value > high) {
    out += `<path class="line" d="M${width - 24} 9L${width - 8} 15L${width - 24} 21" ${keep}/>`;
  } else if (result.value < low) {
    out += `<path class="line" d="M24 9L8 15L24 21" ${keep}/>`;
  }
  const [from, to] = [Math.max(result.low, low), Math.min(result.high, high)];
  if (from < to) out += line(x(from), 15, x(to), 15, "whisker", keep);
  if (result.value >= low && result.value <= high) out += line(x(result.value), 15, x(result.value), 15, "point", keep);
  return `<svg viewBox="0 0 ${width} 30" preserveAspectRatio="none" aria-hidden="true"><g class="after">${out}</g></svg>`;
}

// The ranking as one picture: a row for each method.
function rankingChart(methods, name, metric, [low, high]) {
  const width = 640, step = 26, left = 170, area = { left, right: width - 90, top: 8, bottom: 8 + step * methods.length };
  const x = scale(low, high, area.left, area.right), unit = metric.percent ? 100 : 1;
  const xs = ticks(low, high, 5), digits = tickDigits(xs, unit);
  let out = "";
  for (const v of xs) {
    out += line(x(v), area.top, x(v), area.bottom, "grid");
    out += text(x(v), area.bottom + 17, fixed(unit * v, digits), 'text-anchor="middle"');
  }
  methods.forEach((method, i) => {
    const result = method.metrics[name], middle = area.top + step * (i + 0.5);
    out += text(left - 10, middle + 4, method.name, 'class="strong" text-anchor="end"');
    out += text(width, middle + 4, method.words[name].value, 'class="strong" text-anchor="end"');
    if (result.value == null) return;
    if (result.floor_95 != null) {
      out += `<rect class="floor" x="${x(low)}" y="${middle - 10}" width="${px(x(clamp(result.floor_95, low, high)) - x(low))}" height="20"/>`;
    }
    const [from, to] = [Math.max(result.low, low), Math.min(result.high, high)];
    out += '<g class="after">';
    if (from < to) out += line(x(from), middle, x(to), middle, "whisker");
    if (result.value > high) out += `<path class="line" d="M${area.right - 4} ${middle - 5}l6 5l-6 5"/>`;
    else if (result.value < low) out += `<path class="line" d="M${area.left + 4} ${middle - 5}l-6 5l6 5"/>`;
    else out += `<circle class="dot" cx="${x(result.value)}" cy="${middle}" r="4.5"/>`;
    out += "</g>";
  });
  out += text((area.left + area.right) / 2, area.bottom + 36, metric.title + (metric.percent ? ", %" : ""), 'class="strong" text-anchor="middle"');
  return svg(width, area.bottom + 44, `Ranking by ${metric.title}`, out);
}

// The gap of a class with its interval; the hollow mark is the method that it is held against.
function gapBar(gap, low, high, other, [least, most]) {
  const x = scale(least, most, 6, 154), at = (value) => x(clamp(value, least, most));
  let out = line(x(0), 0, x(0), 18, "axis");
  if (other !== null) out += `<g class="before"><circle class="dot" cx="${at(other)}" cy="9" r="3.5"/></g>`;
  out += line(at(low), 9, at(high), 9, "whisker") + `<circle class="dot" cx="${at(gap)}" cy="9" r="4"/>`;
  return `<svg viewBox="0 0 160 18" aria-hidden="true"><g class="after">${out}</g></svg>`;
}
