/* SPDX-License-Identifier: MIT */
/* An outbox: the messages of a kind, by what became of them. */
import { h, fill, code, table, row, rowgroup, empty, growing, number, instant } from './dom.js';
import { t } from './text.js';
import { path } from './api.js';
import { watch, showRows, sorted } from './live.js';
import { trouble, pages } from './lists.js';

const SHOWN = { waiting: ['arrived', 'ready', 'waiting', 'blocked'], sending: ['claimed'], dead: ['dead', 'parked'], delivered: ['done'] };
const countOf = (kind, shown) => SHOWN[shown].reduce((sum, state) => sum + kind[state], 0);

/* What of the outbox is shown is a link with its count. */
function counts(kind, shown, link) {
  const card = (name) => h('a', { class: `card count${name === 'dead' && countOf(kind, name) > 0 ? ' bad' : ''}`, href: link({ show: name }), 'aria-current': name === shown ? 'page' : null },
    h('span', null, t(`o_${name}`)), h('strong', null, number(countOf(kind, name))));
  return [...Object.keys(SHOWN).map(card), h('div', { class: 'card count' }, h('span', null, t('oldest')), h('strong', null, growing(kind.oldest_ready_age_ms)))];
}

function messages(shown, kind, after, { body, rows, alert, foot, link }) {
  const columns = [{ label: t('task'), class: 'number' }, { label: t('key') }, { label: t('tries'), class: 'number' }, { label: t('changed') }, { label: t('error_text') }];
  return {
    path: path('/v1/tasks', { kind, state: SHOWN[shown].join(','), after, limit: 50 }), rows: 'tasks', key: 'task',
    show: (list, keys) => {
      fill(alert);
      if (list.entries.size === 0) fill(rows, empty(t('o_none')));
      else {
        if (!rows.querySelector('table')) fill(rows, table(t('outbox'), columns, body));
        showRows(body, list, keys, ({ value }) => row(columns, [
          h('a', { href: `#/tasks/${value.task}` }, String(value.task)), value.key ? code(value.key) : '–', `${value.failures} / ${value.max_failures}`,
          instant(value.changed_at_ms), h('span', { class: 'sub' }, value.text || '–')]));
      }
      pages(foot, after, list.next, (next) => link({ after: next }));
    },
    trouble: (problem) => fill(alert, trouble(problem)),
  };
}

export function outbox(main, query) {
  const shown = query.get('show') in SHOWN ? query.get('show') : 'waiting';
  const after = query.get('after') || '';
  let kind = query.get('kind') || '';
  const link = (change) => path('#/outbox', { kind, show: shown, ...change });
  const place = { body: rowgroup(), rows: h('div', null, empty('…')), alert: h('div'), foot: h('div', { class: 'pages' }), link };
  const cards = h('div', { class: 'cards counts' });
  const choose = h('select', { 'aria-label': t('kind'), onchange: () => { location.hash = path('#/outbox', { kind: choose.value }).slice(1); } });
  const deadLink = h('a', { hidden: true }, t('o_dead_link'));
  const kinds = {
    path: '/v1/kinds?limit=200', rows: 'kinds', key: 'kind', trouble: (problem) => fill(place.alert, trouble(problem)),
    show: (list) => {
      const all = sorted(list).map(({ value }) => value);
      /* By its usual name, or the kind that was chosen. */
      const found = all.find((value) => value.kind === kind) ?? (kind ? null : all.find((value) => value.kind.includes('outbox')) ?? all[0]);
      fill(choose, all.map((value) => h('option', { value: value.kind, selected: value.kind === (kind || found?.kind) }, value.kind)));
      if (!found) {
        fill(place.rows, empty(t('no_kinds')));
        return;
      }
      const first = kind === '';
      kind = found.kind;
      fill(cards, counts(found, shown, link));
      deadLink.hidden = found.dead === 0;
      deadLink.href = path('#/dead', { kind });
      if (first) watch([kinds, messages(shown, kind, after, place)]);
    },
  };
  fill(main, h('div', { class: 'head' }, h('h1', null, t('outbox')), h('p', null, t('outbox_help'))),
    h('div', { class: 'bar' }, choose, deadLink), place.alert, cards, h('div', { class: 'section' }, h('h2', null, t(`o_${shown}`))), place.rows, place.foot);
  watch(kind ? [kinds, messages(shown, kind, after, place)] : [kinds]);
}
