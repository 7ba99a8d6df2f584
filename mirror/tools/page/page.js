// Texts are only inserted through textContent; the server's Content-Security-Policy forbids HTML from strings.
"use strict";

const SIDES = ["before", "after"];
const DOT = 2.5; // radius of a dot, in CSS pixels
const REACH = 14; // maximum distance between the pointer and a dot that it points at
const MARGIN = 14; // between the dots and the edge of a map

let corpus = null; // response of /api/corpus
let found = null; // last response of /api/search
let pointed = null; // index of the text under the pointer

const part = (section, side, selector) => document.querySelector(`#${section} .${side} ${selector}`);
const percent = (share) => `${Math.round(100 * share)}%`;

// A GET request, or a POST request if there is a body.
async function askServer(url, body) {
  const request = body && {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  };
  let response;
  try {
    response = await fetch(url, request);
  } catch {
    throw new Error("the server does not respond; is it still running?");
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.error || `${response.status} ${response.statusText}`);
  return answer;
}

const ask = window.askSnapshot ?? askServer;

const SHOW = { cosine: showCosines, search: showMatches };

async function submit(section) {
  const form = document.querySelector(`#${section} form`);
  const error = form.querySelector(".error");
  try {
    SHOW[section](await ask(`api/${section}`, Object.fromEntries(new FormData(form))));
    error.textContent = "";
  } catch (problem) {
    error.textContent = problem.message;
  }
}

// Fills in a form and submits it.
function example(section, values) {
  const form = document.querySelector(`#${section} form`);
  for (const [name, value] of Object.entries(values)) form.elements[name].value = value;
  return submit(section);
}

// ---- Two texts: their cosine and the histogram of random pairs ----

function svg(name, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

// Cosine at the left edge; the same for both histograms, so that they are comparable.
function lowestCosine() {
  const bins = corpus.before.pairs.length;
  const first = Math.min(...SIDES.map((side) => corpus[side].pairs.findIndex((count) => count > 0)));
  return (2 * first) / bins - 1;
}

function drawPairs(side, cosine) {
  const { pairs } = corpus[side];
  const lowest = lowestCosine();
  const across = (value) => (100 * (value - lowest)) / (1 - lowest);
  const most = Math.max(...pairs);
  const steps = pairs.map((count, bin) => {
    const [left, right] = [bin, bin + 1].map((edge) => across((2 * edge) / pairs.length - 1));
    const top = 100 - (92 * count) / most;
    return right <= 0 ? "" : `L${left} ${top}L${right} ${top}`;
  });
  const shapes = [svg("path", { d: `M0 100${steps.join("")}L100 100Z` })];
  if (cosine !== undefined) {
    const x = Math.max(0, Math.min(100, across(cosine)));
    shapes.push(svg("line", { x1: x, x2: x, y1: 0, y2: 100 }));
  }
  part("cosine", side, "svg").replaceChildren(...shapes);
  part("cosine", side, ".axis span").textContent = lowest.toFixed(2).replace("-", "−");
}

function showCosines(answer) {
  for (const side of SIDES) {
    const { cosine, above } = answer[side];
    part("cosine", side, ".number").textContent = cosine.toFixed(3).replace("-", "−");
    part("cosine", side, ".note").textContent = `higher than ${Math.floor(1000 * above) / 10}% of random pairs`;
    drawPairs(side, cosine);
  }
}

// ---- Search: the nearest texts of each model ----

function listItem(match, isOnly) {
  const item = document.createElement("li");
  item.classList.toggle("only", isOnly);
  for (const [name, content] of [["cosine", match.cosine.toFixed(3)], ["text", match.text]]) {
    const span = document.createElement("span");
    span.className = name;
    span.dir = "auto";
    span.textContent = content;
    item.append(span);
  }
  return item;
}

function showMatches(answer) {
  found = answer;
  const textsOf = (side) => new Set(answer[side].matches.map((match) => match.text));
  const texts = Object.fromEntries(SIDES.map((side) => [side, textsOf(side)]));
  for (const side of SIDES) {
    const other = side === "before" ? "after" : "before";
    const items = answer[side].matches.map((match) => listItem(match, !texts[other].has(match.text)));
    part("search", side, "ol").replaceChildren(...items);
  }
  drawMaps();
}

// ---- Map: two principal components of each model's embeddings ----

// A function from map coordinates to canvas pixels, with the same scale on both axes.
function placing(side) {
  const canvas = part("map", side, "canvas");
  const [xs, ys] = [0, 1].map((axis) => corpus[side].points.map((point) => point[axis]));
  const middle = [xs, ys].map((values) => (Math.min(...values) + Math.max(...values)) / 2);
  const widest = Math.max(...[xs, ys].map((values) => Math.max(...values) - Math.min(...values))) || 1;
  const size = canvas.clientWidth;
  const scale = (size - 2 * MARGIN) / widest;
  const inside = (value) => Math.max(MARGIN / 2, Math.min(size - MARGIN / 2, value));
  return ([x, y]) => [inside(size / 2 + scale * (x - middle[0])), inside(size / 2 - scale * (y - middle[1]))];
}

// A hue per text: its direction on the map of the trained model.
function hues() {
  return corpus.after.points.map(([x, y]) => Math.round((180 * Math.atan2(y, x)) / Math.PI) + 180);
}

function disc(context, [x, y], radius) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
}

