# SPDX-License-Identifier: MIT
"""A daemon as a store: `dibs --store http://...`, its tokens and certificates, and two daemons of which one is killed,
cut off from its store, or behind a proxy that answers for it.

usage: remote_test.py DIBS PROXY [URI]
"""
import atexit
import http.client
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.parse

import checks
from checks import PATIENCE_S, check, end
from daemon import Daemon, Proxy

DIBS = os.path.abspath(sys.argv[1])
FOLDER = tempfile.mkdtemp(prefix='dibs-remote-')
NOT_DONE = (123, 124)  # unavailable, or unknown: the command repeats what was not done until little time is left
STORE = sys.argv[3] if len(sys.argv) > 3 else f'sqlite://{FOLDER}/dibs.db'
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


daemons = []


@atexit.register
def end_daemons():
    """Those that a test left behind by failing."""
    for daemon in daemons:
        if daemon.process and daemon.process.poll() is None:
            daemon.process.kill()


def new_daemon(*options, store=STORE):
    daemons.append(Daemon(DIBS, store, *options, folder=FOLDER))
    return daemons[-1].start()


def dibs(store, *words, text=None, env=None):
    return subprocess.run([DIBS, '--store', store, *words], input=text, capture_output=True, text=True,
                          timeout=PATIENCE_S, env={**os.environ, **(env or {})}, check=False)


def expect(name, done, code=0, output=None):
    fine = done.returncode == code and (output is None or done.stdout.strip() == output)
    check(name, fine, f'exit {done.returncode}', done.stdout, done.stderr)


def wait_until(condition, what):
    in_time = checks.wait_until(condition)
    if not in_time:
        check(what, False, 'it did not happen in time')
    return in_time


def use_every_family(store):
    expect('run holds a lease', dibs(store, 'run', 'job', '--', 'sh', '-c', f'{DIBS} ls --store {store} --json'))
    expect('a record is created', dibs(store, 'record', 'put', 'page', '--create', text='first draft'))
    expect('it is read', dibs(store, 'record', 'get', 'page'), 0, 'first draft')
    expect('a second creation is refused', dibs(store, 'record', 'put', 'page', '--create', text='second'), 115)
    large = 'x' * 1000000
    expect('a large record travels', dibs(store, 'record', 'put', 'large', '--create', text=large))
    expect('and returns', dibs(store, 'record', 'get', 'large'), 0, large)
    expect('a stock has a limit', dibs(store, 'stock', 'set', 'seats', '3'))
    expect('it is taken', dibs(store, 'stock', 'take', 'seats', '2', '--claim', 'order-1'))
    expect('a claim counts once', dibs(store, 'stock', 'take', 'seats', '2', '--claim', 'order-1'))
    expect('what does not fit is refused', dibs(store, 'stock', 'take', 'seats', '2'), 120)
    expect('once runs', dibs(store, 'once', 'bill-7', '--', 'echo', 'billed'), 0, 'billed')
    expect('and only once', dibs(store, 'once', 'bill-7', '--', 'false'), 0, 'billed')
    expect('a task is added', dibs(store, 'task', 'add', 'mail', 'to ann'))
    done = dibs(store, 'worker', '--kind', 'mail', '--once', '--exec', 'cat')
    check('a worker does it', done.returncode == 0, done.returncode, done.stdout, done.stderr)
    expect('the history has what ran', dibs(store, 'history', 'job'))
    expect('a waiter is woken', wake_a_waiter(store), 0, 'woken')
    share_lanes(store)


def share_lanes(store):
    """A member whose store is a daemon."""
    member = ['lane', 'run', 'orders', '--lanes', '3', '--store', store, '--', 'sh', '-c', 'trap "exit 0" TERM; while :; do sleep 0.1; done']
    with subprocess.Popen([DIBS, *member], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: dibs(store, 'lane', 'ls', 'orders', '--json').stdout.count('"owner":"') == 3, 'a member has all lanes')
            of = dibs(store, 'lane', 'of', 'orders', 'customer-7')
            check('a key has a lane', of.stdout.strip() in ('0', '1', '2'), of)
        finally:
            process.terminate()
        check('it gives them back', process.wait(PATIENCE_S) == 0 and '"owner":"' not in dibs(store, 'lane', 'ls', 'orders', '--json').stdout)
    expect('their number is changed', dibs(store, 'lane', 'resize', 'orders', '--lanes', '5'))


