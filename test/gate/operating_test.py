# SPDX-License-Identifier: MIT
"""How dibs gate is operated: the highest fence, bounds, configuration, metrics, access log, systemd.

usage: operating_test.py DIBS [URI]
"""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

from gates import DIBS, ENVIRONMENT, FOLDER, STORE, Program, open_gate
from checks import PATIENCE_S, begin, check, end, free_port, wait_until
from toy import Toy

LARGEST = 2 ** 53 - 1
ALERTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../../packaging/monitoring/dibs-gate-alerts.yml')


def dibs(*args, store=STORE):
    """(exit code, standard output, standard error) of the command."""
    done = subprocess.run([DIBS, *args], capture_output=True, text=True, timeout=PATIENCE_S, check=False,
                          env=ENVIRONMENT | {'DIBS_STORE': store})
    return done.returncode, done.stdout.strip(), done.stderr


# ---- The highest fence of a name ----

def test_setting_the_fence(toy):
    gate, other = open_gate(toy), open_gate(toy)
    check('no gate has seen a fence of a new name', dibs('gate', 'fence', 'set me')[:2] == (0, '0'))
    gate.call('PUT', '/value', '1', fence=('set me', 40))
    check('the command prints the highest', dibs('gate', 'fence', 'set me')[:2] == (0, '40'))
    gate.call('GET', '/value', fence=('set me', LARGEST))
    check('an invented fence refuses the holder', gate.call('PUT', '/value', '2', fence=('set me', 41))[0] == 409)
    code, out, error = dibs('--json', 'gate', 'fence', 'set me', '--set', '41')
    check('an operator sets the highest fence', code == 0 and json.loads(out) == {'name': 'set me', 'fence': 41, 'times_set': 1},
          code, out, error)
    for one in (gate, other):
        check('and the holder passes at every gate', one.call('PUT', '/value', '2', fence=('set me', 41))[0] == 200)
        status, _, body = one.call('PUT', '/value', '3', fence=('set me', 40))
        check('an older one does not', status == 409 and body['seen_fence'] == 41 and toy.value == 2, status, body)
    gate.call('GET', '/value', fence=('set me', 50))
    status, _, body = other.call('GET', '/value', fence=('set me', 49))
    check('fences grow from there on', status == 409 and body['seen_fence'] == 50 and dibs('gate', 'fence', 'set me')[1] == '50', body)
    gate.call('GET', '/value', fence=('set me', LARGEST))
    dibs('gate', 'fence', 'set me', '--set', '60')
    check('it can be set again', gate.call('GET', '/value', fence=('set me', 60))[0] == 200 and
          gate.call('GET', '/value', fence=('set me', 59))[0] == 409)
    rows = [json.loads(line) for line in dibs('--json', 'history', 'set me')[1].splitlines()]
    rows = rows[0] if rows and isinstance(rows[0], list) else rows
    check('the history has both settings', len(rows) == 2 and '--set 60 (it was 9007199254740991)' in json.dumps(rows), rows)
    for wrong in ([], ['a', 'b'], ['a', '--set', '0'], ['a', '--set', str(2 ** 53)], ['a', '--set'], ['a', '--other']):
        code, out, error = dibs('gate', 'fence', *wrong)
        check(f'gate fence {wrong} is refused', code == 125 and error and not out, code, out, error)
    gate.stop()
    other.stop()


