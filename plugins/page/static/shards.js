// Shards: the board of a snapshot, filters, a table, and one shard down to the row that failed.
import { Squares } from "./board.js";
import { ask, count, dot, el, figure, fill, link, live, moment, say, share, shown, size, table } from "./dom.js";
import { repairButton } from "./repair.js";
import { bars, verdictRows } from "./rows.js";

const STATES = { failed: "Failed", problems: "To mend", waiting: "Waiting", measured: "Measured", decided: "Decided" };
const SORTS = {
  path: "by path",
  state: "worst first",
  kept_share: "by kept share",
  size: "by size",
  read: "by documents",
  dropped: "by dropped",
  quarantined: "by quarantined",
};
const PAGE = 100;

export async function shards(view) {
  const [snapshot, chosen] = view.rest;
  const {
    body: { snapshots },
  } = await ask("api/snapshots").catch((error) => {
    view.problem(error.message);
    return { body: { snapshots: [] } };
  });
  if (view.left) return;
  if (!snapshots.length)
    return fill(view.body, el("h2", {}, "Shards"), el("p.dim", {}, "No snapshot was curated yet."));
  new ShardsView(view, snapshot ?? snapshots[0], snapshots, chosen);
}

class ShardsView {
  constructor(view, snapshot, snapshots, chosen) {
    Object.assign(this, {
      view,
      snapshot,
      chosen,
      offset: 0,
      sort: view.query.get("sort") ?? "path",
      state: view.query.get("state") ?? "",
      text: view.query.get("text") ?? "",
      descending: false,
    });
    this.squares = new Squares((index) => this.openAt(index));
    this.parts = Object.fromEntries(
      ["alert", "chips", "figures", "table", "detail", "rules", "repairs"].map((name) => [name, el("")]),
    );
    fill(
      view.body,
      el(
        ".row",
        {},
        el("h2", {}, "Shards"),
        this.pickSnapshot(snapshots),
        this.parts.chips,
        this.pickText(),
        this.pickSort(),
      ),
      this.parts.alert,
      el(
        ".columns",
        {},
        el(
          "",
          {},
          el(".card", {}, this.squares.canvas),
          el(".card", {}, this.parts.figures),
          el(".card", {}, this.parts.table),
        ),
        el("", {}, this.parts.detail, this.parts.rules, this.parts.repairs),
      ),
    );
    this.again = live(
      view,
      () => this.url(),
      (found) => this.draw(found),
    );
    view.ended = () => this.squares.end();
    if (chosen) this.open(chosen);
  }

  url(offset = this.offset) {
    const query = new URLSearchParams({
      state: this.state,
      text: this.text,
      sort: this.sort,
      descending: this.descending,
      offset,
    });
    return `api/shards/${encodeURIComponent(this.snapshot)}?${query}`;
  }

  change(values) {
    Object.assign(this, { offset: 0, ...values });
    this.again();
  }

  pickSnapshot(snapshots) {
    const known = snapshots.includes(this.snapshot) ? snapshots : [this.snapshot, ...snapshots];
    const go = (event) => {
      location.hash = `#/shards/${event.target.value}`;
    };
    return el(
      "select",
      { "aria-label": "Snapshot", onchange: go },
      known.map((date) => el("option", { selected: date === this.snapshot }, date)),
    );
  }

  pickText() {
    let waiting;
    const later = (event) => {
      clearTimeout(waiting);
      waiting = setTimeout(() => this.change({ text: event.target.value.trim() }), 250);
    };
    return el("input", {
      type: "search",
      placeholder: "path or group",
      "aria-label": "Filter by path or group",
      value: this.text,
      oninput: later,
    });
  }

  pickSort() {
    const chosen = (event) => this.change({ sort: event.target.value });
    return [
      el(
        "select",
        { "aria-label": "Sort", onchange: chosen },
        Object.entries(SORTS).map(([value, words]) => el("option", { value, selected: value === this.sort }, words)),
      ),
      el(
        "label.inline",
        {},
        el("input", { type: "checkbox", onchange: (event) => this.change({ descending: event.target.checked }) }),
        "reverse",
      ),
    ];
  }

  draw(found) {
    this.view.problem("");
    this.squares.show(found.cells);
    fill(
      this.parts.chips,
      el(
        ".row",
        { role: "group", "aria-label": "Filter by state" },
        Object.entries(STATES).map(([state, words]) =>
          el(
            "button",
            {
              "aria-pressed": `${this.state === state}`,
              "data-focus": state,
              onclick: () => this.change({ state: this.state === state ? "" : state }),
            },
            dot(state),
            `${words} ${count(found.states[state])}`,
          ),
        ),
      ),
    );
    fill(this.parts.alert, this.alerts(found));
    const { read, kept, dropped, quarantined } = found.totals;
    fill(
      this.parts.figures,
      el(
        "dl.figures",
        {},
        figure("shards", count(found.shards)),
        figure("files", size(found.bytes)),
        figure("read", count(read)),
        figure("kept", `${count(kept)} (${share(read ? kept / read : null)})`),
        figure("dropped", count(dropped)),
        figure("quarantined", count(quarantined)),
        figure("MB/s a worker", found.rates.shards ? found.rates.megabytes.toFixed(2) : "–"),
        figure("documents/s a worker", found.rates.shards ? count(Math.round(found.rates.documents)) : "–"),
      ),
      el(
        "p.small.dim",
        {},
        found.at_work ? `at work: ${found.at_work}` : found.published ? "published" : "not published yet",
      ),
    );
    this.drawTable(found);
    this.showRepairs();
    fill(
      this.parts.rules,
      found.rules.length ? el(".card", {}, el("h2", {}, "Drops by rule"), bars(found.rules.slice(0, 15))) : null,
    );
  }

