/* SPDX-License-Identifier: MIT */
/* Tasks: the kinds, the tasks of one, the story of a task, and dead letters with their bulk retry. */
import { h, fill, code, badge, table, row, rowgroup, empty, duration, growing, number, instant, note, openDialog } from './dom.js';
import { t, outcomeText } from './text.js';
import { call, get, path, segment } from './api.js';
import { watch, showRows, sorted } from './live.js';
import { rates } from './chart.js';
import { readSeries, everyStep } from './overview.js';
import { trouble, pages } from './lists.js';

const STATES = ['arrived', 'ready', 'claimed', 'waiting', 'blocked', 'parked', 'done', 'dead', 'cancelled'];
const COLORS = { ready: 'info', claimed: 'good', parked: 'warn', dead: 'bad', done: 'good' };
const stateText = (state) => t(state === 'dead' ? 'dead_state' : state);
const stateBadge = (state) => badge(COLORS[state] || '', stateText(state));
const listPath = (query) => path('#/tasks/list', query);

/* ---- Kinds ---- */

async function setPaused(kind, paused) {
  const values = await openDialog({
    title: t(paused ? 'pause_title' : 'resume_title', { kind }), action: t(paused ? 'pause_do' : 'resume_do'),
    body: paused ? [h('p', { class: 'muted' }, t('pause_help'))] : [],
  });
  if (!values) return;
  await call('PATCH', `/v1/kinds/${segment(kind)}`, { paused });
  note(t(paused ? 'paused_done' : 'resumed_done', { kind }));
}

export function kinds(main) {
  const columns = [{ label: t('kind') }, ...['ready', 'claimed', 'waiting', 'blocked', 'parked', 'dead', 'done'].map((state) => ({ label: stateText(state), class: 'number' })),
    { label: t('oldest'), class: 'number' }, { label: t('rate'), class: 'number' }, { label: '', head: h('span', { class: 'muted' }, t('action')), class: 'act' }];
  const body = rowgroup();
  const rows = h('div', null, empty('…'));
  const alert = h('div');
  let finished = () => null;

  function makeRow({ value }) {
    const count = (state, link = true) => (value[state] > 0 && link
      ? h('a', { href: state === 'dead' ? path('#/dead', { kind: value.kind }) : listPath({ kind: value.kind, state }) }, number(value[state]))
      : h('span', { class: 'muted' }, number(value[state])));
    const rate = finished(value.kind);
    return row(columns, [
      [h('span', null, h('a', { href: listPath({ kind: value.kind }) }, code(value.kind)), ' ', value.paused ? badge('warn', t('paused')) : null),
        value.running_limit ? h('span', { class: 'sub' }, t('limit_of', { count: number(value.running_limit) })) : null],
      ...['ready', 'claimed', 'waiting', 'blocked', 'parked', 'dead', 'done'].map((state) => count(state)),
      growing(value.oldest_ready_age_ms),
      rate === null ? '–' : t('per_second', { value: number(rate) }),
      h('button', { class: 'small', type: 'button', 'data-does': 'pause', 'aria-label': `${t(value.paused ? 'resume' : 'pause')} ${value.kind}`,
        onclick: () => setPaused(value.kind, !value.paused) }, t(value.paused ? 'resume' : 'pause')),
    ]);
  }
  const list = {
    path: '/v1/kinds?limit=200', rows: 'kinds', key: 'kind',
    show: (changed, keys) => {
      fill(alert);
      if (changed.entries.size === 0) fill(rows, empty(t('no_kinds')));
      else {
        if (!rows.querySelector('table')) fill(rows, table(t('tasks'), columns, body));
        showRows(body, changed, keys, makeRow);
      }
    },
    trouble: (problem) => fill(alert, trouble(problem)),
  };
  fill(main, h('div', { class: 'head' }, h('h1', null, t('tasks')), h('p', null, t('tasks_help'))), h('div', { class: 'bar' }, h('a', { href: '#/tasks/list' }, t('every_task'))), alert, rows);
  watch([list]);
  return everyStep(async () => {
    const series = await readSeries();
    finished = (kind) => {
      const points = series.points('tasks_done', kind);
      const known = points ? rates(points, series.step_ms).slice(-6).filter((value) => value !== null) : [];
      return known.length > 0 ? known.reduce((a, b) => a + b, 0) / known.length : null;
    };
    if (list.entries?.size > 0) showRows(body, list, null, makeRow);
  });
}

/* ---- Tasks ---- */

