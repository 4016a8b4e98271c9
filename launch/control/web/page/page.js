import {Grid, RANK, NODE, LOCAL, PID, PHASE, RESTARTS, START, CPU, MEMORY, OUTPUT, STEP, TOTAL, TIME, SECTION, VALUES, DEVICE, BUSY, EXIT,
  measure, slow, stateOf} from "/grid.js";
import {Chart, Timeline, clock} from "/chart.js";

const $ = id => document.getElementById(id);
const state = {job: null, nodes: [], rows: [], m: measure([]), failure: null, ahead: 0, events: [], chosen: null, order: "attention", down: false,
  devices: false};
const mostEvents = 4000, shownEvents = 300, shownRows = 50, mostLines = 2000;

function put(element, text) { if (element.textContent !== text) element.textContent = text; }
function show(element, on) { if (element.hidden === on) element.hidden = !on; }
function now() { return Date.now() + state.ahead; }

// ---- words

function span(seconds) {
  seconds = Math.max(0, Math.round(seconds));
  for (const [size, name, below, size2] of [[86400, "d", "h", 3600], [3600, "h", "m", 60], [60, "m", "s", 1]]) {
    if (seconds >= size) return Math.floor(seconds / size) + name + " " + Math.floor(seconds % size / size2) + below;
  }
  return seconds + "s";
}
function bytes(n) {
  if (n === null) return "–";
  let unit = "B";
  for (const u of ["KiB", "MiB", "GiB", "TiB"]) { if (n < 1000) break; n /= 1024; unit = u; }
  return (n < 10 && unit !== "B" ? n.toFixed(1) : Math.round(n)) + " " + unit;
}
function seconds(n) {
  if (n === null) return "–";
  if (n === 0) return "0";
  if (n < 1) return +(n * 1000).toPrecision(3) + " ms";
  return +n.toPrecision(3) + " s";
}
function number(n) { return n === null ? "–" : +n.toPrecision(n >= 1000 ? 6 : 3) + ""; }
function count(n) {
  if (n === null) return "–";
  if (n >= 1e6) return +(n / 1e6).toPrecision(4) + "M";
  if (n >= 1e4) return +(n / 1e3).toPrecision(4) + "k";
  return Math.round(n * 10) / 10 + "";
}
function percent(n) { return n === null ? "–" : Math.round(n * 100) + " %"; }
function plural(n, word) { return n + " " + word + (n === 1 ? "" : "s"); }
function since(ms) { return ms === null ? "–" : span((now() - ms) / 1000); }

// ---- the job

const facts = new Map();
function fact(name, text) {
  let dd = facts.get(name);
  if (text === null) { if (dd) show(dd.parentElement, false); return; }
  if (!dd) {
    const div = document.createElement("div"), dt = document.createElement("dt");
    dd = document.createElement("dd");
    dt.textContent = name;
    div.append(dt, dd);
    $("facts").append(div);
    facts.set(name, dd);
  }
  show(dd.parentElement, true);
  put(dd, text);
}

