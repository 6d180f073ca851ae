/* SPDX-License-Identifier: MIT */
/* Lists that stay current: rows by their key, as the events of the daemon change them. */
import { listen } from './api.js';

let watched = [];
let stop = null;
let showState = () => {};
export const whenState = (call) => { showState = call; };

/* Watches the lists of a view, in place of those before.  Each is {path, rows, key, show, trouble}; `show` gets the
 * list when something changed, with the keys that did (null: all). */
export function watch(lists) {
  watched = lists;
  pause();
  if (lists.length > 0 && document.visibilityState === 'visible') resume();
}

/* A browser has six connections to a daemon for all of its pages, also for those that nobody sees: a hidden tab, or a
 * page that was left and is kept for the way back.  Each stream is one of them, so only a visible page has one. */
function pause() {
  if (stop) stop();
  stop = null;
}
document.addEventListener('visibilitychange', () => {
  if (document.visibilityState !== 'visible') pause();
  else if (!stop && watched.length > 0) resume();
});
addEventListener('pagehide', pause);
addEventListener('pageshow', (event) => {
  if (event.persisted && !stop && watched.length > 0) resume();
});

function resume() {
  const lists = watched;
  for (const list of lists) list.entries = new Map();
  const byPath = new Map(lists.map((list) => [list.path, list]));
  stop = listen(lists.map((list) => list.path), (kind, data) => {
    const list = byPath.get(data.watch);
    if (!list) return;
    if (kind === 'problem') list.trouble(data.problem);
    else if (kind === 'list') setAll(list, data.body);
    else if (kind === 'change') change(list, data);
  }, showState, (error) => lists[0].trouble({ status: error.status, detail: error.message }));
}

function setAll(list, body) {
  const at = performance.now();
  list.body = body;
  list.entries = new Map((list.rows ? body[list.rows] : []).map((value) => [value[list.key], { value, at }]));
  list.next = body.next ?? null;
  list.show(list, null);
}

function change(list, data) {
  const at = performance.now();
  const keys = new Set();
  for (const key of data.removed) {
    list.entries.delete(key);
    keys.add(key);
  }
  for (const value of data.set) {
    list.entries.set(value[list.key], { value, at });
    keys.add(value[list.key]);
  }
  if (data.next !== undefined) list.next = data.next;
  list.show(list, keys);
}

/* Entries in the order of their keys, which is that of bytes. */
const encoder = new TextEncoder();
function compare(a, b) {
  if (typeof a === 'number') return a - b;
  const x = encoder.encode(a);
  const y = encoder.encode(b);
  for (let i = 0; i < Math.min(x.length, y.length); i++) if (x[i] !== y[i]) return x[i] - y[i];
  return x.length - y.length;
}
export function sorted(list) {
  return [...list.entries.keys()].sort(compare).map((key) => list.entries.get(key));
}

/* Keeps the rows of a table body: makes those that changed, and moves the others. */
export function showRows(body, list, keys, makeRow) {
  const old = new Map([...body.children].map((element) => [element.dataset.key, element]));
  const rows = sorted(list).map((entry) => {
    const key = String(entry.value[list.key]);
    if (keys && !keys.has(entry.value[list.key]) && old.has(key)) return old.get(key);
    const element = makeRow(entry);
    element.dataset.key = key;
    if (keys) element.classList.add('changed');
    return element;
  });
  const focused = document.activeElement && body.contains(document.activeElement)
    ? [document.activeElement.closest('tr')?.dataset.key, document.activeElement.dataset.does] : null;
  if (rows.length !== body.children.length || rows.some((element, i) => body.children[i] !== element)) body.replaceChildren(...rows);
  if (focused && !body.contains(document.activeElement))
    [...body.children].find((element) => element.dataset.key === focused[0])?.querySelector(`[data-does="${focused[1]}"]`)?.focus();
}
