/* SPDX-License-Identifier: MIT */
/* What needs a person: problems of the store and of this daemon's last hour, the worst first, each with a link to its view. */
import { h, fill, badge, duration, number } from './dom.js';
import { t, outcomeText } from './text.js';
import { path } from './api.js';
import { steps } from './chart.js';

const LATE_MS = 300000; /* a ready task that waits this long is late */
const SHOWN_MOST = 12;

const bad = (text, link) => ({ kind: 'bad', text, link });
const warn = (text, link) => ({ kind: 'warn', text, link });

function ofTiers(body) {
  if (!body) return [];
  const found = [];
  if (body.all_tiers_down) found.push(bad(t('own'), '#/tiers'));
  if (body.anchor_rollback_age_ms !== null) found.push(bad(t('restored'), '#/tiers'));
  if (body.pinned) found.push(warn(t('pinned', { tier: body.pinned }), '#/tiers'));
  for (const tier of body.tiers) {
    if (tier.down) found.push(bad(t('a_down', { tier: tier.name, time: duration(tier.state_age_ms) }), '#/tiers'));
    else if (tier.local.breaker === 'open') found.push(warn(t('a_breaker', { tier: tier.name }), '#/tiers'));
  }
  return found;
}

function ofKind(kind, series) {
  const found = [];
  const list = (state) => path('#/tasks/list', { kind: kind.kind, state });
  if (kind.dead > 0) {
    const points = series?.points('tasks_dead', kind.kind)?.filter((point) => point !== null) ?? [];
    const more = points.length > 0 ? kind.dead - points[0] : 0;
    found.push(bad(t(more > 0 ? 'a_dead_more' : 'a_dead', { kind: kind.kind, count: number(kind.dead), more: number(more) }), path('#/dead', { kind: kind.kind })));
  }
  if (kind.parked > 0) found.push(warn(t('a_parked', { kind: kind.kind, count: number(kind.parked) }), list('parked')));
  if (kind.paused) {
    if (kind.ready > 0) found.push(warn(t('a_paused', { kind: kind.kind, count: number(kind.ready) }), '#/tasks'));
  } else if (kind.oldest_ready_age_ms > LATE_MS) {
    const values = { kind: kind.kind, count: number(kind.ready), time: duration(kind.oldest_ready_age_ms) };
    found.push(kind.claimed === 0 ? bad(t('a_no_worker', values), list('ready')) : warn(t('a_late', values), list('ready')));
  }
  return found;
}

function ofSeries(series) {
  const total = (name) => (steps(series?.points(name) ?? []).reduce((sum, value) => sum + (value ?? 0), 0));
  const found = [];
  if (total('lost') > 0) found.push(bad(t('a_lost', { count: number(total('lost')) }), '#/names'));
  if (total('stale') > 0) found.push(warn(t('a_stale', { count: number(total('stale')) }), '#/names'));
  return found;
}

function ofJobs(fleet, jobs) {
  const link = path('#/cron', { fleet });
  return jobs.flatMap((job) => [
    job.last_at_ms !== null && job.last_outcome !== 'done' && bad(t('a_job_failed', { job: job.name, how: outcomeText(job.last_outcome) }), link),
    job.missed > 0 && warn(t('a_job_missed', { job: job.name, count: number(job.missed) }), link),
  ].filter(Boolean));
}

/* Fills the place.  `jobs`: [[fleet, its jobs], ...]; what the store does not have is empty or null. */
export function showAttention(place, { tiers, kinds, series, jobs }) {
  const found = [...ofTiers(tiers), ...ofSeries(series), ...kinds.flatMap((kind) => ofKind(kind, series)), ...jobs.flatMap(([fleet, list]) => ofJobs(fleet, list))];
  found.sort((a, b) => (a.kind === b.kind ? 0 : a.kind === 'bad' ? -1 : 1));
  const more = found.length - SHOWN_MOST;
  const content = found.length === 0
    ? h('p', { class: 'fine' }, h('span', { class: 'mark', 'aria-hidden': 'true' }, '✓'), t('a_none'))
    : h('ul', { class: 'attention' }, found.slice(0, SHOWN_MOST).map(({ kind, text, link }) =>
      h('li', { class: kind }, badge(kind, t(kind === 'bad' ? 'a_bad' : 'a_warn')), h('a', { href: link }, text))),
    more > 0 && h('li', { class: 'muted' }, t('a_more', { count: number(more) })));
  if (place.textContent === content.textContent) return;
  const focused = place.contains(document.activeElement) ? document.activeElement.getAttribute('href') : null;
  fill(place, content);
  [...place.querySelectorAll('a')].find((link) => link.getAttribute('href') === focused)?.focus();
}
