// A graph on a canvas: only what is on the screen is drawn, so that 100,000 boxes move smoothly.

import type { DrawnBox, Drawing } from "../api/index.js";
import { h } from "./dom.js";

/** Colours of a theme, read from the style sheet. */
interface Palette {
  edge: string;
  text: string;
  dim: string;
  ground: string;
  accent: string;
  fill: Record<string, string>;
  border: Record<string, string>;
}

/** Below this scale texts can't be read, and are not drawn. */
const READABLE = 0.42;
const LARGEST = 4;
/** Side of the squares by which boxes and edges are found. */
const CELL = 2048;

interface Box extends DrawnBox {
  index: number;
}

/** What lies where, by squares. */
class Squares {
  readonly #cells = new Map<string, number[]>();

  add(index: number, left: number, top: number, right: number, bottom: number): void {
    for (let column = Math.floor(left / CELL); column <= Math.floor(right / CELL); column += 1) {
      for (let row = Math.floor(top / CELL); row <= Math.floor(bottom / CELL); row += 1) {
        const key = `${column},${row}`;
        const cell = this.#cells.get(key);
        if (cell) cell.push(index);
        else this.#cells.set(key, [index]);
      }
    }
  }

  within(left: number, top: number, right: number, bottom: number): Set<number> {
    const found = new Set<number>();
    const columns = [Math.floor(left / CELL), Math.floor(right / CELL)] as const;
    const rows = [Math.floor(top / CELL), Math.floor(bottom / CELL)] as const;
    if ((columns[1] - columns[0] + 1) * (rows[1] - rows[0] + 1) > this.#cells.size) {
      for (const cell of this.#cells.values()) for (const index of cell) found.add(index);
      return found;
    }
    for (let column = columns[0]; column <= columns[1]; column += 1) {
      for (let row = rows[0]; row <= rows[1]; row += 1) {
        for (const index of this.#cells.get(`${column},${row}`) ?? []) found.add(index);
      }
    }
    return found;
  }
}

/** A graph that is moved, zoomed, and whose boxes are chosen. */
export class GraphCanvas {
  readonly element: HTMLElement;
  readonly #canvas = h("canvas", {
    tabindex: 0,
    role: "application",
    "aria-label": "Graph. Arrow keys choose a box, Enter opens or closes a group, plus and minus zoom, 0 shows all.",
  });
  readonly #live = h("p.visually-hidden", { "aria-live": "polite" });
  readonly #choose: (box: DrawnBox) => void;
  readonly #toggle: (box: DrawnBox) => void;
  #drawing: Drawing = { width: 1, height: 1, boxes: [], labels: [], routes: [], open: [] };
  #boxes: Box[] = [];
  #boxSquares = new Squares();
  #routeSquares = new Squares();
  #labelSquares = new Squares();
  #scale = 1;
  #left = 0;
  #top = 0;
  #chosen = -1;
  #flops = 0;
  #palette: Palette | undefined;
  #isQueued = false;

