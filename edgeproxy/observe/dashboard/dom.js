// Names, models and messages come from requests and nodes: they are only ever written as text.

export const byId = (id) => document.getElementById(id);

export function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const SVG = "http" + "://www.w3.org/2000/svg";

export function svg(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function row(...cells) {
  const made = element("tr");
  for (const cell of cells) made.append(cell instanceof HTMLTableCellElement ? cell : element("td", "", cell));
  return made;
}

export const number = (text, className = "") => element("td", `number ${className}`, text);

const NONE = "–";

export function milliseconds(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  const value = seconds * 1000;
  if (value > 0 && value < 0.095) return `${(value * 1000).toFixed(0)} µs`;
  if (Math.abs(value) >= 1000) return `${(value / 1000).toFixed(value < 10000 ? 2 : 1)} s`;
  return `${Math.abs(value) < 10 ? value.toFixed(2) : Math.abs(value) < 100 ? value.toFixed(1) : value.toFixed(0)} ms`;
}

export function percent(share, digits = 0) {
  return share === null || share === undefined ? NONE : `${(share * 100).toFixed(digits)} %`;
}

export function plain(value, digits = 2) {
  return value === null || value === undefined ? NONE : value.toFixed(digits);
}

// In the operator's currency; prices of tokens are small, so that fixed digits would make them zero.
export function price(value) {
  return value === null || value === undefined ? NONE : String(Number(value.toPrecision(3)));
}

export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString();

// A screen reader repeats a live region whenever it is written: so only when it says something new.
export function say(place, text) {
  if (place.textContent !== text) place.textContent = text;
}
