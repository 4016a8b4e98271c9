// The cells of a row, in the order of appendRow in row.go.
export const RANK = 0, NODE = 1, LOCAL = 2, PID = 3, PHASE = 4, RESTARTS = 5, START = 6, CPU = 7, MEMORY = 8, OUTPUT = 9,
  STEP = 10, TOTAL = 11, TIME = 12, SECTION = 13, TOLD = 14, VALUES = 15, DEVICE = 16, DEVICETOTAL = 17, BUSY = 18, EXIT = 19;

// slowBy is how many times the median step of all a step takes that is called slow, behindBy how many steps a rank may
// lie behind the median one.
const slowBy = 1.5, behindBy = 3;

const names = ["running", "creating", "restarting", "failed", "succeeded", "stopped", "pending", "unknown", "mark", "low", "high",
  "slow", "lag", "text", "quiet", "line", "accent", "card"];

// colours are those of the style sheet, which has two sets of them.
export function colours() {
  const style = getComputedStyle(document.documentElement), c = {};
  for (const n of names) c[n] = style.getPropertyValue("--" + n).trim();
  return c;
}

export function stateOf(phase) {
  switch (phase) {
    case "Running": return "running";
    case "Creating": case "Checking": return "creating";
    case "Restarting": case "Terminating": case "Paused": case "Resuming": case "Scaling": return "restarting";
    case "Failed": case "Timeout": return "failed";
    case "Succeeded": return "succeeded";
    case "Stopped": return "stopped";
    case "Unknown": return "unknown";
  }
  return "pending";
}

function median(list) {
  if (!list.length) return null;
  list.sort((a, b) => a - b);
  return list[list.length >> 1];
}

// measure looks at all rows for what single ones are compared with.
export function measure(rows) {
  const times = [], steps = [];
  let cpu = 0, memory = 0, knowsCPU = false, knowsMemory = false, running = 0, most = 0, mostCPU = 0, mostMemory = 0, worst = null, least = null;
  let device = 0, deviceTotal = 0, knowsDevice = false, busy = 0, busyOf = 0;
  for (const r of rows) {
    if (r[PHASE] === "Running") running++;
    if (r[CPU] !== null) { cpu += r[CPU]; knowsCPU = true; mostCPU = Math.max(mostCPU, r[CPU]); }
    if (r[MEMORY] !== null) { memory += r[MEMORY]; knowsMemory = true; mostMemory = Math.max(mostMemory, r[MEMORY]); }
    if (r[DEVICE] !== null) { device += r[DEVICE]; deviceTotal += r[DEVICETOTAL]; knowsDevice = true; }
    if (r[BUSY] !== null) { busy += r[BUSY]; busyOf++; }
    if (r[STEP] !== null) {
      steps.push(r[STEP]); most = Math.max(most, r[STEP]);
      least = least === null ? r[STEP] : Math.min(least, r[STEP]);
    }
    if (r[TIME] !== null) { times.push(r[TIME]); worst = Math.max(worst ?? 0, r[TIME]); }
  }
  return {
    cpu: knowsCPU ? cpu : null, memory: knowsMemory ? memory : null, running, time: median(times), worst, step: median(steps), most, least,
    mostCPU, mostMemory, device: knowsDevice ? device : null, deviceTotal, busy: busyOf ? busy / busyOf : null,
  };
}

// slow reports whether a rank is a straggler.
export function slow(r, m) {
  return r[PHASE] === "Running" && (r[TIME] !== null && m.time !== null && r[TIME] > slowBy * m.time ||
    r[STEP] !== null && m.step !== null && r[STEP] < m.step - behindBy);
}

function mix(a, b, share) {
  const x = parseInt(a.slice(1), 16), y = parseInt(b.slice(1), 16), part = n => {
    const from = x >> n & 255, to = y >> n & 255;
    return Math.round(from + (to - from) * share);
  };
  return `rgb(${part(16)},${part(8)},${part(0)})`;
}

