/* SPDX-License-Identifier: MIT */
/* The first page: what needs a person, and what happened in the last hour. */
import { h, fill, duration, number } from './dom.js';
import { t } from './text.js';
import { get } from './api.js';
import { chart, rates } from './chart.js';
import { watch, sorted } from './live.js';
import { trouble } from './lists.js';
import { path, segment } from './api.js';
import { showAttention } from './attention.js';

const CHARTED = 12; /* kinds that have charts */
const FLEETS = 4;   /* whose jobs are looked at */
const RATES = [['acquired', 1], ['busy', 3], ['lost', 4], ['stale', 4], ['operations', 2]];
const perSecond = (value) => (value === null ? '–' : t('per_second', { value: number(value) }));

/* The newest points of the series, by name and what they are of. */
export async function readSeries() {
  const body = await get('/v1/series');
  const lines = new Map(body.series.map((line) => [`${line.name} ${line.label ?? ''}`, line.points]));
  return { ...body, points: (name, of = '') => lines.get(`${name} ${of}`) };
}

/* Calls `show` now and with each new step, until the result is called. */
export function everyStep(show) {
  const timer = setInterval(show, 10000);
  show();
  return () => clearInterval(timer);
}

export function overview(main) {
  const alert = h('div');
  const cards = h('div', { class: 'cards' });
  const kindCards = h('div', { class: 'cards' });
  const kindHead = h('div', { class: 'section', hidden: true }, h('h2', null, t('task_kinds')));
  const early = h('p', { class: 'muted', hidden: true }, t('collecting'));
  const attention = h('div', { id: 'attention', role: 'status' });
  const known = { tiers: null, kinds: [], series: null, jobs: [] };
  let fleets = [];
  fill(main, h('div', { class: 'head' }, h('h1', null, t('attention')), h('p', null, t('attention_help'))), alert, attention,
    h('div', { class: 'section' }, h('h2', null, t('last_hour')), h('span', { class: 'muted' }, t('overview_help'))), cards, early, kindHead, kindCards);
  let ready = false;
  const judge = () => { if (ready) showAttention(attention, known); };

  async function readJobs() {
    known.jobs = await Promise.all(fleets.slice(0, FLEETS).map((fleet) =>
      get(`/v1/cron/${segment(fleet)}`).then(({ jobs }) => [fleet, jobs], () => [fleet, []]))); // it may have been removed
    judge();
  }
  async function show() {
    const series = await readSeries();
    known.series = series;
    judge();
    early.hidden = series.step > 1;
    fill(cards, RATES.map(([name, color]) => series.points(name) && chart(t(`s_${name}`), rates(series.points(name), series.step_ms), { color, show: perSecond })),
      series.points('waiting') && chart(t('s_waiting'), series.points('waiting'), { color: 2 }));
    fill(kindCards, known.kinds.slice(0, CHARTED).map(({ kind }) => [
      ['tasks_ready', 's_ready', 1, number], ['tasks_oldest_ms', 's_oldest', 3, duration], ['tasks_dead', 's_dead', 4, number],
    ].map(([name, label, color, format]) =>
      series.points(name, kind) && chart(t(label, { kind }), series.points(name, kind), { color, show: format }))));
    kindHead.hidden = kindCards.children.length === 0;
  }
  watch([{
    path: path('/v1/kinds', { limit: 200 }), rows: 'kinds', key: 'kind',
    show: (list) => {
      const before = known.kinds.length;
      known.kinds = sorted(list).map(({ value }) => value);
      ready = true;
      fill(alert);
      if (known.kinds.length !== before) show();
      judge();
    },
    trouble: (problem) => {
      ready = problem.status === 501; /* a store of leases alone has no kinds */
      fill(alert, ready ? null : trouble(problem));
      if (!ready) fill(attention);
      judge();
    },
  }, {
    path: '/v1/tiers', rows: null, key: null, trouble: () => { known.tiers = null; },
    show: ({ body }) => {
      known.tiers = body;
      judge();
    },
  }, {
    path: '/v1/cron', rows: 'fleets', key: 'fleet', trouble: () => {},
    show: (list) => {
      fleets = [...list.entries.keys()];
      readJobs();
    },
  }]);
  return everyStep(() => {
    show();
    if (fleets.length > 0) readJobs();
  });
}
