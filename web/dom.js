/* SPDX-License-Identifier: MIT */
/* Elements, numbers and instants.  Texts of the store become text nodes only, so none of them can become markup. */
import { t, locale } from './text.js';

/* h('td', {class: 'number', onclick: f}, 'text', element, ...); null children are left out. */
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'value' || name === 'checked' || name === 'disabled') element[name] = value;
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const UNITS = [['day', 86400000], ['hour', 3600000], ['minute', 60000], ['second', 1000]];
const formats = new Map();
function format(key, make) {
  const full = `${locale()} ${key}`;
  if (!formats.has(full)) formats.set(full, make());
  return formats.get(full);
}
const unit = (name, value) =>
  format(name, () => new Intl.NumberFormat(locale(), { style: 'unit', unit: name, unitDisplay: 'narrow', maximumFractionDigits: 0 })).format(value);

/* 83000 -> "1m 23s"; the two largest units. */
export function duration(ms) {
  if (ms === null || ms === undefined) return '–';
  if (ms < 1000) return unit('millisecond', Math.max(0, Math.round(ms)));
  const at = UNITS.findIndex(([, size]) => ms >= size);
  const first = Math.floor(ms / UNITS[at][1]);
  const next = UNITS[at + 1];
  const rest = next ? Math.floor((ms % UNITS[at][1]) / next[1]) : 0;
  return unit(UNITS[at][0], first) + (rest > 0 ? ` ${unit(next[0], rest)}` : '');
}

/* A duration that grows by itself. */
export function growing(ms) {
  if (ms === null || ms === undefined) return '–';
  const element = h('span', { class: 'growing' }, duration(ms));
  element.from = performance.now() - ms;
  return element;
}
setInterval(() => {
  for (const element of document.querySelectorAll('.growing')) {
    const text = duration(performance.now() - element.from);
    if (element.textContent !== text) element.textContent = text;
  }
}, 1000);

export const number = (value) =>
  value === null || value === undefined ? '–' : format('number', () => new Intl.NumberFormat(locale(), { maximumFractionDigits: 1 })).format(value);

export function instant(ms) {
  if (!ms || ms < 0) return '–';
  const text = format('instant', () => new Intl.DateTimeFormat(locale(), { month: 'short', day: 'numeric', hour: '2-digit', minute: '2-digit', second: '2-digit' })).format(ms);
  return h('time', { datetime: new Date(ms).toISOString(), title: `${new Date(ms).toISOString()} · ${t('ago', { time: duration(Math.abs(Date.now() - ms)) })}` }, text);
}

/* An identifier of the store: may have any characters and be long. */
export const code = (text) => h('code', { title: text && text.length > 40 ? text : null }, h('bdi', null, text ?? '–'));

export const badge = (kind, text) => h('span', { class: `badge ${kind}` }, text);

/* ---- Tables ---- */

/* Roles are written out: on a narrow screen the rows are shown as cards, and would lose them. */
export function table(label, columns, body) {
  return h('table', { class: 'rows', role: 'table', 'aria-label': label },
    h('thead', { role: 'rowgroup' },
      h('tr', { role: 'row' }, columns.map((column) => h('th', { role: 'columnheader', scope: 'col', class: column.class }, column.head ?? column.label)))),
    body);
}

export function row(columns, cells, props) {
  return h('tr', { role: 'row', ...props },
    cells.map((cell, i) => h('td', { role: 'cell', class: columns[i].class, 'data-label': columns[i].label },
      ...(Array.isArray(cell) ? cell : [cell]))));
}

export const rowgroup = () => h('tbody', { role: 'rowgroup' });
export const empty = (text) => h('p', { class: 'empty' }, text);

/* ---- Notes and questions ---- */

export function note(text, kind = '') {
  const element = h('div', { class: `note ${kind}` }, text);
  document.getElementById('notes').append(element);
  setTimeout(() => element.remove(), kind === 'bad' ? 12000 : 5000);
}

/* A question before something is done; `action` names it.  The form's values; null: it was closed. */
export function openDialog({ title, body = [], fields = [], action, danger = false, wide = false }) {
  return new Promise((resolve) => {
    const form = h('form', { method: 'dialog' },
      h('h2', { id: 'dialog-title' }, title), ...body, ...fields,
      h('div', { class: 'buttons' },
        h('button', { type: 'button', class: 'quiet', onclick: () => dialog.close('') }, t('cancel')),
        h('button', { type: 'submit', class: danger ? 'danger' : 'primary', value: 'yes', id: 'dialog-do' }, action)));
    const dialog = h('dialog', { class: wide ? 'wide' : null, 'aria-labelledby': 'dialog-title' }, form);
    dialog.addEventListener('close', () => {
      const values = dialog.returnValue === 'yes' ? Object.fromEntries(new FormData(form)) : null;
      dialog.remove();
      resolve(values);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

export const field = (label, input, help) =>
  h('label', { class: 'field' }, h('span', null, label), input, help ? h('small', null, help) : null);
export const check = (label, input, help) =>
  h('label', { class: 'check' }, input, h('span', null, label, help ? h('small', null, help) : null));