function drawJob() {
  const d = state.job, m = state.m;
  put($("name"), d.name + " · " + d.runId);
  document.title = d.phase + " · " + d.runId + " · muster";
  put($("phase"), d.phase);
  $("phase").className = "badge " + d.phase;
  fact("Workers", m.running + " of " + d.worldSize + " run");
  fact("Nodes", String(d.nodes));
  const first = d.startTime ? Date.parse(d.startTime) : null;
  fact("Up", first === null ? "–" : span(((d.endTime ? Date.parse(d.endTime) : now()) - first) / 1000));
  fact("Round", String(d.generation));
  const restarts = state.rows.reduce((most, r) => Math.max(most, r[RESTARTS] || 0), d.restartCount);
  fact("Restarts", restarts + (restarts > d.restartCount ? ` (${d.restartCount} counted)` : ""));
  if (m.step !== null) {
    const total = Math.max(0, ...state.rows.slice(0, 64).map(r => r[TOTAL] || 0));
    fact("Step", total ? `${m.least} of ${total} (${(m.least / total * 100).toFixed(1)} %)` : String(m.least));
    fact("Step time", m.time === null ? "–" : seconds(m.time));
    fact("Time left", total && m.time ? span((total - m.least) * m.time) : null);
    fact("Slow ranks", String(state.rows.filter(r => slow(r, m)).length));
  } else fact("Step", null);
  fact("CPU", m.cpu === null ? "–" : number(m.cpu));
  fact("Memory", bytes(m.memory));
  fact("Device memory", m.device === null ? null : bytes(m.device) + (m.deviceTotal ? ` of ${bytes(m.deviceTotal)}` : ""));
  fact("Device use", m.busy === null ? null : percent(m.busy));
  if (!state.devices && (m.device !== null || m.busy !== null)) showDevices();
  const goodput = d.accounting?.goodput ?? d.goodput;
  fact("Goodput", typeof goodput === "number" ? (goodput * 100).toFixed(1) + " %" : null);
  const why = [d.reason, d.message, d.hint].filter(Boolean).join(": ");
  const pauses = d.phase === "Paused" || d.phase === "Pausing";
  show($("pause"), !pauses);
  show($("resume"), pauses);
  put($("message"), why);
  show($("message"), why !== "");
  drawSidecars(d.sidecars ?? []);
  drawFailure();
}

// showDevices shows what there is of accelerators, from when something is first known of them.
function showDevices() {
  state.devices = true;
  for (const option of $("colour").options) option.hidden = false;
  addColumn(["Device memory", r => r[DEVICE], r => bytes(r[DEVICE])]);
  addColumn(["Device use", r => r[BUSY], r => r[BUSY] === null ? "–" : percent(r[BUSY])]);
  charts.push(
    new Chart($("charts"), "Device memory", [{name: "", key: "device", colour: "succeeded"}], bytes, 1024),
    new Chart($("charts"), "Device use", [{name: "", key: "busy", colour: "running"}], percent));
}

function drawSidecars(list) {
  const ul = $("sidecars");
  show(ul, list.length > 0);
  while (ul.children.length > list.length) ul.lastChild.remove();
  while (ul.children.length < list.length) {
    const li = document.createElement("li");
    li.append(document.createElement("i"), document.createElement("span"));
    ul.append(li);
  }
  list.forEach((s, i) => {
    const ill = s.healthy === false || s.state === "Restarting", runs = s.state === "Running" && !ill;
    const port = s.port ? `port ${s.port} ${s.healthy ? "takes connections" : "takes no connections"}` : null;
    const [mark, text] = ul.children[i].children;
    mark.style.background = `var(--${runs ? "running" : ill ? "failed" : "stopped"})`;
    put(text, [`Sidecar ${s.index} on ${s.node} (${s.command}): ${s.state}`, s.pid ? "process " + s.pid : null, port, plural(s.restarts, "restart"),
      exitText(s.lastExit ?? null), s.problem].filter(Boolean).join(" · "));
  });
}

function drawFailure() {
  const f = state.failure;
  show($("failure"), !!f);
  if (!f) return;
  const how = f.signal ? "was killed by " + f.signal : "ended with status " + f.exitCode;
  put($("failure-text"), [`Rank ${f.rank} on ${f.host} (process ${f.pid}) ${how}, ${since(Date.parse(f.time))} ago.`, f.cause, f.error].filter(Boolean).join(" "));
  put($("failure-lines"), (f.traceback ? f.traceback.split("\n") : f.lastLines ?? []).join("\n"));
}

// ---- ranks

const grid = new Grid($("grid"), (i, click) => {
  if (i < 0) { put($("chosen"), "No rank is chosen."); return; }
  put($("chosen"), describe(state.rows[i]));
  if (click) follow(state.rows[i][RANK]);
});

function exitText(e) {
  return e === null ? null : "last exit " + (e.signal || "status " + e.exitCode) + (e.stopped ? " (stopped)" : "") + ", " + since(Date.parse(e.time)) + " ago";
}

