"use strict";
// What stands beside the view: a job or a node, and all that is known of it.

function side(...children) {
  const box = find("side");
  box.hidden = !children.length;
  find("layout").className = children.length ? "with-side" : "";
  box.replaceChildren(...children.flat().filter((child) => child !== null));
}
function heading(text) {
  const close = element("button", { type: "button", "aria-label": "Close" }, "✕");
  close.addEventListener("click", () => {
    location.hash = `#/${state.view}`;
  });
  return element("div", { class: "head" }, element("h2", { tabindex: "-1" }, text), close);
}
function pairs(found) {
  return element(
    "dl",
    {},
    found.filter((one) => one[1]).flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]),
  );
}
function lead(job) {
  const at = state.moment.at;
  if (runs(job))
    return `It has run for ${span(at - job.start)} on ${many(job.gpus, "GPU")} (${placeText(job)}).${job.end ? ` Its time limit ends it in ${span(job.end - at)}.` : ""}`;
  const wait = `It has waited for ${span(at - job.submitted)} for ${many(job.gpus, "GPU")}.`;
  if (job.planned && job.planned > at)
    return `${wait} Berth plans it on ${placeText(job)} in ${span(job.planned - at)}, at ${clock(job.planned)}.`;
  return placeText(job) ? `${wait} Its place is ${placeText(job)}.` : `${wait} No place is in sight yet.`;
}
// The plan around a waiting job: who has or gets which GPUs when, and from when on they are the job's.
function planned(ahead, job) {
  const start = job.planned || ahead.at,
    own = { job: job.id, user: job.user, nodes: placeText(job), start, end: start + (job.limit || 86400), own: true };
  const rows = [...ahead.bars, own],
    last = start + Math.max(600, (start - ahead.at) / 2);
  const across = (time) => (340 * Math.min(1, Math.max(0, (time - ahead.at) / (last - ahead.at)))).toFixed(1);
  const picture = drawing("svg", {
    class: "lanes",
    viewBox: `0 0 340 ${rows.length * 32 + 18}`,
    role: "img",
    "aria-label": "The plan of these GPUs, as the rows below tell it",
  });
  rows.forEach((bar, row) => {
    const bars = bar.kept ? [[ahead.at, bar.start, 0.25]] : [],
      whose = bar.own ? "this job" : bar.whose,
      where = bar.own ? bar.nodes : `${bar.nodes} GPU ${folded(bar.positions)}`;
    picture.append(
      drawing("text", { x: 0, y: row * 32 + 11 }, `${where}: ${bar.kept ? "kept for " : ""}${whose}`.slice(0, 60)),
    );
    for (const [from, to, ink] of [...bars, [bar.start, bar.end || last, 1]])
      picture.append(
        drawing("rect", {
          x: across(from),
          y: row * 32 + 16,
          width: Math.max(1, across(to) - across(from)).toFixed(1),
          height: 10,
          rx: 2,
          fill: bar.job === null ? styled("--edge") : ownerColour(bar.user),
          "fill-opacity": ink,
        }),
      );
  });
  for (const [time, anchor] of [
    [ahead.at, "start"],
    [last, "end"],
  ])
    picture.append(drawing("text", { x: across(time), y: rows.length * 32 + 12, "text-anchor": anchor }, clock(time)));
  return [element("h3", {}, "The plan of its GPUs"), picture];
}
async function openJob(id) {
  let found;
  // Before the room is drawn, so that it knows its width.
  if (find("side").hidden) side(heading(`Job ${id}`));
  try {
    found = await get(`api/job/${encodeURIComponent(id)}${state.room.live ? "" : `?at=${state.moment.at}`}`);
  } catch (fault) {
    if (same("job", id)) side(heading(`Job ${id}`), element("p", { class: "lead" }, fault.message));
    return;
  }
  if (!same("job", id)) return;
  const job = state.jobs.get(id);
  const steps = found.events.map(([at, kind, text]) =>
    element(
      "li",
      {},
      element("time", {}, clock(at)),
      element(
        "b",
        {},
        {
          start: "It started",
          "re-pin": "It got another place",
          relocation: "It left its GPUs for better ones",
          eviction: "It was sent away",
          requeue: "It was put back",
          end: "It ended",
        }[kind] || kind,
      ),
      text ? element("p", { class: "note" }, text) : null,
    ),
  );
  if (job)
    steps.unshift(element("li", {}, element("time", {}, clock(job.submitted)), element("b", {}, "It was submitted")));
  side(
    heading(`Job ${id}`),
    job
      ? element(
          "div",
          {},
          element("span", { class: "state" }, runs(job) ? "runs" : "waits"),
          element("span", { class: "state" }, userTag(job.user)),
          job.guest ? element("span", { class: "state" }, "guest") : null,
        )
      : null,
    element("p", { class: "lead" }, job ? lead(job) : "It has ended."),
    job && !runs(job) ? pairs([["reason", reasonOf(job)]]) : null,
    job && runs(job) ? pairs([["its GPUs", gaugeText(gauges(job.places || []))]]) : null,
    job && !runs(job) && found.ahead ? planned(found.ahead, job) : null,
    job ? element("h3", {}, runs(job) ? "Why here" : "Why it waits") : null,
    job ? pairs([["name", job.name], ["account", job.account], ...(found.story || [])]) : null,
    element("h3", {}, "What happened"),
    element("ol", { class: "story" }, steps),
    job && job.places
      ? element(
          "p",
          {},
          "Nodes: ",
          job.places
            .slice(0, 16)
            .flatMap(([node]) => [nodeLink(state.room.nodes[node].name), " "]),
        )
      : null,
  );
}
function wheel(node) {
  const links = state.room.links[node.model] || [],
    size = 250,
    middle = size / 2,
    count = node.gpus;
  const at = (gpu) => [
    middle + 96 * Math.sin((2 * Math.PI * gpu) / count),
    middle - 96 * Math.cos((2 * Math.PI * gpu) / count),
  ];
  const most = Math.max(1, ...links.map((link) => link[2])),
    picture = drawing("svg", {
      viewBox: `0 0 ${size} ${size}`,
      width: size,
      height: size,
      role: "img",
      "aria-label": `${count} GPUs of ${node.name} with ${links.length} NVLinks`,
    });
  for (const [a, b, speed] of links)
    picture.append(
      drawing("line", {
        x1: at(a)[0],
        y1: at(a)[1],
        x2: at(b)[0],
        y2: at(b)[1],
        stroke: styled("--edge"),
        "stroke-width": (1 + (2 * speed) / most).toFixed(1),
      }),
    );
  for (let gpu = 0; gpu < count; gpu += 1) {
    const colour = heldColour(state.room.nodes.indexOf(node), gpu),
      [x, y] = at(gpu);
    picture.append(
      drawing("circle", {
        cx: x,
        cy: y,
        r: 15,
        fill: colour || styled("--free"),
        stroke: styled("--card"),
        "stroke-width": 2,
      }),
      drawing(
        "text",
        {
          x,
          y: y + 4,
          "text-anchor": "middle",
          "font-size": 12,
          "font-weight": 650,
          fill: colour && colour !== styled("--edge") ? "#fff" : styled("--ink"),
        },
        gpu,
      ),
    );
  }
  return picture;
}
// A pod, a leaf or an NVLink domain, and its nodes.
function openDomain(name) {
  const inside = state.room.nodes.flatMap((node, place) =>
    [node.domain, node.leaf, node.pod].includes(name) ? [[node, place]] : [],
  );
  const rows = inside.map(([node, place]) => {
    const busy = Array.from({ length: node.gpus }, (_, gpu) => state.here(place, gpu).length || state.hidden.has(place * 64 + gpu));
    return [nodeLink(node.name), `${busy.filter((taken) => !taken).length} of ${node.gpus} GPUs free`];
  });
  side(heading(name), rows.length ? pairs(rows) : element("p", { class: "lead" }, "Nothing has this name here."));
}
function nodeLink(name) {
  return element("a", { href: `#/node/${encodeURIComponent(name)}` }, name);
}
function domainLink(name) {
  return name ? element("a", { href: `#/domain/${encodeURIComponent(name)}` }, name) : "";
}
function openNode(name, chosenGpu) {
  const place = state.room.nodes.findIndex((node) => node.name === name),
    node = state.room.nodes[place];
  if (!node) {
    side(heading(name), element("p", { class: "lead" }, "There is no such node here, or you may not see it."));
    return;
  }
  const cells = Array.from({ length: node.gpus }, (_, gpu) => {
    const here = state.here(place, gpu),
      planned = state.planned.get(place * 64 + gpu) || [];
    const cell = element(
      "li",
      { "aria-current": gpu === chosenGpu ? "true" : null },
      element("a", { href: `#/gpu/${encodeURIComponent(name)}/${gpu}` }, element("b", {}, `GPU ${gpu}`)),
      node.scores[gpu] === undefined ? null : ` score ${node.scores[gpu].toFixed(3)}`,
      element(
        "div",
        {},
        here.length
          ? here.map((job) => [
              jobLink(job.id),
              ` ${job.user}${job.guest ? " (guest)" : ""}${job.share ? ` ${job.share} %` : ""} `,
            ])
          : state.hidden.has(place * 64 + gpu)
            ? unnamed()
            : "free",
      ),
      element("div", { class: "note" }, gaugeText(gauges([[place, 2 ** gpu]]))),
      planned.length
        ? element(
            "div",
            { class: "note" },
            "next: ",
            planned.slice(0, 2).map((job) => [jobLink(job.id), " "]),
          )
        : null,
    );
    cell.style.borderLeftColor = heldColour(place, gpu) || "";
    return cell;
  });
  side(
    heading(name),
    pairs([
      ["health", state.moment.sick[place] || "takes jobs"],
      ["machine", node.model],
      ["leaf", domainLink(node.leaf)],
      ["pod", domainLink(node.pod)],
      ["island", domainLink(node.domain)],
    ]),
    node.gpus > 1 ? wheel(node) : null,
    element("h3", {}, "GPUs"),
    element("ul", { class: "gpus" }, cells),
  );
}
function same(kind, name) {
  return state.open && state.open[0] === kind && state.open[1] === name;
}