def test_check_lease(toy):
    gate, daemon = open_gate(toy, '--check-lease'), Program('serve')
    status, _, body = gate.call('PUT', '/value', '1', fence=('checked', 5))
    check('--check-lease refuses a fence of a name that nobody holds', status == 410 and body['type'] == '/problems/lost', status, body)
    lease = daemon.call('POST', '/v1/leases/checked', json.dumps({'ttl': '1m'}))[2]
    status, _, body = gate.call('PUT', '/value', '1', fence=('checked', LARGEST))
    check('and an invented one', status == 410 and toy.value != 1 and str(lease['fence']) in body['detail'], status, body)
    status = gate.call('PUT', '/value', '3', fence=('checked', lease['fence']))[0]
    check('the holder passes', status == 200 and toy.value == 3, status)
    daemon.call('DELETE', '/v1/leases/checked', headers={'Dibs-Lease': lease['id']})
    check('and no more after its release', gate.call('PUT', '/value', '4', fence=('checked', lease['fence']))[0] == 410)
    again = daemon.call('POST', '/v1/leases/checked', json.dumps({'ttl': '1m'}))[2]
    gate.call('GET', '/value', fence=('checked', again['fence']))
    status, _, body = gate.call('PUT', '/value', '4', fence=('checked', lease['fence']))
    check('nor under the next holder', status == 409 and toy.value == 3, status, body)
    daemon.process.kill()
    gate.stop()


# ---- Metrics, health, access log ----

def get(port, path):
    """(status, body) at the address of --metrics-listen."""
    try:
        with urllib.request.urlopen(f'http://127.0.0.1:{port}{path}', timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def metric(port, name):
    found = re.search(f'^{re.escape(name)} (.*)$', get(port, '/metrics')[1], re.M)
    return float(found.group(1)) if found else None


def requests(port, outcome):
    return metric(port, f'dibs_gate_requests_total{{outcome="{outcome}"}}')


def test_metrics(toy):
    port = free_port()
    gate = open_gate(toy, '--metrics-listen', f'127.0.0.1:{port}', '--timeout', '1s')
    check('the gate says that it lives and is ready', get(port, '/healthz') == (200, '{"status":"alive"}\n') and
          get(port, '/readyz') == (200, '{"status":"ready"}\n'), get(port, '/healthz'), get(port, '/readyz'))
    check('other paths are not there', get(port, '/value')[0] == 404)
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=PATIENCE_S)
    connection.request('POST', '/metrics', b'x')
    check('nor other methods', connection.getresponse().status == 405)
    connection.close()
    check('nothing of it is where the clients are', gate.call('GET', '/echo/metrics')[0] == 200 and toy.targets[-1] == '/echo/metrics')
    gate.call('PUT', '/value', '1', fence=('count', 5))
    gate.call('PUT', '/value', '2', fence=('count', 4))
    gate.call('PUT', '/value', '3')
    for _ in range(3):
        gate.call('POST', '/run', 'x', fence=('count', 5), key='count')
    gate.call('GET', '/drop')
    toy.go.clear()
    gate.call('POST', '/hold', 'x', fence=('count', 5))
    gone = gate.connect()
    gone.request('POST', '/hold', body='gone', headers={'Dibs-Name': 'count', 'Dibs-Fence': '5'})
    wait_until(lambda: 'gone' in toy.started)
    gone.close()
    check('a client that hangs up is counted', wait_until(lambda: requests(port, 'abandoned') == 1), get(port, '/metrics')[1])
    toy.go.set()
    wanted = {'passed': 3, 'stale': 1, 'refused': 1, 'replayed': 2, 'service_failed': 2, 'unavailable': 0, 'abandoned': 1}
    check('requests are counted by outcome', wait_until(
        lambda: all(requests(port, outcome) == count for outcome, count in wanted.items())), get(port, '/metrics')[1])
    check('and how long they took', metric(port, 'dibs_gate_request_seconds_count{outcome="passed"}') == 3 and
          metric(port, 'dibs_gate_request_seconds_sum{outcome="service_failed"}') >= 1, get(port, '/metrics')[1])
    gate.stop()
    gate = open_gate(toy, '--metrics-listen', f'127.0.0.1:{port}', '--connections', '4')
    with open(ALERTS, encoding='utf-8') as file:
        named = set(re.findall('dibs_gate_[a-z_]+', file.read()))
    served = set(re.findall('^# TYPE (\\S+)', get(port, '/metrics')[1], re.M))
    check('each metric that the alerts name exists', named and named <= served, named - served)
    if shutil.which('promtool'):
        done = subprocess.run(['promtool', 'check', 'rules', ALERTS], capture_output=True, text=True, check=False)
        check('promtool accepts the alerts', done.returncode == 0, done)
        done = subprocess.run(['promtool', 'check', 'metrics'], input=get(port, '/metrics')[1], capture_output=True, text=True, check=False)
        check('and the metrics', done.returncode == 0, done)
    many = [socket.create_connection(('127.0.0.1', gate.port), timeout=PATIENCE_S) for _ in range(20)]
    check('a gate that has all its connections still answers operators', all(get(port, '/healthz')[0] == 200 for _ in range(30)))
    for one in many:
        one.close()
    check('and its clients afterwards', gate.call('GET', '/value')[0] == 200)
    gate.stop()
    for address, why in (('0.0.0.0:0', 'is not a loopback address'), ('nonsense', 'HOST:PORT')):
        code, out, error = dibs('gate', '--upstream', f'http://127.0.0.1:{toy.port}', '--listen', f'127.0.0.1:{free_port()}',
                                '--metrics-listen', address)
        check(f'--metrics-listen {address} is refused', code not in (0, -6, -11) and why in error, code, error)


