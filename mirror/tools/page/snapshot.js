// In an exported page: the server's answers, from the texts and vectors that the page contains.
"use strict";

const snapshot = JSON.parse(document.getElementById("snapshot").textContent);
const snapshotRows = new Map(snapshot.corpus.texts.map((text, row) => [asTyped(text), row]));
const snapshotVectors = {
  before: unpack(snapshot.models.before),
  after: unpack(snapshot.models.after),
};

// One array of signed bytes per text.
function unpack({ dimensions, vectors }) {
  const values = Int8Array.from(atob(vectors), (character) => character.charCodeAt(0));
  return snapshot.corpus.texts.map((text, row) => values.subarray(row * dimensions, (row + 1) * dimensions));
}

function dot(left, right) {
  let sum = 0;
  for (let place = 0; place < left.length; place++) sum += left[place] * right[place];
  return sum;
}

function cosineOf(left, right) {
  return dot(left, right) / Math.sqrt(dot(left, left) * dot(right, right) || 1);
}

// What an input field makes of a text: it drops line breaks.
function asTyped(text) {
  return text.replace(/[\r\n]/g, "").trim();
}

function rowOf(text) {
  const row = snapshotRows.get(asTyped(text));
  if (row === undefined) throw new Error("this page has no model and cannot encode a new text; choose one of its texts");
  return row;
}

function compareTexts(side, first, second) {
  const vectors = snapshotVectors[side];
  const cosine = cosineOf(vectors[rowOf(first)], vectors[rowOf(second)]);
  const { random_cosines: quantiles } = snapshot.models[side];
  const lower = quantiles.filter((quantile) => quantile < cosine).length;
  return { cosine, above: Math.min(1, lower / (quantiles.length - 1)) };
}

function searchTexts(side, query) {
  const vectors = snapshotVectors[side];
  const { points } = snapshot.corpus[side];
  const asked = rowOf(query);
  const matches = snapshot.corpus.texts
    .map((text, row) => ({ cosine: cosineOf(vectors[asked], vectors[row]), text, point: points[row] }))
    .filter((match, row) => row !== asked)
    .sort((left, right) => right.cosine - left.cosine);
  return { point: points[asked], matches: matches.slice(0, snapshot.k) };
}

// Takes the place of requests to the server in page.js.
async function askSnapshot(url, body) {
  if (url === "api/corpus") return snapshot.corpus;
  const answer = url === "api/search"
    ? (side) => searchTexts(side, body.query)
    : (side) => compareTexts(side, body.first, body.second);
  return { before: answer("before"), after: answer("after") };
}

// The texts as suggestions of every input.
const suggestions = document.createElement("datalist");
suggestions.id = "texts";
suggestions.append(...snapshot.corpus.texts.map((text) => {
  const option = document.createElement("option");
  option.value = text;
  return option;
}));
document.body.append(suggestions);
for (const input of document.querySelectorAll("input")) {
  input.setAttribute("list", "texts");
  input.placeholder = `${input.placeholder}: one of the texts of this page`;
}
document.getElementById("limits").textContent =
  `An exported page: it contains ${snapshot.corpus.texts.length.toLocaleString("en")} of these texts and their vectors, but ` +
  "not the models. It compares and searches these texts; it cannot encode new ones.";
