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
function queue() {
  const waiting = state.moment.jobs
    .filter((job) => !runs(job))
    .sort((a, b) => (a.planned || Infinity) - (b.planned || Infinity) || a.submitted - b.submitted);
  const body = element(
    "tbody",
    {},
    waiting.slice(0, SHOWN_ROWS).map((job) => {
      const row = element(
        "tr",
        {},
        element("td", {}, jobLink(job.id), element("p", { class: "note" }, job.name || "")),
        element("td", { "data-name": "User" }, userTag(job.user)),
        element("td", { class: "n", "data-name": "GPUs" }, job.gpus),
        element("td", { class: "n", "data-name": "Waits for" }, span(state.moment.at - job.submitted)),
        element("td", { "data-name": "Planned" }, job.planned ? clock(job.planned) : "–"),
        element("td", { class: "place", "data-name": "Place" }, placeText(job) || "none yet"),
        element("td", { "data-name": "Reason" }, reasonOf(job), element("p", { class: "why" }, job.why || "")),
      );
      return row;
    }),
  );
  const head = element(
    "thead",
    {},
    element(
      "tr",
      {},
      ["Job", "User", "GPUs", "Waits for", "Planned start", "Planned place", "Reason"].map((name) =>
        element("th", { scope: "col", class: name === "GPUs" || name === "Waits for" ? "n" : null }, name),
      ),
    ),
  );
  find("queue").replaceChildren(
    element(
      "div",
      { class: "card wide", tabindex: "0", role: "region", "aria-label": "Waiting jobs" },
      element(
        "h2",
        {},
        waiting.length ? many(waiting.length, "job") + (waiting.length === 1 ? " waits" : " wait") : "No job waits",
      ),
      waiting.length ? element("table", {}, head, body) : null,
      waiting.length > SHOWN_ROWS
        ? element("p", { class: "note" }, `The first ${SHOWN_ROWS} are shown; the search finds all.`)
        : null,
    ),
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
  for (const step of [0, 0.25, 0.5, 0.75, 1])
    picture.append(
      drawing(
        "text",
        {
          x: left + (wide - left - 14) * step,
          y: lanes.length * 34 + 22,
          "text-anchor": step === 0 ? "start" : step === 1 ? "end" : "middle",
        },
        wide < 500 && step % 1 ? "" : clock(first + (last - first) * step),
      ),
    );
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
      element("h2", {}, events.length ? `The last ${many(events.length, "event")}` : "Nothing has happened yet"),
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
