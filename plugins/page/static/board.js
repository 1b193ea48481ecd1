// The board: one square a shard on a canvas, so that a hundred thousand cost no more than ten. Arrow keys move the mark,
// Enter opens the shard.
import { el, say } from "./dom.js";

const NAMES = { f: "failed", p: "problems", w: "waiting", m: "measured", d: "decided" };
const TALLEST = 360; // CSS pixels
const LARGEST = 22;

export class Squares {
  constructor(open) {
    this.cells = "";
    this.at = 0;
    this.canvas = el("canvas", {
      tabIndex: 0,
      role: "img",
      onclick: (event) => this.pick(event),
      onkeydown: (event) => this.key(event),
      onmousemove: (event) => {
        this.canvas.title = this.words(this.index(event));
      },
      onfocus: () => this.draw(),
      onblur: () => this.draw(),
    });
    this.open = open;
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.canvas);
    this.left = new AbortController();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw(), {
      signal: this.left.signal,
    });
  }

  show(cells) {
    this.cells = cells;
    this.at = Math.min(this.at, Math.max(0, cells.length - 1));
    this.canvas.setAttribute("aria-label", `Board of ${cells.length} shards. Arrow keys move, Enter opens a shard.`);
    this.draw();
  }

  layout() {
    const width = this.canvas.clientWidth || 800;
    const fits = Math.sqrt((width * TALLEST) / Math.max(1, this.cells.length));
    this.side = Math.max(2, Math.min(LARGEST, Math.floor(fits)));
    this.columns = Math.max(1, Math.floor(width / this.side));
    return { width, height: Math.max(1, Math.ceil(this.cells.length / this.columns)) * this.side };
  }

  draw() {
    const { width, height } = this.layout();
    const scale = devicePixelRatio || 1;
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    this.canvas.style.height = `${height}px`;
    const context = this.canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    const colours = Object.fromEntries(
      Object.entries(NAMES).map(([letter, name]) => [letter, style.getPropertyValue(`--${name}`)]),
    );
    const gap = this.side > 6 ? 2 : this.side > 3 ? 1 : 0;
    context.scale(scale, scale);
    for (const letter of "wmdpf") {
      // the worst last, and each colour set once
      context.fillStyle = colours[letter];
      for (let index = this.cells.indexOf(letter); index >= 0; index = this.cells.indexOf(letter, index + 1)) {
        const [x, y] = this.corner(index);
        const more = letter === "f" && this.side < 5 ? 2 : 0; // one red dot among many must be seen
        context.fillRect(x - more, y - more, this.side - gap + 2 * more, this.side - gap + 2 * more);
        if (letter === "f" && this.side > 8) this.cross(context, x, y, this.side - gap, style);
      }
    }
    if (document.activeElement === this.canvas && this.cells) {
      const [x, y] = this.corner(this.at);
      context.strokeStyle = style.getPropertyValue("--text");
      context.lineWidth = 2;
      context.strokeRect(x - 1, y - 1, this.side - gap + 2, this.side - gap + 2);
    }
  }

  cross(context, x, y, side, style) {
    // told from the others without its colour, too
    context.strokeStyle = style.getPropertyValue("--card");
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(x + 4, y + 4);
    context.lineTo(x + side - 4, y + side - 4);
    context.moveTo(x + side - 4, y + 4);
    context.lineTo(x + 4, y + side - 4);
    context.stroke();
  }

  corner(index) {
    return [(index % this.columns) * this.side, Math.floor(index / this.columns) * this.side];
  }

  index(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.min(this.columns - 1, Math.floor((event.clientX - box.left) / this.side));
    return Math.floor((event.clientY - box.top) / this.side) * this.columns + column;
  }

  words(index) {
    return index < this.cells.length ? `shard ${index + 1} of ${this.cells.length}: ${NAMES[this.cells[index]]}` : "";
  }

  pick(event) {
    const index = this.index(event);
    if (index >= this.cells.length) return;
    this.at = index;
    this.open(index);
  }

  key(event) {
    const steps = {
      ArrowLeft: -1,
      ArrowRight: 1,
      ArrowUp: -this.columns,
      ArrowDown: this.columns,
      Home: -Infinity,
      End: Infinity,
    };
    if (event.key in steps) {
      this.at = Math.max(0, Math.min(this.cells.length - 1, this.at + steps[event.key]));
      say(this.words(this.at));
      this.draw();
    } else if (event.key === "Enter" || event.key === " ") this.open(this.at);
    else return;
    event.preventDefault();
  }

  end() {
    this.resized.disconnect();
    this.left.abort();
  }
}
