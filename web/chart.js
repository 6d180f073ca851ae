/* SPDX-License-Identifier: MIT */
/* Charts of the last hour, as SVG. */
import { h, number } from './dom.js';
import { t } from './text.js';

const WIDTH = 360;
const HEIGHT = 64;
const STEP_MS = 10000;
const LEAST_STEPS = 60; /* a daemon that began just now has a chart of ten minutes */

function svg(tag, props) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(props)) element.setAttribute(name, value);
  return element;
}

/* Counters to what each step added; a counter that goes back began again. */
export function steps(points) {
  return points.map((point, i) =>
    (i === 0 || point === null || points[i - 1] === null || point < points[i - 1] ? null : point - points[i - 1]));
}

/* The same for each second. */
export const rates = (points, stepMs) => steps(points).map((value) => (value === null ? null : value * 1000 / stepMs));

/* Runs of points that are known. */
function paths(points, top, width) {
  const first = WIDTH - points.length * WIDTH / width;
  const x = (i) => (first + (i + 0.5) * WIDTH / width).toFixed(1);
  const y = (value) => (HEIGHT - 2 - value / top * (HEIGHT - 8)).toFixed(1);
  let line = '';
  let area = '';
  for (let i = 0; i < points.length; i++) {
    if (points[i] === null) continue;
    let end = i;
    while (end + 1 < points.length && points[end + 1] !== null) end++;
    const run = points.slice(i, end + 1).map((value, j) => `${x(i + j)},${y(value)}`);
    line += `M${run.join('L')}${run.length === 1 ? 'h0.1' : ''}`;
    area += `M${x(i)},${HEIGHT}L${run.join('L')}L${x(end)},${HEIGHT}Z`;
    i = end;
  }
  return { line, area };
}

/* A card with the newest value and the hour before.  `points` are the newest, `show` makes a text of a value. */
export function chart(label, points, { color = 1, show = number, stepMs = STEP_MS } = {}) {
  const inMinutes = (count) => Math.round(count * stepMs / 60000);
  const width = Math.max(LEAST_STEPS, points.length);
  const known = points.filter((value) => value !== null);
  const now = known.length > 0 ? known[known.length - 1] : null;
  const most = known.reduce((a, b) => Math.max(a, b), 0);
  const { line, area } = paths(points, most || 1, width);
  const picture = svg('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', class: `chart color${color}`, role: 'img' });
  picture.setAttribute('aria-label', t('chart', { label, now: show(now), most: show(most) }));
  picture.append(svg('path', { d: area, class: 'area' }), svg('path', { d: line, class: 'line' }));
  const value = h('strong', null, show(now));
  const highest = h('span', { class: 'muted' }, t('highest', { value: show(most) }));
  picture.addEventListener('pointermove', (event) => {
    const box = picture.getBoundingClientRect();
    const back = width - 1 - Math.floor((event.clientX - box.left) / box.width * width);
    const at = points[points.length - 1 - back];
    highest.textContent = t('at_minute', { minutes: inMinutes(back), value: show(at ?? null) });
  });
  picture.addEventListener('pointerleave', () => { highest.textContent = t('highest', { value: show(most) }); });
  return h('div', { class: 'card metric' }, h('div', { class: 'metric-head' }, h('span', null, label), value), picture,
    h('div', { class: 'metric-foot' }, h('span', { class: 'muted' }, t('minutes_ago', { minutes: inMinutes(width) })), highest, h('span', { class: 'muted' }, t('now'))));
}
