/* SPDX-License-Identifier: MIT */
/* Lanes: the topics; and of one topic a picture of its lanes by their owners, the members, and the latest moves. */
import { h, fill, code, badge, table, row, rowgroup, empty, growing, number, note, openDialog, field } from './dom.js';
import { t } from './text.js';
import { call, get, path, segment } from './api.js';
import { watch, showRows } from './live.js';
import { trouble, pages } from './lists.js';
import { ttlBar, moveBars } from './names.js';

const LIMIT = 50;
const COLORS = 8;     /* of owners; more of them share colors, and each cell has its owner as a title */
const MOVES = 10;
const ROWS_MOST = 200; /* of the table; the picture has all lanes */

const bar = (value, most, text) => {
  const left = h('div', { class: 'left' });
  left.style.transform = `scaleX(${most > 0 ? Math.min(1, value / most) : 0})`;
  return h('div', { class: 'ttl' }, h('div', { class: 'track' }, left), h('span', null, text));
};

export function lanes(main, query, topic) {
  return topic === undefined ? allTopics(main, query) : oneTopic(main, topic);
}

/* ---- All topics ---- */

function allTopics(main, query) {
  const after = query.get('after') || '';
  const columns = [{ label: t('topic') }, { label: t('lane_count'), class: 'number' }, { label: t('owned'), class: 'wide' }, { label: t('members'), class: 'number' },
    { label: t('leaving'), class: 'number' }];
  const body = rowgroup();
  const rows = h('div', null, empty('…'));
  const alert = h('div');
  const foot = h('div', { class: 'pages' });
  fill(main, h('div', { class: 'head' }, h('h1', null, t('lanes')), h('p', null, t('lanes_help'))), alert, rows, foot);
  watch([{
    path: path('/v1/lanes', { after, limit: LIMIT }), rows: 'topics', key: 'topic',
    show: (list, keys) => {
      fill(alert);
      if (list.entries.size === 0) fill(rows, empty(t('no_topics')));
      else {
        if (!rows.querySelector('table')) fill(rows, table(t('lanes'), columns, body));
        showRows(body, list, keys, ({ value }) => row(columns, [
          h('a', { href: `#/lanes/${segment(value.topic)}` }, code(value.topic)), number(value.lanes), bar(value.owned, value.lanes, number(value.owned)),
          number(value.members), value.leaving > 0 ? badge('warn', number(value.leaving)) : h('span', { class: 'muted' }, '0')]));
      }
      pages(foot, after, list.next, (next) => path('#/lanes', { after: next }));
    },
    trouble: (problem) => fill(alert, trouble(problem)),
  }]);
}

/* ---- One topic ---- */

async function resize(topic, from) {
  const values = await openDialog({
    title: t('resize_title', { topic }), action: t('resize_do'), danger: true, body: [h('p', null, t('resize_help'))],
    fields: [field(t('lane_count'), h('input', { type: 'number', name: 'lanes', min: 1, max: 1024, step: 1, value: from, required: true, autocomplete: 'off' }))],
  });
  if (!values) return;
  const body = await call('PATCH', `/v1/lanes/${segment(topic)}`, { lanes: Number(values.lanes) });
  note(t('resize_done', { topic, lanes: number(body.lanes) }));
}