function describe(r) {
  const values = r[VALUES] ? Object.entries(r[VALUES]).map(([k, v]) => k + " " + number(v)) : [];
  return [
    `Rank ${r[RANK]} on ${state.nodes[r[NODE]]} (local rank ${r[LOCAL]}, process ${r[PID]}): ${r[PHASE]}`,
    slow(r, state.m) ? "slow" : null, r[STEP] === null ? null : "step " + r[STEP] + (r[SECTION] ? " in " + r[SECTION] : ""),
    r[TIME] === null ? null : seconds(r[TIME]) + " a step", ...values, r[CPU] === null ? null : number(r[CPU]) + " CPUs",
    r[MEMORY] === null ? null : bytes(r[MEMORY]), r[DEVICE] === null ? null : bytes(r[DEVICE]) + " of device memory",
    r[BUSY] === null ? null : percent(r[BUSY]) + " device use", plural(r[RESTARTS], "restart"), r[OUTPUT] === null ? null : "output " + since(r[OUTPUT]) + " ago",
    exitText(r[EXIT]),
  ].filter(Boolean).join(" · ");
}

const kinds = [["running", "running"], ["creating", "starting"], ["restarting", "being stopped"], ["failed", "failed"], ["succeeded", "succeeded"],
  ["stopped", "stopped"], ["unknown", "unknown"]];
function drawLegend() {
  const by = $("colour").value, words = by === "state" ? kinds : [["low", by === "time" ? "as others" : "little"], ["high", "more"]]
    .concat(by === "time" || by === "step" ? [["slow", "slow"]] : []);
  $("legend").replaceChildren(...words.concat([["lag", "corner: slow"]]).map(([colour, word]) => {
    const span = document.createElement("span"), i = document.createElement("i");
    i.style.background = `var(--${colour})`;
    span.append(i, word);
    return span;
  }));
}

const attention = r => r[PHASE] === "Failed" ? 0 : r[PHASE] === "Unknown" ? 1 : slow(r, state.m) ? 2 : r[PHASE] !== "Running" && r[PHASE] !== "Succeeded" ? 3 : 4;
const columns = [
  ["Rank", r => r[RANK], r => String(r[RANK])], ["Node", r => state.nodes[r[NODE]], r => state.nodes[r[NODE]]], ["State", r => attention(r), r => r[PHASE]],
  ["Step", r => r[STEP], r => r[STEP] === null ? "–" : String(r[STEP])], ["Step time", r => r[TIME], r => seconds(r[TIME])],
  ["CPU", r => r[CPU], r => r[CPU] === null ? "–" : number(r[CPU])], ["Memory", r => r[MEMORY], r => bytes(r[MEMORY])],
  ["Restarts", r => r[RESTARTS], r => String(r[RESTARTS])], ["Up", r => r[START], r => since(r[START])], ["Output", r => r[OUTPUT], r => r[OUTPUT] === null ? "–" : since(r[OUTPUT]) + " ago"],
];
function addHead([name], i) {
  const th = document.createElement("th"), b = document.createElement("button");
  th.scope = "col";
  b.type = "button";
  b.textContent = name;
  b.addEventListener("click", () => {
    state.down = state.order === i && !state.down;
    state.order = i;
    $("columns").querySelectorAll("th").forEach((other, k) => k === i ? other.setAttribute("aria-sort", state.down ? "descending" : "ascending") : other.removeAttribute("aria-sort"));
    put($("table-title"), "By " + name.toLowerCase());
    drawTable();
  });
  th.append(b);
  $("columns").append(th);
}
columns.forEach(addHead);
function addColumn(column) {
  addHead(column, columns.push(column) - 1);
  for (const tr of $("rows").rows) tr.insertCell();
}

