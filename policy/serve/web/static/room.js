"use strict";
// The machine room: how each GPU looks, the legend, the tip below the pointer, and the figures above.

// The colour of the job that has a GPU; null for a free one.
function heldColour(node, gpu) {
  const here = state.here(node, gpu),
    owner = here.find((job) => !job.guest) || here[0];
  return owner ? ownerColour(owner.user) : state.hidden.has(node * 64 + gpu) ? styled("--edge") : null;
}
function look(node, gpu) {
  const key = node * 64 + gpu,
    here = state.held.get(key) || [],
    owner = here.find((job) => !job.guest),
    guest = here.find((job) => job.guest);
  const sick = node in state.moment.sick,
    score = state.room.nodes[node].scores[gpu],
    chosen = state.open && state.open[0] === "job" && state.jobs.has(state.open[1]) ? state.open[1] : null;
  const mine =
    chosen &&
    (here.some((job) => job.id === chosen) || (state.planned.get(key) || []).some((job) => job.id === chosen));
  const taken = here.length > 0 || state.hidden.has(key);
  let colour = null;
  if (state.colour === "owner") colour = heldColour(node, gpu);
  else if (state.colour === "guest")
    colour = guest ? "#c2609a" : owner ? "#2f7fc1" : state.hidden.has(key) ? styled("--edge") : null;
  else if (state.colour === "score") colour = score === undefined ? null : scoreColour(score);
  else if (state.colour === "health") colour = sick ? "#d6604d" : "#2a9d74";
  else if (state.colour === "use") {
    const [told] = gauges([[node, 2 ** gpu]]);
    colour = !taken ? null : told ? useColour(told[0]) : styled("--edge");
  } else colour = taken ? (here.some((job) => job.share) ? "#e08e1b" : "#2f7fc1") : null;
  const part = state.colour === "share" ? here.reduce((sum, job) => sum + (job.share || 100), 0) : 0;
  return {
    colour,
    taken,
    guest: Boolean(guest && owner) && state.colour === "owner",
    ring: mine,
    dim: chosen && !mine,
    part,
  };
}
function legend() {
  const say = (colour, text) => element("span", {}, dot(colour), text),
    free = say(styled("--free"), "free"),
    other = state.hidden.size ? [say(styled("--edge"), "another user's")] : [];
  const keys = {
    owner: () => [
      ...state.use.slice(0, 10).map(([user, gpus]) => say(ownerColour(user), `${user} ${gpus}`)),
      ...(state.use.length > 10 ? [element("span", {}, `and ${state.use.length - 10} more`)] : []),
      ...other,
      free,
    ],
    guest: () => [say("#2f7fc1", "owner"), say("#c2609a", "with a guest"), ...other, free],
    score: () =>
      state.room.nodes.some((node) => node.scores.length)
        ? [
            ...SCALE.map((colour, step) =>
              say(
                colour,
                step === 0
                  ? "< 0.98"
                  : step === SCALE.length - 1
                    ? "≥ 1.14"
                    : `from ${(0.94 + 0.04 * step).toFixed(2)}`,
              ),
            ),
            element("span", {}, "run time over the median; lower is faster"),
          ]
        : [element("span", {}, "no scores are known here")],
    health: () => [say("#2a9d74", "takes jobs"), say("#d6604d", "takes none")],
    use: () =>
      Object.keys(state.gauges).length
        ? [
            ...["< 5 %", "from 5", "from 25", "from 50", "from 75", "≥ 95 %"].map((text, step) =>
              say(SCALE[SCALE.length - 1 - step], text),
            ),
            say(styled("--edge"), "not told"),
            free,
            element("span", {}, "time with a kernel, in the last seconds"),
          ]
        : [element("span", {}, "no node tells what its GPUs do")],
    share: () => [say("#2f7fc1", "whole"), say("#e08e1b", "in parts; the height is the part in use"), free],
  };
  find("legend").replaceChildren(...keys[state.colour]());
}
function tip(hit, event) {
  const box = find("tip");
  box.hidden = !hit;
  if (!hit) return;
  const [node, gpu] = hit,
    about = state.room.nodes[node],
    lines = [gpu === null ? about.name : `${about.name}, GPU ${gpu}`];
  if (gpu !== null) {
    for (const job of state.here(node, gpu))
      lines.push(
        `${job.guest ? "guest: " : ""}job ${job.id}, ${job.user}, ${job.name || "no name"}${job.share ? `, ${job.share} %` : ""}`,
      );
    if (lines.length === 1) lines.push(state.hidden.has(node * 64 + gpu) ? "another user's job" : "free");
    for (const job of state.planned.get(node * 64 + gpu) || []) lines.push(`planned for job ${job.id} of ${job.user}`);
    lines.push(...gauges([[node, 2 ** gpu]]).map((told) => gaugeText([told])));
    if (about.scores[gpu] !== undefined) lines.push(`score ${about.scores[gpu].toFixed(3)}`);
  }
  if (node in state.moment.sick) lines.push(state.moment.sick[node]);
  box.textContent = lines.join("\n");
  box.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8))}px`;
  box.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - box.offsetHeight - 8))}px`;
}
function figures() {
  const total = state.room.nodes.reduce((sum, node) => sum + node.gpus, 0),
    taken = new Set([...state.held.keys(), ...state.hidden]).size,
    own = state.moment.private.includes("jobs"),
    nodeless = state.moment.private.includes("nodes");
  const running = state.moment.jobs.filter(runs),
    waiting = state.moment.jobs.filter((job) => !runs(job)),
    wanted = waiting.reduce((sum, job) => sum + job.gpus, 0),
    sick = Object.keys(state.moment.sick).length;
  const shown = [own && "your own jobs only", nodeless && "no nodes"].filter(Boolean);
  find("private").hidden = !shown.length;
  find("colours").parentElement.hidden = nodeless;
  find("private").textContent = shown.length ? `Slurm shows you ${shown.join(", and ")}.` : "";
  const card = (value, text, part) => {
    const bar = part === undefined ? null : element("div", { class: "bar" }, element("i", {}));
    if (bar) bar.firstChild.style.width = `${Math.round(100 * part)}%`;
    return element("div", { class: "figure" }, element("b", {}, value), element("span", {}, text), bar);
  };
  const jobs = (list, one, more) =>
    card(
      list.length.toLocaleString("en"),
      `${own ? "of your jobs" : list.length === 1 ? "job" : "jobs"} ${list.length === 1 ? one : more}`,
    );
  const use = card(
    `${total ? Math.round((100 * taken) / total) : 0} %`,
    `of ${total.toLocaleString("en")} GPUs in use`,
    total ? taken / total : 0,
  );
  const health = card(
    sick ? String(sick) : state.room.nodes.length.toLocaleString("en"),
    sick ? (sick === 1 ? "node takes no jobs" : "nodes take no jobs") : "nodes, all take jobs",
  );
  find("figures").replaceChildren(
    ...(nodeless ? [] : [use]),
    jobs(running, "runs", "run"),
    jobs(waiting, "waits", "wait"),
    card(wanted.toLocaleString("en"), "GPUs waited for"),
    ...(nodeless ? [] : [health]),
  );
  find("waiting").textContent = waiting.length || "";
}