function taskColumns() {
  return [{ label: t('task'), class: 'number' }, { label: t('kind') }, { label: t('state') }, { label: t('phase') }, { label: t('key') },
    { label: t('tries'), class: 'number' }, { label: t('changed') }, { label: t('error_text') }];
}
const taskLink = (nr) => h('a', { href: `#/tasks/${nr}` }, String(nr));
const cut = (text) => (text && text.length > 120 ? `${text.slice(0, 120)}…` : text);

export function tasks(main, query) {
  const filter = Object.fromEntries(['kind', 'state', 'phase', 'key', 'text'].map((name) => [name, query.get(name) || '']));
  const open = (change) => { location.hash = listPath({ ...filter, ...change }); };
  const after = query.get('after') || '';
  const columns = taskColumns();
  const body = rowgroup();
  const rows = h('div', null, empty('…'));
  const alert = h('div');
  const foot = h('div', { class: 'pages' });
  const chooseKind = h('select', { 'aria-label': t('kind'), onchange: () => open({ kind: chooseKind.value, ...(chooseKind.value ? {} : { state: '', phase: '', key: '', text: '' }) }) },
    h('option', { value: '' }, t('any_kind')));
  const state = h('select', { 'aria-label': t('state'), onchange: () => open({ state: state.value }) }, h('option', { value: '' }, t('all')), STATES.map((one) => h('option', { value: one, selected: one === filter.state }, stateText(one))));
  const search = (name, label) => h('input', { type: 'search', name, value: filter[name], placeholder: label, 'aria-label': label, autocomplete: 'off', spellcheck: 'false',
    onchange: (event) => open({ [name]: event.target.value }) });
  const phases = h('div');
  fill(main, h('div', { class: 'head' }, h('h1', null, filter.kind ? t('list_of', { kind: filter.kind }) : t('every_task')), h('a', { href: '#/tasks' }, t('task_kinds'))),
    /* Without a kind, the others would be looked for among all tasks. */
    h('div', { class: 'bar' }, chooseKind, filter.kind ? [state, search('phase', t('phase')), search('key', t('key')), search('text', t('error_contains'))] : null), alert, rows, foot, phases);
  watch([{
    path: path('/v1/tasks', { ...filter, after, limit: 50 }), rows: 'tasks', key: 'task',
    show: (list, keys) => {
      fill(alert);
      if (list.entries.size === 0) fill(rows, empty(t('no_tasks')));
      else {
        if (!rows.querySelector('table')) fill(rows, table(t('tasks'), columns, body));
        showRows(body, list, keys, ({ value }) => row(columns, [
          taskLink(value.task), code(value.kind), stateBadge(value.state), value.phase ? code(value.phase) : '–', value.key ? code(value.key) : '–',
          `${value.failures} / ${value.max_failures}`, instant(value.changed_at_ms), h('span', { class: 'sub' }, cut(value.text) || '–')]));
      }
      pages(foot, after, list.next, (next) => listPath({ ...filter, after: next }));
    },
    trouble: (problem) => fill(alert, trouble(problem)),
  }, {
    path: '/v1/kinds?limit=200', rows: 'kinds', key: 'kind', trouble: () => {},
    show: (list) => {
      const found = sorted(list).map(({ value }) => value.kind);
      if (filter.kind && !found.includes(filter.kind)) found.push(filter.kind);
      fill(chooseKind, h('option', { value: '' }, t('any_kind')), found.map((kind) => h('option', { value: kind }, kind)));
      chooseKind.value = filter.kind;
    },
  }]);
  return filter.kind ? everyStep(() => showPhases(phases, filter)) : null;
}

/* What clients of this daemon added and claimed in each phase of the kind; the store is not asked. */
async function showPhases(place, filter) {
  const { phases, window_ms: window } = await get(`/v1/kinds/${segment(filter.kind)}/phases`);
  if (phases.every(({ phase }) => phase === '')) {
    fill(place);
    return;
  }
  const columns = [{ label: t('phase') }, ...['added_rate', 'claimed_rate', 'added_total', 'claimed_total'].map((name) => ({ label: t(name), class: 'number' }))];
  const rate = (count) => t('per_minute', { value: number(count * 60000 / Math.max(10000, window)) });
  const body = rowgroup();
  body.append(...phases.map((one) => row(columns, [
    one.phase ? h('a', { href: listPath({ kind: filter.kind, state: filter.state, phase: one.phase }), 'aria-current': one.phase === filter.phase ? 'true' : null }, code(one.phase))
      : h('span', { class: 'muted' }, t('no_phase')),
    rate(one.added_in_window), rate(one.claimed_in_window), number(one.added), number(one.claimed)])));
  fill(place, h('div', { class: 'section' }, h('h2', null, t('phases')), h('span', { class: 'muted' }, t('phases_help'))), table(t('phases'), columns, body));
}

