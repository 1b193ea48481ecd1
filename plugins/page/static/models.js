// Gates, Lineage, Releases: what stands between a corpus and a released model.
import { ask, count, dot, el, fill, link, live, moment, number, send, short } from "./dom.js";

const VERDICTS = { passed: "passed", warning: "passed with warnings", refused: "refused" };

export function gates(view) {
  live(
    view,
    "api/gates",
    ({ gates: found }) => {
      view.problem("");
      fill(view.body, el("h2", {}, "Gates"), found.length ? found.map(gate) : el("p.dim", {}, "No gate was held yet."));
    },
    5,
  );
}

function gate(found) {
  return el(
    ".card",
    { class: `card ${found.verdict === "refused" ? "alert" : found.verdict === "warning" ? "notice" : ""}` },
    el(
      ".row",
      {},
      dot(found.verdict),
      el("b", {}, found.title),
      el("span", {}, VERDICTS[found.verdict]),
      el(
        "span.dim",
        {},
        `${found.checks} checks · ${moment(found.at)} · ${found.contract} ${Object.values(found.subjects).map(short).join(", ")}`,
      ),
      el(
        "span.end",
        {},
        link(`athanor/reports/${found.report}`, "report"),
        found.data_docs ? [" · ", link(`athanor/reports/${found.report}/data-docs`, "Data Docs")] : null,
      ),
    ),
    found.failures.map((failure) =>
      el(
        "p",
        {},
        el("b", {}, `${failure.severity}: `),
        `${failure.meaning} Expected ${failure.expected}; found ${failure.observed}.`,
        el("br"),
        el("span.dim", {}, `What to do: ${failure.remedy}`),
      ),
    ),
  );
}

export async function lineage(view) {
  const {
    body: { lines },
  } = await ask("api/releases").catch((error) => {
    view.problem(error.message);
    return { body: { lines: {} } };
  });
  const pointers = Object.entries(lines).flatMap(([line, registry]) =>
    ["released", "candidate"].filter((name) => registry[name]).map((name) => [line, name]),
  );
  if (view.left) return;
  if (!pointers.length)
    return fill(
      view.body,
      el("h2", {}, "Lineage"),
      el("p.dim", {}, "No model line has a candidate or a released model yet."),
    );
  const [line, pointer] = view.rest.length > 1 ? view.rest : pointers[0];
  const tree = el("");
  const go = (event) => {
    location.hash = `#/lineage/${event.target.value}`;
  };
  fill(
    view.body,
    el(
      ".row",
      {},
      el("h2", {}, "Lineage"),
      el(
        "select",
        { "aria-label": "Model", onchange: go },
        pointers.map(([name, which]) =>
          el(
            "option",
            { value: `${encodeURIComponent(name)}/${which}`, selected: name === line && which === pointer },
            `${name}, ${which}`,
          ),
        ),
      ),
    ),
    tree,
  );
  live(
    view,
    `api/lineage/${encodeURIComponent(line)}/${pointer}`,
    ({ ancestors }) => {
      view.problem("");
      fill(tree, el(".card", {}, branch(ancestors, ancestors[0], new Set())));
    },
    15,
  );
}

function branch(ancestors, item, above) {
  if (!item.hash) return [el("p", {}, dot("failed"), el("span.mono", {}, item.uri)), el("p.dim", {}, item.problem)];
  const figures = Object.entries(item.metrics)
    .slice(0, 6)
    .map(([name, value]) => `${name} ${number(value)}`)
    .join(", ");
  const parents = ancestors.filter(
    (other) =>
      other.depth > item.depth &&
      (item.parents.includes(other.hash) || (!other.hash && other.depth === item.depth + 1)) &&
      !above.has(other.uri),
  );
  const seen = new Set([...above, item.uri]);
  return [
    el(
      ".row",
      {},
      el("b", {}, item.stage),
      el("span", {}, item.kind),
      el("span.mono", {}, short(item.hash)),
      el("span.dim", {}, moment(item.created)),
    ),
    el(".mono.dim", {}, item.uri),
    figures && el(".small.dim", {}, figures),
    item.problem && el("p", {}, dot("warning"), item.problem),
    item.data_total
      ? el(
          "details",
          {},
          el(
            "summary",
            {},
            `${count(item.data_total)} ${item.kind === "corpus" ? "shard" : "input"}${item.data_total === 1 ? "" : "s"}`,
          ),
          el(
            "ul.tree",
            {},
            item.data.map(([name, hash]) => el("li.mono", {}, `${name}  ${hash.slice(0, 16)}`)),
            item.data_total > item.data.length
              ? el("li.dim", {}, `… and ${count(item.data_total - item.data.length)} more`)
              : null,
          ),
        )
      : null,
    parents.length
      ? el(
          "ul.tree",
          { "aria-label": "made of" },
          parents.map((parent) => el("li", {}, branch(ancestors, parent, seen))),
        )
      : null,
  ];
}

