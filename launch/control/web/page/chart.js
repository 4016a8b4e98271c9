import {colours, stateOf} from "/grid.js";

export function clock(ms, span) {
  const d = new Date(ms), two = n => String(n).padStart(2, "0");
  const time = two(d.getHours()) + ":" + two(d.getMinutes());
  return span < 600 ? time + ":" + two(d.getSeconds()) : time;
}

function prepare(canvas) {
  const width = canvas.clientWidth, height = canvas.clientHeight, ratio = devicePixelRatio || 1;
  const pixels = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) [canvas.width, canvas.height] = pixels;
  const ctx = canvas.getContext("2d");
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.clearRect(0, 0, width, height);
  ctx.font = "11px system-ui, sans-serif";
  ctx.textBaseline = "middle";
  return [ctx, width, height];
}

// nice returns the distance of about three lines up to a number, which is a power of ten times 1, 2 or 5.
// For bytes, whose units are powers of 1,024, it is that of a number of the unit.
function nice(most, base) {
  let unit = 1;
  if (base) while (most / unit >= 1000) unit *= base;
  const raw = most / unit / 3, power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map(n => n * power).find(n => n >= raw) * unit;
}

// times returns where the axis of a span has its words, at most so many.
function times(from, to, most) {
  const step = [60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600].find(s => (to - from) / s <= most) ?? 43200, at = [];
  const zone = new Date(from * 1000).getTimezoneOffset() * 60;
  for (let t = Math.ceil((from - zone) / step) * step + zone; t <= to; t += step) at.push(t);
  return at;
}

const left = 52, right = 6;

// Chart draws lines over time. series: [{name, key, colour}], format makes a text of a number.
export class Chart {
  constructor(parent, title, series, format, base) {
    Object.assign(this, {title, series, format, base, hover: null});
    const box = document.createElement("div");
    box.className = "chart";
    const label = document.createElement("div");
    label.className = "label";
    const name = document.createElement("span");
    name.textContent = title;
    this.value = document.createElement("b");
    label.append(name, this.value);
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("role", "img");
    box.append(label, this.canvas);
    parent.append(box);
    this.canvas.addEventListener("pointermove", e => { this.hover = e.offsetX; this.draw(); });
    this.canvas.addEventListener("pointerleave", () => { this.hover = null; this.draw(); });
  }

  set(data, from, to) {
    Object.assign(this, {data, from, to});
    this.draw();
  }

  draw() {
    if (!this.data) return;
    const [ctx, width, height] = prepare(this.canvas), c = colours(), {data, from, to} = this;
    const bottom = height - 16, top = 6, t = data.time;
    let first = 0;
    while (first < t.length && t[first] < from) first++;
    if (first) first--;
    let most = 0;
    for (const s of this.series) for (let i = first; i < t.length; i++) if (data[s.key][i] > most) most = data[s.key][i];
    const x = at => left + (at - from) / (to - from) * (width - left - right);
    const line = most > 0 ? nice(most, this.base) : 1, high = most > 0 ? Math.ceil(most / line) * line : 1;
    const y = v => bottom - v / high * (bottom - top);
    ctx.strokeStyle = c.line;
    ctx.fillStyle = c.quiet;
    ctx.lineWidth = 1;
    ctx.textAlign = "right";
    for (let v = 0; v <= high * 1.001; v += line) {
      const at = Math.round(y(v)) + .5;
      ctx.beginPath(); ctx.moveTo(left, at); ctx.lineTo(width - right, at); ctx.stroke();
      if (most > 0) ctx.fillText(this.format(v), left - 6, at);
    }
    ctx.textAlign = "center";
    for (const at of times(from, to, Math.max(2, (width - left) / 90))) {
      const px = x(at);
      if (px > left + 14 && px < width - 16) ctx.fillText(clock(at * 1000, to - from), px, height - 6);
    }
    if (most === 0 && !t.some((_, i) => i >= first && this.series.some(s => data[s.key][i] !== null))) {
      ctx.fillText("nothing is known", (left + width) / 2, (top + bottom) / 2);
    }
    ctx.save();
    ctx.beginPath(); ctx.rect(left, 0, width - left - right + 1, bottom + 1); ctx.clip();
    for (const s of this.series) {
      ctx.strokeStyle = c[s.colour];
      ctx.lineWidth = 1.5;
      ctx.beginPath();
      let pen = false, before = 0;
      for (let i = first; i < t.length; i++) {
        const v = data[s.key][i];
        if (v === null || v === undefined) { pen = false; continue; }
        if (pen && t[i] - before < Math.max(60, (to - from) / 40)) ctx.lineTo(x(t[i]), y(v)); else ctx.moveTo(x(t[i]), y(v));
        pen = true; before = t[i];
      }
      ctx.stroke();
    }
    ctx.restore();
    let at = t.length - 1;
    if (this.hover !== null && t.length) {
      const time = from + (this.hover - left) / (width - left - right) * (to - from);
      at = first;
      for (let i = first; i < t.length; i++) if (Math.abs(t[i] - time) < Math.abs(t[at] - time)) at = i;
      ctx.strokeStyle = c.quiet;
      ctx.lineWidth = 1;
      ctx.beginPath(); ctx.moveTo(Math.round(x(t[at])) + .5, top); ctx.lineTo(Math.round(x(t[at])) + .5, bottom); ctx.stroke();
    }
    const words = this.series.map(s => [s.name, data[s.key][at]]).filter(w => w[1] !== null && w[1] !== undefined)
      .map(w => (w[0] ? w[0] + " " : "") + this.format(w[1]));
    const text = (this.hover !== null && t.length ? clock(t[at] * 1000, 0) + "  " : "") + (words.join(", ") || "–");
    if (this.value.textContent !== text) this.value.textContent = text;
    if (this.hover === null) this.canvas.setAttribute("aria-label", this.title + ": " + text);
  }
}

