// Training: every job, its curves while it runs, and what it was worth before and after.
import { ask, dot, el, fill, live, number, share, short, table } from "./dom.js";

const NAMES = {
  loss: "loss (nats a token)",
  heldout_loss: "held-out loss (nats a token)",
  reward: "reward",
  kl: "KL to the reference",
  grad_norm: "gradient norm",
  learning_rate: "learning rate",
  tokens_per_second: "tokens a second",
  memory_mb: "memory (MB a rank)",
};
export function training(view) {
  const charts = el("");
  const list = el("");
  let chosen = view.rest[0] ?? "";
  const open = (key) => {
    chosen = key;
    history.replaceState(null, "", `#/training/${key}`);
    draw();
  };
  const draw = async () => {
    if (!/^[0-9a-f]{32}$/.test(chosen)) return;
    try {
      const { body } = await ask(`api/training/${chosen}`);
      if (!view.left)
        fill(
          charts,
          el(
            ".charts",
            {},
            Object.entries(NAMES)
              .filter(([name]) => body.curves[name]?.length > 1)
              .map(([name, words]) => chart(words, body.curves[name])),
          ),
        );
    } catch (error) {
      view.problem(error.message);
    }
  };
  fill(view.body, el("h2", {}, "Training"), list, charts);
  live(view, "api/training", ({ jobs }) => {
    view.problem("");
    if (!jobs.length) return fill(list, el("p.dim", {}, "No training job on this machine yet."));
    chosen ||= jobs.find((job) => job.kind !== "tokenizer")?.key ?? jobs[0].key;
    const job = jobs.find((one) => one.key === chosen);
    fill(
      list,
      el(
        ".card",
        {},
        table(
          ["stage", "recipe", "state", "progress", "before → after", ""],
          jobs.map((one) => line(one, one.key === chosen, open)),
        ),
      ),
      job && detail(job),
    );
    draw();
  });
}

function line(job, here, open) {
  const { measure, before, after } = job.figures;
  const at = job.progress;
  return el(
    "tr",
    { class: here ? "here" : "" },
    el(
      "td",
      {},
      el(
        "button.plain",
        { onclick: () => open(job.key), "data-focus": job.key, "aria-pressed": `${here}` },
        dot(job.state),
        job.stage,
      ),
    ),
    el("td", {}, job.recipe),
    el("td", {}, job.state),
    el("td", {}, at ? `${at.step}/${at.steps}${at.what ? ` ${at.what}` : ""}` : "–"),
    el("td", {}, after === undefined ? "–" : `${number(before)} → ${number(after)}`),
    el("td.dim", {}, measure ?? ""),
  );
}

function detail(job) {
  const { heldout_loss_low: low, heldout_loss_high: high, general_loss_rise: rise } = job.figures;
  return el(
    ".card",
    {},
    el("h2", {}, `${job.recipe} · ${job.stage}`),
    el("p.mono.dim", {}, `job ${job.key}, artifact ${short(job.artifact)}`),
    low !== undefined &&
      el(
        "p",
        {},
        `held-out loss between ${number(low)} and ${number(high)} (95%)`,
        rise !== undefined && `; general loss ${rise >= 0 ? "+" : ""}${share(rise)}`,
      ),
    job.message && job.state !== "succeeded" ? el("pre", {}, job.message) : null,
    job.events.length
      ? [
          el("h3", {}, "Events"),
          job.events.map((event) =>
            el(
              "p",
              {},
              el("b", {}, event.event),
              " ",
              el(
                "span.dim",
                {},
                Object.entries(event)
                  .filter(
                    ([name, value]) => !["event", "documents", "runbook", "report"].includes(name) && value !== null,
                  )
                  .map(([name, value]) => `${name} ${JSON.stringify(value)}`)
                  .join(", "),
              ),
            ),
          ),
          el("p.small", {}, el("a", { href: "runbook" }, "what these events mean, and what to do")),
        ]
      : null,
  );
}

const SVG = "http://www.w3.org/2000/svg";
const svg = (name, attributes, ...children) => {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};

function chart(name, points) {
  const [width, height, left, bottom] = [320, 130, 44, 16];
  const steps = points.map(([step]) => step);
  const values = points.map(([, value]) => value).filter(Number.isFinite);
  const [first, last, low, high] = [Math.min(...steps), Math.max(...steps), Math.min(...values), Math.max(...values)];
  const x = (step) => left + ((step - first) / (last - first || 1)) * (width - left - 6);
  const y = (value) => 8 + (1 - (value - low) / (high - low || 1)) * (height - bottom - 14);
  const path = points
    .filter(([, value]) => Number.isFinite(value))
    .map(([step, value], n) => `${n ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`)
    .join("");
  const label = (text, at, anchor, up) => svg("text", { x: at, y: up, "text-anchor": anchor }, text);
  return el(
    "figure.card",
    {},
    el("figcaption", {}, name, el("b", {}, number(points.at(-1)[1]))),
    svg(
      "svg",
      {
        viewBox: `0 0 ${width} ${height}`,
        role: "img",
        "aria-label": `${name}: from ${number(points[0][1])} to ${number(points.at(-1)[1])} over steps ${first} to ${last}`,
      },
      svg("path", { class: "axis", d: `M${left} 4V${height - bottom}H${width}`, fill: "none" }),
      label(number(high), left - 4, "end", 14),
      label(number(low), left - 4, "end", height - bottom - 2),
      label(`step ${first}`, left, "start", height - 3),
      label(`${last}`, width - 4, "end", height - 3),
      svg("path", { class: "curve", d: path }),
    ),
  );
}
