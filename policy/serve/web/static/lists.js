"use strict";
// The queue and the time line.

function userTag(name) {
  return element("span", { class: "user" }, dot(ownerColour(name)), name);
}
function jobLink(id) {
  return element("a", { href: `#/job/${encodeURIComponent(id)}` }, id);
}
function reasonOf(job) {
  return job.because_text || job.reason || job.because || "not told";
}
// The fields by which the lists can be filtered; each tells a job's values.
const FILTERS = {
  state: (job) => [runs(job) ? "runs" : "waits"],
  user: (job) => [job.user],
  account: (job) => [job.account],
  partition: (job) => (job.partition || "").split(","),
  node: (job) => (job.places || []).map(([node]) => state.room.nodes[node].name),
};
function chosen(job) {
  return Object.entries(FILTERS).every(([name, values]) => {
    const wanted = find("filters").elements[name].value.trim();
    return !wanted || values(job).includes(wanted);
  });
}
// Suggests the values that there are; the fields themselves stay, with what is being typed.
function suggest() {
  for (const name of ["user", "account", "partition", "node"]) {
    const values = [...new Set(state.moment.jobs.flatMap(FILTERS[name]))].filter(Boolean).sort().slice(0, SHOWN_ROWS);
    const list = find(`filter-${name}`);
    if (list.dataset.values === values.join(" ")) continue;
    list.dataset.values = values.join(" ");
    list.replaceChildren(...values.map((value) => element("option", { value })));
  }
}
function table(title, jobs, columns) {
  const cell = ([name, text, kind]) => (job) => element("td", { class: kind, "data-name": name }, text(job));
  const first = (job) => element("td", {}, jobLink(job.id), element("p", { class: "note" }, job.name || ""));
  const cells = [first, ...columns.map(cell)];
  return element(
    "div",
    { class: "card wide", tabindex: "0", role: "region", "aria-label": title },
    element("h2", {}, title),
    jobs.length
      ? element(
          "table",
          {},
          element(
            "thead",
            {},
            element(
              "tr",
              {},
              [["Job"], ...columns].map(([name, , kind]) => element("th", { scope: "col", class: kind }, name)),
            ),
          ),
          element(
            "tbody",
            {},
            jobs.slice(0, SHOWN_ROWS).map((job) =>
              element(
                "tr",
                {},
                cells.map((one) => one(job)),
              ),
            ),
          ),
        )
      : null,
    jobs.length > SHOWN_ROWS
      ? element("p", { class: "note" }, `The first ${SHOWN_ROWS} are shown; a filter or the search finds the others.`)
      : null,
  );
}
function queue() {
  suggest();
  const jobs = state.moment.jobs.filter(chosen);
  const waiting = jobs
    .filter((job) => !runs(job))
    .sort((a, b) => (a.planned || Infinity) - (b.planned || Infinity) || a.submitted - b.submitted);
  const running = jobs.filter(runs).sort((a, b) => (a.end || Infinity) - (b.end || Infinity));
  const whose = [
    ["User", (job) => [userTag(job.user), element("p", { class: "note" }, job.account || "")]],
    ["Partition", (job) => job.partition || ""],
    ["GPUs", (job) => job.gpus, "n"],
  ];
  const titled = (list, one, more, none) =>
    list.length ? `${many(list.length, "job")} ${list.length === 1 ? one : more}` : none;
  const plan = planCard(jobs);
  find("jobs").replaceChildren(
    ...(plan ? [plan] : []),
    table(titled(waiting, "waits", "wait", "No job waits"), waiting, [
      ...whose,
      ["Waits for", (job) => span(state.moment.at - job.submitted), "n"],
      ["Planned start", (job) => (job.planned ? clock(job.planned) : "–")],
      ["Planned place", (job) => placeText(job) || "none yet", "place"],
      ["Reason", (job) => [reasonOf(job), element("p", { class: "why" }, job.why || "")]],
    ]),
    table(titled(running, "runs", "run", "No job runs"), running, [
      ...whose,
      ["Runs for", (job) => span(state.moment.at - job.start), "n"],
      ["Ends by", (job) => (job.end ? clock(job.end) : "–")],
      ["Place", placeText, "place"],
    ]),
  );
}
function timeLine() {
  const events = state.moment.events,
    lanes = ["start", "re-pin", "relocation", "eviction", "end"],
    wide = Math.max(320, find("main").clientWidth - 76),
    left = 86;
  const first = events.length ? Math.min(...events.map((one) => one[0])) : state.moment.at - 3600,
    last = Math.max(state.moment.at, first + 60);
  const across = (at) => left + ((wide - left - 14) * (at - first)) / (last - first);
  const picture = drawing("svg", {
    class: "lanes",
    viewBox: `0 0 ${wide} ${lanes.length * 34 + 30}`,
    role: "img",
    "aria-label": "Events over time, listed below",
  });
  lanes.forEach((kind, lane) => {
    const y = 20 + lane * 34,
      count = events.filter((one) => one[1] === kind || (kind === "eviction" && one[1] === "requeue")).length;
    picture.append(
      drawing("line", { x1: left, x2: wide - 14, y1: y, y2: y }),
      drawing("text", { x: 0, y: y + 4 }, `${kind} ${count}`),
    );
  });
  for (const [at, kind] of events) {
    const lane = lanes.indexOf(kind === "requeue" ? "eviction" : kind);
    picture.append(
      drawing("rect", {
        x: across(at) - 1.5,
        y: 20 + lane * 34 - 9,
        width: 3,
        height: 18,
        rx: 1.5,
        fill: KINDS[kind],
        "fill-opacity": 0.65,
      }),
    );
  }
  ticks(picture, left, wide - 14, lanes.length * 34 + 22, first, last);
  const rows = events
    .slice(-SHOWN_ROWS)
    .reverse()
    .map(([at, kind, job, text]) =>
      element(
        "tr",
        {},
        element("td", {}, clock(at)),
        element("td", {}, element("span", { class: "kind" }, dot(KINDS[kind]), kind)),
        element("td", {}, jobLink(job)),
        element("td", {}, text),
      ),
    );
  find("time").replaceChildren(
    element(
      "div",
      { class: "card" },
      element("h2", {}, events.length ? `The last ${many(events.length, "event")}` : "No event is known"),
      picture,
    ),
    element(
      "div",
      { class: "card wide", tabindex: "0", role: "region", "aria-label": "Events" },
      element(
        "table",
        {},
        element(
          "thead",
          {},
          element(
            "tr",
            {},
            ["When", "What", "Job", "Why"].map((name) => element("th", { scope: "col" }, name)),
          ),
        ),
        element("tbody", {}, rows),
      ),
    ),
  );
}
