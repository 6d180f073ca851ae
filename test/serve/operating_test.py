# SPDX-License-Identifier: MIT
"""How dibs serve is operated: configuration, access log, systemd, pages of other origins.

usage: operating_test.py DIBS
"""
import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.parse

import auth_test
import serve_test as t
from checks import PATIENCE_S, check, end, wait_until
from auth_test import bearer, new_token, raw, refusal, said, status_of, write_tokens
from serve_test import DIBS, FOLDER, Server

TRACE = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'


def lines_of(path):
    with open(path, encoding='utf-8') as file:
        return [json.loads(line) for line in file]


def stop(server):
    server.process.terminate()
    check('the server ends with 0', server.process.wait(PATIENCE_S) == 0, said(server))


# ---- The access log ----

def test_traces():
    """A trace that is not well-formed is ignored, as W3C Trace Context has it; of a later version the beginning counts."""
    path = f'{FOLDER}/traces.log'
    s = Server('--access-log', path)
    later = 'cc' + TRACE[2:]
    traces = [(TRACE, TRACE), (later, later), (f'{later}-what-the-future-brings', later), (f'{later}.', None),
              (f'{TRACE}-', None), (f'{TRACE}-00', None), (TRACE.upper(), None), ('ff' + TRACE[2:], None), (TRACE[:-1], None),
              (TRACE.replace(TRACE.split('-')[1], '0' * 32), None), (TRACE.replace(TRACE.split('-')[2], '0' * 16), None),
              ('', None), (TRACE.replace('-', '_'), None)]
    for sent, _ in traces:
        s.call('GET', '/v1/leases/traced', None, {'traceparent': sent})
    auth_test.raw(s, f'GET /v1/leases/twice HTTP/1.1\r\nHost: localhost\r\ntraceparent: {TRACE}\r\ntraceparent: {TRACE}\r\n'
                  'Connection: close\r\n\r\n')

    def logged():
        return [one.get('trace') for one in lines_of(path) if one['name'] in ('traced', 'twice')]

    check('each request has a line', wait_until(lambda: len(logged()) == len(traces) + 1), logged())
    for (sent, wanted), got in zip(traces, logged()):
        check(f'the trace {sent[:60]!r} is {"kept" if wanted else "ignored"}', got == wanted, got)
    check('two of them are ignored', logged()[-1] is None, logged()[-1])
    stop(s)


