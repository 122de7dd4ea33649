"use strict";
// Builds elements and draws the machine room. Texts from outside go into text nodes only.

const NAMESPACE = "http://www.w3.org/2000/svg";
const PALETTE = [
  "#2f7fc1",
  "#e08e1b",
  "#2a9d74",
  "#c2609a",
  "#7a6bd0",
  "#d6604d",
  "#8f8a1f",
  "#3aa7b8",
  "#9c6b4a",
  "#5d7f3a",
  "#b04fc4",
  "#6b7f99",
];
const SCALE = ["#2166ac", "#5ba3cf", "#a6cee3", "#f2d6a2", "#e79a4c", "#c4421e"];

function element(name, attributes, ...children) {
  return build(document.createElement(name), attributes, children);
}
function drawing(name, attributes, ...children) {
  return build(document.createElementNS(NAMESPACE, name), attributes, children);
}
// Marks five moments below a picture.
function ticks(picture, left, right, y, first, last) {
  for (const step of [0, 0.25, 0.5, 0.75, 1])
    picture.append(
      drawing(
        "text",
        { x: left + (right - left) * step, y, "text-anchor": step === 0 ? "start" : step === 1 ? "end" : "middle" },
        right < 490 && step % 1 ? "" : clock(first + (last - first) * step),
      ),
    );
}
function build(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {}))
    if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  for (const child of children.flat(Infinity))
    if (child !== null && child !== undefined && child !== "")
      made.append(child instanceof Node ? child : String(child));
  return made;
}
function dot(colour) {
  const made = element("i", { class: "dot", "aria-hidden": "true" });
  made.style.background = colour;
  return made;
}
function styled(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const owners = new Map();
function ownerColour(user) {
  if (!owners.has(user)) owners.set(user, PALETTE[owners.size % PALETTE.length]);
  return owners.get(user);
}
function scoreColour(score) {
  return SCALE[Math.max(0, Math.min(SCALE.length - 1, Math.floor((score - 0.94) / 0.04)))];
}
function useColour(percent) {
  return SCALE[[95, 75, 50, 25, 5, 0].findIndex((least) => percent >= least)];
}
function bits(mask) {
  const found = [];
  for (let gpu = 0; mask >= 1; gpu += 1, mask = Math.floor(mask / 2)) if (mask % 2 >= 1) found.push(gpu);
  return found;
}

// 0,1,2,5 becomes 0-2,5, as Slurm writes it.
function folded(numbers) {
  const parts = [];
  for (const number of numbers) {
    const last = parts.at(-1);
    if (last && last[1] === number - 1) last[1] = number;
    else parts.push([number, number]);
  }
  return parts.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(",");
}

class RoomDrawing {
  constructor(floor, room, choose, tell) {
    this.room = room;
    this.boxes = [];
    this.choose = choose;
    this.tell = tell;
    this.nodes = room.nodes;
    const count = this.nodes.length;
    this.gpu = count <= 24 ? 24 : count <= 96 ? 14 : count <= 384 ? 8 : 5;
    this.named = count <= 96;
    floor.replaceChildren();
    const pods = new Map();
    this.nodes.forEach((node, place) => {
      const leaves = pods.get(node.pod) || pods.set(node.pod, new Map()).get(node.pod);
      (leaves.get(node.leaf) || leaves.set(node.leaf, []).get(node.leaf)).push(place);
    });
    for (const [pod, leaves] of pods) {
      const inner = element("div", { class: "leaves" });
      floor.append(
        element(
          "div",
          { class: "pod" },
          element("h2", {}, pod || (pods.size > 1 ? "in no pod" : "Machine room")),
          inner,
        ),
      );
      for (const [leaf, places] of leaves) this.addLeaf(inner, leaf, places);
    }
  }
  addLeaf(inner, leaf, places) {
    const canvas = element("canvas", {
      tabindex: "0",
      role: "application",
      "aria-label": `${leaf || "nodes"}: ${places.length} nodes; arrow keys choose a GPU, Enter opens it`,
    });
    const free = element("span", {});
    inner.append(
      element("div", { class: "leaf" }, element("h3", {}, element("span", {}, leaf || "nodes"), free), canvas),
    );
    const box = { canvas, places, free, at: 0 };
    this.boxes.push(box);
    canvas.addEventListener("click", (event) => {
      const hit = this.hit(box, event.offsetX, event.offsetY);
      if (hit) this.choose(...hit);
    });
    canvas.addEventListener("mousemove", (event) => this.tell(this.hit(box, event.offsetX, event.offsetY), event));
    canvas.addEventListener("mouseleave", () => this.tell(null));
    canvas.addEventListener("focus", () => {
      this.focused = box;
      this.draw();
    });
    canvas.addEventListener("blur", () => {
      this.focused = null;
      this.tell(null);
      this.draw();
    });
    canvas.addEventListener("keydown", (event) => this.key(box, event));
  }
  measure() {
    const g = this.gpu,
      gap = g > 6 ? 2 : 1,
      most = Math.max(1, ...this.nodes.map((node) => node.gpus));
    this.columns = Math.min(most, most > 4 ? Math.ceil(most / 2) : most);
    this.rows = Math.ceil(most / this.columns);
    this.gap = gap;
    this.pad = g > 6 ? 4 : 2;
    this.title = this.named ? 14 : 0;
    this.width = this.columns * (g + gap) - gap + 2 * this.pad;
    this.height = this.rows * (g + gap) - gap + 2 * this.pad + this.title;
    this.space = g > 6 ? 6 : 3;
  }
  place(box, index) {
    const column = index % box.columns,
      row = Math.floor(index / box.columns);
    return [column * (this.width + this.space), row * (this.height + this.space)];
  }
  hit(box, x, y) {
    const column = Math.floor(x / (this.width + this.space)),
      row = Math.floor(y / (this.height + this.space));
    const index = row * box.columns + column;
    if (column >= box.columns || index < 0 || index >= box.places.length) return null;
    const [left, top] = this.place(box, index),
      step = this.gpu + this.gap;
    const across = Math.floor((x - left - this.pad) / step),
      down = Math.floor((y - top - this.pad - this.title) / step);
    const gpu = across >= 0 && across < this.columns && down >= 0 ? down * this.columns + across : -1;
    return [box.places[index], gpu >= 0 && gpu < this.nodes[box.places[index]].gpus ? gpu : null];
  }
  key(box, event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns }[event.key],
      size = this.columns * this.rows;
    if (event.key === "Enter") {
      this.choose(box.places[Math.floor(box.at / size)], box.at % size);
      return;
    }
    if (!step) return;
    event.preventDefault();
    box.at = Math.max(0, Math.min(box.places.length * size - 1, box.at + step));
    this.draw();
    const area = box.canvas.getBoundingClientRect(),
      [x, y] = this.place(box, Math.floor(box.at / size));
    this.tell([box.places[Math.floor(box.at / size)], box.at % size], {
      clientX: area.left + x + this.width,
      clientY: area.top + y,
    });
  }
  // paint(node, gpu) gives {colour, ring, guest, dim, part}
  draw(paint, sick) {
    this.paint = paint || this.paint;
    this.sick = sick || this.sick || {};
    if (!this.paint) return;
    this.measure();
    const ratio = window.devicePixelRatio || 1,
      free = styled("--free"),
      edge = styled("--edge"),
      muted = styled("--muted"),
      ink = styled("--ink"),
      bad = styled("--bad"),
      card = styled("--card");
    for (const box of this.boxes) {
      const available = box.canvas.parentElement.parentElement.clientWidth - 20;
      const most = Math.max(
        1,
        Math.min(box.places.length, Math.floor((available + this.space) / (this.width + this.space))),
      );
      box.columns = [8, 6, 4, 3].find((wish) => wish <= most && box.places.length % wish === 0) || Math.min(most, 8);
      const wide = box.columns * (this.width + this.space) - this.space,
        high = Math.ceil(box.places.length / box.columns) * (this.height + this.space) - this.space;
      const canvas = box.canvas,
        pen = canvas.getContext("2d");
      if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(high * ratio)) {
        canvas.width = Math.round(wide * ratio);
        canvas.height = Math.round(high * ratio);
        canvas.style.width = `${wide}px`;
        canvas.style.height = `${high}px`;
      }
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, wide, high);
      let idle = 0,
        lastDomain = null;
      box.places.forEach((place, index) => {
        const node = this.nodes[place],
          [x, y] = this.place(box, index);
        pen.fillStyle = card;
        pen.strokeStyle = place in this.sick ? bad : node.domain && node.domain !== lastDomain ? edge : free;
        pen.lineWidth = 1;
        pen.beginPath();
        pen.roundRect(x + 0.5, y + 0.5, this.width - 1, this.height - 1, this.gpu > 6 ? 4 : 2);
        pen.fill();
        pen.stroke();
        if (
          node.domain &&
          index + 1 < box.places.length &&
          this.nodes[box.places[index + 1]].domain === node.domain &&
          (index + 1) % box.columns
        ) {
          pen.fillStyle = edge;
          pen.fillRect(x + this.width, y + this.height / 2 - 1, this.space, 2);
        }
        lastDomain = node.domain;
        if (this.named) {
          pen.fillStyle = place in this.sick ? bad : muted;
          pen.font = "10px system-ui, sans-serif";
          pen.textBaseline = "top";
          pen.fillText(node.name, x + this.pad, y + 3, this.width - 2 * this.pad);
        }
        for (let gpu = 0; gpu < node.gpus; gpu += 1) {
          const look = this.paint(place, gpu),
            left = x + this.pad + (gpu % this.columns) * (this.gpu + this.gap),
            top = y + this.pad + this.title + Math.floor(gpu / this.columns) * (this.gpu + this.gap);
          if (!look.taken) idle += 1;
          pen.globalAlpha = look.dim ? 0.22 : 1;
          pen.fillStyle = look.colour || free;
          const radius = this.gpu > 6 ? 3 : 1;
          pen.beginPath();
          pen.roundRect(left, top, this.gpu, this.gpu, radius);
          pen.fill();
          if (look.part && look.part < 100) {
            pen.fillStyle = card;
            pen.globalAlpha = 0.65;
            pen.fillRect(left, top, this.gpu, this.gpu * (1 - look.part / 100));
            pen.globalAlpha = 1;
          }
          if (look.guest) {
            pen.fillStyle = "#fff";
            pen.beginPath();
            pen.arc(left + this.gpu / 2, top + this.gpu / 2, Math.max(1.5, this.gpu / 4.5), 0, 7);
            pen.fill();
          }
          if (look.ring) {
            pen.strokeStyle = ink;
            pen.lineWidth = 1.5;
            pen.stroke();
          }
          pen.globalAlpha = 1;
          if (this.focused === box && box.at === index * this.columns * this.rows + gpu) {
            pen.strokeStyle = styled("--accent");
            pen.lineWidth = 2;
            pen.strokeRect(left - 1, top - 1, this.gpu + 2, this.gpu + 2);
          }
        }
      });
      box.free.textContent = `${idle} free`;
    }
  }
}
