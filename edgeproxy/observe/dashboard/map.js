// Regions where they stand, if the operator said so: a grid of degrees, no coastlines. The table has the same figures.

import { byId, milliseconds, svg } from "./dom.js";

const WIDTH = 720;
const HEIGHT = 300;
const WIDEST = 576; // pixels, dashboard.css
const TOP = 75; // degrees north
const BOTTOM = -55;

const x = (east) => ((east + 180) / 360) * WIDTH;
const y = (north) => ((TOP - north) / (TOP - BOTTOM)) * HEIGHT;

function grid() {
  const lines = [];
  for (let east = -150; east <= 150; east += 30) lines.push([x(east), 0, x(east), HEIGHT]);
  for (let north = -30; north <= 60; north += 30) lines.push([0, y(north), WIDTH, y(north)]);
  return lines.map(([x1, y1, x2, y2]) => svg("line", { x1, y1, x2, y2, class: "grid" }));
}

// `scale`: units a pixel, so that names can be read however small the map is.
function place(name, [north, east], nodes, home, scale) {
  const up = nodes.filter((node) => node.ready).length;
  const nearest = Math.min(...nodes.map((node) => node.rtt_s ?? Infinity));
  const kind = up === 0 ? "down" : up < nodes.length ? "part" : "up";
  const left = x(east) > WIDTH * 0.7; // a name begins where there is room for it
  const text = svg("text", { x: x(east) + (left ? -9 : 9) * scale, y: y(north) + 4 * scale, "font-size": 12 * scale, "text-anchor": left ? "end" : "start" });
  const state = up === 0 ? "down" : up < nodes.length ? `${nodes.length - up} of ${nodes.length} down` : "";
  text.textContent = [name, name === home ? "(home)" : "", Number.isFinite(nearest) ? milliseconds(nearest) : "", state].filter(Boolean).join(" ");
  return [svg("circle", { cx: x(east), cy: y(north), r: (name === home ? 6 : 5) * scale, class: kind }), text];
}

export function drawMap(state) {
  const places = Object.entries(state.locations);
  byId("map-section").hidden = !places.length;
  if (!places.length) return;
  const scale = WIDTH / Math.min(byId("map").clientWidth || WIDTH, WIDEST);
  const marks = places.flatMap(([name, at]) => place(name, at, state.nodes.filter((node) => node.region === name), state.home, scale));
  const drawn = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": "Regions on a map; the table above has the same figures" });
  drawn.append(...grid(), ...marks);
  byId("map").replaceChildren(drawn);
}
