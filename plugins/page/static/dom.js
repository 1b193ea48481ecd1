// Making elements, asking the server, and words for numbers. Text goes in as text: nothing here reads HTML.

export function el(tag, properties = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key in element && typeof value !== "object" && !key.startsWith("aria")) element[key] = value;
    else if (value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const fill = (element, ...children) => {
  const focused = document.activeElement?.dataset?.focus;
  element.replaceChildren(
    ...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false),
  );
  if (focused) element.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
};

const AIRFLOW = new URL("../../", document.baseURI);
export const airflow = (path) => new URL(path, AIRFLOW).href;

// Inside Airflow's frame, a link must move the whole window; the frame itself may not, so the link is the window's own.
export function link(path, ...words) {
  const href = airflow(path);
  const open = (event) => {
    if (window.top === window || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const own = window.top.document.createElement("a");
    own.href = href;
    own.click();
  };
  return el("a", { href, onclick: open }, ...words);
}

export class Refused extends Error {}

export async function ask(path, options = {}) {
  const response = await fetch(path, { credentials: "same-origin", ...options });
  const body = response.headers.get("content-type")?.includes("json") ? await response.json() : {};
  if (response.ok) return { body, version: response.headers.get("etag") ?? "" };
  const said = typeof body.detail === "string" ? body.detail : JSON.stringify(body.detail ?? response.statusText);
  if (response.status === 401)
    throw new Refused("Your login has ended. Log in to Airflow again, then reload this page.");
  if (response.status === 403) throw new Refused("Your role does not allow this.");
  throw new Error(said);
}

// What to draw from an answer, or why there is none.
export const shown = (path, draw) =>
  ask(path).then(
    ({ body }) => draw(body),
    (error) => el("p", { role: "alert" }, error.message),
  );

export const send = (url, body) =>
  ask(url, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

// Draw what the path answers, now and whenever it has changed, until the view is left. `path` may be a function.
export function live(view, path, draw, seconds = 2) {
  let version = null;
  let asked = null;
  let turn = 0; // of several looks under way, the last one goes on
  const look = async () => {
    if (view.left) return;
    const mine = ++turn;
    if (!document.hidden || version === null) {
      const url = typeof path === "function" ? path() : path;
      try {
        const found = await ask(url);
        if (view.left || mine !== turn) return;
        if (found.version !== version || url !== asked || !version) draw(found.body);
        [version, asked] = [found.version, url];
        document.getElementById("live").textContent = "live";
      } catch (error) {
        if (view.left || mine !== turn) return;
        document.getElementById("live").textContent = "";
        view.problem(error.message);
        if (error instanceof Refused) return;
        version = null;
      }
    }
    view.timer = setTimeout(look, seconds * 1000);
  };
  look();
  return () => {
    clearTimeout(view.timer);
    look();
  };
}

export const say = (words) => {
  document.getElementById("said").textContent = words;
};
export const count = (number) => (number ?? 0).toLocaleString("en");
export const share = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)}%`);
export const short = (hash) => (hash ? hash.slice(0, 12) : "none");
export const dot = (state) => el(`span.dot.${state ?? "none"}`, { "aria-hidden": "true" });
export const table = (heads, rows) =>
  el(
    ".scroll",
    {},
    el(
      "table",
      {},
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          heads.map((head) => el(head[0] === "#" ? "th.number" : "th", { scope: "col" }, head.replace("#", ""))),
        ),
      ),
      el("tbody", {}, rows),
    ),
  );

export function size(bytes) {
  for (const [unit, scale] of [
    ["TB", 1e12],
    ["GB", 1e9],
    ["MB", 1e6],
    ["kB", 1e3],
  ])
    if (bytes >= scale) return `${(bytes / scale).toFixed(1)} ${unit}`;
  return `${bytes ?? 0} bytes`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export const moment = (text) =>
  text ? new Date(text).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" }) : "–";
export const figure = (name, value) => el("", {}, el("dt", {}, name), el("dd", {}, value));
export const number = (value) =>
  Number.isInteger(value)
    ? count(value)
    : Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3)
      ? value.toExponential(2)
      : +value.toPrecision(4) + "";
