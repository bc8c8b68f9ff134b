// Everything works without this file. It adds live figures, the live view of records, times in the browser's zone,
// copying, keys, and the line below the pointer in charts.
"use strict";

const LIVE_MS = 5000;
const LIVE_ROWS_MAX = 500;

// Times

// Sweden writes times as ISO does: 2026-11-18 14:05:07.
const zoned = new Intl.DateTimeFormat("sv-SE", {dateStyle: "short", timeStyle: "medium"});
const clock = new Intl.DateTimeFormat("sv-SE", {hour: "2-digit", minute: "2-digit"});

function localize(root) {
  for (const time of root.querySelectorAll("time[data-ms]")) {
    const moment = new Date(Number(time.dataset.ms));
    time.textContent = zoned.format(moment);
    time.dateTime = moment.toISOString();
    time.title = moment.toISOString();
  }
  for (const text of root.querySelectorAll("text[data-ms]")) text.textContent = clock.format(new Date(Number(text.dataset.ms)));
}

// Live figures: the page is fetched again, and its live parts replace those here

function isBusy(part) {
  return part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea") ||
    part.querySelector("details[open]") || String(getSelection()).length > 0;
}

async function refresh() {
  const parts = [...document.querySelectorAll("[data-live][id]")];
  if (!parts.length || document.hidden || document.querySelector("dialog[open]")) return;
  let text;
  try {
    const answer = await fetch(location.href, {headers: {"X-Live": "1"}});
    if (!answer.ok || answer.redirected) return;
    text = await answer.text();
  } catch { return; }
  const page = new DOMParser().parseFromString(text, "text/html");
  for (const part of parts) {
    const fresh = page.getElementById(part.id);
    if (!fresh || isBusy(part)) continue;
    localize(fresh);
    if (fresh.innerHTML === part.innerHTML) continue;
    const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    part.replaceWith(fresh);
    if (focused) [...fresh.querySelectorAll("a[href]")].find(link => link.getAttribute("href") === focused)?.focus();
  }
}

// The live view of records

class LiveRecords {
  constructor(button) {
    this.button = button;
    this.body = document.getElementById("records");
    this.status = document.getElementById("scan");
    this.source = null;
    this.count = 0;
    this.leftOut = 0;
    button.addEventListener("click", () => this.source ? this.stop() : this.start());
  }
  start() {
    this.count = this.leftOut = 0;
    this.source = new EventSource(this.button.dataset.liveUrl);
    this.source.onmessage = event => this.show(JSON.parse(event.data));
    this.source.addEventListener("end", event => {
      this.stop();
      this.say(`${JSON.parse(event.data)} ${this.count} new records until then.`);
    });
    this.source.onerror = () => this.say("The connection was lost; trying again…");
    this.button.setAttribute("aria-pressed", "true");
    this.button.querySelector("span").textContent = "Stop";
    this.say("Waiting for new records…");
  }
  stop() {
    this.source.close();
    this.source = null;
    this.button.setAttribute("aria-pressed", "false");
    this.button.querySelector("span").textContent = "Live";
    this.say(`Stopped after ${this.count} new records.`);
  }
  show(event) {
    this.count += event.count;
    this.leftOut += event.left_out;
    this.say(`${this.count} new records${this.leftOut ? `, ${this.leftOut} more left out: too many to show` : ""}. Live…`);
    if (!event.html) return;
    this.body.querySelector(".nothing")?.remove();
    const made = document.createElement("template");
    made.innerHTML = event.html;
    localize(made.content);
    const picks = document.querySelector("thead .pick");
    for (const row of made.content.querySelectorAll("tr")) {
      row.classList.add("fresh");
      if (picks) row.prepend(document.createElement("td"));
    }
    this.body.prepend(made.content);
    while (this.body.rows.length > LIVE_ROWS_MAX) this.body.lastElementChild.remove();
  }
  say(text) { this.status.textContent = text; }
}

// Charts

