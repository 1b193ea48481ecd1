// The frame of the page: tabs, the address after '#', and one view at a time.
import { el, fill, say } from "./dom.js";
import { gates, lineage, releases } from "./models.js";
import { runs, task } from "./runs.js";
import { shards } from "./shards.js";
import { training } from "./training.js";
import { why } from "./why.js";

const TABS = {
  Runs: runs,
  Shards: shards,
  Training: training,
  Gates: gates,
  Lineage: lineage,
  Why: why,
  Releases: releases,
};
const main = document.getElementById("main");
let view = null;

function parse() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [tab, ...rest] = path.split("/").map(decodeURIComponent);
  if (tab === "task") return { name: "Runs", open: task, rest, query: new URLSearchParams(query) };
  const name = Object.keys(TABS).find((known) => known.toLowerCase() === tab) ?? "Runs";
  return { name, open: TABS[name], rest, query: new URLSearchParams(query) };
}

function show() {
  const { name, open, rest, query } = parse();
  if (view) {
    view.left = true;
    clearTimeout(view.timer);
    view.ended?.();
  }
  const problem = el(".card.alert", { role: "alert", hidden: true });
  const body = el("section", { "aria-label": name });
  view = {
    body,
    rest,
    query,
    left: false,
    timer: null,
    problem: (words) => {
      problem.hidden = !words;
      problem.textContent = words;
    },
  };
  fill(main, problem, body);
  document.getElementById("live").textContent = "";
  document.title = `${name} · Athanor`;
  for (const anchor of document.querySelectorAll("#tabs a"))
    if (anchor.textContent === name) anchor.setAttribute("aria-current", "page");
    else anchor.removeAttribute("aria-current");
  say(name);
  open(view);
}

fill(
  document.getElementById("tabs"),
  ...Object.keys(TABS).map((name) => el("a", { href: `#/${name.toLowerCase()}` }, name)),
);
addEventListener("hashchange", show);
show();