// Grid draws a cell for each rank, those of a node side by side.
export class Grid {
  constructor(canvas, choose) {
    this.canvas = canvas;
    this.rows = [];
    this.nodes = [];
    this.by = "state";
    this.chosen = -1; // place in rows
    this.choose = choose;
    canvas.addEventListener("pointermove", e => this.point(e, false));
    canvas.addEventListener("click", e => this.point(e, true));
    canvas.addEventListener("pointerleave", () => choose(this.chosen, false));
    canvas.addEventListener("keydown", e => this.key(e));
  }

  set(nodes, rows, m) {
    this.nodes = nodes;
    this.rows = rows;
    this.m = m;
    this.groups = nodes.map(() => []);
    rows.forEach((r, i) => this.groups[r[NODE]].push(i));
    if (this.chosen >= rows.length) this.chosen = -1;
  }

  // layout chooses the largest cells with which all ranks fit a screen.
  layout(width) {
    const ctx = this.canvas.getContext("2d"), most = Math.max(1, ...this.groups.map(g => g.length));
    const tall = Math.max(220, Math.min(460, innerHeight * .5));
    let fits = null;
    for (const size of [34, 28, 22, 18, 15, 12, 10, 8, 6, 5, 4]) {
      const gap = size >= 12 ? 2 : 1, step = size + gap;
      ctx.font = `${Math.min(13, Math.max(10, size - 4))}px system-ui, sans-serif`;
      let label = 0;
      if (size >= 12) label = Math.min(width * .4, Math.max(...this.nodes.slice(0, 200).map(n => ctx.measureText(n).width)) + 10);
      const across = Math.max(1, Math.min(most, Math.floor((width - label) / step))); // cells of a node in a line
      const lines = Math.ceil(most / across), wide = label + across * step + (size >= 12 ? 18 : 5);
      const columns = Math.max(1, Math.floor((width + (size >= 12 ? 18 : 5)) / wide));
      const high = lines * step + (lines > 1 ? 4 : size >= 12 ? 2 : 2);
      fits = {size, gap, step, label, across, wide, columns, high, height: Math.ceil(this.nodes.length / columns) * high + 2};
      if (fits.height <= tall) break;
    }
    return fits;
  }

  place(i) {
    const f = this.fits, r = this.rows[i], node = r[NODE], at = this.groups[node].indexOf(i);
    return [
      (node % f.columns) * f.wide + f.label + (at % f.across) * f.step + 1,
      Math.floor(node / f.columns) * f.high + Math.floor(at / f.across) * f.step + 1,
    ];
  }

  colour(r, c) {
    const m = this.m;
    let share = null;
    switch (this.by) {
      case "time": share = r[TIME] === null || !m.time ? null : (r[TIME] / m.time - .8) / .7; break;
      case "step": share = r[STEP] === null ? null : (m.most - r[STEP]) / 10; break;
      case "cpu": share = r[CPU] === null ? null : r[CPU] / (m.mostCPU || 1); break;
      case "memory": share = r[MEMORY] === null ? null : r[MEMORY] / (m.mostMemory || 1); break;
      case "device": share = r[DEVICE] === null || !r[DEVICETOTAL] ? null : r[DEVICE] / r[DEVICETOTAL]; break;
      case "busy": share = r[BUSY]; break;
      default: return c[stateOf(r[PHASE])];
    }
    if (share === null) return c.line;
    if ((this.by === "time" || this.by === "step") && share > 1) return c.slow;
    return mix(c.low, c.high, Math.max(0, Math.min(1, share)));
  }