  alerts(found) {
    const failed = found.failures_total
      ? el(
          ".card.alert",
          {},
          el(
            ".row",
            {},
            el("b", {}, `${count(found.failures_total)} shard${found.failures_total > 1 ? "s" : ""} failed`),
            el("span.end", {}, repairButton(this.snapshot, { groups: groupsOf(found.failures) })),
          ),
          found.failures
            .slice(0, 3)
            .map((failure) =>
              el(
                "p",
                {},
                el("b", {}, failure.shard),
                ` (${failure.group}): ${failure.message}`,
                el("br"),
                el("span.dim", {}, `What to do: ${failure.remedy}.`),
              ),
            ),
        )
      : null;
    const left = found.left_out.length
      ? el(
          ".card.notice",
          {},
          `This corpus was published without ${count(found.left_out.length)} of ${count(found.shards)} shards: ${found.left_out.slice(0, 5).join(", ")}${found.left_out.length > 5 ? " …" : ""}`,
        )
      : null;
    return [failed, left];
  }

  drawTable(found) {
    const rows = found.rows.map((row) =>
      el(
        "tr",
        { class: row.id === this.chosen ? "here" : "" },
        el(
          "td",
          {},
          el("button.plain", { "data-focus": row.id, onclick: () => this.open(row.id) }, dot(row.state), row.key),
        ),
        el("td", {}, row.group),
        el("td.number", {}, size(row.size)),
        el("td.number", {}, row.read === undefined ? "–" : count(row.read)),
        el("td.number", {}, share(row.kept_share)),
        el("td.number", {}, row.dropped === undefined ? "–" : count(row.dropped)),
        el("td.number", {}, row.quarantined === undefined ? "–" : count(row.quarantined)),
      ),
    );
    const last = Math.min(found.offset + PAGE, found.total);
    const turn = (by) => () => {
      this.offset = Math.max(0, this.offset + by);
      this.again();
    };
    fill(
      this.parts.table,
      el(
        ".row",
        {},
        el(
          "b",
          {},
          found.total ? `${count(found.offset + 1)}–${count(last)} of ${count(found.total)} shards` : "No shard fits.",
        ),
        el(
          "span.row.end",
          {},
          el("button", { disabled: !found.offset, onclick: turn(-PAGE), "data-focus": "back" }, "Back"),
          el("button", { disabled: last >= found.total, onclick: turn(PAGE), "data-focus": "on" }, "On"),
        ),
      ),
      table(["shard", "group", "#size", "#read", "#kept", "#dropped", "#quarantined"], rows),
    );
  }

  async openAt(index) {
    try {
      const { body } = await ask(this.url(index));
      if (body.rows.length) this.open(body.rows[0].id);
    } catch (error) {
      this.view.problem(error.message);
    }
  }

  async open(id) {
    this.chosen = id;
    history.replaceState(null, "", `#/shards/${this.snapshot}/${id}`);
    const base = `api/shards/${this.snapshot}/${id}`;
    try {
      const { body: shard } = await ask(base);
      if (this.view.left) return;
      this.drawDetail(shard, base);
      say(`${shard.key}: ${STATES[shard.state]}`);
    } catch (error) {
      this.view.problem(error.message);
    }
  }

  drawDetail(shard, base) {
    const rows = el("");
    const showRows = async (verdict) =>
      fill(rows, await shown(`${base}/rows?verdict=${verdict}`, (body) => verdictRows(body, base)));
    fill(
      this.parts.detail,
      el(
        ".card",
        { tabIndex: -1 },
        el("h2", {}, dot(shard.state), shard.key),
        el(
          "p.dim",
          {},
          `${STATES[shard.state]} · ${shard.group} · ${size(shard.size)}`,
          shard.read === undefined ? null : ` · ${count(shard.kept)} kept of ${count(shard.read)}`,
        ),
        shard.failures.map((failure) =>
          el(
            ".card.alert",
            {},
            el("b", {}, `${failure.kind} while computing ${failure.step}`),
            el("pre", {}, failure.message),
            el("p", {}, el("b", {}, "What to do: "), `${failure.remedy}.`),
          ),
        ),
        el(
          ".row",
          {},
          repairButton(this.snapshot, {
            groups: [shard.group],
            pattern: shard.key,
            onlyFailed: shard.state === "failed",
          }),
          shard.task && link(shard.task.url, "this group in Airflow's grid"),
        ),
        el("h3", {}, "Rows"),
        el(
          ".row",
          {},
          ["quarantined", "dropped", "kept"].map((verdict) =>
            el("button", { onclick: () => showRows(verdict) }, verdict),
          ),
        ),
        rows,
      ),
    );
    fill(
      rows,
      shard.quarantined_rows.total
        ? verdictRows(shard.quarantined_rows, base)
        : el("p.dim", {}, "No row of this shard is to be mended."),
    );
  }

  async showRepairs() {
    const list = (repairs) =>
      repairs.length > 0 &&
      el(
        ".card",
        {},
        el("h2", {}, "Repairs"),
        repairs
          .slice(0, 10)
          .map((repair) =>
            el(
              "p",
              {},
              el("b", {}, repair.by || "unknown"),
              `, ${moment(repair.at)}: ${repair.reason}`,
              el("br"),
              el(
                "span.dim",
                {},
                `${repair.shards.length} chosen, ${repair.computed} computed again, ${repair.rewritten} texts rewritten`,
              ),
            ),
          ),
      );
    fill(this.parts.repairs, await shown(`api/repairs/${this.snapshot}`, (body) => list(body.repairs)));
  }
}

const groupsOf = (failures) => [...new Set(failures.map((failure) => failure.group))];