/* ---- The story of a task ---- */

const step = (kind, at, ...content) => ({ at, element: h('li', { class: kind || null }, h('div', null, ...content), at ? h('span', { class: 'muted' }, instant(at)) : null) });

/* What a result over HTTP left as the command of its run. */
function wentOn(run) {
  const [, what, phase] = /^(?:TRACEPARENT=[0-9a-f-]{55} ?)?(next|wait)(?: (.+))?$/.exec(run.command ?? '') ?? [];
  if (!what) return null;
  return [' · ', what === 'wait' ? t('went_waiting') : phase ? [t('went_on'), ' ', code(phase)] : t('went_ready')];
}

function storyOf(task) {
  const claim = (at, owner, fence, attempt) =>
    step('info', at, t(attempt ? 'claimed_try' : 'claimed_by', { owner: owner || '–', fence: fence ?? '–', attempt: number(attempt) }));
  const steps = [step('', task.added_at_ms, t('made'))];
  if (task.claimed_at_ms) steps.push(claim(task.claimed_at_ms, task.owner, task.fence, task.attempts));
  /* Of an earlier claim the store has what its run and its error say.  A run is kept a moment after it ended. */
  const failures = new Map(task.errors.map((error) => [error.fence, error]));
  for (const run of task.runs) {
    if (run.duration_ms === 0 || run.fence === null || (task.claimed_at_ms && run.fence === task.fence)) continue;
    const failure = failures.get(run.fence);
    steps.push(claim(Math.min(run.started_at_ms, failure?.at_ms ?? Infinity), failure?.owner || run.host, run.fence));
  }
  for (const error of task.errors)
    steps.push(step('bad', error.at_ms, t('failed_with', { owner: error.owner || '–', fence: error.fence }), h('pre', null, error.text)));
  for (const run of task.runs)
    steps.push(step(run.outcome === 'done' ? 'good' : 'bad', run.ended_at_ms, t('ran', { host: run.host || '–', how: outcomeText(run.outcome), time: duration(run.duration_ms) }),
      run.code ? [' · ', t('code', { code: run.code })] : null, wentOn(run), run.output ? h('pre', null, run.output) : null));
  steps.sort((a, b) => a.at - b.at); /* at one instant in the order above */
  if (task.more_runs) steps.unshift(step('', null, t('more_runs', { count: number(task.runs.length) })));
  steps.push(step(task.state === 'done' ? 'good' : task.state === 'dead' ? 'bad' : 'info', task.changed_at_ms, t('is_now', { state: stateText(task.state) }),
    task.text && task.state === 'done' ? h('pre', null, task.text) : null));
  return h('ol', { class: 'story' }, steps.map((one) => one.element));
}

export function task(main, query, nr) {
  const fact = (label, value) => (value === null || value === undefined || value === '' ? null : [h('dt', null, label), h('dd', null, value)]);
  const content = h('div', null, empty('…'));
  const alert = h('div');
  fill(main, alert, content);
  async function read() {
    const found = await get(`/v1/tasks/${segment(nr)}`);
    const text = typeof found.payload === 'string' ? found.payload : found.payload?.base64;
    const again = ['dead', 'parked', 'waiting', 'cancelled'].includes(found.state);
    fill(content,
      h('div', { class: 'head' }, h('h1', null, `${t('task')} ${found.task}`), stateBadge(found.state),
        again ? h('button', { class: 'small', type: 'button', onclick: () => retryOne(found.task) }, t('retry_one', { task: found.task })) : null,
        h('a', { href: listPath({ kind: found.kind }) }, t('list_of', { kind: found.kind }))),
      h('div', { class: 'card' }, h('dl', { class: 'facts' },
        fact(t('kind'), code(found.kind)), fact(t('phase'), found.phase && code(found.phase)), fact(t('key'), found.key && code(found.key)),
        fact(t('unique'), found.unique && code(found.unique)), fact(t('priority'), found.priority || null), fact(t('tries'), `${found.failures} / ${found.max_failures}`),
        fact(t('owner'), found.owner && code(found.owner)), fact(t('fence'), found.fence && code(String(found.fence))), fact(t('due'), found.due_at_ms && instant(found.due_at_ms)))),
      h('div', { class: 'section' }, h('h2', null, t('story'))), storyOf(found),
      h('div', { class: 'section' }, h('h2', null, t('payload')), h('span', { class: 'muted' }, t('bytes', { count: number(found.payload_bytes) }))),
      h('pre', { tabindex: 0 }, text || '–'));
  }
  async function retryOne(number_) {
    const values = await openDialog({ title: t('retry_one_title', { task: number_ }), body: [h('p', { class: 'muted' }, t('retry_help'))], action: t('retry_one', { task: number_ }) });
    if (!values) return;
    const { changed } = await call('POST', '/v1/changes/retry', { tasks: [{ task: number_ }] });
    note(t('retried', { count: number(changed) }));
    await read();
  }
  const before = String(Math.max(0, Number(nr) - 1));
  watch([{
    path: path('/v1/tasks', { after: before, limit: 1 }), rows: 'tasks', key: 'task',
    show: (list, keys) => {
      fill(alert);
      if (!keys || keys.has(Number(nr))) read();
    },
    trouble: (problem) => fill(alert, trouble(problem)),
  }]);
}

