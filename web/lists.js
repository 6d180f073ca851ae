/* SPDX-License-Identifier: MIT */
/* The plain lists: cron jobs, what ran, and stocks; and what all lists share. */
import { h, fill, code, badge, table, row, rowgroup, empty, duration, number, instant, note, openDialog, field } from './dom.js';
import { t, outcomeText } from './text.js';
import { call, getText, putText, path, segment } from './api.js';
import { watch, showRows } from './live.js';

export const trouble = (problem) =>
  h('div', { class: problem.status === 501 ? 'alert warn' : 'alert', role: 'alert' },
    t(problem.status === 501 ? 'not_here' : 'trouble', { detail: problem.detail || problem.title }));

/* Links to the first and the next page. */
export function pages(place, after, next, link) {
  fill(place, after ? h('a', { href: link('') }, t('first_page')) : null,
    next !== null && next !== undefined ? h('a', { href: link(next), id: 'next-page' }, t('next_page')) : null);
}

/* A list that is only shown: its columns, and how a row is made. */
function plainList(main, { title, help, none, bar, list, columns, cells, link, after }) {
  const body = rowgroup();
  const rows = h('div', null, empty('…'));
  const alert = h('div');
  const foot = h('div', { class: 'pages' });
  fill(main, h('div', { class: 'head' }, h('h1', null, title), h('p', null, help)), bar, alert, rows, foot);
  watch([{
    ...list,
    show: (changed, keys) => {
      fill(alert);
      const entries = changed.key ? null : changed.body[changed.rows];
      if (changed.key ? changed.entries.size === 0 : entries.length === 0) fill(rows, empty(none));
      else {
        if (!rows.querySelector('table')) fill(rows, table(title, columns, body));
        if (changed.key) showRows(body, changed, keys, (entry) => row(columns, cells(entry.value)));
        else fill(body, entries.map((value) => row(columns, cells(value))));
      }
      if (link) pages(foot, after, changed.next, link);
    },
    trouble: (problem) => {
      if (problem.status === 501) fill(rows);
      fill(alert, trouble(problem));
    },
  }]);
}

/* ---- Cron ---- */

const resultBadge = (outcome) => badge(outcome === 'done' ? 'good' : 'bad', outcomeText(outcome));

async function fire(fleet, job) {
  const values = await openDialog({ title: t('fire_title', { job: job.name }), body: [h('p', { class: 'muted' }, t('fire_help'))], action: t('fire_do') });
  if (!values) return;
  await call('POST', `/v1/cron/${segment(fleet)}/jobs/${segment(job.name)}`);
  note(t('fired', { job: job.name }));
}

/* Shows the crontab as text, and replaces it if nobody else did meanwhile. */
async function editCrontab(fleet, zone) {
  const place = `/v1/cron/${segment(fleet)}/table`;
  const old = await getText(place);
  const values = await openDialog({
    title: t('crontab_title', { fleet }), action: t('crontab_do'), wide: true, body: [h('p', { class: 'muted' }, t('crontab_help'))],
    fields: [field(t('crontab'), h('textarea', { name: 'text', rows: 14, spellcheck: 'false', value: old?.text ?? '' })),
      field(t('zone'), h('input', { type: 'text', name: 'zone', value: zone, autocomplete: 'off' }), t('zone_help'))],
  });
  if (!values) return;
  await putText(path(place, { zone: values.zone }), values.text, old?.version);
  note(t('crontab_done', { fleet }));
}

const jobColumns = () => [{ label: t('name') }, { label: t('schedule') }, { label: t('next_run') }, { label: t('last_run') }, { label: t('missed'), class: 'number' },
  { label: t('skipped'), class: 'number' }, { label: '', head: h('span', { class: 'muted' }, t('action')), class: 'act' }];

function jobRow(columns, fleet, job) {
  return row(columns, [
    [code(job.name), h('span', { class: 'sub' }, job.command)], [code(job.schedule), h('span', { class: 'sub' }, job.zone)],
    job.next_at_ms === null ? t('never') : instant(job.next_at_ms),
    job.last_at_ms === null ? '–' : h('span', null, instant(job.last_at_ms), ' ', resultBadge(job.last_outcome)),
    number(job.missed), number(job.skipped),
    h('button', { class: 'small', type: 'button', 'data-does': 'fire', 'aria-label': `${t('fire')} ${job.name}`, onclick: () => fire(fleet, job) }, t('fire'))]);
}