def wake_a_waiter(store):
    """It learns of the release by an event: its next look would come after the ttl of the holder."""
    with subprocess.Popen([DIBS, 'run', '--store', store, 'door', '--ttl', '10m', '--', 'cat'], stdin=subprocess.PIPE) as holder:
        wait_until(lambda: is_held(store, 'door'), 'the door is held')
        with subprocess.Popen([DIBS, 'run', '--store', store, 'door', '--wait', '50s', '--', 'echo', 'woken'],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiter:
            wait_until(lambda: '"waits"' in dibs(store, 'ls', 'door', '--json').stdout, 'a client waits')
            holder.stdin.close()
            out, err = waiter.communicate(timeout=PATIENCE_S)
            return subprocess.CompletedProcess([], waiter.returncode, out, err)


def is_held(store, name):
    return '"holds"' in dibs(store, 'ls', name, '--json').stdout


# ---- One daemon ----

def test_one_daemon():
    daemon = new_daemon().wait_ready()
    store = f'http://127.0.0.1:{daemon.port}'
    use_every_family(store)
    expect('what was written is in the store behind', dibs(STORE, 'record', 'get', 'page'), 0, 'first draft')
    done = dibs(store, 'record', 'put', 'huge', '--create', text='x' * 3000000)
    check('what is too large is refused', done.returncode == 125, done.returncode, done.stderr)
    waiter_dies(store)
    expect('the daemon ends', subprocess.CompletedProcess([], daemon.stop(), '', daemon.said()))
    done = dibs(store, 'ls')
    check('a daemon that is gone is reported', done.returncode == 123 and 'cannot reach' in done.stderr, done.stderr)
    daemon.start().wait_ready()
    expect('and used again', dibs(store, 'record', 'get', 'page'), 0, 'first draft')
    daemon.stop()
    check('the daemons said nothing', daemon.said() == '', daemon.said())


def waiter_dies(store):
    """A waiter that is killed leaves the queue: it hangs up."""
    with subprocess.Popen([DIBS, 'run', '--store', STORE, 'gate', '--ttl', '10m', '--', 'cat'], stdin=subprocess.PIPE) as holder:
        wait_until(lambda: is_held(STORE, 'gate'), 'the gate is held')
        with subprocess.Popen([DIBS, 'lock', 'gate', '--store', store, '--wait', '50s'], stdout=subprocess.DEVNULL) as waiter:
            wait_until(lambda: '"waits"' in dibs(STORE, 'ls', 'gate', '--json').stdout, 'a client waits at the gate')
            waiter.kill()
        gone = wait_until(lambda: '"waits"' not in dibs(STORE, 'ls', 'gate', '--json').stdout, 'a killed waiter is gone')
        check('a killed waiter leaves the queue', gone)
        holder.stdin.close()


# ---- Tokens and certificates ----

def make_certificate():
    """(certificate, key) of 127.0.0.1, which is its own authority."""
    paths = f'{FOLDER}/cert.pem', f'{FOLDER}/key.pem'
    subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes',
                    '-keyout', paths[1], '-out', paths[0], '-days', '2', '-subj', '/CN=dibs',
                    '-addext', 'subjectAltName=IP:127.0.0.1'], check=True, capture_output=True)
    return paths