function followPointer(event) {
  const chart = event.target.closest?.("svg.chart");
  for (const mark of document.querySelectorAll("svg.chart .mark")) if (mark.ownerSVGElement !== chart) mark.remove();
  if (!chart) return;
  const points = chart.points ??= JSON.parse(chart.dataset.points);
  if (!points.length) return;
  const box = chart.getBoundingClientRect();
  const {width, height} = chart.viewBox.baseVal;
  const x = (event.clientX - box.left) / box.width * width;
  const point = points.reduce((best, other) => Math.abs(other[0] - x) < Math.abs(best[0] - x) ? other : best);
  let mark = chart.querySelector(".mark");
  if (!mark) {
    mark = document.createElementNS("http://www.w3.org/2000/svg", "g");
    mark.setAttribute("class", "mark");
    mark.innerHTML = '<line y1="8"/><circle r="3.5"/><text y="18"></text>';
    chart.append(mark);
  }
  const [line, circle, text] = mark.children;
  line.setAttribute("x1", point[0]);
  line.setAttribute("x2", point[0]);
  line.setAttribute("y2", height - 22);
  circle.setAttribute("cx", point[0]);
  circle.setAttribute("cy", point[1]);
  const right = point[0] > width * .65;
  text.setAttribute("x", point[0] + (right ? -8 : 8));
  text.setAttribute("text-anchor", right ? "end" : "start");
  text.textContent = `${point[3]} · ${clock.format(new Date(point[2]))}`;
}

// Forms

function showStart() {
  const chosen = document.querySelector("[data-start]");
  if (!chosen) return;
  for (const field of document.querySelectorAll("[data-for]")) field.hidden = field.dataset.for !== chosen.value;
}

function remember(input) {
  const key = `klamm-${input.dataset.remember}`;
  const kept = JSON.parse(localStorage.getItem(key) || "[]");
  document.getElementById(input.getAttribute("list")).replaceChildren(...kept.map(text => new Option(text, text)));
  input.form.addEventListener("submit", () => {
    if (input.value) localStorage.setItem(key, JSON.stringify([input.value, ...kept.filter(text => text !== input.value)].slice(0, 10)));
  });
}

let typing;
document.addEventListener("input", event => {
  const field = event.target;
  if (!field.matches("[data-submit]")) return;
  clearTimeout(typing);
  typing = setTimeout(() => field.form.requestSubmit(), field.type === "search" ? 350 : 0);
});

document.addEventListener("change", event => {
  if (event.target.matches("[data-start]")) showStart();
  if (event.target.matches("[data-all]"))
    for (const box of document.querySelectorAll(`input[name="${event.target.dataset.all}"]`)) box.checked = event.target.checked;
});

document.addEventListener("submit", event => {
  const question = event.submitter?.dataset.ask;
  if (question && !confirm(question)) event.preventDefault();
});

document.addEventListener("click", async event => {
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    await navigator.clipboard.writeText(copy.dataset.copy);
    const label = copy.querySelector("span");
    label.textContent = "Copied";
    setTimeout(() => label.textContent = "Copy", 1500);
  }
  if (event.target.closest("[data-theme-toggle]")) {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("klamm-theme", root.dataset.theme);
  }
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});

// Keys

let prefix = "";
document.addEventListener("keydown", event => {
  if (event.key === "Escape") for (const menu of document.querySelectorAll("details.menu[open]")) menu.open = false;
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  const base = document.querySelector("nav.side a")?.getAttribute("href");
  if (event.key === "/") {
    event.preventDefault();
    (document.querySelector("main input[type=search]") || document.querySelector("[data-key='/']"))?.focus();
  } else if (event.key === "?") {
    document.getElementById("keys").showModal();
  } else if (prefix === "g" && base) {
    const page = {o: "", t: "/topics", g: "/groups", b: "/brokers"}[event.key];
    if (page !== undefined) location.href = base + page;
  }
  prefix = prefix === "g" ? "" : event.key;
});

document.addEventListener("pointermove", followPointer);
localize(document);
showStart();
document.querySelectorAll("[data-remember]").forEach(remember);
const live = document.querySelector("[data-live-url]");
if (live) new LiveRecords(live);
setInterval(refresh, LIVE_MS);
