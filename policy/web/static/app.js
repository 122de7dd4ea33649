"use strict";
// The page: reads the room once and a moment at each event, and shows what the address asks for.

const find = (id) => document.getElementById(id);
const state = { room: null, moment: null, colour: "owner", view: "room", open: null, drawing: null, playing: false };
const KINDS = { start: "#2a9d74", "re-pin": "#2f7fc1", relocation: "#7a6bd0", eviction: "#d6604d", requeue: "#8f8a1f", end: "#8893a5" };
const WAYS = { owner: "Owner", guest: "Guest", score: "Score", health: "Health", share: "Share" };
const SHOWN_ROWS = 300;

function clock(seconds) {
  if (!state.room || state.room.live) return new Date(seconds * 1000).toLocaleString([], { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
  const since = Math.max(0, seconds - state.room.zero), day = Math.floor(since / 86400) + 1;
  return `day ${day}, ${String(Math.floor(since / 3600) % 24).padStart(2, "0")}:${String(Math.floor(since / 60) % 60).padStart(2, "0")}`;
}
function span(seconds) {
  const minutes = Math.max(0, Math.round(seconds / 60));
  return minutes < 60 ? `${minutes} min` : minutes < 2880 ? `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min` : `${Math.floor(minutes / 1440)} d ${Math.floor(minutes / 60) % 24} h`;
}
function many(count, word) { return `${count} ${word}${count === 1 ? "" : "s"}`; }
function runs(job) { return job.state === "RUNNING"; }
function placeText(job) {
  const places = job.places || [];
  if (!places.length) return "";
  const first = places.slice(0, 3).map(([node, mask]) => `${state.room.nodes[node].name} (GPU ${folded(bits(mask))})`).join(", ");
  return places.length > 3 ? `${first} and ${many(places.length - 3, "more node")}` : first;
}

// Reading

async function get(path) {
  const reply = await fetch(path, { credentials: "same-origin" });
  if (!reply.ok) throw new Error((await reply.text()).trim() || reply.statusText);
  return reply.json();
}
let reading = false, again = false;
async function refresh() {
  if (reading) { again = true; return; }
  reading = true;
  try {
    if (!state.room) { state.room = await get("api/room"); begin(); }
    const moment = await get(state.room.live ? "api/moment" : `api/moment?at=${find("at").value}`);
    if (state.room.live && moment.jobs.length + state.room.nodes.length && !state.room.nodes.length !== !moment.jobs.length) { state.room = await get("api/room"); begin(); }
    state.moment = moment;
    problem(moment.problem);
    index();
    show();
  } catch (fault) { problem(fault.message); }
  reading = false;
  if (again) { again = false; refresh(); }
}
function problem(text) {
  find("problem").hidden = !text; find("problem").textContent = text || "";
  const live = state.room && state.room.live;
  find("badge").textContent = text ? "not current" : live ? "live" : "simulated";
  find("badge").className = text ? "badge bad" : live ? "badge live" : "badge";
}
function begin() {
  state.drawing = new RoomDrawing(find("floor"), state.room, (node, gpu) => {
    const here = gpu === null ? [] : state.here(node, gpu);
    location.hash = here.length ? `#/job/${encodeURIComponent(here[0].id)}` : `#/node/${encodeURIComponent(state.room.nodes[node].name)}`;
  }, tip);
  if (!state.room.live && find("player").hidden) {
    const at = find("at");
    find("player").hidden = false;
    at.min = state.room.began; at.max = state.room.until; at.step = 30;
    const asked = new URLSearchParams(location.search).get("at");
    at.value = asked ? state.room.zero + Number(asked) : state.room.began + Math.min(0.35 * (state.room.until - state.room.began), 36000);
  }
}
function index() {
  const held = new Map(), planned = new Map(), jobs = new Map();
  for (const job of state.moment.jobs) {
    jobs.set(job.id, job);
    for (const [node, mask] of job.places || []) for (const gpu of bits(mask)) {
      const into = runs(job) ? held : planned, key = node * 64 + gpu;
      (into.get(key) || into.set(key, []).get(key)).push(job);
    }
  }
  const hidden = new Set();
  for (const [node, mask] of state.moment.hidden) for (const gpu of bits(mask)) hidden.add(node * 64 + gpu);
  Object.assign(state, { held, planned, jobs, hidden, here: (node, gpu) => held.get(node * 64 + gpu) || [] });
  const use = new Map();
  for (const job of state.moment.jobs) if (runs(job)) use.set(job.user, (use.get(job.user) || 0) + job.gpus);
  state.use = [...use].sort((a, b) => b[1] - a[1]);
  for (const [user] of state.use) ownerColour(user);
}

// The room

function look(node, gpu) {
  const key = node * 64 + gpu, here = state.held.get(key) || [], owner = here.find((job) => !job.guest), guest = here.find((job) => job.guest);
  const sick = node in state.moment.sick, score = state.room.nodes[node].scores[gpu], chosen = state.open && state.open[0] === "job" && state.jobs.has(state.open[1]) ? state.open[1] : null;
  const mine = chosen && (here.some((job) => job.id === chosen) || (state.planned.get(key) || []).some((job) => job.id === chosen));
  const taken = here.length > 0 || state.hidden.has(key);
  let colour = null;
  if (state.colour === "owner") colour = here.length ? ownerColour((owner || guest).user) : state.hidden.has(key) ? styled("--edge") : null;
  else if (state.colour === "guest") colour = guest ? "#c2609a" : owner ? "#2f7fc1" : state.hidden.has(key) ? styled("--edge") : null;
  else if (state.colour === "score") colour = score === undefined ? null : scoreColour(score);
  else if (state.colour === "health") colour = sick ? "#d6604d" : "#2a9d74";
  else colour = taken ? (here.some((job) => job.share) ? "#e08e1b" : "#2f7fc1") : null;
  const part = state.colour === "share" ? here.reduce((sum, job) => sum + (job.share || 100), 0) : 0;
  return { colour, taken, guest: Boolean(guest && owner) && state.colour === "owner", ring: mine, dim: chosen && !mine, part };
}
function legend() {
  const say = (colour, text) => element("span", {}, dot(colour), text), free = say(styled("--free"), "free"), other = state.hidden.size ? [say(styled("--edge"), "another user's")] : [];
  const keys = {
    owner: () => [...state.use.slice(0, 10).map(([user, gpus]) => say(ownerColour(user), `${user} ${gpus}`)), ...(state.use.length > 10 ? [element("span", {}, `and ${state.use.length - 10} more`)] : []), ...other, free],
    guest: () => [say("#2f7fc1", "owner"), say("#c2609a", "with a guest"), ...other, free],
    score: () => state.room.nodes.some((node) => node.scores.length) ? [...SCALE.map((colour, step) => say(colour, step === 0 ? "< 0.98" : step === SCALE.length - 1 ? "≥ 1.14" : `from ${(0.94 + 0.04 * step).toFixed(2)}`)), element("span", {}, "run time over the median; lower is faster")] : [element("span", {}, "no scores are known here")],
    health: () => [say("#2a9d74", "takes jobs"), say("#d6604d", "takes none")],
    share: () => [say("#2f7fc1", "whole"), say("#e08e1b", "in parts; the height is the part in use"), free],
  };
  find("legend").replaceChildren(...keys[state.colour]());
}
function tip(hit, event) {
  const box = find("tip");
  box.hidden = !hit;
  if (!hit) return;
  const [node, gpu] = hit, about = state.room.nodes[node], lines = [gpu === null ? about.name : `${about.name}, GPU ${gpu}`];
  if (gpu !== null) {
    for (const job of state.here(node, gpu)) lines.push(`${job.guest ? "guest: " : ""}job ${job.id}, ${job.user}, ${job.name || "no name"}${job.share ? `, ${job.share} %` : ""}`);
    if (lines.length === 1) lines.push(state.hidden.has(node * 64 + gpu) ? "another user's job" : "free");
    for (const job of state.planned.get(node * 64 + gpu) || []) lines.push(`planned for job ${job.id} of ${job.user}`);
    if (about.scores[gpu] !== undefined) lines.push(`score ${about.scores[gpu].toFixed(3)}`);
  }
  if (node in state.moment.sick) lines.push(state.moment.sick[node]);
  box.textContent = lines.join("\n");
  box.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8))}px`;
  box.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - box.offsetHeight - 8))}px`;
}
function figures() {
  const total = state.room.nodes.reduce((sum, node) => sum + node.gpus, 0), taken = new Set([...state.held.keys(), ...state.hidden]).size;
  const running = state.moment.jobs.filter(runs), waiting = state.moment.jobs.filter((job) => !runs(job)), sick = Object.keys(state.moment.sick).length;
  const card = (value, text, part) => {
    const bar = part === undefined ? null : element("div", { class: "bar" }, element("i", {}));
    if (bar) bar.firstChild.style.width = `${Math.round(100 * part)}%`;
    return element("div", { class: "figure" }, element("b", {}, value), element("span", {}, text), bar);
  };
  find("figures").replaceChildren(
    card(`${total ? Math.round(100 * taken / total) : 0} %`, `of ${total.toLocaleString("en")} GPUs in use`, total ? taken / total : 0),
    card(running.length.toLocaleString("en"), running.length === 1 ? "job runs" : "jobs run"), card(waiting.length.toLocaleString("en"), waiting.length === 1 ? "job waits" : "jobs wait"),
    card(waiting.reduce((sum, job) => sum + job.gpus, 0).toLocaleString("en"), "GPUs waited for"),
    card(sick ? String(sick) : state.room.nodes.length.toLocaleString("en"), sick ? (sick === 1 ? "node takes no jobs" : "nodes take no jobs") : "nodes, all take jobs"));
  find("waiting").textContent = waiting.length || "";
}

