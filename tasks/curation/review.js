"use strict";
const judged = new Map();
const save = document.getElementById("save");
document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-judgement]");
  if (!button) return;
  const example = button.closest("article");
  judged.set(example.dataset.key, [example.dataset.doc, example.dataset.group, example.dataset.verdict, button.dataset.judgement]);
  for (const other of example.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
  save.disabled = false;
  save.textContent = `Save ${judged.size} judgement${judged.size === 1 ? "" : "s"} as CSV`;
});
save.addEventListener("click", () => {
  const quoted = (value) => `"${value.replaceAll('"', '""')}"`;
  const rows = [["doc_id", "examples_of", "verdict", "judgement"], ...judged.values()];
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([rows.map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n"], {type: "text/csv"}));
  link.download = "judgements.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);  // not before the browser has saved it
});