export function releases(view) {
  view.again = live(
    view,
    "api/releases",
    ({ lines, may_decide: may }) => {
      view.problem("");
      const names = Object.keys(lines);
      fill(
        view.body,
        el("h2", {}, "Releases"),
        names.length
          ? names.map((name) => modelLine(view, name, lines[name], may))
          : el("p.dim", {}, "No model line yet."),
      );
    },
    5,
  );
}

function modelLine(view, name, registry, may) {
  const { candidate, released, history } = registry;
  const model = (words, entry) =>
    el(
      "p",
      {},
      el("b", {}, `${words}: `),
      entry
        ? [
            el("span.mono", {}, `${short(entry.hash)} ${entry.uri}`),
            " ",
            el("a", { href: `#/lineage/${encodeURIComponent(name)}/${words}` }, "lineage"),
          ]
        : "none",
    );
  const same = candidate && released && candidate.hash === released.hash;
  const before = history.filter((item) => item.pointer === "released" && item.hash !== released?.hash).length > 0;
  return el(
    ".card",
    {},
    el("h2", {}, name),
    model("candidate", candidate),
    model("released", released),
    el(
      ".row",
      {},
      el(
        "button.main",
        {
          disabled: !may || !candidate || same,
          onclick: () => decide(view, name, "promote", "Release the candidate", released),
        },
        "Promote …",
      ),
      el(
        "button",
        {
          disabled: !may || !released || !before,
          onclick: () => decide(view, name, "rollback", "Roll back to the model released before", released),
        },
        "Roll back …",
      ),
      may ? null : el("span.dim", {}, "Your role may look, and not decide."),
    ),
    el("h3", {}, "History"),
    history.length
      ? el(
          "ul.tree",
          {},
          history
            .slice(-20)
            .reverse()
            .map((item) =>
              el(
                "li",
                {},
                `${moment(item.at)}: `,
                el("b", {}, item.pointer),
                ` → `,
                el("span.mono", {}, short(item.hash)),
                item.by && ` by ${item.by}: ${item.why}`,
              ),
            ),
        )
      : el("p.dim", {}, "Nothing yet."),
  );
}

function decide(view, line, action, words, released) {
  const why = el("textarea", { rows: 3, required: true, minLength: 3, "aria-label": "Why" });
  const said = el("p", { role: "alert" });
  const dialog = el("dialog", { "aria-label": words, onclose: () => dialog.remove() });
  const go = async (event) => {
    event.preventDefault();
    try {
      await send(`api/releases/${encodeURIComponent(line)}/${action}`, {
        released: released?.hash ?? "",
        why: why.value,
      });
      dialog.close();
      view.again();
    } catch (error) {
      said.textContent = error.message;
    }
  };
  dialog.append(
    el("h2", {}, `${words} of ${line}?`),
    el("p.dim", {}, "Released now: ", el("span.mono", {}, short(released?.hash))),
    el(
      "form",
      { onsubmit: go },
      el("label", {}, "Why", why, el("span", {}, "goes on record, with your name")),
      said,
      el(
        ".row",
        {},
        el("button.main", { type: "submit" }, words),
        el("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
      ),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  why.focus();
}
