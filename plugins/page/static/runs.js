// Runs: what Airflow does and did, each with its steps; one of them in detail.
import { ask, count, dot, duration, el, fill, link, live, moment, table } from "./dom.js";

const GATES = { passed: "passed", warning: "passed with warnings", refused: "refused" };

export function runs(view) {
  const [dag, run] = view.rest;
  if (dag && run) return detail(view, dag, run);
  live(view, "api/runs", ({ runs: found }) => {
    view.problem("");
    fill(
      view.body,
      el("h2", {}, "Runs"),
      found.length ? found.map(card) : el("p.dim", {}, "No run of Athanor's DAGs yet."),
    );
  });
}

const address = (run) => `#/runs/${encodeURIComponent(run.dag_id)}/${encodeURIComponent(run.run_id)}`;
const sum = (run, name) => run.steps.reduce((total, step) => total + step[name], 0);

function card(run) {
  return el(
    ".card",
    {},
    el(
      ".row",
      {},
      dot(run.state),
      el("a", { href: address(run), "data-focus": run.run_id }, el("b", {}, run.dag_id)),
      run.partition && el("span", {}, run.partition),
      el("span", {}, run.state),
      el(
        "span.dim",
        {},
        `${moment(run.started)} · ${duration(run.seconds)} · ${run.kind.replace("_", " ")}`,
        run.by && ` by ${run.by}`,
      ),
      el("span.end", {}, link(run.url, "in Airflow's grid")),
    ),
    el(
      ".steps",
      {},
      run.steps.map((step) =>
        el(
          "span.step",
          { title: `${step.state ?? "not started"}, ${duration(step.seconds)}` },
          dot(step.state),
          step.name,
          mapped(step),
        ),
      ),
    ),
  );
}

const mapped = (step) => {
  const parts = Object.entries(step.counts);
  if (!parts.length) return null;
  const total = parts.reduce((sum, [, n]) => sum + n, 0);
  return el("span.dim", {}, ` ${step.counts.success ?? 0}/${total}`);
};

// From a square of Airflow's grid to what it works on: a group's shards, a stage's curves, else the run itself.
export async function task(view) {
  const [dag, run, name, index] = view.rest;
  try {
    const { body } = await ask(`api/runs/${encodeURIComponent(dag)}/${encodeURIComponent(run)}`);
    const step = body.steps.find((one) => one.name === name);
    const group = step?.progress.find((one) => `${one.index}` === index)?.progress.group ?? "";
    const job = step?.facts.job?.split("/").pop();
    if (["compute_signals", "write_verdicts"].includes(name) && body.partition)
      location.replace(`#/shards/${body.partition}?text=${group}`);
    else if (job) location.replace(`#/training/${job}`);
    else location.replace(address(body));
  } catch (error) {
    view.problem(`${dag}: ${error.message}`);
  }
}

function detail(view, dag, run) {
  live(view, `api/runs/${encodeURIComponent(dag)}/${encodeURIComponent(run)}`, (found) => {
    view.problem("");
    const rows = found.steps.map((step) =>
      el(
        "tr",
        {},
        el("td", {}, dot(step.state), step.name, mapped(step)),
        el("td", {}, step.state ?? "not started"),
        el("td", {}, facts(step)),
        el("td.number", {}, duration(step.seconds)),
        el("td.number", {}, duration(step.worker_seconds)),
        el("td.number", {}, step.accelerator_seconds ? duration(step.accelerator_seconds) : "–"),
        el("td.number", {}, `${step.tries}`),
      ),
    );
    fill(
      view.body,
      el("h2", {}, found.dag_id, found.partition && ` · ${found.partition}`),
      el(
        ".card",
        {},
        el(
          ".row",
          {},
          dot(found.state),
          el("b", {}, found.state),
          el("span.dim", {}, `${moment(found.started)} · ${duration(found.seconds)}`),
          found.by && el("span", {}, `started by ${found.by}`),
          found.partition && el("a", { href: `#/shards/${found.partition}` }, "shards"),
          el("a", { href: "#/training" }, "training"),
          el("span.end", {}, link(found.url, "in Airflow's grid")),
        ),
        Object.keys(found.conf).length ? el("p.small.dim", {}, "form: ", JSON.stringify(found.conf)) : null,
        el(
          "p.small.dim",
          {},
          `cost: ${duration(sum(found, "worker_seconds"))} of workers, of these ${duration(sum(found, "accelerator_seconds"))} on the accelerator`,
        ),
      ),
      el(".card", {}, table(["step", "state", "result", "#took", "#workers", "#accelerator", "#tries"], rows)),
    );
  });
}

function facts(step) {
  const { artifact, hash, verdict, contract, kept, read, left_out: left, reused, job } = step.facts;
  const running = step.state === "running" && step.progress.length;
  return [
    verdict && el("", {}, dot(verdict), `gate ${contract}: ${GATES[verdict] ?? verdict}`),
    read !== undefined &&
      el("", {}, `${count(kept)} kept of ${count(read)}`, left ? el("b", {}, `, ${left} shards left out`) : null),
    artifact && el(".mono", {}, `${hash?.slice(0, 12) ?? ""} ${artifact}`),
    reused === true && el(".dim", {}, "reused"),
    job && el("", {}, el("a", { href: `#/training/${job.split("/").pop()}` }, "curves")),
    running
      ? step.progress.map(({ progress }) =>
          el(
            ".dim",
            {},
            `${progress.group ?? ""} ${progress.shards_done}/${progress.shards} shards, ${count(progress.documents)} documents`,
          ),
        )
      : null,
  ];
}
