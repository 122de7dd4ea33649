"use strict";
// What the page knows, and the words and numbers that every view shows.

const find = (id) => document.getElementById(id);
const state = { room: null, moment: null, colour: "owner", view: "room", open: null, drawing: null, playing: false, gauges: {} };
const KINDS = {
  start: "#2a9d74",
  "re-pin": "#2f7fc1",
  relocation: "#7a6bd0",
  eviction: "#d6604d",
  requeue: "#8f8a1f",
  end: "#8893a5",
};
const WAYS = { owner: "Owner", guest: "Guest", score: "Score", health: "Health", use: "Use", share: "Share" };
const SHOWN_ROWS = 300;

function clock(seconds) {
  if (!state.room || state.room.live)
    return new Date(seconds * 1000).toLocaleString([], {
      month: "short",
      day: "numeric",
      hour: "2-digit",
      minute: "2-digit",
    });
  const since = Math.max(0, seconds - state.room.zero),
    day = Math.floor(since / 86400) + 1;
  return `day ${day}, ${String(Math.floor(since / 3600) % 24).padStart(2, "0")}:${String(Math.floor(since / 60) % 60).padStart(2, "0")}`;
}
function span(seconds) {
  const minutes = Math.max(0, Math.round(seconds / 60));
  return minutes < 60
    ? `${minutes} min`
    : minutes < 2880
      ? `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`
      : `${Math.floor(minutes / 1440)} d ${Math.floor(minutes / 60) % 24} h`;
}
function many(count, word) {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}
function runs(job) {
  return job.state === "RUNNING";
}
// Who holds GPUs of which the page names no job.
function unnamed() {
  return state.moment.private.includes("jobs") ? "another user's job" : "taken, Slurm does not say by whom";
}
// Percent busy, MiB and watts of GPUs, of those that their nodes tell of.
function gauges(places) {
  return places.flatMap(([node, mask]) => {
    const told = state.gauges[state.room.nodes[node].name] || [];
    return bits(mask).map((gpu) => told[gpu]).filter(Boolean);
  });
}
function gaugeText(told) {
  if (!told.length) return "";
  const of = (part) => told.map((one) => one[part]),
    sum = (part) => of(part).reduce((all, one) => all + one, 0),
    range = told.length > 1 ? ` (${Math.min(...of(0))} to ${Math.max(...of(0))})` : "",
    gib = sum(1) / 1024;
  const power = of(2).includes(null) ? "" : sum(2) < 10000 ? `, ${sum(2)} W` : `, ${(sum(2) / 1000).toFixed(1)} kW`;
  const text = `${Math.round(sum(0) / told.length)} % busy${range}, ${gib.toFixed(gib < 10 ? 1 : 0)} GiB${power}`;
  return text.replace(/ (?=[%GkW])/g, "\u00a0");
}
function placeText(job) {
  const places = job.places || [];
  if (!places.length) return "";
  const first = places
    .slice(0, 3)
    .map(([node, mask]) => `${state.room.nodes[node].name} (GPU ${folded(bits(mask))})`)
    .join(", ");
  return places.length > 3 ? `${first} and ${many(places.length - 3, "more node")}` : first;
}