// Timeline draws the phases of the job as a bar, and below it what has happened. events: [{time, kind, text}].
export class Timeline {
  constructor(canvas, say) {
    this.canvas = canvas;
    this.say = say;
    canvas.addEventListener("pointermove", e => this.point(e.offsetX));
    canvas.addEventListener("pointerleave", () => say(""));
  }

  set(phases, marks, from, to) {
    Object.assign(this, {phases, marks, from, to});
    this.draw();
  }

  x(at) { return left + (at - this.from) / (this.to - this.from) * (this.width - left - right); }

  draw() {
    if (!this.phases) return;
    const [ctx, width, height] = prepare(this.canvas), c = colours();
    this.width = width;
    const {from, to} = this;
    ctx.fillStyle = c.quiet;
    ctx.textAlign = "right";
    ctx.fillText("phase", left - 6, 12);
    ctx.fillText("restart", left - 6, 31);
    ctx.fillText("saved", left - 6, 49);
    ctx.textAlign = "center";
    for (const at of times(from, to, Math.max(2, (width - left) / 90))) {
      const px = this.x(at);
      if (px > left + 14 && px < width - 16) ctx.fillText(clock(at * 1000, to - from), px, height - 7);
    }
    ctx.save();
    ctx.beginPath(); ctx.rect(left, 0, width - left - right, height - 14); ctx.clip();
    this.phases.forEach((p, i) => {
      const end = i + 1 < this.phases.length ? this.phases[i + 1].time : to;
      if (end < from) return;
      const x0 = Math.max(left, this.x(p.time));
      ctx.fillStyle = c[stateOf(p.phase)];
      ctx.fillRect(x0, 5, Math.max(1, this.x(end) - x0), 14);
    });
    for (const m of this.marks) {
      if (m.time < from) continue;
      const x = this.x(m.time);
      ctx.fillStyle = c[m.colour];
      ctx.beginPath();
      if (m.kind === "saved") ctx.arc(x, 49, 3.5, 0, 7);
      else { ctx.moveTo(x, 25); ctx.lineTo(x + 5, 36); ctx.lineTo(x - 5, 36); }
      ctx.fill();
    }
    ctx.restore();
    ctx.strokeStyle = c.line;
    ctx.strokeRect(left + .5, 4.5, width - left - right - 1, 15);
  }

  point(x) {
    let best = null, off = 12;
    for (const m of this.marks ?? []) {
      const d = Math.abs(this.x(m.time) - x);
      if (d <= off) { off = d; best = m; }
    }
    if (!best) {
      const at = this.from + (x - left) / (this.width - left - right) * (this.to - this.from);
      const p = this.phases?.findLast(p => p.time <= at);
      this.say(p && x >= left ? clock(p.time * 1000, 0) + " " + p.text : "");
      return;
    }
    this.say(clock(best.time * 1000, 0) + " " + best.text);
  }
}