def test_tokens():
    secrets = {}
    with open(f'{FOLDER}/tokens', 'w', encoding='utf-8') as file:
        for label, options in {'reader': ['--scope', 'read'], 'user': ['--scope', 'use'], 'boss': ['--scope', 'admin'],
                               'jobs': ['--scope', 'use', '--prefix', 'jobs/']}.items():
            made = subprocess.run([DIBS, 'serve', '--new-token', label, *options], capture_output=True, text=True, check=True)
            secrets[label], line = made.stdout.splitlines()
            file.write(line + '\n')
    os.chmod(f'{FOLDER}/tokens', 0o600)
    cert, key = make_certificate()
    daemon = new_daemon('--tokens', f'{FOLDER}/tokens', '--cert', cert, '--key', key, '--listen', f'unix:{FOLDER}/socket', '--quiet')
    wait_until(lambda: os.path.exists(f'{FOLDER}/socket'), 'the daemon listens')
    plain, secure = f'http:{FOLDER}/socket', f'https://127.0.0.1:{daemon.port}?ca={cert}'
    expect('without a token nothing is served', dibs(plain, 'ls'), 123)
    with open(f'{FOLDER}/secret', 'w', encoding='utf-8') as file:
        file.write(secrets['user'] + '\n')
    by_file = f'{plain}?token_file={FOLDER}/secret'
    expect('a token in a file', dibs(by_file, 'run', 'a', '--', 'true'))
    expect('a token in the environment', dibs(plain, 'run', 'a', '--', 'true', env={'DIBS_TOKEN': secrets['user']}))
    expect('over TLS', dibs(secure, 'run', 'a', '--', 'true', env={'DIBS_TOKEN': secrets['user']}))
    done = dibs(f'https://127.0.0.1:{daemon.port}', 'ls', env={'DIBS_TOKEN': secrets['user']})
    check('an unknown authority is refused', done.returncode == 123 and 'certificate' in done.stderr.lower(), done.stderr)
    in_uri = f'https://:{secrets["user"]}@127.0.0.1:{daemon.port}?ca={cert}'
    done = dibs(in_uri, 'doctor')
    check('a token in the URI is used and not shown', done.returncode == 0 and secrets['user'] not in done.stdout + done.stderr,
          done.stdout, done.stderr)
    for words in ('fine     server   dibs serve at https://', "the daemon's certificate and name are verified", 'fine     daemon   dibs serve, version '):
        check(f'doctor shows: {words}', words in done.stdout, done.stdout)
    check("and the daemon's own store", done.stdout.count('fine     server ') == 2 and 'fine     setting ' in done.stdout, done.stdout)
    reader = {'DIBS_TOKEN': secrets['reader']}
    expect('the scope read lists', dibs(plain, 'ls', env=reader))
    expect('and takes no lease', dibs(plain, 'run', 'a', '--', 'true', env=reader), 123)
    with subprocess.Popen([DIBS, 'run', '--store', by_file, 'held', '--', 'cat'], stdin=subprocess.PIPE,
                          stderr=subprocess.DEVNULL) as holder:
        wait_until(lambda: is_held(STORE, 'held'), 'the name is held')
        expect('the scope use breaks nothing', dibs(by_file, 'break', 'held'), 123)
        expect('the scope admin does', dibs(plain, 'break', 'held', '--now', '--owner', 'user', env={'DIBS_TOKEN': secrets['boss']}))
        shown = dibs(STORE, 'show', 'held').stdout
        check('the author of the break is the token', 'boss: user' in shown, shown)
        holder.kill()
    done = dibs(plain, 'run', 'jobs/a', '--', 'true', env={'DIBS_TOKEN': secrets['jobs']})
    check('a token for some names is refused', done.returncode == 123 and 'names that begin with' in done.stderr, done.stderr)
    expect('a task is added', dibs(by_file, 'task', 'add', 'mail', 'to ann'))
    expect('the scope admin pauses a kind', dibs(plain, 'task', 'kind', 'mail', '--paused', 'on', env={'DIBS_TOKEN': secrets['boss']}))
    expect('and cancels its tasks', dibs(plain, 'task', 'cancel', '--kind', 'mail', env={'DIBS_TOKEN': secrets['boss']}))
    actions = [json.loads(line.removeprefix('dibs: ')) for line in daemon.said().splitlines() if line.startswith('dibs: {')]
    seen = [(one['action'], one['token'], one.get('name'), one['status']) for one in actions]
    check('the log of actions has what was refused', ('lease.break', 'user', 'held', 'DENIED') in seen, seen)
    check('and what was done, with its author', {('lease.break', 'boss', 'held', 'OK'), ('task.kind', 'boss', 'mail', 'OK'),
                                                 ('task.change', 'boss', 'mail', 'OK')} <= set(seen), seen)
    check('and nothing that needs no admin', {one['action'] for one in actions} == {'lease.break', 'task.kind', 'task.change'}, seen)
    check('no secret was logged', not any(secret in daemon.said() for secret in secrets.values()))
    daemon.stop()


# ---- Lost answers ----

