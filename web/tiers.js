/* SPDX-License-Identifier: MIT */
/* Several tiers as one store: breakers, votes, what moved in the last hour, and the flags. */
import { h, fill, instant, code, badge, empty, duration, number, note, openDialog } from './dom.js';
import { t } from './text.js';
import { call, segment } from './api.js';
import { watch, sorted } from './live.js';
import { chart, rates, steps } from './chart.js';
import { readSeries, everyStep } from './overview.js';
import { trouble } from './lists.js';

function tierCard(tier, clients) {
  const breaker = { closed: ['good', 'closed'], open: ['bad', 'open'], 'half-open': ['warn', 'half_open'] }[tier.local.breaker];
  const fact = (label, ...value) => [h('dt', null, label), h('dd', null, ...value)];
  return h('div', { class: 'card' },
    h('div', { class: 'metric-head' }, h('h2', null, code(tier.name)), tier.down ? badge('bad', t('down')) : badge('good', t('up'))),
    h('span', { class: 'sub' }, tier.store),
    h('dl', { class: 'facts' },
      fact(t('buckets'), `${tier.buckets} %`, tier.buckets_wanted !== tier.buckets ? h('span', { class: 'sub' }, t('wanted', { count: `${tier.buckets_wanted} %` })) : null),
      fact(t('breaker'), badge(...[breaker[0], t(breaker[1])]), tier.breaker_mode !== 'auto' ? h('span', { class: 'sub' }, t('by_hand', { hand: t(tier.breaker_mode) })) : null),
      fact(t('votes'), t('votes_of', { down: number(tier.clients_down), all: number(clients) })),
      fact('p50 / p99', `${tier.local.p50_ns ? number(tier.local.p50_ns / 1e6) : '–'} / ${tier.local.p99_ns ? number(tier.local.p99_ns / 1e6) : '–'} ms`)),
    tier.local.last_error ? h('p', { class: 'sub' }, tier.local.last_error) : null);
}

/* ---- Flags ---- */

async function setFlag(flag, from, to, reset) {
  const values = await openDialog({ title: t('flag_title', { flag, from, to }), body: [h('p', { class: 'muted' }, t('flag_help'))], action: t('flag_do', { to }), danger: to < from });
  if (!values) {
    reset();
    return;
  }
  try {
    await call('PUT', `/v1/flags/${segment(flag)}`, { percent: to });
  } catch (problem) {
    reset();
    throw problem;
  }
  note(t('flag_done', { flag, to }));
}

function flagRow(flag) {
  const output = h('output', null, `${flag.percent} %`);
  const slider = h('input', { type: 'range', min: 0, max: 100, step: 1, value: flag.percent, 'aria-label': flag.name });
  const button = h('button', { class: 'small', type: 'button', disabled: true, 'aria-label': `${t('set')} ${flag.name}` }, t('set'));
  const show = () => {
    output.textContent = `${slider.value} %`;
    button.disabled = Number(slider.value) === flag.percent;
  };
  const element = h('div', { class: 'flag' }, code(flag.name), slider, output, button);
  slider.addEventListener('input', show);
  button.addEventListener('click', () => setFlag(flag.name, flag.percent, Number(slider.value), () => {
    slider.value = flag.percent;
    show();
  }));
  /* A change of another person: kept out of the way of a slider that is being moved. */
  element.update = (percent) => {
    const moved = Number(slider.value) !== flag.percent;
    flag = { ...flag, percent };
    if (!moved) slider.value = percent;
    show();
  };
  element.dataset.flag = flag.name;
  return element;
}

function showFlags(place, list) {
  for (const { value } of sorted(list)) {
    const old = [...place.children].find((element) => element.dataset.flag === value.name);
    if (old) old.update(value.percent);
    else place.append(flagRow(value));
  }
}

/* ---- What changed ---- */

const BREAKERS = ['closed', 'open', 'half_open'];
const CHANGES = {
  tier_buckets: (tier, from, to) => ['info', t('c_buckets', { tier, from, to })],
  tier_down: (tier, from, to) => (to ? ['bad', t('c_down', { tier })] : ['good', t('c_up', { tier })]),
  tier_clients_down: (tier, from, to) => [to > from ? 'bad' : 'good', t('c_votes', { tier, from, to })],
  tier_breaker: (tier, from, to) => [to === 0 ? 'good' : 'bad', t('c_breaker', { tier, state: t(BREAKERS[to] ?? 'open') })],
};
const CHANGES_MOST = 50;