/* ---- Dead letters ---- */

const STEP = 1000;       /* tasks that one request retries */
const COUNT_STEP = 10000;

/* Repeats the change until nothing more matches; `stopped` ends it between two requests. */
async function changeAll(what, filter, options, step, progress, stopped) {
  let after;
  let changed = 0;
  do {
    const answer = await call('POST', `/v1/changes/${what}`, { ...filter, ...options, limit: step, ...(after ? { after } : {}) });
    changed += answer.changed;
    after = answer.next;
    progress(changed);
  } while (after !== null && !stopped());
  return changed;
}

/* A bar that shows how far it is, with a button that stops it. */
async function withProgress(place, count, run) {
  let stopped = false;
  const bar = h('progress', { max: Math.max(1, count), value: 0, 'aria-label': t('progress', { done: 0, count: number(count) }) });
  const text = h('span', null, t('progress', { done: 0, count: number(count) }));
  fill(place, h('div', { class: 'card' }, bar, h('div', { class: 'bar' }, text, h('button', { class: 'small', type: 'button', onclick: () => { stopped = true; } }, t('stop')))));
  try {
    const done = await run((value) => {
      bar.value = value;
      text.textContent = t('progress', { done: number(value), count: number(count) });
    }, () => stopped);
    if (stopped) note(t('stopped', { count: number(done) }));
    return done;
  } finally {
    fill(place);
  }
}

