/* SPDX-License-Identifier: MIT */
/* Names: holders, waiters, and what is left of each lease. */
import { h, fill, code, badge, table, row, rowgroup, empty, duration, growing, number, note, openDialog, field, check } from './dom.js';
import { t } from './text.js';
import { call, get, path, segment } from './api.js';
import { watch, showRows } from './live.js';
import { trouble, pages } from './lists.js';

const LIMIT = 50;
const holds = (lease) => lease.state === 'holds' || lease.state === 'breaking';
const leftNow = (lease, at) => Math.max(0, lease.left_ms - (performance.now() - at));

/* A bar that shrinks with what is left of the ttl. */
export function ttlBar(lease, at) {
  const bar = h('div', { class: 'ttl' }, h('div', { class: 'track' }, h('div', { class: 'left' })), h('span'));
  bar.lease = lease;
  bar.at = at;
  moveBar(bar);
  return bar;
}
function moveBar(bar) {
  const left = leftNow(bar.lease, bar.at);
  const part = bar.lease.ttl_ms ? Math.min(1, left / bar.lease.ttl_ms) : 1;
  bar.querySelector('.left').style.transform = `scaleX(${part.toFixed(4)})`;
  bar.className = `ttl${left === 0 ? ' over' : part < 0.25 ? ' low' : ''}`;
  bar.lastChild.textContent = left === 0 ? t('expired') : duration(left < 1000 ? left : Math.round(left / 1000) * 1000);
}
export function moveBars(within) {
  const timer = setInterval(() => {
    for (const bar of within.querySelectorAll('.ttl')) if (bar.lease) moveBar(bar);
  }, 1000);
  return () => clearInterval(timer);
}

/* "redis" of "redis://host:6379/0"; the whole is its title. */
const tierName = (store) => (store ? h('span', { title: store }, store.split(':')[0]) : '–');

const stateBadge = (state) =>
  badge({ holds: 'good', breaking: 'warn', broken: 'bad', offered: 'info' }[state] || '', t(state));

async function breakLease(name, holder) {
  const values = await openDialog({
    title: t('break_title', { name }), danger: true, action: t('break_do'),
    body: [h('p', null, t('break_who', { owner: holder?.owner || t('nobody') })), h('p', { class: 'muted' }, t('break_soft'))],
    fields: [
      check(t('break_now'), h('input', { type: 'checkbox', name: 'now' }), t('break_now_help')),
      field(t('break_author'), h('input', { type: 'text', name: 'who', maxlength: 40, autocomplete: 'off', value: sessionStorage.getItem('dibs-who') || '' })),
    ],
  });
  if (!values) return;
  sessionStorage.setItem('dibs-who', values.who);
  try {
    await call('DELETE', path(`/v1/leases/${segment(name)}/holders`, { now: values.now ? 'true' : '', by: values.who }));
    note(t('break_done', { name }));
  } catch (problem) {
    if (problem.status === 409) note(t('break_notified', { name }));
    else if (problem.status === 404) note(t('break_gone', { name }));
    else throw problem;
  }
}

export function names(main, query, name) {
  return name === undefined ? allNames(main, query) : oneName(main, name);
}

