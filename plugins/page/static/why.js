// Why: what was decided on one document, and by which rules.
import { ask, count, dot, el, fill } from "./dom.js";
import { verdict } from "./rows.js";

export async function why(view) {
  const {
    body: { snapshots },
  } = await ask("api/snapshots").catch((error) => {
    view.problem(error.message);
    return { body: { snapshots: [] } };
  });
  if (view.left) return;
  const date = el(
    "select",
    { "aria-label": "Snapshot" },
    snapshots.map((snapshot) => el("option", { selected: snapshot === view.query.get("snapshot") }, snapshot)),
  );
  const document_ = el("input", {
    type: "search",
    required: true,
    minLength: 4,
    placeholder: "doc_id, its first digits, or the owner's own id",
    "aria-label": "Document",
    value: view.rest[0] ?? "",
  });
  const found = el("", { "aria-live": "polite" });
  const look = async (event) => {
    event?.preventDefault();
    view.problem("");
    const rows = [];
    let after = 0;
    try {
      while (after !== null && !view.left && rows.length < 50) {
        const { body } = await ask(
          `api/why/${date.value}?${new URLSearchParams({ document: document_.value, after })}`,
        );
        rows.push(...body.verdicts);
        after = body.next;
        fill(
          found,
          rows.map((row) =>
            el(
              ".card",
              {},
              el(
                ".row",
                {},
                dot({ kept: "decided", dropped: "waiting", quarantined: "problems" }[row.verdict]),
                el("b", {}, row.verdict.toUpperCase()),
                el("span", {}, row.shard),
              ),
              verdict(row, null),
            ),
          ),
          el(
            "p.dim",
            {},
            after === null
              ? rows.length
                ? `${count(rows.length)} found`
                : "No such document in this snapshot."
              : `looked at ${count(body.looked_at)} of ${count(body.files)} shards …`,
          ),
        );
      }
    } catch (error) {
      view.problem(error.message);
    }
  };
  fill(
    view.body,
    el("h2", {}, "Why was this document kept or dropped?"),
    snapshots.length
      ? el("form.card.row", { onsubmit: look }, date, document_, el("button.main", { type: "submit" }, "Look"))
      : el("p.dim", {}, "No snapshot was curated yet."),
    found,
  );
  if (view.rest[0]) look();
}