export function dead(main, query) {
  const kind = query.get('kind') || '';
  const text = query.get('text') || '';
  const older = query.get('older') || '';
  const after = query.get('after') || '';
  const filter = { state: 'dead', ...(kind && { kind }), ...(text && { text }), ...(older && { older }) };
  const open = (change) => { location.hash = path('#/dead', { kind, text, older, ...change }).slice(1); };
  const columns = [{ label: '', class: 'pick' }, ...taskColumns().filter((column) => column.label !== t('state'))];
  const body = rowgroup();
  const rows = h('div', null, empty('…'));
  const alert = h('div');
  const busy = h('div');
  const foot = h('div', { class: 'pages' });
  const selected = new Set();
  let list = null;

  const chooseKind = h('select', { 'aria-label': t('kind'), id: 'dead-kind', onchange: () => open({ kind: chooseKind.value }) }, h('option', { value: '' }, t('any_kind')));
  const chooseAge = h('select', { 'aria-label': t('age'), onchange: () => open({ older: chooseAge.value }) }, h('option', { value: '' }, t('older')),
    [['5m', 300000], ['1h', 3600000], ['1d', 86400000], ['7d', 604800000]].map(([value, ms]) => h('option', { value, selected: value === older }, t('older_than', { time: duration(ms) }))));
  const search = h('input', { type: 'search', value: text, placeholder: t('error_contains'), 'aria-label': t('error_contains'), spellcheck: 'false', onchange: () => open({ text: search.value }) });
  const countButton = h('button', { type: 'button', id: 'dead-count', onclick: () => countMatching() }, t('count_matching'));
  const counted = h('span', { class: 'muted', role: 'status', id: 'dead-counted' });
  const retryAll = h('button', { type: 'button', class: 'primary', id: 'dead-retry', onclick: () => changeMatching('retry') }, t('retry_matching'));
  const purgeAll = h('button', { type: 'button', onclick: () => changeMatching('purge') }, t('purge_matching'));
  const pickAll = h('input', { type: 'checkbox', 'aria-label': t('select_all'), onchange: () => {
    for (const { value } of sorted(list)) if (pickAll.checked) selected.add(value.task); else selected.delete(value.task);
    showRows(body, list, null, makeRow);
    showSelected();
  } });
  columns[0].head = pickAll;
  const selectedBar = h('div', { class: 'bar', hidden: true });

  async function countMatching() {
    counted.textContent = t('counting', { count: 0 });
    const count = await changeAll('retry', filter, { dry_run: true }, COUNT_STEP, (value) => { counted.textContent = t('counting', { count: number(value) }); }, () => false);
    counted.textContent = t('matching', { count: number(count) });
    return count;
  }
  async function changeMatching(what) {
    const count = await countMatching();
    if (count === 0) return;
    const values = await openDialog({
      title: t(`${what}_many_title`, { count: number(count) }), action: t(`${what}_many_do`, { count: number(count) }), danger: what === 'purge',
      body: [h('p', { class: 'muted' }, t(`${what}_many_help`, { step: number(STEP) }))],
    });
    if (!values) return;
    const done = await withProgress(busy, count, (progress, stopped) => changeAll(what, filter, {}, STEP, progress, stopped));
    note(t(what === 'retry' ? 'retried' : 'purged', { count: number(done) }));
    counted.textContent = '';
  }
  async function changeSelected(what) {
    const nrs = [...selected];
    const count = number(nrs.length);
    const values = await openDialog({
      title: t(`${what}_many_title`, { count }), action: t(`${what}_many_do`, { count }), danger: what === 'purge',
      body: what === 'purge' ? [h('p', { class: 'muted' }, t('purge_many_help'))] : [h('p', { class: 'muted' }, t('retry_help'))],
    });
    if (!values) return;
    const { changed } = await call('POST', `/v1/changes/${what}`, { tasks: nrs.map((task) => ({ task })) });
    selected.clear();
    showSelected();
    note(t(what === 'retry' ? 'retried' : 'purged', { count: number(changed) }));
  }
  function showSelected() {
    selectedBar.hidden = selected.size === 0;
    const count = number(selected.size);
    fill(selectedBar, h('button', { type: 'button', class: 'primary', onclick: () => changeSelected('retry') }, t('retry_selected', { count })),
      h('button', { type: 'button', onclick: () => changeSelected('purge') }, t('purge_selected', { count })));
  }
  function makeRow({ value }) {
    return row(columns, [
      h('input', { type: 'checkbox', 'data-does': 'pick', checked: selected.has(value.task), 'aria-label': t('select_task', { task: value.task }), onchange: (event) => {
        if (event.target.checked) selected.add(value.task); else selected.delete(value.task);
        showSelected();
      } }),
      taskLink(value.task), code(value.kind), value.phase ? code(value.phase) : '–', value.key ? code(value.key) : '–', `${value.failures} / ${value.max_failures}`,
      instant(value.changed_at_ms), h('span', { class: 'sub' }, cut(value.text) || '–')]);
  }

  fill(main, h('div', { class: 'head' }, h('h1', null, t('dead')), h('p', null, t('dead_help'))),
    h('div', { class: 'bar' }, chooseKind, chooseAge, search), h('div', { class: 'bar' }, retryAll, purgeAll, countButton, counted), busy, alert, selectedBar, rows, foot);
  watch([{
    path: path('/v1/tasks', { ...filter, after, limit: 50 }), rows: 'tasks', key: 'task',
    show: (changed, keys) => {
      list = changed;
      fill(alert);
      for (const nr of selected) if (!list.entries.has(nr)) selected.delete(nr);
      showSelected();
      const none = list.entries.size === 0;
      retryAll.disabled = purgeAll.disabled = countButton.disabled = none && !after;
      if (none) fill(rows, empty(t(kind || text || older || after ? 'no_dead_match' : 'no_dead')));
      else {
        if (!rows.querySelector('table')) fill(rows, table(t('dead'), columns, body));
        showRows(body, list, keys, makeRow);
      }
      pages(foot, after, list.next, (next) => path('#/dead', { kind, text, older, after: next }));
    },
    trouble: (problem) => fill(alert, trouble(problem)),
  }, {
    path: '/v1/kinds?limit=200', rows: 'kinds', key: 'kind', trouble: () => {},
    show: (changed) => {
      const found = sorted(changed).map(({ value }) => value).filter((value) => value.dead > 0 || value.kind === kind);
      fill(chooseKind, h('option', { value: '' }, t('any_kind')),
        found.map((value) => h('option', { value: value.kind }, `${value.kind} (${number(value.dead)})`)));
      chooseKind.value = kind;
    },
  }]);
}
