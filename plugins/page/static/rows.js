// Verdicts on rows with their reasons, and rules as bars.
import { count, el, fill, shown } from "./dom.js";

export function verdictRows(found, base) {
  if (!found.total) return el("p.dim", {}, "None.");
  return [
    el(
      "p.small.dim",
      {},
      `${count(found.total)} rows${found.total > found.rows.length ? `, the first ${found.rows.length}` : ""}`,
    ),
    found.rows.map((row) => el(".card", {}, verdict(row, base))),
  ];
}

export function verdict(row, base) {
  const text = el("");
  const show = async () =>
    fill(
      text,
      await shown(`${base}/rows/${row.row}`, (body) =>
        el("pre", {}, body.text ?? "This row is no document; there is no text to show."),
      ),
    );
  return [
    el(
      ".row",
      {},
      el("b", {}, `row ${row.row}`),
      row.doc_id && el("span.mono", {}, row.doc_id),
      el("span.dim", {}, `${row.verdict} · ${row.language ?? "?"} ${row.kind ?? ""}`),
      base && el("button.end", { onclick: show }, "text"),
    ),
    row.byte_offset >= 0 && row.byte_offset !== null
      ? el(".small.dim", {}, `byte ${count(row.byte_offset)} of the unpacked file`)
      : null,
    row.reasons.map((reason) =>
      el(
        "",
        {},
        el("b", {}, reason.rule),
        reason.value === null ? null : ` ${+reason.value.toPrecision(4)}`,
        reason.threshold === null ? null : ` (threshold ${reason.threshold})`,
        `: ${reason.detail}`,
        reason.remedy ? el(".dim", {}, `What to do: ${reason.remedy}.`) : null,
      ),
    ),
    row.twin_id && el("", {}, "kept in its place: ", el("span.mono", {}, row.twin_id)),
    text,
  ];
}

export function bars(rules) {
  const most = rules[0][1];
  return el(
    ".bars",
    {},
    rules.map(([rule, documents]) => {
      const bar = el(".bar");
      bar.style.width = `${(100 * documents) / most}%`;
      return [el("span", {}, rule), el("span", {}, bar), el("span.number", {}, count(documents))];
    }),
  );
}
