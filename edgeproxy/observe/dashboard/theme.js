// Light or dark as the system is, until somebody chooses.

import { byId } from "./dom.js";

const KEY = "edgeproxy-theme";
const NAMES = ["system", "light", "dark"];

function stored() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // storage is forbidden here: the choice lasts as long as the page
  }
}

function apply(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  byId("theme").textContent = `theme: ${name}`;
}

export function theme(changed = () => {}) {
  let chosen = NAMES.includes(stored()) ? stored() : "system";
  apply(chosen);
  byId("theme").addEventListener("click", () => {
    chosen = NAMES[(NAMES.indexOf(chosen) + 1) % NAMES.length];
    try {
      localStorage.setItem(KEY, chosen);
    } catch {
      // as above
    }
    apply(chosen);
    changed();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
}

// What a canvas needs: the colour itself, not the property's text, which names one for each theme.
export function colour(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