/* The jobs of one fleet; links to the others, if there are any. */
export function cron(main, query) {
  const wanted = query.get('fleet');
  const columns = jobColumns();
  const body = rowgroup();
  const rows = h('div', null, empty('…'));
  const alert = h('div');
  const others = h('div', { class: 'bar', hidden: true });
  const fleets = {
    path: '/v1/cron', rows: 'fleets', key: 'fleet', trouble: (problem) => fill(alert, trouble(problem)),
    show: (list) => {
      const found = [...list.entries.keys()];
      const fleet = found.includes(wanted) ? wanted : found[0];
      others.hidden = found.length < 2;
      fill(others, found.map((one) => h('a', { href: path('#/cron', { fleet: one }), 'aria-current': one === fleet ? 'page' : null }, one)));
      if (!fleet) fill(rows, empty(t('no_cron')));
      else if (fleet !== shown) watch([fleets, jobsOf(fleet)]);
    },
  };
  let shown = null;
  let zone = '';
  const edit = h('button', { class: 'small', type: 'button', id: 'crontab', hidden: true, onclick: () => editCrontab(shown, zone) }, t('crontab'));
  function jobsOf(fleet) {
    shown = fleet;
    return {
      path: `/v1/cron/${segment(fleet)}`, rows: 'jobs', key: 'name', trouble: (problem) => fill(alert, trouble(problem)),
      show: (list, keys) => {
        fill(alert);
        edit.hidden = false;
        zone = [...list.entries.values()][0]?.value.zone ?? '';
        if (!rows.querySelector('table')) fill(rows, table(t('cron'), columns, body));
        showRows(body, list, keys, ({ value }) => jobRow(columns, fleet, value));
      },
    };
  }
  fill(main, h('div', { class: 'head' }, h('h1', null, t('cron')), h('p', null, t('cron_help')), edit), others, alert, rows);
  watch([fleets]);
}

/* ---- History ---- */

export function history(main, query) {
  const failed = query.get('failed') || '';
  const name = query.get('name') || '';
  const after = query.get('after') || '';
  const link = (change) => path('#/history', { failed, name, ...change });
  const only = h('input', { type: 'checkbox', checked: failed === 'true', onchange: () => { location.hash = link({ failed: only.checked ? 'true' : '' }).slice(1); } });
  const search = h('input', { type: 'search', value: name, placeholder: t('name'), 'aria-label': t('name'), spellcheck: 'false', onchange: () => { location.hash = link({ name: search.value }).slice(1); } });
  plainList(main, {
    title: t('history'), help: t('history_help'), none: t('no_history'), after, link: (next) => link({ after: next }),
    bar: h('div', { class: 'bar' }, search, h('label', { class: 'check' }, only, h('span', null, t('failed_only')))),
    list: { path: path('/v1/history', { failed, name, after, limit: 50 }), rows: 'runs', key: null },
    columns: [{ label: t('name') }, { label: t('how') }, { label: t('took'), class: 'number' }, { label: t('ended') }, { label: t('host') }, { label: t('output') }],
    cells: (run) => [
      [code(run.name), h('span', { class: 'sub' }, run.kind, run.task ? [' · ', h('a', { href: `#/tasks/${run.task}` }, `${t('task')} ${run.task}`)] : '')],
      [resultBadge(run.outcome), run.code ? h('span', { class: 'sub' }, t('code', { code: run.code })) : null],
      duration(run.duration_ms), instant(run.ended_at_ms), h('span', { class: 'sub' }, run.host || '–'),
      run.output || run.command
        ? h('details', null, h('summary', null, t('output')), run.command ? h('p', null, code(run.command)) : null, run.output ? h('pre', { tabindex: 0 }, run.output) : null)
        : '–'],
  });
}

/* ---- Stocks ---- */

export function stocks(main, query) {
  const after = query.get('after') || '';
  plainList(main, {
    title: t('stocks'), help: t('stocks_help'), none: t('no_stocks'), after, link: (next) => path('#/stocks', { after: next }),
    list: { path: path('/v1/stocks', { after, limit: 50 }), rows: 'stocks', key: 'key' },
    columns: [{ label: t('stock') }, { label: t('used'), class: 'wide' }, { label: t('limit'), class: 'number' }, { label: t('free'), class: 'number' }],
    cells: (stock) => {
      const left = h('div', { class: 'left' });
      left.style.transform = `scaleX(${stock.limit > 0 ? Math.min(1, stock.used / stock.limit) : 0})`;
      return [code(stock.key), h('div', { class: `ttl${stock.used >= stock.limit ? ' over' : ''}` }, h('div', { class: 'track' }, left), h('span', null, number(stock.used))),
        number(stock.limit), number(stock.limit - stock.used)];
    },
  });
}
