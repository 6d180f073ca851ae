/* SPDX-License-Identifier: MIT */
/* The frame: which view is shown, the token, the language, the colors, and whether the daemon answers. */
import { h, fill, note, openDialog, field, duration } from './dom.js';
import { t, language, setLanguage } from './text.js';
import { token, setToken, whenUnauthorized } from './api.js';
import { watch, whenState } from './live.js';
import { overview } from './overview.js';
import { names } from './names.js';
import { kinds, tasks, task, dead } from './tasks.js';
import { cron, history, stocks } from './lists.js';
import { outbox } from './outbox.js';
import { counters } from './counters.js';
import { lanes } from './lanes.js';
import { tiers } from './tiers.js';

const VIEWS = [
  ['', 'overview', overview], ['names', 'names', names], ['tasks', 'tasks', kinds], ['dead', 'dead', dead], ['outbox', 'outbox', outbox],
  ['cron', 'cron', cron], ['history', 'history', history], ['stocks', 'stocks', stocks], ['counters', 'counters', counters],
  ['lanes', 'lanes', lanes], ['tiers', 'tiers', tiers],
];

let leave = () => {};

/* "#/tasks/17?kind=mail": ['tasks', '17'] and the query. */
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, '').split('?');
  return { parts: path.split('/').map(decodeURIComponent), query: new URLSearchParams(query || '') };
}

function show() {
  const { parts, query } = place();
  const found = VIEWS.find(([path]) => path === parts[0]) || VIEWS[0];
  const main = document.getElementById('main');
  leave();
  watch([]);
  fill(main);
  fill(document.getElementById('nav'), VIEWS.map(([path, name]) =>
    h('a', { href: `#/${path}`, 'aria-current': path === found[0] ? 'page' : null }, t(name))));
  document.querySelector('nav [aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'nearest' });
  document.title = `${t(found[1])} · dibs`;
  let view = found[2];
  if (found[0] === 'tasks' && parts[1] === 'list') view = tasks;
  else if (found[0] === 'tasks' && parts[1]) view = task;
  leave = view(main, query, parts[1]) || (() => {});
}

/* ---- The state of the daemon ---- */

let lostAt = 0;
let connected = false;
function showState() {
  const state = document.getElementById('state');
  const text = lostAt ? t('lost', { time: duration(Math.max(1000, Date.now() - lostAt)) }) : t(connected ? 'live' : 'connecting');
  state.className = `state ${lostAt ? 'lost' : connected ? 'live' : ''}`;
  const element = document.getElementById('state-text');
  if (element.textContent !== text) element.textContent = text;
}
whenState((state) => {
  connected = state === 'live';
  if (connected) lostAt = 0;
  else if (!lostAt) lostAt = Date.now();
  showState();
});
setInterval(() => { if (lostAt) showState(); }, 1000);

/* ---- Tools ---- */

let tokenDialogIsOpen = false;
async function requestToken() {
  if (tokenDialogIsOpen) return;
  tokenDialogIsOpen = true;
  const values = await openDialog({
    title: t('token_title'), action: t('token_use'),
    body: [h('p', { class: 'muted' }, t('token_help'))],
    fields: [field(t('token'), h('input', { type: 'password', name: 'token', autocomplete: 'off', value: token() }))],
  });
  tokenDialogIsOpen = false;
  if (!values) return;
  setToken(values.token.trim());
  frame();
}
whenUnauthorized(requestToken);

const THEMES = ['auto', 'light', 'dark'];
const theme = () => (THEMES.includes(localStorage.getItem('dibs-theme')) ? localStorage.getItem('dibs-theme') : 'auto');
const systemDark = matchMedia('(prefers-color-scheme: dark)');
function setTheme() {
  const dark = theme() === 'dark' || (theme() === 'auto' && systemDark.matches);
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
}
systemDark.addEventListener('change', setTheme);

function frame() {
  document.documentElement.lang = language();
  document.getElementById('skip').textContent = t('skip');
  document.getElementById('nav').setAttribute('aria-label', t('views'));
  document.getElementById('token').textContent = token() ? t('token_set') : t('token');
  document.getElementById('language').textContent = language() === 'ko' ? 'English' : '한국어';
  document.getElementById('language').setAttribute('lang', language() === 'ko' ? 'en' : 'ko');
  document.getElementById('theme').textContent = t(`theme_${theme()}`);
  setTheme();
  showState();
  show();
}

document.getElementById('token').addEventListener('click', requestToken);
document.getElementById('language').addEventListener('click', () => {
  setLanguage(language() === 'ko' ? 'en' : 'ko');
  frame();
});
document.getElementById('theme').addEventListener('click', () => {
  localStorage.setItem('dibs-theme', THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);
  document.getElementById('theme').textContent = t(`theme_${theme()}`);
  setTheme();
});
document.getElementById('skip').addEventListener('click', (event) => {
  event.preventDefault();
  document.getElementById('main').focus();
});
/* "/" is the filter of the view, as in many pages of this kind. */
addEventListener('keydown', (event) => {
  if (event.key !== '/' || event.target.closest('input, select, textarea, dialog')) return;
  const filter = document.querySelector('main input[type="search"]');
  if (filter) {
    event.preventDefault();
    filter.focus();
  }
});
addEventListener('hashchange', () => {
  show();
  document.getElementById('main').focus({ preventScroll: true });
  scrollTo(0, 0);
});
addEventListener('unhandledrejection', (event) => {
  event.preventDefault();
  note(event.reason?.message || String(event.reason), 'bad');
});
frame();
