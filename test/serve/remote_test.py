# SPDX-License-Identifier: MIT
"""A daemon as a store: `dibs --store http://...`, its tokens and certificates, and two daemons of which one is killed.

usage: remote_test.py DIBS PROXY [URI]
"""
import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

import checks
from checks import PATIENCE_S, check, end
from daemon import Daemon, Proxy

DIBS = os.path.abspath(sys.argv[1])
FOLDER = tempfile.mkdtemp(prefix='dibs-remote-')
STORE = sys.argv[3] if len(sys.argv) > 3 else f'sqlite://{FOLDER}/dibs.db'
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


daemons = []


@atexit.register
def end_daemons():
    """Those that a test left behind by failing."""
    for daemon in daemons:
        if daemon.process and daemon.process.poll() is None:
            daemon.process.kill()


def new_daemon(*options):
    daemons.append(Daemon(DIBS, STORE, *options, folder=FOLDER))
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
    daemon = new_daemon('--tokens', f'{FOLDER}/tokens', '--cert', cert, '--key', key, '--listen', f'unix:{FOLDER}/socket')
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
    reader = {'DIBS_TOKEN': secrets['reader']}
    expect('the scope read lists', dibs(plain, 'ls', env=reader))
    expect('and takes no lease', dibs(plain, 'run', 'a', '--', 'true', env=reader), 123)
    with subprocess.Popen([DIBS, 'run', '--store', by_file, 'held', '--', 'cat'], stdin=subprocess.PIPE,
                          stderr=subprocess.DEVNULL) as holder:
        wait_until(lambda: is_held(STORE, 'held'), 'the name is held')
        expect('the scope use breaks nothing', dibs(by_file, 'break', 'held'), 123)
        expect('the scope admin does', dibs(plain, 'break', 'held', env={'DIBS_TOKEN': secrets['boss']}))
        holder.kill()
    done = dibs(plain, 'run', 'jobs/a', '--', 'true', env={'DIBS_TOKEN': secrets['jobs']})
    check('a token for some names is refused', done.returncode == 123 and 'names that begin with' in done.stderr, done.stderr)
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
    one.start().wait_ready()
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


test_one_daemon()
test_tokens()
test_lost_answers()
test_two_daemons()
sys.exit(end())