function allNames(main, query) {
  const prefix = query.get('prefix') || '';
  const after = query.get('after') || '';
  const columns = [{ label: t('name') }, { label: t('holder') }, { label: t('remaining'), class: 'wide' }, { label: t('waiters') },
    { label: t('fence'), class: 'number' }, { label: t('stale_writes'), class: 'number' }, { label: t('tier'), class: 'tier' }, { label: '', head: h('span', { class: 'muted' }, t('action')), class: 'act' }];
  const body = rowgroup();
  const rows = h('div', null, empty('…'));
  const alert = h('div');
  const foot = h('div', { class: 'pages' });
  const search = h('input', { type: 'search', value: prefix, placeholder: t('filter_prefix'), 'aria-label': t('filter_prefix'), spellcheck: 'false' });
  let timer;
  search.addEventListener('input', () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      history.replaceState(null, '', path('#/names', { prefix: search.value }));
      start(search.value, '');
    }, 250);
  });

  function makeRow({ value, at }) {
    const holders = value.leases.filter(holds);
    const waiters = value.leases.filter((lease) => !holds(lease) && lease.state !== 'broken');
    const holder = holders[0];
    return row(columns, [
      h('a', { href: `#/names/${segment(value.name)}` }, code(value.name)),
      holder
        ? [h('span', null, code(holder.owner), ' ', holder.mode !== 'exclusive' ? badge('info', t(holder.mode)) : null, holder.state === 'breaking' ? badge('warn', t('breaking')) : null),
          value.holders > 1 ? h('span', { class: 'sub' }, t('more_holders', { count: number(value.holders - 1) })) : null]
        : h('span', { class: 'muted' }, t('nobody')),
      holder ? ttlBar(holder, at) : '–',
      value.waiters > 0 ? [h('span', null, number(value.waiters)), h('span', { class: 'sub' }, t('first_waits', { owner: waiters[0]?.owner ?? '–' }))] : h('span', { class: 'muted' }, '0'),
      holder?.fence ? code(String(holder.fence)) : '–',
      value.stale_writes > 0 ? badge('warn', number(value.stale_writes)) : h('span', { class: 'muted' }, '0'),
      tierName(value.leases[0]?.tier),
      holder ? h('button', { class: 'small warns', type: 'button', 'data-does': 'break', 'aria-label': `${t('break')} ${value.name}`, onclick: () => breakLease(value.name, holder) }, t('break')) : '',
    ]);
  }
  function start(wanted, from) {
    watch([{
      path: path('/v1/leases', { prefix: wanted, after: from, limit: LIMIT }), rows: 'names', key: 'name',
      show: (list, keys) => {
        fill(alert);
        if (list.entries.size === 0) {
          fill(rows, empty(wanted ? t('no_names_prefix', { prefix: wanted }) : t('no_names')));
        } else {
          if (!rows.querySelector('table')) fill(rows, table(t('names'), columns, body));
          showRows(body, list, keys, makeRow);
        }
        rows.classList.toggle('one-store', ![...list.entries.values()].some(({ value }) => value.leases[0]?.tier));
        pages(foot, from, list.next, (next) => path('#/names', { prefix: wanted, after: next }));
      },
      trouble: (problem) => fill(alert, trouble(problem)),
    }]);
  }
  fill(main, h('div', { class: 'head' }, h('h1', null, t('names')), h('p', null, t('names_help'))), h('div', { class: 'bar' }, search), alert, rows, foot);
  start(prefix, after);
  return moveBars(main);
}

/* One name: its holders and waiters, and the breaks that the store remembers. */
function oneName(main, name) {
  const columns = [{ label: t('owner') }, { label: t('state') }, { label: t('mode') }, { label: t('remaining'), class: 'wide' },
    { label: t('fence'), class: 'number' }, { label: t('ahead'), class: 'number' }, { label: t('age'), class: 'number' }];
  const rows = h('div', null, empty('…'));
  const alert = h('div');
  const button = h('button', { class: 'small warns', type: 'button', hidden: true }, t('break_do'));
  const about = h('p');
  let holder = null;
  button.addEventListener('click', () => breakLease(name, holder));
  async function read() {
    let leases = [];
    try {
      leases = (await get(`/v1/leases/${segment(name)}`)).leases;
    } catch (problem) {
      if (problem.status !== 404) throw problem;
    }
    const at = performance.now();
    about.textContent = leases[0]?.tier ? `${t('tier')}: ${leases[0].tier}` : '';
    holder = leases.find(holds) || null;
    button.hidden = !holder;
    const body = rowgroup();
    body.append(...leases.map((lease) => row(columns, [
      [code(lease.owner), lease.taken_from ? h('span', { class: 'sub' }, '← ', lease.taken_from) : null], stateBadge(lease.state), t(lease.mode),
      holds(lease) || lease.state === 'offered' ? ttlBar(lease, at) : '–', lease.fence ? code(String(lease.fence)) : '–',
      holds(lease) || lease.state === 'broken' ? '–' : number(lease.ahead), growing(lease.age_ms < 0 ? null : lease.age_ms),
    ])));
    fill(rows, leases.length > 0 ? table(t('entries'), columns, body) : empty(t('break_gone', { name })));
  }
  fill(main, h('div', { class: 'head' }, h('h1', null, code(name)), about, button, h('a', { href: '#/names' }, t('back'))), alert, rows);
  watch([{
    path: path('/v1/leases', { prefix: name, limit: 1 }), rows: 'names', key: 'name',
    show: (list, keys) => {
      fill(alert);
      if (!keys || keys.has(name)) read();
    },
    trouble: (problem) => fill(alert, trouble(problem)),
  }]);
  return moveBars(main);
}