def test_access_log():
    path = f'{FOLDER}/access.log'
    secret, line = new_token('ann')
    write_tokens(line)
    s = Server('--tokens', auth_test.TOKENS, '--access-log', path)
    lease = s.call('POST', '/v1/leases/deploy%20%22x%22', {'owner': 'private'}, {**bearer(secret), 'traceparent': TRACE})[2]
    s.call('DELETE', '/v1/leases/deploy%20%22x%22?keep=1s', None, {**bearer(secret), 'Dibs-Lease': lease['id']})
    s.call('GET', '/v1/leases/x', None, {'Authorization': 'Bearer wrong-secret'})
    s.call('GET', '/v1/nothing', None, {**bearer(secret), 'traceparent': 'my-password'})
    s.call('PUT', '/v1/records/r?unchecked=true', b'the body', {**bearer(secret), 'Idempotency-Key': 'the-key'})
    check('a line for each request', wait_until(lambda: len(lines_of(path)) >= 6), lines_of(path))
    log = [one for one in lines_of(path) if one['route'] != '/healthz']
    first, second, third, fourth, fifth = log
    check('it has who, what and the result', (first['token'], first['method'], first['route'], first['name'], first['status'], first['client'])
          == ('ann', 'POST', '/v1/leases/{name}', 'deploy "x"', 201, '127.0.0.1'), first)
    check('and when, how long, how much', re.fullmatch(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z', first['time']) and first['duration_ms'] >= 0 and
          first['bytes'] > 50, first)
    check('and the trace', first['trace'] == TRACE, first)
    check('a release', (second['method'], second['status'], second['bytes']) == ('DELETE', 204, 0), second)
    check('a token that is not known', third['token'] is None and third['status'] == 401, third)
    check('a path that is not known', fourth['route'] is None and fourth['status'] == 404 and 'trace' not in fourth, fourth)
    check('a write', fifth['status'] in (201, 204), fifth)
    with open(path, encoding='utf-8') as file:
        text = file.read()
    for what in (secret, lease['id'], 'wrong-secret', 'private', 'the body', 'the-key', 'my-password', 'unchecked', 'nothing'):
        check(f'it does not have "{what[:12]}"', what not in text)
    check('others cannot read it', os.stat(path).st_mode & 0o007 == 0)
    os.rename(path, path + '.1')
    s.process.send_signal(signal.SIGHUP)
    check('HUP begins a new file', wait_until(lambda: os.path.exists(path)))
    s.call('GET', '/healthz')
    check('which has the next line', wait_until(lambda: lines_of(path)), said(s))
    os.unlink(path)
    os.mkdir(path)
    s.process.send_signal(signal.SIGHUP)
    check('one that cannot be opened is reported', wait_until(lambda: 'the access log stays' in said(s)), said(s))
    check('and the server serves', s.call('GET', '/healthz')[0] == 200)
    stop(s)
    check('a log in a folder that is missing is refused', 'cannot write the access log' in refusal('--access-log', f'{FOLDER}/none/log'))


def test_slow_log():
    """A reader of the log that does not read costs lines, and no request."""
    reader, writer = os.pipe()
    port = t.free_port()
    process = subprocess.Popen([DIBS, 'serve', '--store', t.STORE, '--listen', f'127.0.0.1:{port}', '--access-log', '-'], stdout=writer,
                               stderr=subprocess.DEVNULL)
    os.close(writer)
    s = Server.__new__(Server)
    s.port, s.process = port, process

    def lives():
        with contextlib.suppress(OSError):
            return s.call('GET', '/healthz')[0] == 200
        return False
    wait_until(lives)
    request = b'GET /problems/held HTTP/1.1\r\nHost: h\r\n\r\n' * 500
    for _ in range(20):
        with contextlib.closing(socket.create_connection(('127.0.0.1', port), PATIENCE_S)) as client:
            client.sendall(request)
            got = b''
            while got.count(b'HTTP/1.1 ') < 500 and (part := client.recv(1 << 20)):
                got += part
    check('all were answered although nobody reads the log', got.count(b'HTTP/1.1 ') == 500, got[-200:])
    process.terminate()
    check('and the server ends with 0', process.wait(PATIENCE_S) == 0)
    with open(reader, encoding='utf-8') as file:
        lines = file.read().splitlines()
    check('what was written is whole lines', all(json.loads(one) for one in lines[:-1]) and len(lines) > 100, len(lines))


# ---- Pages of other origins ----

def test_origins():
    s = Server('--cors', 'https://app.example', '--cors', 'http://127.0.0.1:3000')
    own = f'http://127.0.0.1:{s.port}'
    status, headers, _ = s.call('POST', '/v1/leases/o', {}, {'Origin': 'https://app.example'})
    check('a page of a listed origin is served', status == 201 and headers['access-control-allow-origin'] == 'https://app.example' and
          'ETag' in headers['access-control-expose-headers'] and headers['vary'] == 'Origin', status, headers)
    check('its own page, too', s.call('GET', '/v1/leases/o', None, {'Origin': own})[0] == 200)
    for origin in ('https://evil.example', 'null', 'https://app.example.evil', 'https://app.example:8443', 'http://app.example',
                   'https://127.0.0.1', f'http://localhost:{s.port}', ''):
        status, headers, body = s.call('POST', '/v1/leases/p', '{}', {'Origin': origin, 'Content-Type': 'text/plain'})
        check(f'not a page of "{origin}"', status == 403 and body['type'] == '/problems/origin' and
              'access-control-allow-origin' not in headers, status, headers, body)
    check('and nothing was acquired', s.call('GET', '/v1/leases/p')[0] == 404)
    asks = {'Access-Control-Request-Method': 'PUT', 'Access-Control-Request-Headers': 'authorization'}
    status, headers, _ = s.call('OPTIONS', '/v1/records/x', None, {'Origin': 'https://app.example', **asks})
    check('a preflight request', status == 204 and 'PUT' in headers['access-control-allow-methods'] and
          'Authorization' in headers['access-control-allow-headers'], status, headers)
    check('not of another origin', s.call('OPTIONS', '/v1/records/x', None, {'Origin': 'https://evil.example', **asks})[0] == 403)
    check('OPTIONS alone is no method', s.call('OPTIONS', '/v1/records/x')[0] == 405)
    for host, want in [('localhost', 404), ('127.0.0.1', 404), ('[::1]:7380', 404), ('dibs:80', 404), ('app.example', 404),
                       ('evil.example', 403), ('127.0.0.1.evil.example', 403), ('localhost.', 403), ('evil.example:80', 403)]:
        got = status_of(raw(s, f'GET /v1/leases/nobody HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n'))
        check(f'Host: {host} is {want}', got == want, got)
    stop(s)
    s = Server()
    check('without --cors no header of it', 'vary' not in s.call('GET', '/healthz')[1])
    stop(s)
    for origin in ('*', 'app.example', 'https://', 'https://app.example/path', 'ftp://x'):
        check(f'--cors {origin} is refused', 'is not an origin' in refusal('--cors', origin))


# ---- Configuration ----

def test_configuration():
    ini = f'{FOLDER}/serve.ini'
    secret, line = new_token('a')
    write_tokens(line)

    def begin(*options, text='', **environment):
        with open(ini, 'w', encoding='utf-8') as file:
            file.write(text)
        s = Server.__new__(Server)
        os.environ.update(environment)
        try:
            s.__init__(*options)
        finally:
            for name in environment:
                del os.environ[name]
        return s

    s = begin('--config', ini, text=f'[gate]\nx = y\n[serve]\ntokens = {auth_test.TOKENS}\nbody = 2000\n')
    check('the file is read', s.call('GET', '/v1/leases/x')[0] == 401)
    check('its numbers, too', s.call('PUT', '/v1/records/x', b'x' * 2001, bearer(secret))[0] == 413)
    stop(s)
    s = begin('--config', ini, text='[serve]\nbody = 2000\n', DIBS_SERVE_BODY='3000')
    check('the environment comes before the file', s.call('PUT', '/v1/records/x?unchecked=true', b'x' * 2500)[0] in (201, 204))
    stop(s)
    s = begin('--body', '4000', DIBS_SERVE_BODY='3000', DIBS_SERVE_CONFIG=ini, text='[serve]\nbody = 2000\nlisten = 127.0.0.1:1\n')
    check('options before both', s.call('PUT', '/v1/records/x?unchecked=true', b'x' * 3500)[0] in (201, 204))
    stop(s)
    port = t.free_port()
    s = Server.__new__(Server)
    with open(ini, 'w', encoding='utf-8') as file:
        file.write(f'[serve]\nstore = {t.STORE}\nlisten = 127.0.0.1:{port}\tunix:{FOLDER}/ini.sock\n')
    with open(f'{FOLDER}/ini-errors', 'w', encoding='utf-8') as errors:
        process = subprocess.Popen([DIBS, 'serve', '--config', ini], stderr=errors, env={**os.environ, 'DIBS_STORE': ''})
    s.port, s.process, s.errors = port, process, errors

    def lives():
        with contextlib.suppress(OSError):
            return s.call('GET', '/readyz')[0] == 200
        return False
    check('the file has the store and several addresses', wait_until(lives) and os.path.exists(f'{FOLDER}/ini.sock'), said(s))
    stop(s)
    for text, reason in [('[serve]\nboddy = 1\n', 'did you mean body?'), ('[serve]\nbody = x\n', "'x' is not a number"),
                         ('[serve]\nnew-token = x\n', 'has no new-token'), ('[serve\n', ':1:'), ('[serve]\ncors = *\n', 'is not an origin'),
                         ('[serv]\nbody = 2000\n', 'no section [serv]; did you mean [serve]?'),
                         ('[elephants]\n', 'no section [elephants]; the options of dibs serve belong into [serve]')]:
        with open(ini, 'w', encoding='utf-8') as file:
            file.write(text)
        why = refusal('--config', ini)
        check(f'{text!r} is refused', reason in why, why)
    check('a file that is missing is refused', 'No such file' in refusal('--config', f'{FOLDER}/none.ini'))
    os.environ['DIBS_SERVE_RATE'] = '-1'
    check('a wrong variable is named', 'DIBS_SERVE_RATE' in refusal())
    del os.environ['DIBS_SERVE_RATE']
    for variable, reason in [('DIBS_SERVE_ACCES_LOG', 'no variable DIBS_SERVE_ACCES_LOG; did you mean DIBS_SERVE_ACCESS_LOG?'),
                             ('DIBS_SERVE_ELEPHANTS', 'no variable DIBS_SERVE_ELEPHANTS\n'), ('DIBS_SERVE_SCOPE', 'DIBS_SERVE_SCOPE')]:
        os.environ[variable] = ''
        why = refusal()
        check(f'{variable} is refused', reason in why, why)
        del os.environ[variable]


# ---- systemd ----

class Notified:
    """Receives what the service sends to systemd."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.settimeout(PATIENCE_S)
        self.socket.bind(path)

    def next(self, but=b'WATCHDOG=1'):
        while (got := self.socket.recv(1000)) == but:
            pass
        return got


def start_activated(sockets, *options, **environment):
    """As systemd does: the sockets are 3 and up, and LISTEN_PID is the process."""
    script = 'i=3; for fd in $0; do eval "exec $i<&$fd"; i=$((i+1)); done; export LISTEN_PID=$$ LISTEN_FDS=$((i-3)); exec "$@"'
    errors = f'{FOLDER}/activated'
    with open(errors, 'w', encoding='utf-8') as file:
        process = subprocess.Popen(['sh', '-c', script, ' '.join(str(s.fileno()) for s in sockets), DIBS, 'serve', '--store', t.STORE, *options],
                                   pass_fds=[s.fileno() for s in sockets], stderr=file, env={**os.environ, **environment})
    s = Server.__new__(Server)
    s.process, s.errors = process, file
    s.port = next((one.getsockname()[1] for one in sockets if one.family == socket.AF_INET), 0)
    return s


def test_systemd():
    notified = Notified(f'{FOLDER}/notify')
    with contextlib.closing(socket.create_server(('127.0.0.1', 0))) as tcp, contextlib.closing(socket.socket(socket.AF_UNIX)) as local:
        local.bind(f'{FOLDER}/activated.sock')
        local.listen()
        s = start_activated([tcp, local], NOTIFY_SOCKET=f'{FOLDER}/notify', WATCHDOG_USEC='200000')
        check('it says when it is ready', notified.next() == b'READY=1', said(s))
        check('it serves at the socket that it got', s.call('GET', '/healthz')[0] == 200)
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as client:
            client.connect(f'{FOLDER}/activated.sock')
            client.sendall(b'GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n')
            check('and at the Unix socket', b' 200 ' in client.recv(1000))
        check('and says so', f'serving {t.STORE} at 2 sockets of systemd' in said(s), said(s))
        seen = [notified.socket.recv(1000) for _ in range(3)]
        check('it tells the watchdog that it runs', seen == [b'WATCHDOG=1'] * 3, seen)
        s.process.send_signal(signal.SIGHUP)
        check('it says when it reads its files again', (notified.next(), notified.next()) == (b'RELOADING=1', b'READY=1'))
        s.call('POST', '/v1/leases/held', {'ttl': '1m'})
        wait, got = t.begin(s.call, 'POST', '/v1/leases/held', {'wait': '30s'})
        wait_until(lambda: len(s.call('GET', '/v1/leases/held')[2]['leases']) == 2)
        s.process.terminate()
        check('it says when it stops', notified.next() == b'STOPPING=1')
        wait.join(PATIENCE_S)
        check('one that waits is answered 503 with Retry-After', got and got[0][0] == 503 and got[0][1]['retry-after'] == '1', got)
        check('the server ends with 0', s.process.wait(PATIENCE_S) == 0, said(s))
    with contextlib.closing(socket.create_server(('0.0.0.0', 0))) as public:
        s = start_activated([public])
        check('a public socket needs tokens and TLS, too', s.process.wait(PATIENCE_S) != 0 and 'is not a loopback address' in said(s), said(s))
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as datagrams:
        s = start_activated([datagrams])
        check('a socket of another kind is refused', s.process.wait(PATIENCE_S) != 0 and 'not a stream socket' in said(s), said(s))


# ---- What the units hide of /proc ----

UNITS = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../../packaging/systemd')


def setting(unit, name, default):
    with open(f'{UNITS}/{unit}', encoding='utf-8') as file:
        return dict(line.strip().split('=', 1) for line in file if '=' in line and line[0] != '#').get(name, default)


def proc_of(unit):
    """The options with which systemd mounts /proc for a unit."""
    return f"subset={setting(unit, 'ProcSubset', 'all')},hidepid={setting(unit, 'ProtectProc', 'default')}".replace(
        'subset=all,', '').replace('hidepid=default', 'hidepid=off')


def own_proc(options):
    """What runs a command with a /proc that is mounted with these options."""
    return ['unshare', '-m', 'sh', '-c', f'mount -t proc -o {options} proc /proc && exec "$@"', 'own-proc']


def missing_proc(options):
    """Why this system does not let the test mount such a /proc; None: it does."""
    try:
        done = subprocess.run([*own_proc(options), 'true'], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except FileNotFoundError as e:
        return str(e)
    return (done.stderr.strip() or f'exit {done.returncode}') if done.returncode else None


def lease_survives_restarts(unit, path):
    """A daemon with the /proc of its unit, and a command outside, on one SQLite store."""
    options, store = proc_of(unit), f'sqlite://{path}'
    first = Server(store=store, prefix=own_proc(options))
    lease = first.call('POST', '/v1/leases/kept', {'ttl': '10m'})[2]
    seen = subprocess.run([DIBS, 'ls', '--store', store], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    check(f'{unit}: a command outside of it opens its store', seen.returncode == 0 and 'kept' in seen.stdout, seen)
    stop(first)
    second = Server(store=store, prefix=own_proc(options))
    status, _, body = second.call('PATCH', '/v1/leases/kept', {'ttl': '10m'}, {'Dibs-Lease': lease['id']})
    check(f'{unit}: a lease survives a restart of it', status == 200 and body['fence'] == lease['fence'], status, body, lease)
    stop(second)


def test_units():
    for unit in ('dibs-serve.service', 'dibs-gate.service'):
        check(f'{unit}: it can read the boot id', setting(unit, 'ProcSubset', 'all') == 'all')
        why = missing_proc(proc_of(unit))
        if why:
            check(f'{unit}: a lease survives a restart of it # SKIP {why}', True)
        else:
            lease_survives_restarts(unit, f'{FOLDER}/{unit}.db')


def test_hidden_boot_id():
    """A store that cannot know whether the machine was restarted does not open: it would forget leases, or trust lost ones."""
    hidden, path = 'subset=pid', f'{FOLDER}/hidden.db'
    why = missing_proc(hidden)
    if why:
        check(f'without the boot id the store is refused # SKIP {why}', True)
        return
    s = Server(store=f'sqlite://{path}')
    lease = s.call('POST', '/v1/leases/kept', {'ttl': '10m'})[2]
    for closed in (False, True):
        if closed:
            stop(s)
        for command in (['ls'], ['serve', '--listen', f'unix:{FOLDER}/hidden.sock']):
            done = subprocess.run([*own_proc(hidden), DIBS, command[0], '--store', f'sqlite://{path}', *command[1:]],
                                  capture_output=True, text=True, timeout=PATIENCE_S, check=False)
            check(f'without the boot id dibs {command[0]} is refused, with the reason', done.returncode != 0 and
                  "can't read /proc/sys/kernel/random/boot_id" in done.stderr and 'subset=pid' in done.stderr, done)
    s = Server(store=f'sqlite://{path}')
    check('and its leases are valid as before',
          s.call('PATCH', '/v1/leases/kept', {'ttl': '10m'}, {'Dibs-Lease': lease['id']})[0] == 200)
    stop(s)


# ---- A store in trouble ----

def metric(s, name):
    return s.call('GET', f'/v1/metrics/{name}')[2]['samples'][0]['value']


def test_probe():
    """Requests without a token share one read of the store."""
    s = Server('--threads', '1', store=f'latency+sqlite://{FOLDER}/far.db?latency.ms=500')
    began = time.monotonic()
    clients = [t.send(s, 'GET', '/readyz') for _ in range(500)]
    statuses = {client.getresponse().status for client in clients}
    check('a read of the store answers all that want to know', statuses == {200} and time.monotonic() - began < 100,
          statuses, time.monotonic() - began)
    stop(s)


def test_store_in_trouble():
    path = f'{FOLDER}/trouble.db'
    s = Server(store=f'sqlite://{path}')
    s.call('POST', '/v1/kinds/k/tasks', {})
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=PATIENCE_S)) as other:
        check('the store is up', metric(s, 'store.up') == 1 and s.call('GET', '/readyz')[0] == 200)
        check('its tasks are counted', wait_until(lambda: s.call('GET', '/v1/metrics/tasks')[0] == 200))
        other.execute('ALTER TABLE dibs_name RENAME TO elsewhere')
        check('it is down soon, though tasks were counted', wait_until(lambda: metric(s, 'store.up') == 0))
        status, headers, body = s.call('GET', '/readyz')
        check('and the server is not ready', status == 503 and headers['retry-after'] == '1', status)
        check('it does not say why to those without a token', 'sql' not in str(body).lower() and 'dibs_' not in str(body), body)
        check('but to the operator', 'the store does not answer: ' in said(s) and 'dibs_name' in said(s), said(s))
        other.execute('ALTER TABLE elsewhere RENAME TO dibs_name')
        check('it is up soon', wait_until(lambda: s.call('GET', '/readyz')[0] == 200) and metric(s, 'store.up') == 1)
        check('and says so', said(s).count('the store answers again') == 1, said(s))
    stop(s)


def test_settings():
    """The counts that the server keeps are older than some changes of settings."""
    s = Server(store=f'latency+sqlite://{FOLDER}/settings.db?latency.ms=10&latency.jitter=60')
    wrong = []

    def turn(kind):
        for paused in [True, False] * 15:
            body = s.call('PATCH', f'/v1/kinds/{kind}', {'paused': paused})[2]
            if body['paused'] != paused:
                wrong.append(body)

    threads = [t.begin(turn, f'k{i}')[0] for i in range(8)]
    for thread in threads:
        thread.join()
    check('a change of settings answers the new ones', not wrong, len(wrong), wrong[:3])
    stop(s)


def test_foreign_rows():
    """Rows that somebody wrote by SQL, with names that are longer than dibs' own."""
    path = f'{FOLDER}/foreign.db'
    s = Server(store=f'sqlite://{path}')
    s.call('POST', '/v1/kinds/a/tasks', {})
    s.call('PUT', '/v1/stocks/a', {'limit': 1})
    s.call('POST', '/v1/leases/a', {'ttl': '1m'})
    kind = '\N{CLINKING BEER MUGS}' * 255
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=PATIENCE_S)) as other:
        nr = other.execute('INSERT INTO dibs_task (kind) VALUES (?)', (kind,)).lastrowid
        other.execute('INSERT INTO dibs_stock (name, used, most, fence, owner) SELECT ?, used, most, fence, owner FROM dibs_stock', ('b' * 5000,))
        columns = ','.join(row[1] for row in other.execute('PRAGMA table_info(dibs_name)') if row[1] != 'name')
        found = []
        wait_until(lambda: found.append(s.call('GET', '/v1/kinds')[2]['kinds']) or len(found[-1]) == 2)
        check('the kind is listed whole', [one['kind'] for one in found[-1]] == ['a', kind], found[-1])
        page = s.call('GET', '/v1/kinds?limit=1')[2]
        check('the pages lead past it', page['next'] == 'a' and
              s.call('GET', f'/v1/kinds?after={urllib.parse.quote(kind)}')[2]['kinds'] == [], page)
        status, _, body = s.call('GET', f'/v1/tasks/{nr}')
        check('the task is shown', status == 200 and body['kind'] == kind, status, body)
        status, _, body = s.call('GET', '/v1/stocks')
        check('the stock is listed, or the listing says that it cannot be', status == 502 or
              (status == 200 and body['stocks'][1]['key'] == 'b' * 5000), status, str(body)[:300])
        other.execute(f'INSERT INTO dibs_name ({columns}, name) SELECT {columns}, ? FROM dibs_name WHERE name = ?', ('c' * 5000, 'a'))
        status, _, body = s.call('GET', '/v1/leases')
        check('a name that is too long is damage', status == 502, status, str(body)[:300])
        other.execute('DELETE FROM dibs_name WHERE length(name) > 255')
    check('the server survives it', s.call('GET', '/v1/leases')[0] == 200)
    stop(s)


def main():
    for test in (test_units, test_hidden_boot_id, test_probe, test_store_in_trouble, test_settings, test_foreign_rows, test_access_log, test_traces, test_slow_log, test_origins, test_configuration, test_systemd):
        test()
    return end()


if __name__ == '__main__':
    sys.exit(main())