/* Owners with their lanes and members, in the order of their names. */
function ownersOf(body) {
  const owners = new Map();
  const of = (name) => {
    if (!owners.has(name)) owners.set(name, { name, lanes: 0, members: 0 });
    return owners.get(name);
  };
  for (const member of body.members) of(member.owner).members++;
  for (const lane of body.owners) if (lane.owner !== null && lane.lanes === body.lanes) of(lane.owner).lanes++;
  const list = [...owners.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
  list.forEach((owner, i) => { owner.color = `o${i % COLORS}`; });
  return list;
}

/* Has each owner the lanes of its members, to one lane for each? */
function isBalanced(body, owners) {
  const members = body.members.filter((member) => member.lanes === body.lanes).length;
  if (members === 0) return false;
  const least = Math.floor(body.lanes / members);
  const most = Math.ceil(body.lanes / members);
  return owners.every((owner) => owner.lanes >= least * owner.members && owner.lanes <= most * owner.members);
}

function picture(place, body, owners, found, changed) {
  const colors = new Map(owners.map((owner) => [owner.name, owner.color]));
  const summary = owners.map((owner) => `${owner.name}: ${number(owner.lanes)}`).join(', ');
  place.setAttribute('aria-label', t('lanes_picture', { lanes: number(body.lanes), owners: summary }));
  fill(place, body.owners.filter((lane) => lane.lanes === body.lanes).map((lane) =>
    h('div', { class: `lane ${lane.owner === null ? 'nobody' : colors.get(lane.owner)}${lane.lane === found ? ' found' : ''}${changed.has(lane.lane) ? ' moved' : ''}`,
      title: `${lane.lane}: ${lane.owner ?? t('nobody')}`, 'data-lane': lane.lane }, String(lane.lane))));
}

function memberRows(body, owners) {
  const columns = [{ label: t('owner') }, { label: t('lane_share'), class: 'wide' }, { label: t('members'), class: 'number' }];
  const group = rowgroup();
  const most = Math.max(1, ...owners.map((owner) => owner.lanes));
  group.append(...owners.map((owner) => row(columns, [
    h('span', null, h('span', { class: `swatch ${owner.color}` }), code(owner.name)), bar(owner.lanes, most, number(owner.lanes)), number(owner.members)])));
  return owners.length > 0 ? table(t('members'), columns, group) : empty(t('no_members'));
}

/* The page knows the earlier owner of a lane that moved while it was open. */
function moveList(body, cameFrom) {
  const moves = body.owners.filter((lane) => lane.owner !== null && lane.age_ms !== null).sort((a, b) => a.age_ms - b.age_ms).slice(0, MOVES);
  return moves.length === 0 ? h('p', { class: 'muted' }, t('no_moves'))
    : h('ol', { class: 'story' }, moves.map((lane) => h('li', { class: 'info' }, h('div', null, t('lane_move', { lane: String(lane.lane), fence: String(lane.fence) }), ' ',
      cameFrom.get(lane.fence) ? [code(cameFrom.get(lane.fence)), ' → '] : null, code(lane.owner)), h('span', { class: 'muted' }, growing(lane.age_ms)))));
}

function laneTable(body, ttl, at) {
  const columns = [{ label: t('lane') }, { label: t('owner') }, { label: t('fence'), class: 'number' }, { label: t('remaining'), class: 'wide' }, { label: t('age'), class: 'number' }];
  const group = rowgroup();
  group.append(...body.owners.slice(0, ROWS_MOST).map((lane) => row(columns, [
    h('span', null, `${lane.lane} / ${lane.lanes}`), lane.owner === null ? h('span', { class: 'muted' }, t('nobody')) : code(lane.owner),
    lane.fence === null ? '–' : code(String(lane.fence)), lane.left_ms === null ? '–' : ttlBar({ left_ms: lane.left_ms, ttl_ms: ttl }, at), growing(lane.age_ms)])));
  return [table(t('lanes'), columns, group),
    body.owners.length > ROWS_MOST ? h('p', { class: 'muted' }, t('a_more', { count: number(body.owners.length - ROWS_MOST) })) : null];
}

function oneTopic(main, topic) {
  const alert = h('div');
  const about = h('p');
  const balance = h('span');
  const cells = h('div', { class: 'lanes', role: 'img' });
  const members = h('div', null, empty('…'));
  const moves = h('div', { id: 'moves' });
  const all = h('div');
  const answer = h('span', { role: 'status', id: 'lane-of-key' });
  const state = { body: null, found: null, owners: new Map(), cameFrom: new Map(), ttl: 0 };
  const button = h('button', { class: 'small warns', type: 'button', id: 'resize', onclick: () => resize(topic, state.body?.lanes ?? 1) }, t('resize'));
  const search = h('input', { type: 'search', placeholder: t('lane_of_key'), 'aria-label': t('lane_of_key'), spellcheck: 'false', onchange: find });

  async function find() {
    state.found = null;
    if (!search.value) fill(answer);
    else {
      const lane = await get(`/v1/lanes/${segment(topic)}/keys/${segment(search.value)}`);
      state.found = lane.lane;
      fill(answer, t('key_is_in', { lane: String(lane.lane) }), ' ', lane.owner === null ? t('nobody') : code(lane.owner));
    }
    if (state.body) draw(new Set());
  }
  function draw(changed) {
    picture(cells, state.body, ownersOf(state.body), state.found, changed);
  }
  /* Lanes whose owner is another one than in the answer before. */
  function noteMoves(body) {
    const changed = new Set();
    for (const lane of body.owners) {
      const before = state.owners.get(`${lane.lane} ${lane.lanes}`);
      if (lane.owner !== null) {
        if (before && before.fence !== lane.fence) {
          changed.add(lane.lane);
          if (before.owner !== lane.owner) state.cameFrom.set(lane.fence, before.owner);
        }
        state.owners.set(`${lane.lane} ${lane.lanes}`, lane);
      }
      state.ttl = Math.max(state.ttl, lane.left_ms ?? 0);
    }
    return changed;
  }
  function show({ body }) {
    const at = performance.now();
    const changed = noteMoves(body);
    const owners = ownersOf(body);
    const even = isBalanced(body, owners);
    state.body = body;
    fill(alert, body.leaving > 0 && h('div', { class: 'alert warn' }, t('topic_leaving', { count: number(body.leaving) })));
    about.textContent = t('topic_about', { lanes: number(body.lanes), members: number(body.members.length) });
    fill(balance, badge(even ? 'good' : 'warn', t(even ? 'balanced' : 'moving')));
    draw(changed);
    fill(members, memberRows(body, owners));
    fill(moves, moveList(body, state.cameFrom));
    fill(all, laneTable(body, state.ttl, at));
  }
  fill(main, h('div', { class: 'head' }, h('h1', null, code(topic)), about, balance, button, h('a', { href: '#/lanes' }, t('all_topics'))),
    h('div', { class: 'bar' }, search, answer), alert, cells,
    h('div', { class: 'section' }, h('h2', null, t('members'))), members,
    h('div', { class: 'section' }, h('h2', null, t('lane_moves')), h('span', { class: 'muted' }, t('lane_moves_help'))), moves,
    h('div', { class: 'section' }, h('h2', null, t('every_lane'))), all);
  watch([{
    path: `/v1/lanes/${segment(topic)}`, rows: null, key: null, show,
    trouble: (problem) => {
      if (problem.status !== 404) fill(alert, trouble(problem));
      else fill(members, empty(t('no_topic')));
    },
  }]);
  return moveBars(main);
}