// Queue and time line

function userTag(name) { return element("span", { class: "user" }, dot(ownerColour(name)), name); }
function jobLink(id) { return element("a", { href: `#/job/${encodeURIComponent(id)}` }, id); }
function reasonOf(job) { return job.because_text || job.reason || job.because || "not told"; }
function queue() {
  const waiting = state.moment.jobs.filter((job) => !runs(job)).sort((a, b) => (a.planned || Infinity) - (b.planned || Infinity) || a.submitted - b.submitted);
  const body = element("tbody", {}, waiting.slice(0, SHOWN_ROWS).map((job) => {
    const row = element("tr", {},
      element("td", {}, jobLink(job.id), element("p", { class: "note" }, job.name || "")),
      element("td", { "data-name": "User" }, userTag(job.user)), element("td", { class: "n", "data-name": "GPUs" }, job.gpus),
      element("td", { class: "n", "data-name": "Waits for" }, span(state.moment.at - job.submitted)),
      element("td", { "data-name": "Planned" }, job.planned ? clock(job.planned) : "–"),
      element("td", { class: "place", "data-name": "Place" }, placeText(job) || "none yet"),
      element("td", { "data-name": "Reason" }, reasonOf(job), element("p", { class: "why" }, job.why || "")));
    return row;
  }));
  const head = element("thead", {}, element("tr", {}, ["Job", "User", "GPUs", "Waits for", "Planned start", "Planned place", "Reason"].map((name) => element("th", { scope: "col", class: name === "GPUs" || name === "Waits for" ? "n" : null }, name))));
  find("queue").replaceChildren(element("div", { class: "card wide", tabindex: "0", role: "region", "aria-label": "Waiting jobs" }, element("h2", {}, waiting.length ? many(waiting.length, "job") + (waiting.length === 1 ? " waits" : " wait") : "No job waits"),
    waiting.length ? element("table", {}, head, body) : null, waiting.length > SHOWN_ROWS ? element("p", { class: "note" }, `The first ${SHOWN_ROWS} are shown; the search finds all.`) : null));
}
function timeLine() {
  const events = state.moment.events, lanes = ["start", "re-pin", "relocation", "eviction", "end"], wide = Math.max(320, find("main").clientWidth - 76), left = 86;
  const first = events.length ? Math.min(...events.map((one) => one[0])) : state.moment.at - 3600, last = Math.max(state.moment.at, first + 60);
  const across = (at) => left + (wide - left - 14) * (at - first) / (last - first);
  const picture = drawing("svg", { class: "lanes", viewBox: `0 0 ${wide} ${lanes.length * 34 + 30}`, role: "img", "aria-label": "Events over time, listed below" });
  lanes.forEach((kind, lane) => {
    const y = 20 + lane * 34, count = events.filter((one) => one[1] === kind || (kind === "eviction" && one[1] === "requeue")).length;
    picture.append(drawing("line", { x1: left, x2: wide - 14, y1: y, y2: y }), drawing("text", { x: 0, y: y + 4 }, `${kind} ${count}`));
  });
  for (const [at, kind] of events) {
    const lane = lanes.indexOf(kind === "requeue" ? "eviction" : kind);
    picture.append(drawing("rect", { x: across(at) - 1.5, y: 20 + lane * 34 - 9, width: 3, height: 18, rx: 1.5, fill: KINDS[kind], "fill-opacity": .65 }));
  }
  for (const step of [0, .25, .5, .75, 1]) picture.append(drawing("text", { x: left + (wide - left - 14) * step, y: lanes.length * 34 + 22, "text-anchor": step === 0 ? "start" : step === 1 ? "end" : "middle" }, wide < 500 && step % 1 ? "" : clock(first + (last - first) * step)));
  const rows = events.slice(-SHOWN_ROWS).reverse().map(([at, kind, job, text]) => element("tr", {}, element("td", {}, clock(at)), element("td", {}, element("span", { class: "kind" }, dot(KINDS[kind]), kind)), element("td", {}, jobLink(job)), element("td", {}, text)));
  find("time").replaceChildren(element("div", { class: "card" }, element("h2", {}, events.length ? `The last ${many(events.length, "event")}` : "Nothing has happened yet"), picture),
    element("div", { class: "card wide", tabindex: "0", role: "region", "aria-label": "Events" }, element("table", {}, element("thead", {}, element("tr", {}, ["When", "What", "Job", "Why"].map((name) => element("th", { scope: "col" }, name)))), element("tbody", {}, rows))));
}