  constructor(choose: (box: DrawnBox) => void, toggle: (box: DrawnBox) => void) {
    this.#choose = choose;
    this.#toggle = toggle;
    this.element = h("div.graph-canvas", this.#canvas, this.#live);
    this.#listen();
    new ResizeObserver(() => this.#queue()).observe(this.element);
  }

  /** Shows a drawing; of a box with costs a bar is its share of `flops`. The box of `keep` stays
   * where it is, or the whole is fitted in. */
  show(drawing: Drawing, flops: number, keep?: string): void {
    this.#flops = flops;
    const before = keep === undefined ? undefined : this.#boxes.find((box) => box.path === keep);
    this.#drawing = drawing;
    this.#boxes = drawing.boxes.map((box, index) => ({ ...box, index }));
    this.#boxSquares = new Squares();
    this.#routeSquares = new Squares();
    this.#labelSquares = new Squares();
    for (const box of this.#boxes) this.#boxSquares.add(box.index, box.left, box.top, box.left + box.width, box.top + box.height);
    for (const [index, route] of drawing.routes.entries()) {
      const [xs, ys] = [route.map(([x]) => x), route.map(([, y]) => y)];
      this.#routeSquares.add(index, Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys));
    }
    for (const [index, { x, y }] of drawing.labels.entries()) this.#labelSquares.add(index, x - 60, y - 10, x + 60, y);
    const after = keep === undefined ? undefined : this.#boxes.find((box) => box.path === keep);
    this.#chosen = after?.index ?? -1;
    if (before && after) {
      this.#left += before.left - after.left;
      this.#top += before.top - after.top;
      this.#left += 0;
    } else this.fit();
    this.#queue();
  }

  /** Colours changed. */
  repaint(): void {
    this.#palette = undefined;
    this.#queue();
  }

  /** Shows the whole width; of a long graph its beginning. */
  fit(): void {
    const { clientWidth: width, clientHeight: height } = this.element;
    const { width: wide, height: high } = this.#drawing;
    const whole = Math.min(width / wide, height / high, 1);
    // Where the whole can't be read, its beginning can.
    this.#scale = whole >= READABLE ? whole : Math.min(1, Math.max(READABLE, Math.min(width / wide, 0.8)));
    this.#left = (width / this.#scale - wide) / 2;
    this.#top = whole >= READABLE ? (height / this.#scale - high) / 2 : 8;
    this.#queue();
  }

  /** Shows all of it, however small. */
  fitAll(): void {
    const { clientWidth: width, clientHeight: height } = this.element;
    this.#scale = Math.min(width / this.#drawing.width, height / this.#drawing.height, 1);
    this.#left = (width / this.#scale - this.#drawing.width) / 2;
    this.#top = (height / this.#scale - this.#drawing.height) / 2;
    this.#queue();
  }

  /** Makes it larger or smaller around the middle, or around a point of the canvas. */
  zoom(factor: number, x = this.element.clientWidth / 2, y = this.element.clientHeight / 2): void {
    const least = Math.min(0.05, this.element.clientHeight / this.#drawing.height, this.element.clientWidth / this.#drawing.width);
    const scale = Math.min(LARGEST, Math.max(least, this.#scale * factor));
    this.#left += x / scale - x / this.#scale;
    this.#top += y / scale - y / this.#scale;
    this.#scale = scale;
    this.#queue();
  }

  /** The box of a node, or of the innermost group around it that is shown. */
  nearest(path: string): DrawnBox | undefined {
    return this.#nearest(path);
  }

  #nearest(path: string): Box | undefined {
    let nearest: Box | undefined;
    for (const box of this.#boxes) {
      // What is within a frame comes after it, and has the same path where it is the first there.
      const isAround = box.path === path || path.startsWith(`${box.path}/`);
      if (isAround && box.path.length >= (nearest?.path.length ?? 0)) nearest = box;
    }
    return nearest;
  }

  /** Chooses the box of a node, and brings it to the middle; false where it is not shown. */
  reveal(path: string): boolean {
    const found = this.#nearest(path);
    if (!found) return false;
    if (this.#scale < READABLE) this.#scale = 0.9;
    this.#left = this.element.clientWidth / 2 / this.#scale - (found.left + found.width / 2);
    this.#top = this.element.clientHeight / 2 / this.#scale - (found.top + Math.min(found.height, 80) / 2);
    this.#select(found.index);
    return found.path === path;
  }

  #select(index: number): void {
    const box = this.#boxes[index];
    if (!box) return;
    this.#chosen = index;
    this.#live.textContent = [box.title, ...box.lines, box.scene === undefined ? "" : box.is_frame ? "open group" : "closed group"].join(", ");
    this.#choose(box);
    this.#queue();
  }

  #listen(): void {
    const canvas = this.#canvas;
    let last: { x: number; y: number; moved: boolean } | undefined;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      last = { x: event.offsetX, y: event.offsetY, moved: false };
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!last || event.buttons === 0) {
        canvas.style.cursor = this.#at(event.offsetX, event.offsetY) ? "pointer" : "grab";
        return;
      }
      const [dx, dy] = [event.offsetX - last.x, event.offsetY - last.y];
      if (!last.moved && Math.hypot(dx, dy) < 4) return;
      this.#left += dx / this.#scale;
      this.#top += dy / this.#scale;
      last = { x: event.offsetX, y: event.offsetY, moved: true };
      this.#queue();
    });
    canvas.addEventListener("pointerup", (event) => {
      const found = last && !last.moved ? this.#at(event.offsetX, event.offsetY) : undefined;
      last = undefined;
      if (found) this.#select(found.index);
    });
    canvas.addEventListener("dblclick", (event) => {
      const found = this.#at(event.offsetX, event.offsetY);
      if (found?.scene !== undefined) this.#toggle(found);
    });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (event.ctrlKey || event.metaKey) this.zoom(Math.exp(-event.deltaY / 100), event.offsetX, event.offsetY);
      else {
        this.#left -= event.deltaX / this.#scale;
        this.#top -= event.deltaY / this.#scale;
        this.#queue();
      }
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  #key(event: KeyboardEvent): void {
    const chosen = this.#boxes[this.#chosen];
    const directions: Record<string, [number, number]> = { ArrowDown: [0, 1], ArrowUp: [0, -1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };
    const direction = directions[event.key];
    if (direction && event.shiftKey) {
      this.#left -= (direction[0] * 120) / this.#scale;
      this.#top -= (direction[1] * 120) / this.#scale;
      this.#queue();
    } else if (direction) this.#step(direction, chosen);
    else if (event.key === "Enter" && chosen?.scene !== undefined) this.#toggle(chosen);
    else if (event.key === "+" || event.key === "=") this.zoom(1.25);
    else if (event.key === "-") this.zoom(0.8);
    else if (event.key === "0") this.fitAll();
    else return;
    event.preventDefault();
  }

  /** Chooses the nearest box in a direction. */
  #step([dx, dy]: [number, number], from: Box | undefined): void {
    const middle = (box: Box) => [box.left + box.width / 2, box.top + (box.is_frame ? 15 : box.height / 2)] as const;
    const [x, y] = from ? middle(from) : [this.#drawing.width / 2, -1];
    let best: { box: Box; cost: number } | undefined;
    for (const box of this.#boxes) {
      if (box.index === this.#chosen) continue;
      const [toX, toY] = middle(box);
      const along = (toX - x) * dx + (toY - y) * dy;
      const across = Math.abs((toX - x) * dy) + Math.abs((toY - y) * dx);
      if (along <= 1) continue;
      const cost = along + 2 * across;
      if (!best || cost < best.cost) best = { box, cost };
    }
    if (!best) return;
    this.#select(best.box.index);
    this.#bringIn(best.box);
  }

  #bringIn(box: Box): void {
    const [x, y] = [(box.left + this.#left) * this.#scale, (box.top + this.#top) * this.#scale];
    const { clientWidth: width, clientHeight: height } = this.element;
    if (x < 0 || x + box.width * this.#scale > width) this.#left = width / 2 / this.#scale - (box.left + box.width / 2);
    if (y < 0 || y + Math.min(box.height, 60) * this.#scale > height) this.#top = height / 2 / this.#scale - (box.top + Math.min(box.height, 60) / 2);
    this.#queue();
  }

  /** The innermost box at a point of the canvas. */
  #at(offsetX: number, offsetY: number): Box | undefined {
    const [x, y] = [offsetX / this.#scale - this.#left, offsetY / this.#scale - this.#top];
    let found: Box | undefined;
    for (const index of this.#boxSquares.within(x, y, x, y)) {
      const box = this.#boxes[index]!;
      const isIn = x >= box.left && x <= box.left + box.width && y >= box.top && y <= box.top + box.height;
      if (isIn && (!found || box.width * box.height < found.width * found.height)) found = box;
    }
    return found;
  }

  #queue(): void {
    if (this.#isQueued) return;
    this.#isQueued = true;
    requestAnimationFrame(() => {
      this.#isQueued = false;
      this.#draw();
    });
  }

  #draw(): void {
    const { clientWidth: width, clientHeight: height } = this.element;
    const ratio = window.devicePixelRatio;
    const canvas = this.#canvas;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const context = canvas.getContext("2d");
    if (!context || width === 0) return;
    const palette = (this.#palette ??= paletteOf(this.element));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = palette.ground;
    context.fillRect(0, 0, width, height);
    const scale = ratio * this.#scale;
    context.setTransform(scale, 0, 0, scale, this.#left * scale, this.#top * scale);
    const seen = [-this.#left, -this.#top, width / this.#scale - this.#left, height / this.#scale - this.#top] as const;
    const boxes = [...this.#boxSquares.within(...seen)].sort((one, other) => one - other).map((index) => this.#boxes[index]!);
    const isReadable = this.#scale >= READABLE;
    for (const box of boxes) if (box.is_frame) this.#drawBox(context, box, palette, isReadable);
    this.#drawRoutes(context, seen, palette);
    for (const box of boxes) if (!box.is_frame) this.#drawBox(context, box, palette, isReadable);
    if (!isReadable) return;
    context.fillStyle = palette.dim;
    context.font = "10px system-ui, sans-serif";
    context.textAlign = "center";
    for (const index of this.#labelSquares.within(...seen)) {
      const { x, y, text } = this.#drawing.labels[index]!;
      context.fillText(text, x, y);
    }
  }

  #drawRoutes(context: CanvasRenderingContext2D, seen: readonly [number, number, number, number], palette: Palette): void {
    context.beginPath();
    context.strokeStyle = palette.edge;
    context.lineWidth = Math.max(1.2, 0.6 / this.#scale);
    const tips: [number, number][] = [];
    for (const index of this.#routeSquares.within(...seen)) {
      const route = this.#drawing.routes[index]!;
      let [x, y] = route[0]!;
      context.moveTo(x, y);
      for (let at = 1; at < route.length; at += 2) {
        const [toX, toY] = route[at]!;
        const middle = (y + toY) / 2;
        if (Math.abs(toX - x) < 0.5) context.lineTo(toX, toY);
        else context.bezierCurveTo(x, middle, toX, middle, toX, toY);
        [x, y] = route[at + 1] ?? [toX, toY];
        if (route[at + 1]) context.lineTo(x, y);
      }
      tips.push([x, y]);
    }
    context.stroke();
    if (this.#scale < READABLE / 2) return;
    context.fillStyle = palette.edge;
    context.beginPath();
    for (const [x, y] of tips) {
      context.moveTo(x, y);
      context.lineTo(x - 3.5, y - 7);
      context.lineTo(x + 3.5, y - 7);
    }
    context.fill();
  }

  #drawBox(context: CanvasRenderingContext2D, box: Box, palette: Palette, isReadable: boolean): void {
    const { left, top, width, height } = box;
    context.beginPath();
    context.roundRect(left, top, width, height, box.is_frame ? 10 : 6);
    context.fillStyle = palette.fill[box.class] ?? palette.ground;
    context.fill();
    const isChosen = box.index === this.#chosen;
    context.strokeStyle = isChosen ? palette.accent : palette.border[box.class] ?? palette.edge;
    context.lineWidth = isChosen ? 3 : 1.2;
    context.stroke();
    this.#drawShare(context, box, palette);
    if (!isReadable) return;
    const badge = box.times > 1 ? `× ${box.times}` : "";
    context.font = "600 13px system-ui, sans-serif";
    context.fillStyle = palette.text;
    const sign = box.scene === undefined ? "" : box.is_frame ? "▾ " : "▸ ";
    if (box.is_frame) {
      context.textAlign = "left";
      context.fillText(sign + box.title, left + 12, top + 20);
      context.font = "10.5px system-ui, sans-serif";
      context.fillStyle = palette.dim;
      context.textAlign = "right";
      context.fillText([...box.lines, badge].filter(Boolean).join(" · "), left + width - 12, top + 20);
      return;
    }
    context.textAlign = "center";
    context.fillText([sign + box.title, badge].filter(Boolean).join("  "), left + width / 2, top + 17, width - 6);
    context.font = "10.5px system-ui, sans-serif";
    context.fillStyle = palette.dim;
    for (const [index, line] of box.lines.entries()) {
      context.fillText(line, left + width / 2, top + 17 + 15 * (index + 1), width - 6);
    }
  }

  /** The share that a box has of all operations, as a bar at its lower side. */
  #drawShare(context: CanvasRenderingContext2D, { left, top, width, height, cost, is_frame }: Box, palette: Palette): void {
    if (!cost || is_frame || this.#flops === 0) return;
    const share = Math.min(1, cost.flops / this.#flops);
    if (share < 0.001) return;
    context.fillStyle = palette.accent;
    context.fillRect(left + 4, top + height - 4, Math.max(1, (width - 8) * share), 3);
  }
}

const CLASSES = ["end", "group", "product", "norm", "activation", "lookup", "movement", "arithmetic"];

function paletteOf(element: HTMLElement): Palette {
  const style = getComputedStyle(element);
  // A custom property keeps `light-dark()` as it is written; a colour that is used is resolved.
  const probe = h("span");
  element.append(probe);
  const colour = (name: string) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color || style.color;
  };
  const of = (kind: string) => Object.fromEntries(CLASSES.map((name) => [name, colour(`--${name}-${kind}`)]));
  const palette = {
    edge: colour("--edge"), text: colour("--text"), dim: colour("--dim"), ground: colour("--ground"),
    accent: colour("--accent"), fill: of("fill"), border: of("border"),
  };
  probe.remove();
  return palette;
}