def lines_of(path):
    with open(path, encoding='utf-8') as file:
        return [json.loads(line) for line in file]


def test_access_log(toy):
    path = f'{FOLDER}/access.log'
    gate = open_gate(toy, '--access-log', path)
    gate.call('PUT', '/value?secret=1', '5', fence=('log', 5), headers={'Authorization': 'the-secret'})
    gate.call('PUT', '/value', '5', fence=('log', 4))
    gate.call('POST', '/run?size=200000', 'x', fence=('log', 5), key='the-key')
    gate.call('POST', '/run?size=200000', 'x', fence=('log', 5), key='the-key')
    gate.call('GET', '/stream?size=300000')
    check('a line for each request', wait_until(lambda: len(lines_of(path)) == 5), lines_of(path))
    log = lines_of(path)
    check('it has what was requested, and what became of it',
          [(one['method'], one['path'], one['name'], one['status'], one['outcome']) for one in log] ==
          [('PUT', '/value', 'log', 200, 'passed'), ('PUT', '/value', 'log', 409, 'stale'), ('POST', '/run', 'log', 200, 'passed'),
           ('POST', '/run', 'log', 200, 'replayed'), ('GET', '/stream', None, 200, 'passed')], log)
    check('and how long, how much', all(one['duration_ms'] >= 0 for one in log) and log[3]['bytes'] > 200000 and log[4]['bytes'] == 300000 and
          re.fullmatch(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z', log[0]['time']), log)
    with open(path, encoding='utf-8') as file:
        text = file.read()
    check('but no secret', not any(word in text for word in ('secret', 'the-key')), text)
    os.rename(path, path + '.1')
    gate.process.send_signal(signal.SIGHUP)
    check('HUP begins a new file', wait_until(lambda: os.path.exists(path)))
    gate.stop()


# ---- Configuration, systemd ----

def refusal(*options, **environment):
    done = subprocess.run([DIBS, 'gate', '--listen', f'127.0.0.1:{free_port()}', *options], capture_output=True, text=True,
                          timeout=PATIENCE_S, check=False, env=ENVIRONMENT | environment)
    return done.stderr if done.returncode == 125 else f'not refused: {done}'


def test_configuration(toy):
    ini = f'{FOLDER}/gate.ini'

    def begin_with(text, *options, **environment):
        with open(ini, 'w', encoding='utf-8') as file:
            file.write(text)
        return Program('gate', '--config', ini, *options, environment=environment)

    upstream = f'upstream = http://127.0.0.1:{toy.port}\n'
    gate = begin_with(f'[serve]\nbody = 2000\n[gate]\n{upstream}require = all\nbody = 2000\nkeep = 1h\n')
    check('the file is read', gate.call('GET', '/value')[0] == 428)
    check('its numbers, too', gate.call('PUT', '/run', b'x' * 2001, fence=('ini', 1), key='ini-1')[0] == 413)
    gate.stop()
    gate = begin_with(f'[gate]\n{upstream}require = all\nbody = 2000\norder = off\n', DIBS_GATE_REQUIRE='none', DIBS_GATE_BODY='3000',
                      DIBS_GATE_ORDER='on')
    check('the environment comes before the file', gate.call('PUT', '/value', '7')[0] == 200 and
          gate.call('PUT', '/run', b'x' * 2500, fence=('ini', 1), key='ini-2')[0] == 200)
    gate.stop()
    gate = begin_with(f'[gate]\n{upstream}', '--require', 'all', DIBS_GATE_REQUIRE='none')
    check('options before both', gate.call('GET', '/value')[0] == 428)
    gate.stop()
    for text, reason in (('[gate]\nupstreem = x\n', 'did you mean upstream?'), ('[gate]\nbody = x\n', "'x' is not a number"),
                         ('[gate]\norder = yes\n', 'on or off'), ('[gate]\nrequire = some\n', 'writes, all or none'),
                         ('[gate]\nwait = 3 apples\n', 'gate.ini:2'), ('[gat]\n', 'did you mean [gate]?'), ('[gate]\nkey = x\n', '--cert'),
                         ('[gate]\n', 'give --upstream')):
        with open(ini, 'w', encoding='utf-8') as file:
            file.write(text)
        why = refusal('--config', ini)
        check(f'{text!r} is refused', reason in why, why)
    why = refusal('--upstream', 'http://127.0.0.1:1', DIBS_GATE_WAIT='x')
    check('a wrong variable is named', 'DIBS_GATE_WAIT' in why, why)
    why = refusal('--upstream', 'http://127.0.0.1:1', DIBS_GATE_UPSTREEM='x')
    check('a misspelt one, too', 'DIBS_GATE_UPSTREAM' in why, why)


def test_systemd(toy):
    """What systemd hears, a socket that it has made, and a graceful end."""
    heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    heard.settimeout(PATIENCE_S)
    heard.bind(f'{FOLDER}/notify')
    script = 'eval "exec 3<&$0"; export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@"'
    with socket.create_server(('127.0.0.1', 0)) as passed:
        process = subprocess.Popen(
            ['sh', '-c', script, str(passed.fileno()), DIBS, 'gate', '--store', STORE, '--upstream', f'http://127.0.0.1:{toy.port}'],
            pass_fds=[passed.fileno()], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=ENVIRONMENT | {'NOTIFY_SOCKET': f'{FOLDER}/notify', 'WATCHDOG_USEC': '200000'})
        said = [heard.recv(100) for _ in range(3)]
        check('systemd hears that it is ready, and that its loop runs', said == [b'READY=1'] + [b'WATCHDOG=1'] * 2, said)
        port = passed.getsockname()[1]
        check('the gate serves at the socket that it got', get(port, '/value')[0] == 200)
        process.send_signal(signal.SIGHUP)
        while (word := heard.recv(100)) == b'WATCHDOG=1':
            pass
        check('HUP reloads', word == b'RELOADING=1', word)
        process.send_signal(signal.SIGTERM)
        while (word := heard.recv(100)) in (b'WATCHDOG=1', b'READY=1'):
            pass
        check('TERM ends it with 0', word == b'STOPPING=1' and process.wait(PATIENCE_S) == 0, word)
    heard.close()


# ---- A holder that is stopped: dibs lab pause ----

def test_lab_pause(toy):
    gate = open_gate(toy)
    toy.value = 0
    code, out, error = dibs('lab', 'pause', '--ttl', '500ms', '--gate', f'http://127.0.0.1:{gate.port}/value')
    check('the gate refuses the late write of dibs lab pause', code == 0 and toy.value == 5 and
          re.search(r'^A gate in front of a service +refused +5 +5 +0 +correct$', out, re.M) and '/problems/stale' in out, code, out, error)
    gate.stop()
    toy.value = 0
    code, out, error = dibs('lab', 'pause', '--ttl', '500ms', '--gate', f'http://127.0.0.1:{toy.port}/value')
    check('the service alone takes it, and loses an addition', code == 116 and toy.value == 5 and
          re.search(r'^A gate in front of a service +accepted +5 +6 +1 +BROKEN$', out, re.M), code, out, error)
    for url, wanted in (('nonsense', 125), (f'http://127.0.0.1:{free_port()}/value', 123)):
        code, out, error = dibs('lab', 'pause', '--ttl', '500ms', '--gate', url)
        check(f'--gate {url[:21]} fails with the reason', code == wanted and url[:21] in error, code, out, error)


# ---- Bounds ----

def send_part(gate, key, bytes_sent, name='part'):
    """A request in chunks that has sent so many bytes of its body, and not its end."""
    s = socket.create_connection(('127.0.0.1', gate.port), timeout=PATIENCE_S)
    s.sendall(f'PUT /run HTTP/1.1\r\nHost: a\r\nDibs-Name: {name}\r\nDibs-Fence: 1\r\nIdempotency-Key: {key}\r\n'
              'Transfer-Encoding: chunked\r\n\r\n'.encode() + b'%x\r\n' % bytes_sent + b'x' * bytes_sent + b'\r\n')
    return s


def test_memory_of_bodies(toy):
    port = free_port()
    gate = open_gate(toy, '--bodies', '1', '--metrics-listen', f'127.0.0.1:{port}')
    held = [send_part(gate, f'held-{i}', 200000) for i in range(3)]  # 256 KiB of memory each
    wait_until(lambda: metric(port, 'dibs_gate_bodies_bytes') == 3 << 18)
    status, _, body = gate.call('PUT', '/run?size=400000', b'y', fence=('part', 1), key='no-memory')
    check('an answer for which there is no memory comes through', status == 200 and len(body) > 400000, status)
    held.append(send_part(gate, 'held-3', 200000))
    check('bodies in chunks are counted as they grow', wait_until(
        lambda: metric(port, 'dibs_gate_bodies_bytes') == 1 << 20), metric(port, 'dibs_gate_bodies_bytes'))
    status, _, body = gate.call('PUT', '/run', iter([b'y' * 40000]), fence=('part', 1), key='grown')
    check('more are answered 503, which names the option', status == 503 and '--bodies' in body['detail'], status, body)
    late = send_part(gate, 'late', 300000)
    late.sendall(b'0\r\n\r\n')  # what is refused is read to its end
    check('also of a request that has begun', late.recv(15).startswith(b'HTTP/1.1 503'))
    late.close()
    for one in held:
        one.sendall(b'0\r\n\r\n')
    check('those that fit are done', all(one.recv(12) == b'HTTP/1.1 200' for one in held))
    for one in held:
        one.close()
    check('and then there is memory again', wait_until(
        lambda: gate.call('PUT', '/run', b'y' * 40000, fence=('part', 1), key='after')[0] == 200))
    before = toy.runs
    status, _, body = gate.call('PUT', '/run?size=400000', b'y', fence=('part', 1), key='no-memory')
    check('what could not be kept is not done again, also now', status == 409 and body['type'] == '/problems/answer-not-kept' and
          '--bodies' in body['detail'] and toy.runs == before, status, body, toy.runs - before)
    runs = toy.runs
    for _ in range(2):
        last = gate.call('PUT', '/run?size=400000', b'y', fence=('part', 1), key='answer')
    check('an answer that fits is kept', last[0] == 200 and last[1].get('idempotent-replayed') == 'true' and
          toy.runs == runs + 1, last[:2])
    gate.stop()


def test_waiters(toy):
    """--waiters limits those that wait for others, and not those that need not wait."""
    port = free_port()
    for most in (0, 2):
        gate = open_gate(toy, '--order', '--wait', '2m', '--waiters', str(most), '--metrics-listen', f'127.0.0.1:{port}')
        toy.go.clear()
        toy.started.clear()

        def hold(number):
            return gate.call('PUT', '/hold', str(number), fence=('line', 1))
        threads = [begin(hold, 0)]
        wait_until(lambda: toy.started)
        for i in range(most):
            threads.append(begin(hold, i + 1))
            wait_until(lambda: metric(port, 'dibs_gate_requests_waiting') == i + 1)
        for headers in ({}, {'Idempotency-Key': f'waiters-{most}'}):
            status, found, body = gate.call('PUT', '/run', 'x', headers, fence=('line', 1))
            check(f'with --waiters {most}, one more is answered 503', status == 503 and body['type'] == '/problems/overload' and
                  '--waiters' in body['detail'] and 'retry-after' in found, status, body)
            status, _, body = gate.call('PUT', '/run', 'x', headers, fence=('free', 1))
            check('one that need not wait passes', status == 200, status, body)
        toy.go.set()
        for thread, _ in threads:
            thread.join()
        check('those that waited are done', [got[0][0] for _, got in threads] == [200] * (most + 1), threads)
        check('and are counted no more', wait_until(lambda: metric(port, 'dibs_gate_requests_waiting') == 0))
        gate.stop()


def test_slow_upload(toy):
    gate = open_gate(toy, '--order', '--read', '2', '--wait', '60s')
    slow = socket.create_connection(('127.0.0.1', gate.port), timeout=PATIENCE_S)
    slow.sendall(b'PUT /upload?slow HTTP/1.1\r\nHost: a\r\nDibs-Name: turn\r\nDibs-Fence: 1\r\nTransfer-Encoding: chunked\r\n\r\n'
                 b'1\r\nx\r\n')
    wait_until(lambda: '/upload?slow' in toy.targets)
    follower = begin(gate.call, 'PUT', '/value', '77', fence=('turn', 2))

    def trickle():
        try:
            slow.sendall(b'1\r\nx\r\n')
        except OSError:
            pass
        return not follower[0].is_alive()
    check('an upload that trickles does not keep its name from the next request', wait_until(trickle) and
          follower[1][0][0] == 200 and toy.value == 77, follower[1])
    slow.close()
    status, _, body = gate.call('PUT', '/upload', iter([b'x' * 50000] * 20), fence=('turn', 2))
    check('one that is sent in time passes', status == 200 and body.startswith(b'1000000 '), status, body)
    gate.stop()


def test_temporary_answers(toy):
    gate = open_gate(toy)
    for status, size in ((503, 10), (503, 3000000), (502, 10), (504, 3000000)):
        runs = toy.runs
        key = f'temporary-{status}-{size}'
        for _ in range(2):
            answer = gate.call('POST', f'/run?status={status}&size={size}', 'x', fence=('temporary', 1), key=key)
        check(f'{status} with {size} bytes is not kept: the request is done again', answer[0] == status and
              toy.runs == runs + 2 and len(answer[2]) >= size, answer[0], toy.runs - runs)
    for size in (10, 3000000):
        runs = toy.runs
        for _ in range(2):
            answer = gate.call('POST', f'/run?status=500&size={size}', 'x', fence=('temporary', 1), key=f'final-{size}')
        check(f'500 with {size} bytes is final', toy.runs == runs + 1 and answer[0] == (500 if size == 10 else 409),
              answer[0], toy.runs - runs)
    gate.stop()


def main():
    toy = Toy()
    for test in (test_setting_the_fence, test_check_lease, test_metrics, test_access_log, test_configuration, test_systemd, test_lab_pause,
                 test_memory_of_bodies, test_waiters, test_slow_upload, test_temporary_answers):
        test(toy)
    return end()


sys.exit(main())