function drawMap(side) {
  const canvas = part("map", side, "canvas");
  const style = getComputedStyle(canvas);
  const ink = style.getPropertyValue("--ink");
  const lightness = matchMedia("(prefers-color-scheme: dark)").matches ? 66 : 46;
  const place = placing(side);
  const ratio = window.devicePixelRatio || 1;
  canvas.width = canvas.height = Math.round(canvas.clientWidth * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  corpus.hues.forEach((hue, number) => {
    context.fillStyle = `hsl(${hue} 60% ${lightness}% / 0.6)`;
    disc(context, place(corpus[side].points[number]), DOT);
    context.fill();
  });
  context.strokeStyle = ink;
  context.lineWidth = 2;
  if (found) {
    for (const match of found[side].matches) {
      disc(context, place(match.point), 6);
      context.stroke();
    }
    const [x, y] = place(found[side].point);
    context.lineWidth = 3;
    context.beginPath();
    for (const step of [-1, 1]) {
      context.moveTo(x - 7, y - 7 * step);
      context.lineTo(x + 7, y + 7 * step);
    }
    context.stroke();
  }
  if (pointed !== null) {
    disc(context, place(corpus[side].points[pointed]), 2.5 * DOT);
    context.fillStyle = ink;
    context.fill();
  }
}

const drawMaps = () => corpus && SIDES.forEach(drawMap);

function nearestDot(side, x, y) {
  const place = placing(side);
  const distances = corpus[side].points.map((point) => Math.hypot(place(point)[0] - x, place(point)[1] - y));
  const least = Math.min(...distances);
  return least <= REACH ? distances.indexOf(least) : null;
}

function pointAt(side, event) {
  const canvas = part("map", side, "canvas");
  const label = document.getElementById("pointed");
  pointed = event.type === "pointerleave" ? null : nearestDot(side, event.offsetX, event.offsetY);
  label.hidden = pointed === null;
  if (pointed !== null) {
    label.textContent = corpus.texts[pointed];
    const box = canvas.getBoundingClientRect();
    const [x, y] = placing(side)(corpus[side].points[pointed]);
    const left = Math.min(box.left + x + 12, document.documentElement.clientWidth - label.offsetWidth - 8);
    label.style.left = `${Math.max(8, left) + window.scrollX}px`;
    label.style.top = `${box.top + y + 14 + window.scrollY}px`;
  }
  drawMaps();
}

// ---- Start ----

function exampleButton(query) {
  const button = document.createElement("button");
  button.type = "button";
  button.dir = "auto";
  button.textContent = query;
  button.addEventListener("click", () => example("search", { query }));
  return button;
}

async function start() {
  corpus = await ask("api/corpus");
  corpus.hues = hues();
  const count = corpus.num_texts.toLocaleString("en");
  document.getElementById("facts").textContent =
    `${corpus.before.name} → ${corpus.after.name}, pooling “${corpus.pooling}”, ${count} texts`;
  for (const side of SIDES) {
    for (const name of document.querySelectorAll(`.${side} .model`)) name.textContent = corpus[side].name;
    drawPairs(side);
    const shown = corpus.texts.length.toLocaleString("en");
    const explained = percent(corpus[side].variance);
    part("map", side, ".note").textContent = `${shown} texts; the two axes explain ${explained} of the variance`;
    const canvas = part("map", side, "canvas");
    for (const name of ["pointermove", "pointerdown", "pointerleave"]) {
      canvas.addEventListener(name, (event) => pointAt(side, event));
    }
    new ResizeObserver(() => drawMap(side)).observe(canvas);
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawMaps);
  document.querySelector("#search .examples").append(...corpus.examples.map(exampleButton));
  const [first, second] = corpus.pair;
  if (second) await example("cosine", { first, second });
  if (corpus.examples.length) await example("search", { query: corpus.examples[0] });
  document.body.dataset.ready = "";
}

for (const section of Object.keys(SHOW)) {
  document.querySelector(`#${section} form`).addEventListener("submit", (event) => {
    event.preventDefault();
    submit(section);
  });
}
start().catch((error) => (document.getElementById("facts").textContent = error.message));
