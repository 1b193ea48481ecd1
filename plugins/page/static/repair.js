// The form that starts `repair_shards`, filled in with what failed. Airflow itself checks the role and keeps the record.
import { airflow, el, fill, link, send } from "./dom.js";

export function repairButton(snapshot, { groups = [], pattern = "", onlyFailed = true }) {
  return el("button.main", { onclick: () => open(snapshot, groups, pattern, onlyFailed) }, "Repair …");
}

function open(snapshot, groups, pattern, onlyFailed) {
  const field = (words, hint, input) => el("label", {}, words, input, hint && el("span", {}, hint));
  const chosen = el("input", { type: "text", value: groups.join(", ") });
  const fitting = el("input", { type: "text", value: pattern });
  const failed = el("input", { type: "checkbox", checked: onlyFailed });
  const reason = el("textarea", { rows: 2, required: true, minLength: 3 });
  const said = el("p", { role: "status" });
  const dialog = el("dialog", { "aria-label": "Repair shards", onclose: () => dialog.remove() });
  const start = async (event) => {
    event.preventDefault();
    const conf = {
      snapshot,
      groups: chosen.value
        .split(",")
        .map((name) => name.trim())
        .filter(Boolean),
      pattern: fitting.value.trim(),
      only_failed: failed.checked,
      reason: reason.value.trim(),
    };
    try {
      const { body } = await send(airflow("api/v2/dags/repair_shards/dagRuns"), {
        logical_date: null,
        conf,
        note: conf.reason,
      });
      const run = `dags/repair_shards/runs/${encodeURIComponent(body.dag_run_id)}`;
      fill(said, "The repair was started: ", link(run, "see it in Airflow's grid"), ". This page shows its progress.");
    } catch (error) {
      fill(said, error.message);
    }
  };
  dialog.append(
    el("h2", {}, `Repair shards of ${snapshot}`),
    el(
      "form",
      { onsubmit: start },
      field("Groups", "separated by commas; empty: all", chosen),
      field("Path pattern", "* and ? stand for anything; empty: any path", fitting),
      el("label.inline", {}, failed, "only shards that failed"),
      el("br"),
      el("br"),
      field("Reason", "goes on record, with your name", reason),
      said,
      el(
        ".row",
        {},
        el("button.main", { type: "submit" }, "Start the repair"),
        el("button", { type: "button", onclick: () => dialog.close() }, "Close"),
        el("span.end.small", {}, link("dags/repair_shards", "Airflow's own form")),
      ),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  reason.focus();
}
