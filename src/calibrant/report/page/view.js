// What the page shows, and how a link keeps it: the part of the address after #.

const doc = JSON.parse(document.getElementById("data").textContent);
const byName = Object.fromEntries(doc.methods.map((method) => [method.name, method]));
const byId = (id) => document.getElementById(id);
const FIRST = {
  after: doc.after, before: doc.before, metric: doc.rank_by,
  points: "uniform", view: doc.positive ? "positive" : "top", threshold: null, rows: "mistakes",
};
const state = { ...FIRST, target: null, point: 0, unfolded: false };
// What each part of a view may be; others in a link are passed over.
const ALLOWED = {
  after: (v) => Object.hasOwn(byName, v), before: (v) => Object.hasOwn(byName, v),
  metric: (v) => doc.rank_by !== null && Object.hasOwn(doc.metrics, v),
  points: (v) => ["uniform", "quantile", "smooth"].includes(v),
  view: (v) => v === "top" || (v === "positive" && Boolean(doc.positive)),
  rows: (v) => doc.rows !== null && ROWS_FORM.test(v) && rowsExist(v),
  threshold: (v) => /^\d+$/.test(v) && Number(v) < byName[state.after].risk.accepted.length,
};

function viewInAddress() {
  const hash = decodeURIComponent(location.hash.slice(1));
  if (!hash.includes("=")) return { at: hash };
  return Object.fromEntries(new URLSearchParams(hash));
}

// Only what differs from the page as it opens stands in the address.
function addressOfView(at) {
  const parts = new URLSearchParams();
  for (const [key, first] of Object.entries(FIRST)) {
    if (key === "threshold" ? state.target === null : state[key] !== first) parts.set(key, key === "threshold" ? state.point : state[key]);
  }
  if (at && parts.size === 0) return `#${at}`;
  if (at) parts.set("at", at);
  return parts.size ? `#${parts}` : location.pathname;
}

let sectionShown = "";
function keepView(at = sectionShown) {
  sectionShown = at;
  try {
    history.replaceState(null, "", addressOfView(at));
  } catch {
    // Some viewers of files have no address to keep; the page works all the same.
  }
}

// Take up what the address says; return the section to go to, if any.
function takeView() {
  const wanted = viewInAddress();
  for (const [key, first] of Object.entries(FIRST)) {
    if (key === "threshold") continue;
    state[key] = key in wanted && ALLOWED[key](wanted[key]) ? wanted[key] : first;
  }
  if ("threshold" in wanted && ALLOWED.threshold(wanted.threshold)) {
    state.target = null;
    state.point = Number(wanted.threshold);
  }
  sectionShown = byId(wanted.at ?? "")?.matches("section") ? wanted.at : "";
  return sectionShown;
}
