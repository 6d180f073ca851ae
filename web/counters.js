/* SPDX-License-Identifier: MIT */
/* Counters: their values, and how fast they change while the page is open. */
import { h, fill, code, table, row, rowgroup, empty, number, note, openDialog, field } from './dom.js';
import { t } from './text.js';
import { call, get, path, segment } from './api.js';
import { watch, showRows } from './live.js';
import { chart } from './chart.js';
import { trouble, pages } from './lists.js';

const LIMIT = 50;
const TICK_MS = 2000;
const WINDOW_MS = 30000; /* the rate is that of so long */
const STEP_MS = 1000;    /* of the chart of one counter */
const POINTS = 300;

const perSecond = (value) => (value === null ? '–' : t('per_second', { value: number(value) }));

export function counters(main, query, key) {
  return key === undefined ? allCounters(main, query) : oneCounter(main, key);
}

/* ---- All ---- */

/* How fast values change, by readings of the last WINDOW_MS. */
class Rates {
  constructor() {
    this.readings = new Map();
  }

  /* `keys`: of the entries that changed; null: all. */
  read(entries, keys) {
    const at = performance.now();
    for (const key of this.readings.keys()) if (!entries.has(key)) this.readings.delete(key);
    for (const [key, { value }] of entries) {
      if (keys && !keys.has(key)) continue;
      const list = this.readings.get(key) ?? [];
      list.push({ at, value: value.value });
      while (list.length > 2 && at - list[0].at > WINDOW_MS) list.shift();
      this.readings.set(key, list);
    }
  }

  of(key) {
    const list = this.readings.get(key) ?? [];
    if (list.length < 2) return null;
    const first = list[0];
    const last = list[list.length - 1];
    return (last.value - first.value) * 1000 / (last.at - first.at);
  }
}

const rateBar = () => h('div', { class: 'ttl rate' }, h('div', { class: 'track' }, h('div', { class: 'left' })), h('span', null, '–'));

/* The bars of all rows, beside the fastest one. */
function moveBars(body, rates) {
  const found = [...body.children].map((element) => [element.querySelector('.rate'), rates.of(element.dataset.key)]);
  const most = Math.max(0, ...found.map(([, rate]) => Math.abs(rate ?? 0)));
  for (const [bar, rate] of found) {
    bar.querySelector('.left').style.transform = `scaleX(${most > 0 && rate !== null ? (Math.abs(rate) / most).toFixed(4) : 0})`;
    bar.lastChild.textContent = perSecond(rate);
  }
}

function allCounters(main, query) {
  const prefix = query.get('prefix') || '';
  const after = query.get('after') || '';
  const columns = [{ label: t('counter') }, { label: t('value'), class: 'number' }, { label: t('change_rate'), class: 'wide' }];
  const body = rowgroup();
  const rows = h('div', null, empty('…'));
  const alert = h('div');
  const foot = h('div', { class: 'pages' });
  const search = h('input', { type: 'search', value: prefix, placeholder: t('filter_keys'), 'aria-label': t('filter_keys'), spellcheck: 'false',
    onchange: () => { location.hash = path('#/counters', { prefix: search.value }).slice(1); } });
  const rates = new Rates();
  const list = {
    path: path('/v1/counters', { prefix, after, limit: LIMIT }), rows: 'counters', key: 'key',
    show: (changed, keys) => {
      fill(alert);
      rates.read(changed.entries, keys);
      if (changed.entries.size === 0) fill(rows, empty(t('no_counters')));
      else {
        if (!rows.querySelector('table')) fill(rows, table(t('counters'), columns, body));
        showRows(body, changed, keys, ({ value }) => row(columns, [
          h('a', { href: `#/counters/${segment(value.key)}` }, code(value.key)), h('span', null, number(value.value)), rateBar()]));
        moveBars(body, rates);
      }
      pages(foot, after, changed.next, (next) => path('#/counters', { prefix, after: next }));
    },
    trouble: (problem) => {
      if (problem.status === 501) fill(rows);
      fill(alert, trouble(problem));
    },
  };
  fill(main, h('div', { class: 'head' }, h('h1', null, t('counters')), h('p', null, t('counters_help'))), h('div', { class: 'bar' }, search), alert, rows, foot);
  watch([list]);
  const timer = setInterval(() => {
    rates.read(list.entries, null);
    moveBars(body, rates);
  }, TICK_MS);
  return () => clearInterval(timer);
}

/* ---- One ---- */

async function correct(key, read) {
  const values = await openDialog({
    title: t('correct_title', { key }), action: t('correct_do'), body: [h('p', { class: 'muted' }, t('correct_help'))],
    fields: [field(t('correct_delta'), h('input', { type: 'number', name: 'delta', step: 1, required: true, autocomplete: 'off' }))],
  });
  if (!values) return;
  await call('POST', `/v1/counters/${segment(key)}`, { delta: Number(values.delta) });
  note(t('correct_done', { key, delta: number(Number(values.delta)) }));
  read();
}

const count = (label, value) => h('div', { class: 'card count' }, h('span', null, label), h('strong', null, number(value)));

/* The changes of each second since the page was opened; null: it was not read then. */
function oneCounter(main, key) {
  const alert = h('div');
  const cards = h('div', { class: 'cards counts' });
  const lines = h('div', { class: 'cards' });
  const points = [];
  let before = null;
  async function read() {
    let now = null;
    try {
      now = await get(`/v1/counters/${segment(key)}`);
      fill(alert, now.shared === null && h('div', { class: 'alert warn' }, t('shared_unknown')));
    } catch (problem) {
      fill(alert, trouble(problem));
    }
    const at = performance.now();
    points.push(now && before ? (now.value - before.value) * 1000 / Math.max(1, at - before.at) : null);
    if (points.length > POINTS) points.shift();
    before = now ? { at, value: now.value } : null;
    if (now) fill(cards, count(t('value'), now.value), count(t('stored'), now.stored), count(t('shared_part'), now.shared), count(t('buffered'), now.buffered));
    fill(lines, chart(t('additions'), points.map((value) => (value === null ? null : Math.abs(value))), { show: perSecond, stepMs: STEP_MS }));
  }
  const button = h('button', { class: 'small', type: 'button', id: 'correct', onclick: () => correct(key, read) }, t('correct'));
  fill(main, h('div', { class: 'head' }, h('h1', null, code(key)), h('p', null, t('counter_help')), button, h('a', { href: '#/counters' }, t('all_counters'))),
    alert, cards, h('div', { class: 'section' }), lines);
  watch([{ path: path('/v1/counters', { prefix: key, limit: 1 }), rows: 'counters', key: 'key', show: () => {}, trouble: (problem) => fill(alert, trouble(problem)) }]);
  read();
  const timer = setInterval(read, STEP_MS);
  return () => clearInterval(timer);
}
