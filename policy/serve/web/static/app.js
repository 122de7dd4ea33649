"use strict";
// The page: reads the room once and a moment at each event, and shows what the address asks for.

// Reading

async function get(path) {
  const reply = await fetch(path, { credentials: "same-origin" });
  if (!reply.ok) throw new Error((await reply.text()).trim() || reply.statusText);
  return reply.json();
}
let reading = false,
  again = false;
async function refresh() {
  if (reading) {
    again = true;
    return;
  }
  reading = true;
  try {
    if (!state.room) {
      state.room = await get("api/room");
      begin();
    }
    const moment = await get(state.room.live ? "api/moment" : `api/moment?at=${find("at").value}`);
    if (
      moment.room !== state.room.number ||
      moment.private.includes("nodes") === Boolean(state.room.nodes.length)
    ) {
      state.room = await get("api/room");
      begin();
    }
    state.moment = moment;
    problem(moment.problem);
    index();
    show();
  } catch (fault) {
    problem(fault.message);
  }
  reading = false;
  if (again) {
    again = false;
    refresh();
  }
}
// What the GPUs do is read only while something shows it: nodes tell it once a minute.
async function gauge() {
  if (!state.room.live || state.gauged === state.moment.at || !(state.open || state.colour === "use")) return;
  state.gauged = state.moment.at;
  const found = (await get("api/use")).use;
  if (JSON.stringify(found) === JSON.stringify(state.gauges)) return;
  state.gauges = found;
  show();
}
function problem(text) {
  find("problem").hidden = !text;
  find("problem").textContent = text || "";
  const live = state.room && state.room.live;
  find("badge").textContent = text ? "not current" : live ? "live" : "simulated";
  find("badge").className = text ? "badge bad" : live ? "badge live" : "badge";
}
function begin() {
  state.drawing = new RoomDrawing(
    find("floor"),
    state.room,
    (node, gpu) => {
      const here = gpu === null ? [] : state.here(node, gpu);
      location.hash = here.length
        ? `#/job/${encodeURIComponent(here[0].id)}`
        : `#/${gpu === null ? "node" : "gpu"}/${encodeURIComponent(state.room.nodes[node].name)}${gpu === null ? "" : `/${gpu}`}`;
    },
    tip,
  );
  find("colours").querySelector("[value=use]").parentElement.hidden = !state.room.live;
  if (!state.room.live && find("player").hidden) {
    const at = find("at");
    find("player").hidden = false;
    at.min = state.room.began;
    at.max = state.room.until;
    at.step = 30;
    const asked = new URLSearchParams(location.search).get("at");
    at.value = asked
      ? state.room.zero + Number(asked)
      : state.room.began + Math.min(0.35 * (state.room.until - state.room.began), 36000);
  }
}
function index() {
  const held = new Map(),
    planned = new Map(),
    jobs = new Map();
  for (const job of state.moment.jobs) {
    jobs.set(job.id, job);
    for (const [node, mask] of job.places || [])
      for (const gpu of bits(mask)) {
        const into = runs(job) ? held : planned,
          key = node * 64 + gpu;
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

// Addresses, search, keyboard

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?"),
    [kind, ...names] = path.split("/");
  state.open = null;
  if (["job", "node", "gpu", "domain"].includes(kind) && names[0]) {
    try {
      state.open = [kind, ...names.map(decodeURIComponent)];
    } catch (fault) {
      state.open = null;
    }
  } else if (["room", "queue", "time"].includes(kind)) state.view = kind;
  if (kind === "queue")
    for (const [name, value] of new URLSearchParams(query))
      if (find("filters").elements[name]) find("filters").elements[name].value = value;
  if (state.moment) show();
  if (state.open)
    setTimeout(() => {
      const title = find("side").querySelector("h2");
      if (title) title.focus({ preventScroll: true });
    }, 150);
}
function show() {
  for (const view of ["room", "queue", "time"]) find(view).hidden = view !== state.view;
  document.querySelectorAll("nav a").forEach((link) => {
    if (link.dataset.view === state.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  figures();
  if (!state.open) side();
  else if (state.open[0] === "job") openJob(state.open[1]);
  else if (state.open[0] === "domain") openDomain(state.open[1]);
  else openNode(state.open[1], Number(state.open[2]));
  if (state.view === "room") {
    legend();
    state.drawing.draw(look, state.moment.sick);
  } else if (state.view === "queue") queue();
  else timeLine();
  find("clock").textContent = clock(state.moment.at);
  gauge().catch((fault) => problem(fault.message));
}
function search() {
  const word = find("search").value.trim().toLowerCase(),
    list = find("found"),
    hits = [];
  if (word && state.moment) {
    for (const job of state.moment.jobs)
      if (
        job.id.startsWith(word) ||
        (job.user || "").toLowerCase().includes(word) ||
        (job.name || "").toLowerCase().includes(word)
      )
        hits.push([
          `#/job/${encodeURIComponent(job.id)}`,
          `job ${job.id}`,
          `${job.user}, ${runs(job) ? "runs" : "waits"}`,
        ]);
    for (const node of state.room.nodes)
      if (node.name.toLowerCase().includes(word))
        hits.push([`#/node/${encodeURIComponent(node.name)}`, node.name, many(node.gpus, "GPU")]);
    hits.sort((a, b) => (b[1].endsWith(` ${word}`) || b[1] === word) - (a[1].endsWith(` ${word}`) || a[1] === word));
    if (!hits.length && /^[0-9_+]+$/.test(word))
      hits.push([`#/job/${encodeURIComponent(word)}`, `job ${word}`, "look it up"]);
  }
  list.replaceChildren(
    ...hits
      .slice(0, 12)
      .map(([target, name, text]) =>
        element(
          "li",
          {},
          element("a", { href: target }, element("span", {}, name), element("span", { class: "note" }, text)),
        ),
      ),
  );
  list.hidden = !hits.length;
}
function play(on) {
  state.playing = on;
  find("play").textContent = on ? "❚❚" : "▶";
}
setInterval(() => {
  if (!state.playing || reading) return;
  const at = find("at"),
    next = Number(at.value) + Number(find("speed").value) / 2;
  at.value = next;
  if (next >= Number(at.max)) play(false);
  refresh();
}, 500);

function setUp() {
  try {
    const kept = localStorage.getItem("berth-theme");
    document.documentElement.dataset.theme =
      new URLSearchParams(location.search).get("theme") ||
      kept ||
      (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  } catch (fault) {
    document.documentElement.dataset.theme = "light";
  }
  for (const [way, name] of Object.entries(WAYS)) {
    const button = element("input", { type: "radio", name: "colour", value: way, checked: way === state.colour });
    button.addEventListener("change", () => {
      state.colour = way;
      show();
    });
    find("colours").append(element("label", {}, button, name));
  }
  find("theme").addEventListener("click", () => {
    const chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = chosen;
    try {
      localStorage.setItem("berth-theme", chosen);
    } catch (fault) {
      /* a page in a frame may have no storage */
    }
    if (state.moment) show();
  });
  find("find").addEventListener("submit", (event) => {
    event.preventDefault();
    const first = find("found").querySelector("a");
    if (first) {
      location.hash = first.getAttribute("href");
      clear();
    }
  });
  find("filters").addEventListener("submit", (event) => event.preventDefault());
  find("filters").addEventListener("input", () => {
    const asked = [...new FormData(find("filters"))].filter(([, value]) => value);
    history.replaceState(null, "", `#/queue${asked.length ? `?${new URLSearchParams(asked)}` : ""}`);
    queue();
  });
  find("search").addEventListener("input", search);
  find("found").addEventListener("click", clear);
  find("at").addEventListener("input", () => {
    play(false);
    refresh();
  });
  find("play").addEventListener("click", () => play(!state.playing));
  addEventListener("hashchange", route);
  addEventListener("resize", () => {
    if (state.moment) show();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      if (!find("found").hidden) clear();
      else if (state.open) location.hash = `#/${state.view}`;
      return;
    }
    if (event.target.matches("input[type=search], select") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      event.preventDefault();
      find("search").focus();
    } else if (event.key === "p" && !find("player").hidden) play(!state.playing);
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
function clear() {
  find("search").value = "";
  find("found").hidden = true;
}
setUp();