def through(daemon, trigger, *words):
    """The command, and how often the proxy dropped the answer to a request with the pattern."""
    proxy = Proxy(sys.argv[2], daemon.port)
    proxy.say(f'cut-after-request {trigger}')
    done = dibs(f'http://127.0.0.1:{proxy.port}', *words)
    fired = proxy.say('stats').split('fired=')[1].split()[0]
    proxy.stop()
    return done, fired


def test_lost_answers():
    daemon = new_daemon().wait_ready()
    done, fired = through(daemon, 'nth=1 lost-1', 'run', 'lost-1', '--', 'echo', 'ran')
    check('the repetition of an acquire finds its grant', (done.returncode, done.stdout, fired) == (0, 'ran\n', '1'), done, fired)
    done, fired = through(daemon, 'nth=2 lost-2', 'run', 'lost-2', '--', 'echo', 'ran')
    known = 'the outcome is not known' in done.stderr and 'was lost' not in done.stderr
    check('a release without an answer is reported as unknown', done.returncode == 0 and known and fired == '1', done, fired)
    check('it was done', not is_held(STORE, 'lost-2'))
    dibs(STORE, 'stock', 'set', 'lost', '9')
    done, fired = through(daemon, 'nth=1 claim-1', 'stock', 'take', 'lost', '2', '--claim', 'claim-1')
    used = json.loads(dibs(STORE, 'stock', 'show', 'lost', '--json').stdout)['used']
    check('a take that is repeated counts once', (done.returncode, used, fired) == (0, 2, '1'), done, used, fired)
    daemon.stop()


# ---- A daemon that does not say what it sees of its store, as those of earlier versions ----

def test_silent_daemon():
    daemon = new_daemon(store=f'sqlite://{FOLDER}/first.db,sqlite://{FOLDER}/second.db').wait_ready()
    done = dibs(f'http://127.0.0.1:{daemon.port}', 'doctor')
    check('doctor goes on without it', done.returncode == 0 and 'what it sees of its servers is not visible' in done.stdout
          and 'fine     leases ' in done.stdout, done.returncode, done.stdout, done.stderr)
    daemon.stop()


# ---- Two daemons, of which one is killed ----

def test_two_daemons():
    one, two = (new_daemon().wait_ready() for _ in range(2))
    store = f'http://127.0.0.1:{one.port},127.0.0.1:{two.port}'
    dibs(STORE, 'stock', 'set', 'units', '100000')
    taken, tried, ending = [], [], threading.Event()

    def take(nth):
        for i in range(1000000):
            if ending.is_set():
                return
            claim = f'{nth}-{i}'
            tried.append(claim)
            if dibs(store, 'stock', 'take', 'units', '--claim', claim).returncode == 0:
                taken.append(claim)

    def wait_until_more(than, what):
        return wait_until(lambda: len(taken) > than, what)

    holder = subprocess.Popen([DIBS, 'run', '--store', STORE, 'desk', '--', 'cat'], stdin=subprocess.PIPE)
    wait_until(lambda: is_held(STORE, 'desk'), 'the desk is held')
    waiter = subprocess.Popen([DIBS, 'run', '--store', store, 'desk', '--wait', '50s', '--', 'echo', 'mine'],
                              stdout=subprocess.PIPE, text=True)
    wait_until(lambda: '"waits"' in dibs(STORE, 'ls', 'desk', '--json').stdout, 'a client waits at the desk')
    clients = [threading.Thread(target=take, args=(nth,)) for nth in range(4)]
    for client in clients:
        client.start()
    wait_until_more(20, 'units are taken')
    one.process.send_signal(signal.SIGKILL)
    one.process.wait(PATIENCE_S)
    check('clients go on with the other daemon', wait_until_more(len(taken) + 20, 'more units are taken'))
    back = wait_until(lambda: '"waits"' in dibs(STORE, 'ls', 'desk', '--json').stdout, 'the waiter waits again')
    check('a waiter is queued at the other daemon', back)
    holder.stdin.close()
    holder.wait(PATIENCE_S)
    out = waiter.communicate(timeout=PATIENCE_S)[0]
    check('and gets its lease', waiter.returncode == 0 and out.strip() == 'mine', waiter.returncode, out)
    done = dibs(store, 'doctor')
    check('doctor shows the daemon that was killed', done.returncode == 116 and f'TROUBLE  node     http://127.0.0.1:{one.port} does not answer'
          in done.stdout and f'fine     node     http://127.0.0.1:{two.port} answers' in done.stdout, done.stdout)
    one.start().wait_ready()
    done = dibs(store, 'doctor')
    check('and both when it is back', done.returncode == 0 and f'fine     node     http://127.0.0.1:{one.port} answers' in done.stdout, done.stdout)
    two.process.send_signal(signal.SIGKILL)
    two.process.wait(PATIENCE_S)
    check('and back', wait_until_more(len(taken) + 20, 'more units are taken again'))
    ending.set()
    for client in clients:
        client.join()
    used = json.loads(dibs(STORE, 'stock', 'show', 'units', '--json').stdout)['used']
    check('nothing acknowledged is lost, and nothing counts twice', len(taken) <= used <= len(tried), len(taken), used, len(tried))
    again = [claim for claim in taken if dibs(STORE, 'stock', 'take', 'units', '--claim', claim).returncode != 0]
    check('each acknowledged claim is there', not again, again)
    after = json.loads(dibs(STORE, 'stock', 'show', 'units', '--json').stdout)['used']
    check('its repetition takes nothing', after == used, used, after)
    one.stop()