/* Moves, votes and breakers of the last hour, the latest first: where a point differs from the one before. */
function changesOf(series, known) {
  const found = [];
  /* At its start the daemon knows no tier that serves anything. */
  const began = (i) => known.every((tier) => !series.points('tier_buckets', tier)?.[i - 1]);
  for (const tier of known) {
    for (const [name, describe] of Object.entries(CHANGES)) {
      const points = series.points(name, tier) ?? [];
      for (let i = 1; i < points.length; i++) {
        if (points[i] === null || points[i - 1] === null || points[i] === points[i - 1] || began(i)) continue;
        const [kind, text] = describe(tier, points[i - 1], points[i]);
        found.push({ at: series.at_ms - (points.length - 1 - i) * series.step_ms, kind, text });
      }
    }
  }
  return found.sort((a, b) => b.at - a.at).slice(0, CHANGES_MOST);
}

function showChanges(place, changes) {
  fill(place, changes.length === 0 ? h('p', { class: 'muted' }, t('no_changes'))
    : h('ol', { class: 'story' }, changes.map((change) => h('li', { class: change.kind }, h('div', null, change.text), h('span', { class: 'muted' }, instant(change.at))))));
}

/* ---- The view ---- */

export function tiers(main) {
  const alert = h('div');
  const cards = h('div', { class: 'cards' });
  const lines = h('div', { class: 'cards three' });
  const moves = h('div', { class: 'cards three' });
  const flags = h('div', { class: 'card' });
  const counts = h('dl', { class: 'facts counts' });
  const changes = h('div', { id: 'changes' });
  const rest = h('div', { hidden: true },
    h('div', { class: 'section' }, h('h2', null, t('changes')), h('span', { class: 'muted' }, t('changes_help'))), changes,
    h('div', { class: 'section' }, h('h2', null, t('timeline'))), lines, moves,
    h('div', { class: 'section' }, h('h2', null, t('flags')), h('span', { class: 'muted' }, t('flags_help'))), flags,
    h('div', { class: 'section' }, h('h2', null, t('counts'))), h('div', { class: 'card' }, counts));
  let known = [];
  async function showLines() {
    if (known.length === 0) return;
    const series = await readSeries();
    showChanges(changes, changesOf(series, known));
    fill(lines, known.map((tier) => [
      series.points('tier_buckets', tier) && chart(t('served_hour', { tier }), series.points('tier_buckets', tier), { show: (value) => (value === null ? '–' : `${value} %`) }),
      series.points('tier_clients_down', tier) && chart(t('clients_down_hour', { tier }), series.points('tier_clients_down', tier), { color: 4 }),
      series.points('tier_failures', tier) && chart(t('failures_hour', { tier }), rates(series.points('tier_failures', tier), series.step_ms), { color: 3, show: (value) => (value === null ? '–' : t('per_second', { value: number(value) })) }),
    ]));
    fill(moves, [['tier_moves', 'moved_hour', 2], ['tier_epochs', 'epochs_hour', 3]].map(([name, label, color]) =>
      series.points(name) && chart(t(label), steps(series.points(name)), { color })));
  }
  fill(main, h('div', { class: 'head' }, h('h1', null, t('tiers')), h('p', null, t('tiers_help'))), alert, cards, rest);
  watch([{
    path: '/v1/tiers', rows: null, key: null,
    show: ({ body }) => {
      const before = known.length;
      known = body.tiers.map((tier) => tier.name);
      rest.hidden = false;
      fill(alert, body.pinned && h('div', { class: 'alert warn' }, t('pinned', { tier: body.pinned })),
        body.all_tiers_down && h('div', { class: 'alert' }, t('own')), body.anchor_rollback_age_ms !== null && h('div', { class: 'alert' }, t('restored')));
      fill(cards, body.tiers.map((tier) => tierCard(tier, body.client_count)));
      fill(counts, [['clients', body.client_count], ...Object.entries(body.counts).map(([name, value]) => [`n_${name}`, value])].map(([key, value]) =>
        h('div', null, h('dt', null, t(key)), h('dd', null, number(value)))));
      if (before === 0) showLines();
    },
    trouble: (problem) => {
      if (problem.status === 501) fill(alert, empty(t('one_store')));
      else fill(alert, trouble(problem));
    },
  }, {
    path: '/v1/flags', rows: 'flags', key: 'name', trouble: () => {},
    show: (list) => showFlags(flags, list),
  }]);
  return everyStep(showLines);
}
