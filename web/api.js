/* SPDX-License-Identifier: MIT */
/* Requests to the daemon that this page came from, and its stream of events. */
import { t } from './text.js';

const TOKEN = 'dibs-token';
export const token = () => sessionStorage.getItem(TOKEN) || '';
export function setToken(text) {
  if (text) sessionStorage.setItem(TOKEN, text);
  else sessionStorage.removeItem(TOKEN);
}

/* What the daemon answered instead: `problem` as in RFC 9457. */
export class Problem extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `HTTP ${status}`);
    this.status = status;
  }
}

let onUnauthorized = () => {};
export const whenUnauthorized = (call) => { onUnauthorized = call; };

function headers(more) {
  return { ...more, ...(token() ? { Authorization: `Bearer ${token()}` } : {}) };
}

async function fail(answer) {
  const problem = await answer.json().catch(() => ({ title: answer.statusText }));
  if (answer.status === 401) onUnauthorized();
  throw new Problem(answer.status, problem);
}

/* What a browser says about a request without an answer is in English, and in words of its own. */
const send = (path, options) => fetch(path, { ...options, cache: 'no-store' }).catch(() => { throw new Problem(0, { detail: t('unreachable') }); });

export async function call(method, path, body) {
  const answer = await send(path, {
    method,
    headers: headers(body === undefined ? {} : { 'Content-Type': 'application/json' }),
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (!answer.ok) await fail(answer);
  return answer.status === 204 ? null : answer.json();
}
export const get = (path) => call('GET', path);

/* A document with its version; null: there is none. */
export async function getText(path) {
  const answer = await send(path, { headers: headers({}) });
  if (answer.status === 404) return null;
  if (!answer.ok) await fail(answer);
  return { text: await answer.text(), version: answer.headers.get('ETag') };
}
/* Replaces the version, and no other; null: there must be none. */
export async function putText(path, text, version) {
  const answer = await send(path, { method: 'PUT', headers: headers(version ? { 'If-Match': version } : { 'If-None-Match': '*' }), body: text });
  if (!answer.ok) await fail(answer);
}

/* "/v1/tasks" with {kind: 'a', after: ''} -> "/v1/tasks?kind=a" */
export function path(base, query = {}) {
  const text = Object.entries(query).filter(([, value]) => value !== '' && value !== null && value !== undefined)
    .map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join('&');
  return text ? `${base}?${text}` : base;
}
export const segment = (name) => encodeURIComponent(name).replace(/^\.+$/, (dots) => dots.replace(/\./g, '%2E'));

/* ---- Events ---- */

/* EventSource cannot send a token, so the stream is read by hand.  `on` gets each event; `state` gets 'live', or
 * 'lost' with the reason; `refused` gets why the daemon will not answer.  The result ends it. */
export function listen(lists, on, state, refused) {
  let stopped = false;
  let last = '';
  let retry = 1000;
  const control = new AbortController();
  /* A token for some names may watch only lists of them. */
  const prefix = new URLSearchParams(lists[0].split('?')[1] || '').get('prefix');
  const stream = async () => {
    const answer = await fetch(path('/v1/events', { prefix, watch: lists.join(' ') }), {
      headers: headers(last ? { 'Last-Event-ID': last } : {}), signal: control.signal, cache: 'no-store',
    });
    if (!answer.ok) await fail(answer);
    state('live');
    await readEvents(answer.body.getReader(), (event) => {
      if (event.retry) retry = Number(event.retry);
      if (event.id) last = event.id;
      if (event.data) on(event.event, JSON.parse(event.data));
    });
  };
  (async () => {
    while (!stopped) {
      try {
        await stream();
        if (!stopped) state('lost', '');
      } catch (error) {
        if (stopped) return;
        state('lost', error.message);
        if (error.status >= 400 && error.status < 500) {
          refused(error);
          return;
        }
      }
      await new Promise((wake) => { setTimeout(wake, retry * (0.7 + Math.random() * 0.6)); });
    }
  })();
  return () => {
    stopped = true;
    control.abort();
  };
}

/* A daemon that sends nothing, not even a comment, for this long is gone. */
const SILENCE_MS = 30000;

async function readEvents(reader, on) {
  const decoder = new TextDecoder();
  let text = '';
  for (;;) {
    let timer;
    const silence = new Promise((_, reject) => { timer = setTimeout(() => reject(new Error('silence')), SILENCE_MS); });
    const part = await Promise.race([reader.read(), silence]).finally(() => clearTimeout(timer))
      .catch((error) => { reader.cancel().catch(() => {}); throw error; });
    if (part.done) return;
    text += decoder.decode(part.value, { stream: true });
    const blocks = text.split('\n\n');
    text = blocks.pop();
    for (const block of blocks) {
      const event = {};
      for (const line of block.split('\n')) {
        const colon = line.indexOf(':');
        if (colon > 0) event[line.slice(0, colon)] = line.slice(colon + 1).trimStart();
      }
      on(event);
    }
  }
}