function drawTable() {
  const word = $("find").value.trim().toLowerCase();
  let rows = word === "" ? state.rows.slice() : state.rows.filter(r => String(r[RANK]) === word || state.nodes[r[NODE]].toLowerCase().includes(word));
  const found = rows.length;
  if (state.order === "attention") rows.sort((a, b) => attention(a) - attention(b) || (attention(a) === 2 ? (b[TIME] ?? 0) - (a[TIME] ?? 0) : 0) || a[RANK] - b[RANK]);
  else {
    const key = columns[state.order][1], sign = state.down ? -1 : 1;
    rows.sort((a, b) => {
      const x = key(a), y = key(b);
      if (x === null || y === null) return (x === null) - (y === null) || a[RANK] - b[RANK];
      return sign * (x < y ? -1 : x > y ? 1 : 0) || a[RANK] - b[RANK];
    });
  }
  rows = rows.slice(0, shownRows);
  const body = $("rows");
  while (body.rows.length > rows.length) body.deleteRow(-1);
  while (body.rows.length < rows.length) {
    const tr = body.insertRow();
    columns.forEach((_, i) => {
      const td = tr.insertCell();
      if (i === 0) { const b = document.createElement("button"); b.type = "button"; td.append(b); }
      if (i === 2) { const dot = document.createElement("span"); dot.className = "dot"; td.append(dot, document.createTextNode("")); }
    });
  }
  rows.forEach((r, k) => {
    const tr = body.rows[k];
    tr.dataset.rank = r[RANK];
    const mark = r[RANK] === state.chosen ? "chosen-row" : "";
    if (tr.className !== mark) tr.className = mark;
    columns.forEach(([, , text], i) => {
      const td = tr.cells[i], words = text(r);
      if (i === 0) { put(td.firstChild, words); td.firstChild.setAttribute("aria-label", "Output of rank " + words); }
      else if (i === 2) {
        td.firstChild.style.background = `var(--${stateOf(r[PHASE])})`;
        put(td.lastChild, words);
      } else put(td, words);
      if (i === 4) td.className = slow(r, state.m) ? "slow" : "";
    });
  });
  put($("more"), found > rows.length ? `${rows.length} of ${found} ranks are listed; the grid shows all.` : "");
}
$("rows").addEventListener("click", e => {
  const tr = e.target.closest("tr");
  if (tr) follow(Number(tr.dataset.rank));
});
$("find").addEventListener("input", drawTable);
$("colour").addEventListener("change", () => { grid.by = $("colour").value; drawLegend(); grid.draw(); });

// ---- over time

const charts = [
  new Chart($("charts"), "CPUs in use", [{name: "", key: "cpu", colour: "running"}], number),
  new Chart($("charts"), "Memory", [{name: "", key: "memory", colour: "succeeded"}], bytes, 1024),
  new Chart($("charts"), "Step time", [{name: "", key: "stepMedian", colour: "running"}, {name: "worst", key: "stepWorst", colour: "restarting"}], seconds),
  new Chart($("charts"), "Steps", [{name: "", key: "step", colour: "running"}], count),
];
const timeline = new Timeline($("timeline"), text => put($("moment"), text));
const keys = ["cpu", "memory", "device", "busy", "step", "stepMedian", "stepWorst", "running"];
let data = {time: [], cpu: [], memory: [], device: [], busy: [], step: [], stepMedian: [], stepWorst: [], running: []};

async function loadHistory() {
  try {
    const r = await fetch("/api/v1/history?points=1500");
    if (r.ok) { data = await r.json(); drawTime(); }
  } catch { /* the stream says that nobody answers */ }
}
function addSample() {
  const at = now() / 1000, m = state.m, n = data.time.length;
  if (n && at - data.time[n - 1] < .9) return;
  data.time.push(at);
  const v = {cpu: m.cpu, memory: m.memory, device: m.device, busy: m.busy, step: m.least, stepMedian: m.time, stepWorst: m.worst, running: m.running};
  for (const k of keys) data[k].push(v[k]);
  if (data.time.length > 6000) loadHistory();
}
function drawTime() {
  const to = now() / 1000, from = to - Number($("range").value);
  for (const c of charts) c.set(data, from, to);
  const phases = [], marks = [];
  for (const e of state.events) {
    const time = Date.parse(e.time) / 1000;
    if (e.type === "PhaseChanged") {
      phases.push({time, phase: e.phase, text: sentence(e)});
      if (e.phase === "Restarting" || e.phase === "Failed" || e.phase === "Timeout") marks.push({time, kind: "restart", colour: e.phase === "Restarting" ? "restarting" : "failed", text: sentence(e)});
    } else if (e.type.startsWith("Checkpoint")) marks.push({time, kind: "saved", colour: "succeeded", text: sentence(e)});
    else if (e.type.endsWith("Requested") || e.type === "NodeLost" || e.type === "NodeExcluded") marks.push({time, kind: "restart", colour: "accent", text: sentence(e)});
  }
  phases.sort((a, b) => a.time - b.time);
  timeline.set(phases, marks, from, to);
}
$("range").addEventListener("change", drawTime);

