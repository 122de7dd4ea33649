"use strict";
// The plan of the cluster: who has and who gets which GPUs when, a row for each node and a lane for each GPU.

const PLAN_NODES = 32;
const LANE = 4;

// The bars of each node: mask of GPUs, job (null: another user's, which may not be seen), from when, until when.
function planBars(jobs) {
  const found = new Map(),
    at = state.moment.at;
  const add = (node, ...bar) => (found.get(node) || found.set(node, []).get(node)).push(bar);
  for (const job of jobs)
    for (const [node, mask] of job.places || []) {
      const from = runs(job) ? at : Math.max(at, job.planned || at);
      add(node, mask, job, from, runs(job) ? job.end : job.limit && from + job.limit);
    }
  const all = jobs.length === state.moment.jobs.length;
  for (const [node, mask] of state.moment.hidden) if (all || found.has(node)) add(node, mask, null, at, null);
  return found;
}
function planCard(jobs) {
  const found = planBars(jobs),
    at = state.moment.at,
    left = 86,
    right = Math.max(320, find("main").clientWidth - 76) - 14;
  if (!found.size) return null;
  const soonest = (bars) => Math.min(...bars.map(([, job, from]) => (job && !runs(job) ? from : Infinity)));
  const rows = [...found].sort((a, b) => soonest(a[1]) - soonest(b[1]) || a[0] - b[0]).slice(0, PLAN_NODES);
  // As far as half the way beyond the last planned start; without one, as far as running jobs may go on for a day.
  const every = rows.flatMap((row) => row[1]),
    start = Math.max(...every.map(([, , from]) => from - at)),
    longest = Math.max(...every.map(([, , , end]) => (end || at) - at)),
    last = at + Math.max(600, start ? 1.5 * start : Math.min(86400, longest));
  const across = (time) => left + ((right - left) * Math.min(time - at, last - at)) / (last - at);
  const picture = drawing("svg", { class: "lanes", role: "img", "aria-label": "The plan, as the lists below tell it" });
  let top = 4;
  for (const [place, bars] of rows) {
    const node = state.room.nodes[place];
    picture.append(
      drawing("text", { x: 0, y: top + 12 }, node.name),
      drawing("line", { x1: left, x2: right, y1: top - 3, y2: top - 3 }),
    );
    for (const [mask, job, from, end] of bars)
      for (const part of folded(bits(mask)).split(",")) {
        const [first, till = first] = part.split("-").map(Number),
          whose = job ? `job ${job.id} of ${job.user}` : unnamed(),
          until = end ? `until ${clock(end)} at the latest` : "without a known end";
        const bar = drawing(
          "rect",
          {
            x: across(from).toFixed(1),
            y: top + first * LANE,
            width: Math.max(2, across(end || last) - across(from)).toFixed(1),
            height: (till - first + 1) * LANE - 1,
            rx: 1,
            fill: job ? ownerColour(job.user) : styled("--edge"),
            "fill-opacity": job && !runs(job) ? 0.55 : 1,
          },
          drawing("title", {}, `${node.name} GPU ${part}: ${whose}, from ${clock(from)}, ${until}`),
        );
        if (job) bar.addEventListener("click", () => (location.hash = `#/job/${encodeURIComponent(job.id)}`));
        picture.append(bar);
      }
    top += node.gpus * LANE + 8;
  }
  ticks(picture, left, right, top + 12, at, last);
  picture.setAttribute("viewBox", `0 0 ${right + 14} ${top + 20}`);
  const more = found.size > rows.length ? `The ${PLAN_NODES} nodes whose GPUs change soonest; a filter finds others. ` : "";
  return element(
    "div",
    { class: "card wide" },
    element("h2", {}, "The plan"),
    picture,
    element("p", { class: "note" }, `${more}Full bars run and end by their limits, faint ones wait.`),
  );
}