// Details

function side(...children) {
  const box = find("side");
  box.hidden = !children.length;
  find("layout").className = children.length ? "with-side" : "";
  box.replaceChildren(...children);
}
function heading(text) {
  const close = element("button", { type: "button", "aria-label": "Close" }, "✕");
  close.addEventListener("click", () => { location.hash = `#/${state.view}`; });
  return element("div", { class: "head" }, element("h2", { tabindex: "-1" }, text), close);
}
function pairs(found) { return element("dl", {}, found.filter((one) => one[1]).flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)])); }
function lead(job) {
  const at = state.moment.at;
  if (runs(job)) return `It has run for ${span(at - job.start)} on ${many(job.gpus, "GPU")} (${placeText(job)}).${job.end ? ` Its time limit ends it in ${span(job.end - at)}.` : ""}`;
  const wait = `It has waited for ${span(at - job.submitted)} for ${many(job.gpus, "GPU")}.`;
  if (job.planned && job.planned > at) return `${wait} Berth plans it on ${placeText(job)} in ${span(job.planned - at)}, at ${clock(job.planned)}.`;
  return placeText(job) ? `${wait} Its place is ${placeText(job)}.` : `${wait} No place is in sight yet.`;
}
async function openJob(id) {
  let found;
  try { found = await get(`api/job/${encodeURIComponent(id)}${state.room.live ? "" : `?at=${state.moment.at}`}`); } catch (fault) { if (same("job", id)) side(heading(`Job ${id}`), element("p", { class: "lead" }, fault.message)); return; }
  if (!same("job", id)) return;
  const job = state.jobs.get(id);
  const steps = found.events.map(([at, kind, text]) => element("li", {}, element("time", {}, clock(at)), element("b", {}, { start: "It started", "re-pin": "It got another place", relocation: "It left its GPUs for better ones", eviction: "It was sent away", requeue: "It was put back", end: "It ended" }[kind] || kind), text ? element("p", { class: "note" }, text) : null));
  if (job) steps.unshift(element("li", {}, element("time", {}, clock(job.submitted)), element("b", {}, "It was submitted")));
  side(heading(`Job ${id}`),
    job ? element("div", {}, element("span", { class: "state" }, runs(job) ? "runs" : "waits"), element("span", { class: "state" }, userTag(job.user)), job.guest ? element("span", { class: "state" }, "guest") : null) : null,
    element("p", { class: "lead" }, job ? lead(job) : "It has ended."),
    job && !runs(job) ? pairs([["reason", reasonOf(job)]]) : null,
    job ? element("h3", {}, "Why here") : null, job ? pairs([["name", job.name], ["account", job.account], ...(found.story || [])]) : null,
    element("h3", {}, "What happened"), element("ol", { class: "story" }, steps),
    job && job.places ? element("p", {}, "Nodes: ", job.places.slice(0, 16).flatMap(([node]) => [element("a", { href: `#/node/${encodeURIComponent(state.room.nodes[node].name)}` }, state.room.nodes[node].name), " "])) : null);
}
function wheel(node) {
  const links = state.room.links[node.model] || [], size = 250, middle = size / 2, count = node.gpus;
  const at = (gpu) => [middle + 96 * Math.sin(2 * Math.PI * gpu / count), middle - 96 * Math.cos(2 * Math.PI * gpu / count)];
  const most = Math.max(1, ...links.map((link) => link[2])), picture = drawing("svg", { viewBox: `0 0 ${size} ${size}`, width: size, height: size, role: "img", "aria-label": `${count} GPUs of ${node.name} with ${links.length} NVLinks` });
  for (const [a, b, speed] of links) picture.append(drawing("line", { x1: at(a)[0], y1: at(a)[1], x2: at(b)[0], y2: at(b)[1], stroke: styled("--edge"), "stroke-width": (1 + 2 * speed / most).toFixed(1) }));
  for (let gpu = 0; gpu < count; gpu += 1) {
    const here = state.here(state.room.nodes.indexOf(node), gpu), [x, y] = at(gpu);
    picture.append(drawing("circle", { cx: x, cy: y, r: 15, fill: here.length ? ownerColour(here[0].user) : styled("--free"), stroke: styled("--card"), "stroke-width": 2 }), drawing("text", { x, y: y + 4, "text-anchor": "middle", "font-size": 12, "font-weight": 650, fill: here.length ? "#fff" : styled("--ink") }, gpu));
  }
  return picture;
}
function openNode(name) {
  const place = state.room.nodes.findIndex((node) => node.name === name), node = state.room.nodes[place];
  if (!node) { side(heading(name), element("p", { class: "lead" }, "There is no such node here, or you may not see it.")); return; }
  const cells = Array.from({ length: node.gpus }, (_, gpu) => {
    const here = state.here(place, gpu), planned = state.planned.get(place * 64 + gpu) || [];
    const cell = element("li", {}, element("b", {}, `GPU ${gpu}`), node.scores[gpu] === undefined ? null : ` score ${node.scores[gpu].toFixed(3)}`, element("div", {}, here.length ? here.map((job) => [jobLink(job.id), ` ${job.user}${job.guest ? " (guest)" : ""}${job.share ? ` ${job.share} %` : ""} `]) : state.hidden.has(place * 64 + gpu) ? "another user's job" : "free"),
      planned.length ? element("div", { class: "note" }, "next: ", planned.slice(0, 2).map((job) => [jobLink(job.id), " "])) : null);
    cell.style.borderLeftColor = here.length ? ownerColour(here[0].user) : "";
    return cell;
  });
  side(heading(name), pairs([["health", state.moment.sick[place] || "takes jobs"], ["machine", node.model], ["leaf", node.leaf], ["pod", node.pod], ["island", node.domain]]), node.gpus > 1 ? wheel(node) : null, element("h3", {}, "GPUs"), element("ul", { class: "gpus" }, cells));
}
function same(kind, name) { return state.open && state.open[0] === kind && state.open[1] === name; }