  draw() {
    const canvas = this.canvas, width = canvas.parentElement.clientWidth - parseFloat(getComputedStyle(canvas.parentElement).paddingLeft) * 2;
    if (!this.rows.length || width <= 0) { canvas.style.height = "0"; return; }
    const f = this.fits = this.layout(width), ratio = devicePixelRatio || 1, c = colours();
    const pixels = [Math.round(width * ratio), Math.round(f.height * ratio)];
    if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) [canvas.width, canvas.height] = pixels;
    canvas.style.height = f.height + "px";
    const ctx = canvas.getContext("2d");
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.clearRect(0, 0, width, f.height);
    ctx.textBaseline = "middle";
    const font = Math.min(13, Math.max(10, f.size - 4));
    this.groups.forEach((group, node) => {
      const x0 = (node % f.columns) * f.wide, y0 = Math.floor(node / f.columns) * f.high;
      if (f.label) {
        ctx.fillStyle = c.quiet;
        ctx.font = `${font}px system-ui, sans-serif`;
        ctx.fillText(this.nodes[node], x0, y0 + 1 + f.size / 2, f.label - 8);
      }
      group.forEach((i, at) => {
        const r = this.rows[i], x = x0 + f.label + (at % f.across) * f.step + 1, y = y0 + Math.floor(at / f.across) * f.step + 1;
        ctx.fillStyle = this.colour(r, c);
        ctx.fillRect(x, y, f.size, f.size);
        if (r[PHASE] === "Failed") this.cross(ctx, x, y, f.size, c);
        else if (slow(r, this.m)) this.corner(ctx, x, y, f.size, c);
        if (f.size >= 22 && r[PHASE] !== "Failed") {
          ctx.fillStyle = "#fff";
          ctx.font = "11px system-ui, sans-serif";
          ctx.textAlign = "center";
          ctx.fillText(r[RANK], x + f.size / 2, y + f.size / 2 + .5, f.size - 2);
          ctx.textAlign = "start";
        }
      });
    });
    if (this.chosen >= 0) {
      const [x, y] = this.place(this.chosen);
      ctx.strokeStyle = c.mark;
      ctx.lineWidth = 2;
      ctx.strokeRect(x - 1, y - 1, f.size + 2, f.size + 2);
    }
  }

  // A failed rank is crossed out, and a slow one has a corner: colour is not all that tells them.
  cross(ctx, x, y, size, c) {
    if (size < 6) return;
    ctx.strokeStyle = c.card;
    ctx.lineWidth = Math.max(1, size / 10);
    ctx.beginPath();
    const in_ = size * .22;
    ctx.moveTo(x + in_, y + in_); ctx.lineTo(x + size - in_, y + size - in_);
    ctx.moveTo(x + size - in_, y + in_); ctx.lineTo(x + in_, y + size - in_);
    ctx.stroke();
  }

  corner(ctx, x, y, size, c) {
    ctx.fillStyle = c.lag;
    ctx.beginPath();
    const part = size < 12 ? size : size * .6; // a small one is all corner
    ctx.moveTo(x + size, y); ctx.lineTo(x + size, y + part); ctx.lineTo(x + size - part, y);
    ctx.fill();
  }

  point(e, click) {
    const f = this.fits;
    if (!f) return;
    const box = this.canvas.getBoundingClientRect(), x = e.clientX - box.left, y = e.clientY - box.top;
    const column = Math.floor(x / f.wide), line = Math.floor(y / f.high), node = line * f.columns + column;
    const group = column < f.columns && this.groups[node];
    const inX = x - column * f.wide - f.label, across = Math.floor(inX / f.step);
    const at = Math.floor((y - line * f.high) / f.step) * f.across + across;
    const i = group && inX >= 0 && across < f.across ? group[at] : undefined;
    if (i === undefined) { if (!click) this.choose(this.chosen, false); return; }
    if (click) this.chosen = i;
    this.choose(i, click);
    if (click) this.draw();
  }

  key(e) {
    const f = this.fits, n = this.rows.length;
    if (!f || !n) return;
    let to = this.chosen < 0 ? 0 : this.chosen;
    const r = this.rows[to], group = this.groups[r[NODE]], at = group.indexOf(to);
    const below = lines => {
      const next = this.groups[r[NODE] + lines * f.columns];
      return next && next.length ? next[Math.min(at, next.length - 1)] : to;
    };
    switch (e.key) {
      case "ArrowRight": to = this.chosen < 0 ? 0 : Math.min(n - 1, to + 1); break;
      case "ArrowLeft": to = Math.max(0, to - 1); break;
      case "ArrowDown": to = group[at + f.across] ?? below(1); break;
      case "ArrowUp": to = group[at - f.across] ?? below(-1); break;
      case "Home": to = 0; break;
      case "End": to = n - 1; break;
      case "Enter": case " ": e.preventDefault(); this.chosen = to; this.choose(to, true); this.draw(); return;
      default: return;
    }
    e.preventDefault();
    this.chosen = to;
    this.choose(to, false);
    this.draw();
  }
}