// ---- events

function sentence(e) {
  const who = e.node && state.nodes.length > 1 ? e.node + ": " : "";
  switch (e.type) {
    case "PhaseChanged": {
      const why = [e.reason, e.message].filter(Boolean).join(": ");
      return who + `${e.phase}, round ${e.generation}` + (e.restartCount ? ", " + plural(e.restartCount, "restart") : "") + (e.exitCode !== undefined ? `, exit status ${e.exitCode}` : "") + (why ? ": " + why : "");
    }
    case "SidecarStarted": return who + `sidecar ${e.message}: process ${e.pid} started`;
    case "SidecarExited": return who + `sidecar ${e.message}` + (e.pid ? `: process ${e.pid} ` + (e.signal ? "was killed by " + e.signal : "ended with status " + e.exitCode) : "") + (e.stopped ? ", while muster was stopping it" : "");
    case "WorkerStarted": return who + `rank ${e.rank}, process ${e.pid}, started`;
    case "WorkerExited": return who + `rank ${e.rank}, process ${e.pid}, ` + (e.signal ? "was killed by " + e.signal : "ended with status " + e.exitCode) + (e.stopped ? ", while muster was stopping it" : "");
  }
  const words = e.type.replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase();
  const by = e.by ? (e.by.uid >= 0 ? ` by user ${e.by.uid}` : "") + (e.by.address ? ` from ${e.by.address}` : "") : "";
  return who + words + by + (e.step !== undefined ? `, step ${e.step}` : "") + (e.message ? ": " + e.message : "") + (e.reason && !e.message ? ": " + e.reason : "");
}
function eventClass(e) {
  if (e.type === "WorkerExited") return e.exitCode && !e.stopped ? "failed" : "";
  if (e.type === "SidecarStarted" || e.type === "SidecarExited" && (e.stopped || !e.exitCode)) return "";
  if (e.type === "SidecarExited" || e.type === "CheckFailed" || e.type === "NodeLost" || e.type === "NodeExcluded") return "failed";
  if (e.type.startsWith("Checkpoint") || e.type === "CheckPassed") return "succeeded";
  return e.type === "PhaseChanged" ? stateOf(e.phase) : "restarting";
}
function item(e) {
  const li = document.createElement("li"), time = document.createElement("time");
  time.dateTime = e.time;
  time.textContent = clock(Date.parse(e.time), 0);
  li.className = eventClass(e);
  li.append(time, sentence(e));
  return li;
}
function wanted(e) { return e.rank === undefined && e.type !== "CheckpointSaved" || $("workers").checked || e.type === "WorkerExited" && e.exitCode !== 0 && !e.stopped; }
function drawEvents() { $("events").replaceChildren(...state.events.filter(wanted).slice(-shownEvents).reverse().map(item)); }
function addEvent(e) {
  state.events.push(e);
  if (state.events.length > mostEvents) state.events.splice(0, mostEvents / 4);
  dirty.events.push(e);
  soon();
}
$("workers").addEventListener("change", drawEvents);

// ---- output