// Addresses, search, keyboard

function route() {
  const [kind, name] = location.hash.replace(/^#\/?/, "").split("/");
  state.open = null;
  if ((kind === "job" || kind === "node") && name) { try { state.open = [kind, decodeURIComponent(name)]; } catch (fault) { state.open = null; } }
  else if (["room", "queue", "time"].includes(kind)) state.view = kind;
  if (state.moment) show();
  if (state.open) setTimeout(() => { const title = find("side").querySelector("h2"); if (title) title.focus({ preventScroll: true }); }, 150);
}
function show() {
  for (const view of ["room", "queue", "time"]) find(view).hidden = view !== state.view;
  document.querySelectorAll("nav a").forEach((link) => { if (link.dataset.view === state.view) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current"); });
  figures();
  if (!state.open) side();
  else if (state.open[0] === "job") openJob(state.open[1]);
  else openNode(state.open[1]);
  if (state.view === "room") { legend(); state.drawing.draw(look, state.moment.sick); }
  else if (state.view === "queue") queue();
  else timeLine();
  find("clock").textContent = clock(state.moment.at);
}
function search() {
  const word = find("search").value.trim().toLowerCase(), list = find("found"), hits = [];
  if (word && state.moment) {
    for (const job of state.moment.jobs) if (job.id.startsWith(word) || (job.user || "").toLowerCase().includes(word) || (job.name || "").toLowerCase().includes(word)) hits.push([`#/job/${encodeURIComponent(job.id)}`, `job ${job.id}`, `${job.user}, ${runs(job) ? "runs" : "waits"}`]);
    for (const node of state.room.nodes) if (node.name.toLowerCase().includes(word)) hits.push([`#/node/${encodeURIComponent(node.name)}`, node.name, many(node.gpus, "GPU")]);
    hits.sort((a, b) => (b[1].endsWith(` ${word}`) || b[1] === word) - (a[1].endsWith(` ${word}`) || a[1] === word));
    if (!hits.length && /^[0-9_+]+$/.test(word)) hits.push([`#/job/${encodeURIComponent(word)}`, `job ${word}`, "look it up"]);
  }
  list.replaceChildren(...hits.slice(0, 12).map(([target, name, text]) => element("li", {}, element("a", { href: target }, element("span", {}, name), element("span", { class: "note" }, text)))));
  list.hidden = !hits.length;
}
function play(on) {
  state.playing = on;
  find("play").textContent = on ? "❚❚" : "▶";
}
setInterval(() => {
  if (!state.playing || reading) return;
  const at = find("at"), next = Number(at.value) + Number(find("speed").value) / 2;
  at.value = next;
  if (next >= Number(at.max)) play(false);
  refresh();
}, 500);

function setUp() {
  try { const kept = localStorage.getItem("berth-theme"); document.documentElement.dataset.theme = new URLSearchParams(location.search).get("theme") || kept || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"); } catch (fault) { document.documentElement.dataset.theme = "light"; }
  for (const [way, name] of Object.entries(WAYS)) {
    const button = element("input", { type: "radio", name: "colour", value: way, checked: way === state.colour });
    button.addEventListener("change", () => { state.colour = way; show(); });
    find("colours").append(element("label", {}, button, name));
  }
  find("theme").addEventListener("click", () => {
    const chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = chosen;
    try { localStorage.setItem("berth-theme", chosen); } catch (fault) { /* a page in a frame may have no storage */ }
    if (state.moment) show();
  });
  find("find").addEventListener("submit", (event) => { event.preventDefault(); const first = find("found").querySelector("a"); if (first) { location.hash = first.getAttribute("href"); clear(); } });
  find("search").addEventListener("input", search);
  find("found").addEventListener("click", clear);
  find("at").addEventListener("input", () => { play(false); refresh(); });
  find("play").addEventListener("click", () => play(!state.playing));
  addEventListener("hashchange", route);
  addEventListener("resize", () => { if (state.moment) show(); });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { if (!find("found").hidden) clear(); else if (state.open) location.hash = `#/${state.view}`; return; }
    if (event.target.matches("input[type=search], select") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") { event.preventDefault(); find("search").focus(); }
    else if (event.key === "p" && !find("player").hidden) play(!state.playing);
    else if (["1", "2", "3"].includes(event.key)) location.hash = `#/${["room", "queue", "time"][event.key - 1]}`;
  });
  route();
  refresh().then(() => {
    if (!state.room || !state.room.live) return;
    const events = new EventSource("api/events");
    events.addEventListener("moment", refresh);
    events.addEventListener("error", () => problem("the connection is lost; the page tries again"));
  });
}
function clear() { find("search").value = ""; find("found").hidden = true; }
setUp();