# ---- A gateway before a daemon ----

class Gateway(http.server.ThreadingHTTPServer):
    """A reverse proxy.  Once `says` has a status, it answers with it for the daemon; `after`: after the daemon has done
    the request, if `pattern` is in it."""
    daemon_threads = True

    def __init__(self, port):
        super().__init__(('127.0.0.1', 0), Forwarder)
        self.to, self.says, self.problem, self.after, self.pattern, self.times = port, None, None, False, b'', 0
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Forwarder(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def do_POST(self):  # noqa: N802
        gateway = self.server
        body = self.rfile.read(int(self.headers['Content-Length']))
        failing = gateway.says is not None and gateway.pattern in body
        code, kind, answer = gateway.says, 'text/plain', b'the gateway says so'
        if not failing or gateway.after:
            code, kind, answer = self.forward(body)
        if failing:
            gateway.times += 1
            code, kind, answer = gateway.says, 'text/plain', b'the gateway says so'
            if gateway.problem:
                kind, answer = 'application/problem+json', json.dumps(gateway.problem, separators=(',', ':')).encode()
        self.send_response(code)
        self.send_header('Content-Type', kind)
        self.send_header('Content-Length', str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def forward(self, body):
        connection = http.client.HTTPConnection('127.0.0.1', self.server.to, timeout=PATIENCE_S)
        connection.request('POST', self.path, body, {'Content-Type': self.headers['Content-Type']})
        answer = connection.getresponse()
        got = answer.status, answer.headers['Content-Type'], answer.read()
        connection.close()
        return got

    def log_message(self, *_):
        pass


# ---- Two daemons, of which one cannot reach its store ----

def through_a_proxy():
    """A proxy, and the store behind it: a file has another daemon in front of it."""
    server = urllib.parse.urlsplit(STORE)
    if server.port:
        proxy = Proxy(sys.argv[2], server.port)
        return proxy, server._replace(netloc=re.sub(r'[^@]*$', f'127.0.0.1:{proxy.port}', server.netloc, count=1)).geturl()
    proxy = Proxy(sys.argv[2], new_daemon().wait_ready().port)
    return proxy, f'http://127.0.0.1:{proxy.port}'


class Waiter:
    """A client that waits for a name through `store` while another one holds it."""

    def __init__(self, store, name):
        self.holder = subprocess.Popen([DIBS, 'run', '--store', STORE, name, '--', 'cat'], stdin=subprocess.PIPE)
        wait_until(lambda: is_held(STORE, name), f'{name} is held')
        self.process = subprocess.Popen([DIBS, 'run', '--store', store, name, '--wait', f'{checks.PATIENCE_S}s', '--', 'echo', 'mine'],
                                        stdout=subprocess.PIPE, text=True)
        wait_until(lambda: '"waits"' in dibs(STORE, 'ls', name, '--json').stdout, f'a client waits for {name}')

    def expect(self, what):
        self.holder.stdin.close()
        self.holder.wait(PATIENCE_S)
        out = self.process.communicate(timeout=PATIENCE_S * 2)[0]
        check(what, self.process.returncode == 0 and out.strip() == 'mine', self.process.returncode, out)


def test_cut_off():
    proxy, behind = through_a_proxy()
    one, two = new_daemon(store=behind).wait_ready(), new_daemon().wait_ready()
    only, both = f'http://127.0.0.1:{one.port}', f'http://127.0.0.1:{one.port},127.0.0.1:{two.port}'
    dibs(STORE, 'stock', 'set', 'cut', '9')
    waiter = Waiter(both, 'cut')
    proxy.say('refuse')
    proxy.say('cut')
    gateway = Gateway(two.port)
    gateway.says, gateway.after, gateway.pattern = 502, True, b'draft of a doubt'
    done = dibs(f'{only},127.0.0.1:{gateway.server_port}', 'record', 'put', 'cut', '--create', text='draft of a doubt')
    check('what the second daemon may have done is unknown', done.returncode == 124, done.returncode, done.stderr)
    gateway.shutdown()
    expect('a request is done by the daemon that reaches the store', dibs(both, 'stock', 'take', 'cut', '--claim', 'first'))
    done = dibs(only, 'stock', 'take', 'cut', '--claim', 'other')
    check('the other one cannot', done.returncode in NOT_DONE, done.returncode, done.stderr)
    expect('the next client goes there at once', dibs(both, 'record', 'put', 'next', '--create', text='written'))
    expect('a listing does, too', dibs(both, 'ls', 'cut'))
    waiter.expect('a client that waited at the other daemon waits here')
    waiter = Waiter(both, 'cut')
    proxy.say('pass')
    wait_until(lambda: dibs(only, 'record', 'get', 'next').returncode == 0, 'the first daemon reaches its store again')
    two.process.send_signal(signal.SIGKILL)
    two.process.wait(PATIENCE_S)
    expect('clients come back', dibs(both, 'stock', 'take', 'cut', '--claim', 'last'))
    waiter.expect('and one that waits does')
    used = json.loads(dibs(STORE, 'stock', 'show', 'cut', '--json').stdout)['used']
    check('each take counts once', used == 2, used)
    one.stop()
    proxy.stop()


# ---- Two daemons, of which one is behind a gateway ----

def test_gateway():
    one, two = (new_daemon().wait_ready() for _ in range(2))
    gateway = Gateway(one.port)
    only, both = f'http://127.0.0.1:{gateway.server_port}', f'http://127.0.0.1:{gateway.server_port},127.0.0.1:{two.port}'
    expect('a client uses the daemon behind a gateway', dibs(both, 'run', 'gateway', '--', 'true'))
    waiter = Waiter(both, 'gateway')
    for gateway.says in 504, 503, 502:
        key = f'gateway-{gateway.says}'
        expect(f'after {gateway.says} it uses the other one', dibs(both, 'record', 'put', key, '--create', text='written'))
        check(f'and without another one {gateway.says} is reported', dibs(only, 'record', 'get', key).returncode in NOT_DONE)
    waiter.expect('one that waits goes there, too')
    gateway.says, gateway.after, gateway.times = 502, True, 0
    gateway.pattern = b'first draft'
    done = dibs(both, 'record', 'put', 'gateway', '--create', text='first draft')
    check('a write whose answer the gateway has lost was sent once', gateway.times == 1, gateway.times)
    check('and is reported as unknown', done.returncode == 124, done.returncode, done.stderr)
    expect('it was done', dibs(STORE, 'record', 'get', 'gateway'), 0, 'first draft')
    gateway.says, gateway.after, gateway.pattern = 503, False, b'third draft'
    gateway.problem = {'type': '/problems/overload', 'title': 'busy', 'status': 503, 'detail': 'too many requests run'}
    done = dibs(both, 'record', 'put', 'busy', '--create', text='third draft')
    check('a daemon at one of its limits moves nobody', done.returncode in NOT_DONE, done.returncode, done.stderr)
    check('and does nothing', dibs(STORE, 'record', 'get', 'busy').returncode not in (0, *NOT_DONE))
    gateway.problem['type'] = '/problems/stopping'
    expect('one that stops does', dibs(both, 'record', 'put', 'busy', '--create', text='third draft'))
    gateway.shutdown()
    one.stop()
    two.stop()


test_one_daemon()
test_tokens()
test_lost_answers()
test_silent_daemon()
test_two_daemons()
test_cut_off()
test_gateway()
sys.exit(end())