let output = null, lines = [];
function follow(rank) {
  state.chosen = rank;
  const i = state.rows.findIndex(r => r[RANK] === rank);
  if (i >= 0) { grid.chosen = i; put($("chosen"), describe(state.rows[i])); grid.draw(); }
  $("rank").value = rank;
  drawTable();
  output?.close();
  $("logs").replaceChildren();
  lines = [];
  put($("logs-end"), "");
  output = new EventSource(`/api/v1/ranks/${rank}/logs` + ($("previous").checked ? "?previous=1" : ""));
  const source = output;
  source.addEventListener("line", e => { if (source === output) { lines.push(JSON.parse(e.data)); soon(); } });
  source.addEventListener("end", e => {
    const why = JSON.parse(e.data);
    source.close();
    if (source === output) put($("logs-end"), why.error + (why.hint ? " (" + why.hint + ")" : ""));
  });
  source.onerror = () => {
    source.close(); // it would begin again with the last lines
    if (source === output) put($("logs-end"), "The connection has ended.");
  };
}
function drawLines() {
  if (!lines.length) return;
  const box = $("logs"), end = box.scrollHeight - box.scrollTop - box.clientHeight < 30;
  box.append(...lines.slice(-mostLines).map(l => {
    const div = document.createElement("div");
    if (l.stream === "stderr") div.className = "stderr";
    div.textContent = l.text || " ";
    return div;
  }));
  lines = [];
  while (box.childElementCount > mostLines) box.firstChild.remove();
  if (end) box.scrollTop = box.scrollHeight;
}
$("rank").addEventListener("change", () => { if ($("rank").value !== "") follow(Number($("rank").value)); });
$("previous").addEventListener("change", () => { if (state.chosen !== null) follow(state.chosen); });

// ---- steering

async function steer(verb, body) {
  let text;
  try {
    const r = await fetch("/api/v1/" + verb, {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)}), said = await r.json();
    text = said.message ?? said.error + (said.hint ? " (" + said.hint + ")" : "");
  } catch { text = "muster does not answer"; }
  put($("said"), text);
  show($("said"), true);
}
$("pause").addEventListener("click", () => { if (confirm("End all workers until the job is resumed?")) steer("pause", {}); });
$("resume").addEventListener("click", () => steer("resume", {}));
$("restart").addEventListener("click", () => { if (confirm("Restart all workers of the job?")) steer("restart", {}); });
$("stop").addEventListener("click", () => { if (confirm("Stop the job on all its nodes?")) steer("stop", {}); });

// ---- the stream

const dirty = {frame: false, events: [], asked: false};
function soon() {
  if (dirty.asked) return;
  dirty.asked = true;
  requestAnimationFrame(() => {
    dirty.asked = false;
    if (dirty.frame) {
      dirty.frame = false;
      state.m = measure(state.rows);
      grid.set(state.nodes, state.rows, state.m);
      drawJob();
      grid.draw();
      drawTable();
      addSample();
      if (grid.chosen >= 0 && document.activeElement !== $("grid")) put($("chosen"), describe(state.rows[grid.chosen]));
      dirty.time = true;
      performance.mark("drawn");
    }
    if (dirty.events.length) {
      const fresh = dirty.events.filter(wanted), list = $("events");
      dirty.events = [];
      if (fresh.length > shownEvents / 2) drawEvents();
      else list.prepend(...fresh.reverse().map(item));
      while (list.childElementCount > shownEvents) list.lastChild.remove();
      dirty.time = true;
    }
    if (dirty.time) { dirty.time = false; drawTime(); }
    drawLines();
  });
}
function take(f, whole) {
  state.ahead = f.now - Date.now();
  state.job = f.job;
  state.failure = f.failure ?? null;
  if (whole) { state.nodes = f.nodes ?? []; state.rows = f.ranks; }
  else for (const r of f.ranks) state.rows[r[0]] = r.slice(1);
  dirty.frame = true;
  soon();
}
function connect() {
  const last = state.events.length ? state.events[state.events.length - 1].seq : 0, source = new EventSource("/api/v1/stream?after=" + last);
  source.addEventListener("hello", e => {
    const h = JSON.parse(e.data);
    show($("steer"), h.steer);
    show($("login"), h.token && !h.steer);
  });
  source.addEventListener("whole", e => { show($("link"), false); take(JSON.parse(e.data), true); });
  source.addEventListener("change", e => take(JSON.parse(e.data), false));
  source.addEventListener("event", e => addEvent(JSON.parse(e.data)));
  source.onerror = () => {
    show($("link"), true);
    put($("link"), state.job?.exitStatus != null ? "the job has ended" : "not connected");
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 3000);
  };
}

let resized = 0;
addEventListener("resize", () => { cancelAnimationFrame(resized); resized = requestAnimationFrame(() => { grid.draw(); drawTime(); }); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { grid.draw(); drawTime(); });
setInterval(() => { if (!document.hidden) loadHistory(); }, 600000);
drawLegend();
loadHistory();
connect();
