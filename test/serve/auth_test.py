# SPDX-License-Identifier: MIT
"""Who may send which requests to dibs serve: tokens, scopes, prefixes, TLS, client certificates.

usage: auth_test.py DIBS
"""
import base64
import contextlib
import hashlib
import http.client
import json
import os
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import warnings

import serve_test as t
from checks import PATIENCE_S, check, end, wait_until
from serve_test import DIBS, FOLDER, Server

TOKENS = f'{FOLDER}/tokens'


def new_token(label, *options):
    """(secret, line)"""
    done = subprocess.run([DIBS, 'serve', '--new-token', label, *options], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def write_tokens(*lines, path=TOKENS, mode=0o600):
    with open(f'{path}.new', 'w', encoding='utf-8') as file:
        file.write('\n'.join(lines) + '\n')
    os.chmod(f'{path}.new', mode)
    os.replace(f'{path}.new', path)


def bearer(secret):
    return {'Authorization': f'Bearer {secret}'}


def raw(server, text, timeout=PATIENCE_S):
    """All that the server answers to these bytes."""
    got = b''
    with contextlib.closing(socket.create_connection(('127.0.0.1', server.port), timeout)) as client:
        client.sendall(text if isinstance(text, bytes) else text.encode('latin-1'))
        with contextlib.suppress(ConnectionResetError):
            while part := client.recv(65536):
                got += part
                head, _, body = got.partition(b'\r\n\r\n')
                lengths = [line for line in head.lower().split(b'\r\n') if line.startswith(b'content-length:')]
                if body and lengths and len(body) >= int(lengths[0].split(b':')[1]):
                    break
    return got


def status_of(answer):
    return int(answer.split(b' ')[1]) if answer.startswith(b'HTTP/1.1 ') else answer


def said(server):
    with open(server.errors.name, encoding='utf-8') as file:
        return file.read()


def reload(server, says):
    before = said(server).count(says)
    server.process.send_signal(signal.SIGHUP)
    check(f'a reload says: {says}', wait_until(lambda: said(server).count(says) > before), said(server))


# ---- Tokens ----

def test_making():
    secret, line = new_token('ann')
    label, scope, prefix, digest = line.split(' ')
    check('a new token is for use of all names', (label, scope, prefix) == ('ann', 'use', '*'), line)
    check('its line has its hash', digest == 'sha256:' + hashlib.sha256(secret.encode()).hexdigest(), secret, line)
    check('two are different', new_token('ann')[0] != secret)
    line = new_token('b', '--scope', 'admin', '--prefix', 'a b%*')[1]
    check('a prefix has no blank in the file', line.split(' ')[1:3] == ['admin', 'a%20b%25%2A'], line)
    done = subprocess.run([DIBS, '--json', 'serve', '--new-token', 'ann'], capture_output=True, text=True, check=True)
    check('as JSON', set(json.loads(done.stdout)) == {'token', 'line'}, done.stdout)
    for options in (['--new-token', ''], ['--new-token', 'a b'], ['--new-token', 'x' * 64], ['--new-token', 'a', '--scope', 'none'],
                    ['--scope', 'use'], ['--new-token', 'a', '--prefix', 'x' * 256]):
        done = subprocess.run([DIBS, 'serve', *options], capture_output=True, text=True, check=False)
        check(f'{options} is wrong usage', done.returncode == 2 or 'serve: --' in done.stderr and not done.stdout, done)


def refusal(*options):
    """Why a server does not begin."""
    done = subprocess.run([DIBS, 'serve', '--store', t.STORE, '--listen', f'127.0.0.1:{t.free_port()}', *options],
                          capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return done.stderr if done.returncode != 0 else f'it began: {done}'


def test_bad_files():
    digest = 'sha256:' + '0' * 64
    for what, text, reason in [
            ('no token', '# none\n', 'has no token'), ('three words', f'a use {digest}\n', 'line 1: write LABEL'),
            ('five words', f'a use * {digest} x\n', 'line 1: write LABEL'), ('a strange scope', f'\na root * {digest}\n', 'line 2: the scope'),
            ('scope none', f'a none * {digest}\n', 'the scope'), ('a short hash', f'a use * {digest[:-1]}\n', 'the hash'),
            ('another hash', f'a use * md5:{"0" * 64}\n', 'the hash'), ('upper case', f'a use * sha256:{"A" * 64}\n', 'the hash'),
            ('a prefix with half a %', f'a use %2 {digest}\n', 'the prefix'), ('a prefix with a NUL', f'a use %00 {digest}\n', 'the prefix'),
            ('a long label', f'{"a" * 64} use * {digest}\n', 'the label'),
            ('the hash of nothing', f'a use * sha256:{hashlib.sha256(b"").hexdigest()}\n', 'an empty token'),
            ('a NUL', f'a use * {digest}\n\0b admin * {digest}\n', 'NUL'), ('a huge file', '#' * (2 << 20), 'too large')]:
        path = f'{FOLDER}/bad'
        with open(path, 'w', encoding='utf-8') as file:
            file.write(text)
        os.chmod(path, 0o600)
        why = refusal('--tokens', path)
        check(f'a file with {what} is refused', reason in why, why)
    write_tokens(f'a use * {digest}', path=path, mode=0o620)
    check('a file that others may write is refused', 'chmod go-w' in refusal('--tokens', path))
    check('a file that is missing is refused', 'No such file' in refusal('--tokens', f'{FOLDER}/none'))


def test_scopes():
    made = {label: new_token(label, *options) for label, options in {
        'reader': ['--scope', 'read'], 'user': [], 'admin': ['--scope', 'admin'], 'jobs': ['--prefix', 'jobs/'],
        'blank': ['--prefix', 'a b%']}.items()}
    write_tokens('# who may do what', '', *(f'  {line}\r' for _, line in made.values()))
    key = {label: secret for label, (secret, _) in made.items()}
    s = Server('--tokens', TOKENS)

    def call(label, method, path, body=None, **headers):
        return s.call(method, path, body, {**bearer(key[label]), **headers})[0]

    status, headers, body = s.call('GET', '/v1/leases/x')
    check('without a token: 401, with the scheme', status == 401 and headers['www-authenticate'].startswith('Bearer') and
          body['type'] == '/problems/no-token', status, headers, body)
    check('health needs none', s.call('GET', '/healthz')[0] == 200)
    check('nor does the description', s.call('GET', '/openapi.json')[0] == 200)
    check('a wrong token: 401', s.call('GET', '/v1/leases/x', None, bearer('dibs_' + '0' * 64))[0] == 401)
    check('a reader reads', call('reader', 'GET', '/v1/leases/x') == 404)
    status, _, body = s.call('POST', '/v1/leases/x', {}, bearer(key['reader']))
    check('and acquires nothing: 403', status == 403 and body['type'] == '/problems/scope' and 'reader' in body['detail'], status, body)
    check('a user acquires', call('user', 'POST', '/v1/leases/x', {}) == 201)
    check('an admin, too', call('admin', 'POST', '/v1/leases/y', {}) == 201)
    check('its own names', call('jobs', 'POST', '/v1/leases/jobs%2F1', {}) == 201)
    check('a name that is encoded in another way is the same name', call('jobs', 'GET', '/v1/leases/%6Aobs%2f1') == 200)
    for path in ('/v1/leases/job', '/v1/leases/Jobs%2F1', '/v1/leases/%2Fjobs%2F1', '/v1/leases/jobs', '/v1/leases/jobs%252F1',
                 '/v1/records/x', '/v1/stocks/x', '/v1/stocks/other/claims/jobs%2F1'):
        method = 'PUT' if 'claims' in path else 'GET'
        status, _, body = s.call(method, path, None if method == 'GET' else {}, bearer(key['jobs']))
        check(f'not {path}', status == 403 and body['type'] == '/problems/prefix', status, body)
    for path, step in (('/v1/leases/x', 'use such a name'), ('/v1/leases', 'add ?prefix='), ('/v1/leases?prefix=x', 'add ?prefix='),
                       ('/v1/tiers', 'for all names'), ('/v1/events?watch=/v1/leases', 'prefix= with this')):
        status, _, body = s.call('GET', path, None, bearer(made['jobs'][0]))
        check(f'the refusal of {path} names the prefix and the next step', status == 403 and '"jobs/"' in body['detail'] and
              step in body['detail'], status, body)
    for path in ('/v1/leases/jobs/../x', '/v1/leases/jobs%2F1/../../x', '/v1//leases/jobs%2F1', '//v1/leases/x', '/v1/leases/x/',
                 '/V1/leases/x', '/v1/leases/jobs%2F1%00', '/v1/leases/x?prefix=jobs/', '/v1/leases/x#jobs/', '/v1/leases/x;jobs/',
                 'http://h/v1/leases/x', '/v1/leases//jobs%2F1', '/v1/leases/?name=jobs/', '/v1/leases?prefix=jobs/&prefix=',
                 '/v1/leases', '/v1/leases?prefix=', '/v1/leases?Prefix=jobs/&prefix=x', '/v1/leases?prefix=%00jobs/'):
        got = status_of(raw(s, f'GET {path} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key["jobs"]}\r\nConnection: close\r\n\r\n'))
        check(f'no odd path leads to another name: {path}', got in (400, 403, 404), got)
    check('a prefix with blanks', call('blank', 'GET', '/v1/leases/a%20b%25c') == 404 and call('blank', 'GET', '/v1/leases/ab') == 403)
    check('tasks of another kind', call('jobs', 'POST', '/v1/kinds/mail/tasks', {}) == 403)
    for kind in ('cron:jobs', 'cron:'):
        status = s.call('POST', f'/v1/kinds/{kind}/tasks', {'payload': 'hand 1 nightly'}, bearer(key['user']))[0]
        check(f'a user fires no job by a task of the kind {kind}: 403', status == 403, status)
    check('an admin does', s.call('POST', '/v1/kinds/cron:jobs/tasks', {'payload': 'hand 1 nightly'}, bearer(key['admin']))[0] == 201)
    # What operators decide is in records, too: a crontab is run by nodes, and a gate obeys its highest fence.
    for own in ('crontab:night', 'crontabs', 'gate:x', 'gate.1:x', 'gate-hash:x', '%01tiers'):
        for method, path in (('PUT', f'/v1/records/{own}?unchecked=true'), ('DELETE', f'/v1/records/{own}?unchecked=true')):
            status, _, body = s.call(method, path, {}, bearer(key['user']))
            check(f'a user does not {method} the record {own}', status in (400, 403), status, body)
    for label, wanted in (('user', 'DENIED'), ('admin', '')):
        done = subprocess.run([DIBS, 'record', 'put', 'crontab:night', '--create', '--json', '--store', f'http://127.0.0.1:{s.port}'],
                              input=b'x', env=os.environ | {'DIBS_TOKEN': key[label]}, capture_output=True, timeout=PATIENCE_S, check=False)
        check(f'dibs with the token {label} writes a crontab: {wanted or "OK"}', wanted in done.stderr.decode() and
              (done.returncode == 0) == (wanted == ''), done)
    for once, wanted in (('jobs/1', 201), ('other', 403), ('Jobs/2', 403)):
        status = s.call('POST', '/v1/once', {}, bearer(key['jobs']) | {'Idempotency-Key': once})[0]
        check(f'the key {once} of once: {wanted}', status == wanted, status)
    check('a request of once without a key', call('jobs', 'POST', '/v1/once', {}) == 403)
    check('a reader begins no work', s.call('POST', '/v1/once', {}, bearer(key['reader']) | {'Idempotency-Key': 'x'})[0] == 403)
    return s, key, made


def test_kinds():
    """Tasks are named by number and fence, which others can guess: a token for some kinds ends no task of another kind."""
    (mail, mail_line), (pay, pay_line) = (new_token(kind, '--prefix', kind) for kind in ('mail', 'pay'))
    write_tokens(mail_line, pay_line)
    s = Server('--tokens', TOKENS)

    def add_and_claim(kind, secret):
        s.call('POST', f'/v1/kinds/{kind}/tasks', {}, bearer(secret))
        task = s.call('POST', f'/v1/kinds/{kind}/claims', {}, bearer(secret))[2]['tasks'][0]
        return {'task': task['task'], 'fence': task['fence']}

    own, other = add_and_claim('mail', mail), add_and_claim('pay', pay)
    status, _, body = s.call('POST', '/v1/kinds/mail/results', {'tasks': [{**own, 'outcome': 'done'}, {**other, 'outcome': 'done'}]}, bearer(mail))
    check('a task of another kind is not ended', status == 403 and str(other['task']) in body['detail'], status, body)
    status, _, body = s.call('POST', '/v1/kinds/mail/extensions', {'tasks': [other], 'timeout': '1h'}, bearer(mail))
    check('nor extended', status == 403 and body['type'] == '/problems/prefix', status, body)
    for kind, secret, task in (('mail', mail, own), ('pay', pay, other)):
        body = s.call('POST', f'/v1/kinds/{kind}/results', {'tasks': [{**task, 'outcome': 'done'}]}, bearer(secret))[2]
        check(f'{kind} ends its own', body['tasks'][0]['status'] == 'OK', body)
    s.process.terminate()
    s.process.wait(PATIENCE_S)


def test_owners():
    """What a request takes belongs to the label of its token, if the request does not say otherwise."""
    secret, line = new_token('ann')
    write_tokens(line)
    store = f'{FOLDER}/owners.db'
    s = Server('--tokens', TOKENS, store=f'sqlite://{store}')
    s.call('PUT', '/v1/stocks/seats', {'limit': 9}, bearer(secret))
    s.call('POST', '/v1/kinds/mail/tasks', {'tasks': [{}, {}]}, bearer(secret))
    for claim, body in (('a', {}), ('b', {'owner': 'bob'})):
        s.call('PUT', f'/v1/stocks/seats/claims/{claim}', body, bearer(secret))
        s.call('POST', '/v1/kinds/mail/claims', body, bearer(secret))
    with contextlib.closing(sqlite3.connect(store, timeout=PATIENCE_S)) as db:
        owners = [[row[0].decode() if isinstance(row[0], bytes) else row[0] for row in db.execute(query)]
                  for query in ('SELECT taker FROM dibs_claim ORDER BY claim', 'SELECT owner FROM dibs_task ORDER BY nr')]
    check('claims of stocks and tasks have an owner', owners == [['ann', 'bob']] * 2, owners)
    s.process.terminate()
    s.process.wait(PATIENCE_S)


def test_command():
    """The command over http://: what its messages do needs the scope that the other routes need."""
    made = {scope: new_token(scope, '--scope', scope) for scope in ('read', 'use', 'admin')}
    limited, limited_line = new_token('limited', '--prefix', 'jobs/')
    write_tokens(*(line for _, line in made.values()), limited_line)
    s = Server('--tokens', TOKENS)

    def dibs(secret, *words):
        return subprocess.run([DIBS, *words, '--store', f'http://127.0.0.1:{s.port}'], capture_output=True, text=True, check=False,
                              env={**os.environ, 'DIBS_TOKEN': secret}, timeout=PATIENCE_S)

    use, admin = made['use'][0], made['admin'][0]
    done = dibs(use, 'lock', 'c', '--ttl', '1m')
    check('the scope use acquires', done.returncode == 0, done)
    done = dibs(use, 'break', 'c', '--now')
    check('and breaks nothing', done.returncode != 0 and s.call('GET', '/v1/leases/c', None, bearer(use))[2]['leases'][0]['state'] == 'holds', done)
    done = dibs(use, 'task', 'kind', 'mail', '--paused', 'on')
    check('and pauses no kind', done.returncode != 0, done)
    done = dibs(use, 'history', '--keep-for', 'off')
    check('and sets nothing of the history', done.returncode != 0, done)
    check('the scope read acquires nothing', dibs(made['read'][0], 'lock', 'd').returncode != 0)
    check('nor does a token with a prefix, whose names the message has', dibs(limited, 'lock', 'other').returncode != 0)
    done = dibs(admin, 'break', 'c', '--now')
    check('the scope admin breaks', done.returncode == 0, done)
    done = dibs(admin, 'task', 'kind', 'mail', '--paused', 'on')
    check('and pauses', done.returncode == 0, done)
    done = dibs(admin, 'history', '--keep-for', '1d')
    check('and sets', done.returncode == 0, done)
    s.process.terminate()
    s.process.wait(PATIENCE_S)


def test_odd_headers(s, key):
    good = key['user']
    for what, lines, want in [
            ('two tokens', f'Authorization: Bearer {good}\r\nAuthorization: Bearer {good}', 401),
            ('a wrong one first', f'Authorization: Bearer x\r\nAuthorization: Bearer {good}', 401),
            ('a wrong one second', f'authorization: Bearer {good}\r\nAUTHORIZATION: Bearer x', 401),
            ('an empty one', 'Authorization:', 401), ('only the scheme', 'Authorization: Bearer', 401),
            ('the scheme and a blank', 'Authorization: Bearer ', 401), ('only blanks', 'Authorization: Bearer    ', 401),
            ('another scheme', f'Authorization: Basic {base64.b64encode(good.encode()).decode()}', 401),
            ('no scheme', f'Authorization: {good}', 401), ('half a token', f'Authorization: Bearer {good[:-1]}', 401),
            ('a longer one', f'Authorization: Bearer {good}0', 401), ('a quoted one', f'Authorization: Bearer "{good}"', 401),
            ('two in one', f'Authorization: Bearer x, Bearer {good}', 401), ('another header', f'X-Authorization: Bearer {good}', 401),
            ('the hash itself', f'Authorization: Bearer {hashlib.sha256(good.encode()).hexdigest()}', 401),
            ('in a cookie', f'Cookie: Authorization=Bearer {good}', 401), ('a proxy\'s', f'Proxy-Authorization: Bearer {good}', 401),
            ('the scheme in lower case', f'authorization: bearer {good}', 404), ('the usual one', f'Authorization: Bearer {good}', 404)]:
        got = status_of(raw(s, f'GET /v1/leases/nobody HTTP/1.1\r\nHost: h\r\n{lines}\r\nConnection: close\r\n\r\n'))
        check(f'{what}: {want}', got == want, got)
    got = status_of(raw(s, f'GET /v1/leases/nobody?Authorization=Bearer%20{good} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n'))
    check('one in the query: 401', got == 401, got)
    big = b'x' * 100000
    got = raw(s, b'PUT /v1/records/x HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\nConnection: close\r\n\r\n' + big)
    check('the answer comes although a body was sent', status_of(got) == 401, got)
    # The second request of a pipeline is not admitted by the token of the first.
    with contextlib.closing(socket.create_connection(('127.0.0.1', s.port), PATIENCE_S)) as client:
        client.sendall(f'GET /v1/leases/x HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {good}\r\n\r\n'
                       'GET /v1/leases/x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n'.encode())
        got = b''
        while part := client.recv(65536):
            got += part
    check('each request of a connection needs its token', got.count(b'HTTP/1.1 200') == 1 and got.count(b'HTTP/1.1 401') == 1, got)


def watch_leases(s, secret):
    connection = s.connect()
    connection.request('GET', '/v1/events?watch=/v1/leases', headers=bearer(secret))
    return connection.getresponse()


def test_reload(s, key, made):
    connection = s.connect()
    check('a token is good before', s.call('GET', '/v1/leases/x', None, bearer(key['user']), connection)[0] == 200)
    wait, got = t.begin(s.call, 'POST', '/v1/leases/x', {'wait': '10m'}, bearer(key['admin']))
    check('one waits', wait_until(lambda: s.call('GET', '/v1/leases/x', None, bearer(key['admin']))[2]['leases'][1:]))
    other, line = new_token('other')
    id_of_two = {'id': 'ab' * 16, 'wait': '10m'}
    revoked = [t.begin(s.call, 'POST', path, body, bearer(key['user'])) for path, body in (
        ('/v1/leases/x', id_of_two), ('/v1/leases/x', id_of_two), ('/v1/kinds/none/claims', {'wait': '10m'}))]
    streams = [watch_leases(s, key[label]) for label in ('user', 'admin')]
    check('others wait, too', wait_until(lambda: s.waiting(key['admin']) == 4), s.waiting(key['admin']))
    write_tokens(made['admin'][1], line)
    reload(s, f'read 2 tokens from {TOKENS}')
    for thread, answers in revoked:
        thread.join(PATIENCE_S)
        check('what waits with a token that was removed is answered 401', answers and answers[0][0] == 401 and
              answers[0][2]['type'] == '/problems/no-token' and 'www-authenticate' in answers[0][1], answers)
    check('and has left the queue', wait_until(
        lambda: len(s.call('GET', '/v1/leases/x', None, bearer(key['admin']))[2]['leases']) == 2))
    check('its stream of events ends', streams[0].read() is not None)
    s.call('POST', '/v1/leases/after-the-reload', {}, bearer(key['admin']))
    check('the stream of one that stays goes on', any(b'after-the-reload' in line for line in iter(streams[1].readline, b'')))
    check('the next one of the same connection is refused', s.call('GET', '/v1/leases/x', None, bearer(key['user']), connection)[0] == 401)
    check('a new one is good', s.call('GET', '/v1/leases/x', None, bearer(other))[0] == 200)
    write_tokens('nonsense')
    reload(s, 'the tokens stay as they were')
    check('a bad file changes nothing', s.call('GET', '/v1/leases/x', None, bearer(other))[0] == 200)
    os.unlink(TOKENS)
    reload(s, 'the tokens stay as they were')
    check('nor does a missing one', s.call('GET', '/v1/leases/x', None, bearer(other))[0] == 200)
    check('and the server still needs tokens', s.call('GET', '/v1/leases/x')[0] == 401)
    check('the waiting one of a token that stays still waits', not got)
    s.process.terminate()
    wait.join(PATIENCE_S)
    check('until the server stops', got and got[0][0] == 503, got)
    check('the server ends with 0', s.process.wait(PATIENCE_S) == 0)
    check('no message contains a token', not any(secret in said(s) for secret in (*key.values(), other)))


def test_reload_under_load():
    secret, line = new_token('a')
    lines = [line, *(new_token(f'b{i}')[1] for i in range(20))]
    write_tokens(*lines)
    s = Server('--tokens', TOKENS)
    wrong = []

    def load():
        connection = s.connect()
        for _ in range(300):
            status = s.call('GET', '/v1/leases/nobody', None, bearer(secret), connection)[0]
            if status != 404:
                wrong.append(status)

    threads = [t.begin(load)[0] for _ in range(4)]
    while any(thread.is_alive() for thread in threads):
        lines.reverse()
        write_tokens(*lines)
        s.process.send_signal(signal.SIGHUP)
        threads[0].join(0.005)
    check('a token that stays is good during all reloads', not wrong, wrong[:9])
    s.process.terminate()
    check('the server ends with 0', s.process.wait(PATIENCE_S) == 0, said(s)[-2000:])


# ---- TLS ----

def openssl(*args):
    subprocess.run(['openssl', *args], check=True, capture_output=True, cwd=FOLDER)


def make_certificate(name, signer='ca', purpose='serverAuth'):
    openssl('req', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-keyout', f'{name}.key', '-out', f'{name}.csr',
            '-subj', f'/CN={name}')
    with open(f'{FOLDER}/{name}.ext', 'w', encoding='utf-8') as file:
        file.write(f'subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage={purpose}\n')
    openssl('x509', '-req', '-in', f'{name}.csr', '-CA', f'{signer}.crt', '-CAkey', f'{signer}.key', '-CAcreateserial', '-days', '2',
            '-extfile', f'{name}.ext', '-out', f'{name}.crt')


def make_certificates():
    for ca in ('ca', 'rogue'):
        openssl('req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-keyout', f'{ca}.key', '-out',
                f'{ca}.crt', '-subj', f'/CN={ca}', '-days', '2')
    for name, signer, purpose in [('one', 'ca', 'serverAuth'), ('two', 'ca', 'serverAuth'), ('client', 'ca', 'clientAuth'),
                                  ('stranger', 'rogue', 'clientAuth')]:
        make_certificate(name, signer, purpose)


class Secure(Server):
    client = None

    def context(self):
        context = ssl.create_default_context(cafile=f'{FOLDER}/ca.crt')
        if self.client:
            context.load_cert_chain(f'{FOLDER}/{self.client}.crt', f'{FOLDER}/{self.client}.key')
        return context

    def connect(self, timeout=PATIENCE_S):
        return http.client.HTTPSConnection('127.0.0.1', self.port, timeout=timeout, context=self.context())

    def subject(self):
        """Of the server's certificate, for a new connection."""
        connection = self.connect()
        connection.connect()
        return dict(x[0] for x in connection.sock.getpeercert()['subject'])['commonName']


def pem(name):
    return f'{FOLDER}/{name}'


def install(name):
    for kind in ('crt', 'key'):
        shutil.copy(pem(f'{name}.{kind}'), pem(f'server.{kind}.new'))
        os.replace(pem(f'server.{kind}.new'), pem(f'server.{kind}'))


SERVER_TLS = ('--cert', pem('server.crt'), '--key', pem('server.key'))


def test_tls():
    install('one')
    s = Secure(*SERVER_TLS)
    check('TLS serves', s.call('PUT', '/v1/records/big?unchecked=true', b'x' * 1000000)[0] in (201, 204))
    check('large answers, too', s.call('GET', '/v1/records/big')[2] == b'x' * 1000000)
    plain = raw(s, 'GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n')
    check('a client without TLS is cut', b'200' not in plain, plain)
    context = s.context()
    warnings.simplefilter('ignore', DeprecationWarning)
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    context.set_ciphers('ALL:@SECLEVEL=0')
    try:
        with context.wrap_socket(socket.create_connection(('127.0.0.1', s.port), PATIENCE_S), server_hostname='localhost') as client:
            check('TLS 1.1 is refused', False, client.version())
    except (ssl.SSLError, OSError):
        check('TLS 1.1 is refused', True)
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = s.context()
        context.minimum_version = context.maximum_version = version
        with context.wrap_socket(socket.create_connection(('127.0.0.1', s.port), PATIENCE_S), server_hostname='localhost') as client:
            client.sendall(b'GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n')
            check(f'{version.name} is served', b' 200 ' in client.recv(10000))
    old = s.connect()
    check('an old connection', s.call('GET', '/healthz', None, None, old)[0] == 200 and s.subject() == 'one')
    install('two')
    reload(s, 'new connections get the certificate')
    check('a new connection gets the new certificate', s.subject() == 'two')
    check('the old one lasts', s.call('GET', '/healthz', None, None, old)[0] == 200)
    shutil.copy(pem('one.key'), pem('server.key'))
    reload(s, 'the certificate stays as it was: the key in')
    check('a key of another certificate changes nothing', s.subject() == 'two')
    with open(pem('server.crt'), 'w', encoding='utf-8') as file:
        file.write('-----BEGIN CERTIFICATE-----\n')
    reload(s, 'the certificate stays as it was: cannot use the certificate')
    check('nor does a broken one', s.subject() == 'two')
    s.process.terminate()
    check('the server ends with 0', s.process.wait(PATIENCE_S) == 0, said(s))


def install_authorities(*names):
    with open(pem('clients.pem'), 'w', encoding='utf-8') as file:
        for name in names:
            with open(pem(f'{name}.crt'), encoding='utf-8') as one:
                file.write(one.read())


def is_served(s, client, connection=None):
    s.client = client
    try:
        status, _, body = s.call('GET', '/v1/leases/nobody', None, None, *([connection] if connection else []))
    except (ssl.SSLError, OSError):
        return False
    if status != 404:
        check(f'the answer to {client or "none"} is about its certificate', status == 403 and body['type'] == '/problems/certificate', status, body)
    return status == 404


def test_client_certificates():
    install('one')
    s = Secure.__new__(Secure)
    s.client = 'client'
    install_authorities('ca')
    s.__init__(*SERVER_TLS, '--client-ca', pem('clients.pem'))
    check('a client with a certificate is served', is_served(s, 'client'))
    for client in (None, 'stranger', 'one'):
        check(f'not one with {client or "none"}', not is_served(s, client))
    s.client = 'client'
    old = s.connect()
    check('a connection', s.call('GET', '/v1/leases/nobody', None, None, old)[0] == 404)
    install_authorities('ca', 'rogue')
    reload(s, 'clients need a certificate of the authorities')
    check('after a reload both authorities count', is_served(s, 'client') and is_served(s, 'stranger'))
    check('a client without a certificate is not served', not is_served(s, None))
    install_authorities('rogue')
    reload(s, 'clients need a certificate of the authorities')
    check('an authority that was removed does not, for an old connection', not is_served(s, 'client', old))
    check('nor for a new connection', not is_served(s, 'client') and is_served(s, 'stranger'))
    with open(pem('clients.pem'), 'w', encoding='utf-8') as file:
        file.write('-----BEGIN CERTIFICATE-----\n')
    reload(s, 'the authorities of clients stay as they were')
    check('a broken file changes nothing', not is_served(s, 'client') and is_served(s, 'stranger'))
    s.process.terminate()
    check('the server ends with 0', s.process.wait(PATIENCE_S) == 0, said(s))


def test_public_addresses():
    install('one')
    secret, line = new_token('a')
    write_tokens(line)
    port = t.free_port()
    for options in ([], ['--tokens', TOKENS], list(SERVER_TLS)):
        for host in ('0.0.0.0', '[::]'):
            why = refusal('--listen', f'{host}:{port}', *options)
            check(f'{host} is refused with {[o for o in options if o.startswith("--")]}', 'is not a loopback address' in why, why)
    s = Secure('--tokens', TOKENS, *SERVER_TLS, '--listen', f'0.0.0.0:{port}')
    s.port = port
    check('with tokens and TLS it is served', s.call('GET', '/v1/leases/nobody', None, bearer(secret))[0] == 404)
    s.process.terminate()
    check('the server ends with 0', s.process.wait(PATIENCE_S) == 0, said(s))
    for options, reason in [(['--cert', pem('one.crt')], 'need each other'), (['--client-ca', pem('ca.crt')], 'needs --cert'),
                            (['--cert', pem('one.crt'), '--key', pem('two.key')], 'is not that of the certificate'),
                            (['--cert', pem('none'), '--key', pem('two.key')], 'cannot use the certificate'),
                            (['--cert', pem('one.crt'), '--key', pem('one.crt')], 'cannot use the key')]:
        why = refusal(*options)
        check(f'{[os.path.basename(o) for o in options]} is refused', reason in why, why)


def main():
    test_making()
    test_bad_files()
    s, key, made = test_scopes()
    test_odd_headers(s, key)
    test_reload(s, key, made)
    test_reload_under_load()
    test_kinds()
    test_owners()
    test_command()
    make_certificates()
    for test in (test_tls, test_client_certificates, test_public_addresses):
        test()
    return end()


if __name__ == '__main__':
    sys.exit(main())
