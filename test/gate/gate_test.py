# SPDX-License-Identifier: MIT
"""dibs gate as its clients and the service behind it see it, on a real store.

usage: gate_test.py DIBS [URI]
"""
import contextlib
import hashlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time

from gates import DIBS, FOLDER, STORE, Program, open_gate
from checks import PATIENCE_S, begin, check, end, free_port, wait_until
from toy import Toy

LEASES_ONLY = STORE.startswith('redis')
MEMORY_KB = int(os.environ.get('DIBS_TEST_MEMORY_KB', 81920))  # of a gate that streams, with a sanitizer, too


# ---- Fences ----

def test_fences(toy, gate):
    status, _, _ = gate.call('PUT', '/value', '1', fence=('a/b', 7))
    check('a request with a first fence passes', status == 200 and toy.value == 1, status)
    status, headers, _ = gate.call('GET', '/value', fence=('a/b', 7))
    check('and one with the same fence', status == 200 and 'dibs-gate' in headers['via'], status, headers)
    status, headers, body = gate.call('PUT', '/value', '2', fence=('a/b', 6))
    check('an older fence is refused with 409, and the service sees nothing', status == 409 and toy.value == 1, status)
    check('as a problem with both fences', headers['content-type'] == 'application/problem+json' and
          body['type'] == '/problems/stale' and (body['fence'], body['seen_fence'], body['name']) == (6, 7, 'a/b') and
          headers['dibs-fence'] == '7', headers, body)
    status, _, _ = gate.call('PUT', '/value', '3', fence=('a%2Fb', 6))
    check('the name may be percent-encoded', status == 409, status)
    status, _, _ = gate.call('PUT', '/value', '3', fence=('other', 1))
    check('another name has fences of its own', status == 200 and toy.value == 3, status)
    status, _, _ = gate.call('GET', '/value', fence=('a/b', 9))
    status, _, body = gate.call('PUT', '/value', '4', fence=('a/b', 8))
    check('after a read older writers are refused, too', status == 409 and body['seen_fence'] == 9, status, body)
    largest = 2 ** 53 - 1
    check('the largest fence passes', gate.call('GET', '/value', fence=('large', largest))[0] == 200)
    name = 'n' * 255
    gate.call('GET', '/value', fence=(name, 5))
    check('a name of 255 bytes is one of its own', gate.call('GET', '/value', fence=(name, 4))[0] == 409 and
          gate.call('GET', '/value', fence=(name[:-1] + 'm', 4))[0] == 200)
    for headers in [{'Dibs-Name': 'a'}, {'Dibs-Fence': '7'}, {'Dibs-Name': 'a', 'Dibs-Fence': '0'},
                    {'Dibs-Name': 'a', 'Dibs-Fence': '-1'}, {'Dibs-Name': 'a', 'Dibs-Fence': '1e3'},
                    {'Dibs-Name': 'a', 'Dibs-Fence': str(2 ** 53)}, {'Dibs-Name': '', 'Dibs-Fence': '7'},
                    {'Dibs-Name': '%zz', 'Dibs-Fence': '7'}, {'Dibs-Name': '%00', 'Dibs-Fence': '7'},
                    {'Dibs-Name': 'n' * 256, 'Dibs-Fence': '7'}, {'Dibs-Name': '%ff', 'Dibs-Fence': '7'}]:
        status, _, body = gate.call('GET', '/value', headers=headers)
        check(f'{str(headers)[:60]} is refused with 400', status == 400 and body['detail'], status, body)


def test_require(toy):
    gate = open_gate(toy)
    status, _, body = gate.call('PUT', '/value', '11')
    check('without --require, a write without a fence is refused with 428',
          status == 428 and body['type'] == '/problems/fence-missing' and toy.value != 11, status, body)
    check('and a read passes', gate.call('GET', '/value')[0] == 200)
    gate.stop()
    gate = open_gate(toy, '--require', 'all')
    check('--require all refuses reads, too', gate.call('GET', '/value')[0] == 428)
    gate.stop()
    gate = open_gate(toy, '--require', 'none')
    check('--require none passes all', gate.call('PUT', '/value', '12')[0] == 200 and toy.value == 12)
    gate.stop()


def test_fence_of_the_daemon(toy, gate, daemon):
    lease = daemon.call('POST', '/v1/leases/job', json.dumps({'ttl': '20s'}))
    status, _, _ = gate.call('PUT', '/value', '21', headers={'Dibs-Name': 'job', 'Dibs-Fence': str(lease[2]['fence'])})
    check('the fence of POST /v1/leases is used as it is', status == 200 and toy.value == 21, status)
    status, _, echoed = gate.call('GET', '/echo', headers={'Dibs-Name': 'job', 'Dibs-Fence': lease[1]['dibs-fence'],
                                                           'Dibs-Lease': lease[2]['id']})
    names = [name.lower() for name, _ in echoed['headers']]
    check('the fence goes on to the service, the id of the lease does not',
          status == 200 and 'dibs-fence' in names and 'dibs-lease' not in names, status, echoed)
    daemon.call('DELETE', '/v1/leases/job', headers={'Dibs-Lease': lease[2]['id']})


LATE = '''
import json, os, signal, sys, urllib.error, urllib.request
daemon, service, fenced = sys.argv[1:4]
lease = json.load(urllib.request.urlopen(urllib.request.Request(daemon + "/v1/leases/paused", b'{"ttl": "500ms"}')))
headers = {"Dibs-Name": "paused", "Dibs-Fence": str(lease["fence"])} if fenced == "1" else {}
def call(method, data=None):
    return urllib.request.urlopen(urllib.request.Request(service + "/value", data, headers, method=method)).read()
value = int(call("GET"))
os.kill(os.getpid(), signal.SIGSTOP)
try:
    call("PUT", b"%d" % (value + 1))
    print("wrote")
except urllib.error.HTTPError as error:
    print(error.code, json.load(error)["type"])
'''


def paused_writer(toy, daemon, service, fenced):
    """What `dibs lab pause` does: a holder reads, is stopped past its ttl, and adds 1 to what it read; meanwhile the next
    holder adds 5.  Returns what the late writer got."""
    toy.value = 0
    late = subprocess.Popen([sys.executable, '-c', LATE, f'http://127.0.0.1:{daemon.port}', service, str(int(fenced))],
                            stdout=subprocess.PIPE, text=True)
    os.waitpid(late.pid, os.WUNTRACED)
    lease = daemon.call('POST', '/v1/leases/paused', json.dumps({'ttl': '20s', 'wait': '30s'}))[2]
    target = http.client.HTTPConnection(service.split('/')[2], timeout=PATIENCE_S)
    headers = {'Dibs-Name': 'paused', 'Dibs-Fence': str(lease['fence'])} if fenced else {}
    target.request('GET', '/value', headers=headers)
    value = int(target.getresponse().read())
    target.request('PUT', '/value', b'%d' % (value + 5), headers=headers)
    target.getresponse().read()
    target.close()
    late.send_signal(signal.SIGCONT)
    said = late.communicate(timeout=PATIENCE_S)[0].strip()
    daemon.call('DELETE', '/v1/leases/paused', headers={'Dibs-Lease': lease['id']})
    return said


def test_late_writer(toy, gate, daemon):
    said = paused_writer(toy, daemon, f'http://127.0.0.1:{toy.port}', False)
    check('without a gate the late writer overwrites the next holder', said == 'wrote' and toy.value == 1, said, toy.value)
    said = paused_writer(toy, daemon, f'http://127.0.0.1:{gate.port}', True)
    check('the gate refuses the late writer', said == '409 /problems/stale' and toy.value == 5, said, toy.value)


def test_two_gates(toy, gate):
    other = open_gate(toy)
    gate.call('GET', '/value', fence=('two', 5))
    check('what one gate has seen, the other knows', other.call('GET', '/value', fence=('two', 4))[0] == 409)
    other.call('GET', '/value', fence=('two', 6))
    check('and the other way round', gate.call('GET', '/value', fence=('two', 5))[0] == 409)
    gates = [gate, other]
    highest, wrong, lock = [0], [], threading.Lock()

    def write(nth):
        for i in range(20):
            with lock:
                seen = highest[0]
            fence = 1 + (i * 7 + nth * 13) % 40
            status = gates[(i + nth) % 2].call('GET', '/echo', fence=('many', fence))[0]
            with lock:
                if status == 200:
                    highest[0] = max(highest[0], fence)
                if (status == 200 and fence < seen) or status not in (200, 409):
                    wrong.append((status, fence, seen))
    threads = [begin(write, i)[0] for i in range(8)]
    for thread in threads:
        thread.join()
    check('no fence passes any gate after a newer one has passed', not wrong and highest[0] > 30, wrong, highest)
    other.process.kill()
    other.process.wait()
    third = open_gate(toy)
    check('a gate that was killed has forgotten nothing', third.call('GET', '/value', fence=('two', 5))[0] == 409)
    third.stop()


# ---- Passing on ----

def test_plain(toy, gate):
    status, headers, body = gate.call('GET', '/echo/a%20b?c=%2F&d', headers={'X-One': 'eins', 'Empty': ''})
    found = dict(body['headers'])
    check('path and query go on as they were', body['target'] == '/echo/a%20b?c=%2F&d', body)
    check('headers go on', status == 200 and found['X-One'] == 'eins' and found['Empty'] == '' and
          found['Host'] == f'127.0.0.1:{toy.port}', body)
    status, _, body = gate.call('GET', '/echo', headers={'Connection': 'X-Mine, keep-alive', 'X-Mine': '1', 'TE': 'trailers',
                                                         'Keep-Alive': 'timeout=5', 'Proxy-Authorization': 'x',
                                                         'Upgrade': 'h2c', 'HTTP2-Settings': 'x'})
    names = {name.lower() for name, _ in body['headers']}
    check('those of one connection do not', not names & {'connection', 'x-mine', 'te', 'keep-alive', 'upgrade',
                                                         'proxy-authorization', 'http2-settings'}, names)
    status, headers, _ = gate.call('GET', '/run?cookie=1')
    check('nor do those of an answer', 'x-run' in headers and 'x-hop' not in headers and
          headers['set-cookie'] == 'session=secret', headers)
    for method in ['POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS']:
        status, _, body = gate.call(method, '/echo', 'text', fence=('plain', 1))
        check(f'{method} goes on with its body', status == 200 and (body['method'], body['body']) == (method, 'text'), body)
    status, _, body = gate.call('POST', '/echo', fence=('plain', 1))
    found = dict(body['headers'])
    check('an empty POST has a length, and no type', found.get('Content-Length') == '0' and 'Content-Type' not in found, body)
    status, headers, body = gate.call('HEAD', '/echo')
    check('HEAD has the length and no body', status == 200 and int(headers['content-length']) > 10 and body == b'', headers)
    for status in [201, 301, 404, 418, 500]:
        check(f'{status} is passed', gate.call('GET', f'/run?status={status}')[0] == status)
    toy.raw = b'HTTP/1.1 204 No\r\nX-One: 1\r\n\r\n'
    status, headers, body = gate.call('GET', '/raw')
    check('204 is passed without a body', status == 204 and headers['x-one'] == '1' and body == b'', status, headers)
    toy.raw = b'HTTP/1.1 103 Early\r\nX-Early: 1\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok'
    status, headers, body = gate.call('GET', '/raw')
    check('of interim answers only the last one is passed', status == 200 and 'x-early' not in headers and body == b'ok', headers)


def test_keep_alive(toy, gate):
    before = toy.connections
    connection = gate.connect()
    for _ in range(20):
        gate.call('GET', '/echo', connection=connection)
    connection.close()
    check('connections to the service are kept', toy.connections - before <= 1, toy.connections - before)
    pipelined = gate.raw(b'GET /echo?1 HTTP/1.1\r\nHost: a\r\n\r\nGET /echo?2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n')
    check('pipelined requests are answered in order', pipelined.count(b'HTTP/1.1 200') == 2 and
          pipelined.index(b'echo?1') < pipelined.index(b'echo?2'), pipelined)


def test_addresses(toy):
    path = f'{FOLDER}/toy.sock'
    local = Toy(path=path)
    gate = Program('gate', '--upstream', f'unix:{path}')
    status, _, body = gate.call('GET', '/echo')
    check('a service at a Unix socket', status == 200 and dict(body['headers'])['Host'] == 'localhost', body)
    gate.stop()
    local.close()
    gate = open_gate(toy, path='/base/')
    check('the path of the URL comes first', gate.call('GET', '/echo?x')[2]['target'] == '/base/echo?x')
    gate.stop()
    for url in ['ftp://127.0.0.1/', 'http://ann:secret@127.0.0.1/', 'http://127.0.0.1/?x', 'unix:', 'nonsense']:
        done = subprocess.run([DIBS, 'gate', '--store', STORE, '--upstream', url, '--listen', f'127.0.0.1:{free_port()}'],
                              capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        check(f'the upstream {url} is refused', done.returncode not in (0, -6, -11) and 'upstream' in done.stderr and
              'secret' not in done.stderr, done)


def test_tls(toy):
    pem, key = f'{FOLDER}/cert.pem', f'{FOLDER}/key.pem'
    subprocess.run(['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-subj', '/CN=localhost',
                    '-addext', 'subjectAltName=IP:127.0.0.1', '-keyout', key, '-out', pem], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    secure = Toy(tls=context)
    gate = Program('gate', '--upstream', f'https://127.0.0.1:{secure.port}', '--ca', pem)
    check('a service with TLS', gate.call('GET', '/echo')[0] == 200)
    gate.stop()
    gate = Program('gate', '--upstream', f'https://127.0.0.1:{secure.port}')
    status, _, body = gate.call('GET', '/echo')
    check('with an unknown certificate it is refused', status == 502 and 'nothing was sent' in body['detail'], status, body)
    gate.stop()
    secure.close()
    client_key, client_pem = f'{FOLDER}/client.key', f'{FOLDER}/client.pem'
    subprocess.run(['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-subj', '/CN=ann', '-keyout',
                    client_key, '-out', client_pem], check=True, capture_output=True)
    gate = open_gate(toy, '--cert', pem, '--key', key, '--client-ca', client_pem)

    def call_with(*certificate):
        client = ssl.create_default_context(cafile=pem)
        if certificate:
            client.load_cert_chain(*certificate)
        own = http.client.HTTPSConnection('127.0.0.1', gate.port, timeout=PATIENCE_S, context=client)
        own.request('PUT', '/value', '77', headers={'Dibs-Name': 'tls', 'Dibs-Fence': '1'})
        status = own.getresponse().status
        own.close()
        return status
    toy.value = 0
    check('a client without the certificate is refused', call_with() == 403 and toy.value == 0, toy.value)
    check('one with it passes', call_with(client_pem, client_key) == 200 and toy.value == 77, toy.value)
    gate.stop()
    done = subprocess.run([DIBS, 'gate', '--store', STORE, '--upstream', f'http://127.0.0.1:{toy.port}', '--listen',
                           f'0.0.0.0:{free_port()}'], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    check('an address of other machines needs certificates', done.returncode != 0 and '--client-ca' in done.stderr, done)


# ---- Heads that two parsers could understand differently ----

def test_heads(toy, gate):
    refused = {
        'both lengths': b'POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
        'two lengths': b'POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde',
        'the same length twice': b'POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nabcd',
        'a list of lengths': b'POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4, 4\r\n\r\nabcd',
        'a length with a sign': b'POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: +4\r\n\r\nabcd',
        'a hexadecimal length': b'POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 0x4\r\n\r\nabcd',
        'a length that overflows': b'POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n',
        'another coding': b'POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n',
        'two codings': b'POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n',
        'a coding twice': b'POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
        'chunks in HTTP/1.0': b'POST /echo HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
        'a blank before the colon': b'POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length : 4\r\n\r\nabcd',
        'a name with a blank': b'GET /echo HTTP/1.1\r\nHost: a\r\nX Y: 4\r\n\r\n',
        'two hosts': b'GET /echo HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n',
        'two names': b'GET /echo HTTP/1.1\r\nHost: a\r\nDibs-Name: a\r\nDibs-Name: b\r\nDibs-Fence: 1\r\n\r\n',
        'two fences': b'GET /echo HTTP/1.1\r\nHost: a\r\nDibs-Name: a\r\nDibs-Fence: 1\r\nDibs-Fence: 2\r\n\r\n',
        'a control character': b'GET /echo HTTP/1.1\r\nHost: a\r\nX: a\x01b\r\n\r\n',
        'a carriage return in a value': b'GET /echo HTTP/1.1\r\nHost: a\r\nX: a\rY: b\r\n\r\n',
        'the form of forward proxies': b'GET http://other/echo HTTP/1.1\r\nHost: other\r\n\r\n',
        'the target *': b'OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n',
        'a path that goes up': b'GET /a/../echo HTTP/1.1\r\nHost: a\r\n\r\n',
        'an encoded path that goes up': b'GET /a/%2E%2e/echo HTTP/1.1\r\nHost: a\r\n\r\n',
        'a path that goes up with a parameter': b'GET /a/..;x=1/echo HTTP/1.1\r\nHost: a\r\n\r\n',
        'a path with a backslash': b'GET /a\\..\\echo HTTP/1.1\r\nHost: a\r\n\r\n',
        'a path with a NUL': b'GET /echo%00 HTTP/1.1\r\nHost: a\r\n\r\n',
        'a path with a broken %': b'GET /echo%2 HTTP/1.1\r\nHost: a\r\n\r\n',
        'a fragment': b'GET /echo#x HTTP/1.1\r\nHost: a\r\n\r\n',
        'a blank in the target': b'GET /echo x HTTP/1.1\r\nHost: a\r\n\r\n',
        'CONNECT': b'CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n',
        'TRACE': b'TRACE /echo HTTP/1.1\r\nHost: a\r\n\r\n',
        'a method in lower case': b'get /echo HTTP/1.1\r\nHost: a\r\n\r\n',
        'too many headers': b'GET /echo HTTP/1.1\r\nHost: a\r\n' + b'X: y\r\n' * 200 + b'\r\n',
        'too large headers': b'GET /echo HTTP/1.1\r\nHost: a\r\nX: ' + b'y' * 17000 + b'\r\n\r\n',
        'a websocket': b'GET /echo HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n'
                       b'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n',
    }
    seen = len(toy.targets)
    for what, request in refused.items():
        smuggled = request + b'GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n'
        answer = gate.raw(smuggled)
        status = answer.split(b' ')[1][:3] if answer else b''
        wanted = b'501' if what in ('a websocket', 'CONNECT', 'TRACE') else b'4'
        # libmicrohttpd writes the head of its own pages twice.
        once = answer.count(b'HTTP/1.1 ') <= (2 if b'<html>' in answer else 1)
        check(f'{what}: refused, and the connection ends', once and
              (status.startswith(wanted) or status in (b'', b'501')) and (what != 'a websocket' or status == b'501'), answer)
    check('the service saw none of them', len(toy.targets) == seen, toy.targets[seen:])
    for bad in [b'HTTP/1.1 200 OK\r\nX Y: 1\r\nContent-Length: 2\r\n\r\nok', b'nonsense\r\n\r\n', b'',
                b'HTTP/1.1 200 OK\r\n' + b'X: y\r\n' * 4000 + b'\r\n', b'HTTP/1.1 200 OK\r\nX: a\x01b\r\n\r\n',
                b'HTTP/1.1 101 Switching\r\n\r\n', b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nokk']:
        toy.raw = bad
        status, _, body = gate.call('GET', '/raw')
        check(f'the answer {bad[:45]} is answered 502', status == 502 and body['type'] == '/problems/bad-gateway', status, body)


# ---- Streaming ----

def receive(gate, path, pause=0.0):
    """(bytes, SHA-256) of a body, read slowly."""
    connection = gate.connect()
    connection.request('GET', path)
    answer = connection.getresponse()
    length, digest = 0, hashlib.sha256()
    while part := answer.read(1 << 20):
        length += len(part)
        digest.update(part)
        time.sleep(pause)
    connection.close()
    return length, digest.hexdigest()


def upload(gate, path, size, chunked, pause=0.0):
    part = b'0123456789abcdef' * 4096

    def parts():
        left = size
        while left:
            yield part[:min(left, len(part))]
            left -= min(left, len(part))
            time.sleep(pause)
    digest = hashlib.sha256()
    for one in parts() if not pause else ():
        digest.update(one)
    connection = gate.connect()
    connection.request('PUT', path, body=parts(), headers={'Dibs-Name': 'up', 'Dibs-Fence': '1'} | (
        {} if chunked else {'Content-Length': str(size)}), encode_chunked=chunked)
    answer = connection.getresponse()
    got = answer.read().decode()
    connection.close()
    return got, f'{size} {digest.hexdigest()}'


def expected(size):
    digest, part = hashlib.sha256(), b'0123456789abcdef' * 4096
    for at in range(0, size, len(part)):
        digest.update(part[:min(size - at, len(part))])
    return size, digest.hexdigest()


def test_streams(toy):
    gate = open_gate(toy)
    large = int(os.environ.get('DIBS_TEST_STREAM_BYTES', 1 << 30))
    got = receive(gate, f'/stream?size={large}')
    check(f'{large} bytes come through', got == expected(large), got)
    got, wanted = upload(gate, '/upload', large, False)
    check('and go up', got == wanted, got, wanted)
    check('with bounded memory', gate.memory_kb() < MEMORY_KB, gate.memory_kb())
    some = 20 << 20
    got = receive(gate, f'/stream?size={some}&chunked=1')
    check('in chunks, too', got == expected(some), got)
    got, wanted = upload(gate, '/upload', some, True)
    check('both ways', got == wanted, got, wanted)
    got = receive(gate, f'/stream?size={some}', pause=0.05)
    check('to a client that reads slowly', got == expected(some), got)
    got, wanted = upload(gate, '/upload?pause=1', some, False)
    check('to a service that reads slowly', got == wanted, got, wanted)
    got = receive(gate, f'/stream?size={1 << 20}&pause=50')
    check('from a service that sends slowly', got == expected(1 << 20), got)
    got, _ = upload(gate, '/upload', 1 << 20, False, pause=0.05)
    check('from a client that sends slowly', got == '%d %s' % expected(1 << 20), got)
    check('all with bounded memory', gate.memory_kb() < MEMORY_KB, gate.memory_kb())
    connection = gate.connect()
    connection.request('GET', '/drop?half=1')
    answer = connection.getresponse()
    try:
        whole = len(answer.read()) == 100000
    except (http.client.IncompleteRead, ConnectionError):
        whole = False
    check('an answer that breaks off does not look whole', not whole)
    connection.close()
    gate.stop()


# ---- Failures of the service ----

def test_failures(toy):
    gone = Toy()
    gate = Program('gate', '--upstream', f'http://127.0.0.1:{gone.port}', '--timeout', '700ms', '--require', 'none')
    status, _, body = gate.call('POST', '/hold')
    check('a silent service: 504', status == 504 and body['type'] == '/problems/gateway-timeout' and
          'may have done' in body['detail'], status, body)
    gone.go.set()
    runs = gone.runs
    status, _, body = gate.call('POST', '/drop')
    check('a service that hangs up: 502, and the request is not repeated',
          status == 502 and gone.runs == runs + 1, status, body, gone.runs - runs)
    gate.call('GET', '/echo')  # a connection that is kept
    runs = gone.runs
    status, _, body = gate.call('POST', '/drop')
    check('not even over a connection that was kept', status == 502 and gone.runs == runs + 1, status, gone.runs - runs)
    check('a slow answer is not silent', gate.call('GET', f'/stream?size={256 << 10}&pause=300')[0] == 200)
    gone.close()
    gate.stop()
    gate = Program('gate', '--upstream', f'http://127.0.0.1:{free_port()}')
    status, _, body = gate.call('GET', '/echo')
    check('a service that is down: 502', status == 502 and 'nothing was sent' in body['detail'], status, body)
    gate.stop()


def test_slow_clients(toy):
    gate = open_gate(toy, '--order', '--read', '2', '--wait', '30s')
    toy.go.set()
    slow = socket.create_connection(('127.0.0.1', gate.port), timeout=PATIENCE_S)
    slow.sendall(b'PUT /value HTTP/1.1\r\nHost: a\r\nDibs-Name: slow\r\nDibs-Fence: 1\r\nContent-Length: 2\r\n\r\n5')
    status = gate.call('PUT', '/value', '6', fence=('slow', 1))[0]
    slow.setblocking(False)
    try:
        still = slow.recv(1) != b''
    except BlockingIOError:
        still = True
    check('a client that sends slowly does not hold its name', status == 200 and toy.value == 6 and still, status, still)
    slow.setblocking(True)
    slow.settimeout(PATIENCE_S)
    try:
        cut = slow.recv(1) == b''
    except ConnectionError:
        cut = True
    check('and is cut', cut and toy.value == 6)
    slow.close()
    many = [socket.create_connection(('127.0.0.1', gate.port), timeout=PATIENCE_S) for _ in range(500)]
    for one in many:
        one.sendall(b'GET /echo HTTP/1.1\r\nHost:')
    check('many half requests do not stop others', gate.call('GET', '/echo')[0] == 200)
    for one in many:
        one.close()
    gate.stop()
    gate = open_gate(toy, '--bodies', '1')
    big = b'x' * 900000
    first = socket.create_connection(('127.0.0.1', gate.port), timeout=PATIENCE_S)
    first.sendall(b'PUT /run HTTP/1.1\r\nHost: a\r\nDibs-Name: slow\r\nDibs-Fence: 1\r\nIdempotency-Key: b-0\r\n'
                  b'Content-Length: 900000\r\n\r\n' + big[:500000])
    tries = iter(range(1, 1000))
    check('more memory than --bodies is not taken: 503', wait_until(
        lambda: gate.call('PUT', '/run', big, fence=('slow', 1), key=f'b-{next(tries)}')[0] == 503))
    first.sendall(big[500000:])
    check('what was begun is finished', first.recv(15).startswith(b'HTTP/1.1 200'))
    first.close()
    gate.stop()


def test_hang_up(toy, gate):
    toy.go.clear()
    toy.started.clear()
    before = toy.inside
    connection = gate.connect()
    connection.request('GET', '/stream?size=1000000000&pause=10')
    connection.getresponse().read(100000)
    connection.close()
    check('a client that hangs up leaves nothing behind', wait_until(lambda: gate.call('GET', '/echo')[0] == 200))
    connection = gate.connect()
    connection.request('POST', '/hold', body='x', headers={'Dibs-Name': 'hang', 'Dibs-Fence': '1'})
    wait_until(lambda: toy.inside > before)
    connection.close()
    toy.go.set()
    check('nor does one that waits', wait_until(lambda: toy.inside == before))


# ---- Replay ----

def test_replay(toy, gate):
    toy.runs = 0
    first = gate.call('POST', '/run?status=201&cookie=1', 'buy', fence=('order', 3), key='k-1')
    second = gate.call('POST', '/run?status=201&cookie=1', 'buy', fence=('order', 3), key='k-1')
    check('a repeated request is done once', toy.runs == 1 and first[0] == second[0] == 201, toy.runs, first, second)
    check('and gets the same answer', first[2] == second[2] == b'1:buy' and second[1]['x-run'] == '1', second)
    check('which says so', second[1].get('idempotent-replayed') == 'true' and 'idempotent-replayed' not in first[1], second)
    check('the cookie is for the first alone', 'set-cookie' in first[1] and 'set-cookie' not in second[1], first, second)
    third = gate.call('POST', '/run?status=201&cookie=1', 'buy', fence=('order', 4), key='k-1')
    check('also with a newer fence', third[0] == 201 and third[2] == b'1:buy' and toy.runs == 1, third)
    late = gate.call('POST', '/run?status=201&cookie=1', 'buy', fence=('order', 2), key='k-1')
    check('and with an older one: it was done when its fence was the newest', late[0] == 201 and toy.runs == 1, late)
    for what, (method, path, body, headers) in {
            'body': ('POST', '/run?status=201&cookie=1', 'sell', {}),
            'path': ('POST', '/run?status=201', 'buy', {}),
            'method': ('PUT', '/run?status=201&cookie=1', 'buy', {}),
            'client': ('POST', '/run?status=201&cookie=1', 'buy', {'Authorization': 'Bearer other'})}.items():
        status, _, problem = gate.call(method, path, body, headers, fence=('order', 4), key='k-1')
        check(f'the key with another {what}: 422', status == 422 and problem['type'] == '/problems/key-reused' and
              toy.runs == 1, status, problem)
    gate.call('POST', '/run', 'a', fence=('order', 4), key='k-2')
    status, _, _ = gate.call('POST', '/run', 'b', fence=('order', 1), key='k-3')
    check('a stale request is refused', status == 409 and toy.runs == 2, status)
    status, _, _ = gate.call('POST', '/run', 'b', fence=('order', 4), key='k-3')
    check('and its key is free again', status == 200 and toy.runs == 3, status, toy.runs)
    for passing in [503, 429]:
        gate.call('POST', f'/run?status={passing}', 'x', fence=('order', 4), key=f'k-{passing}')
        again = gate.call('POST', f'/run?status={passing}', 'x', fence=('order', 4), key=f'k-{passing}')
        check(f'{passing} is no final answer', again[0] == passing and 'idempotent-replayed' not in again[1], again)
    runs = toy.runs
    for _ in range(2):
        final = gate.call('POST', '/run?status=500', 'x', fence=('order', 4), key='k-500')
    check('500 is one: the service may have done a part', final[0] == 500 and toy.runs == runs + 1, final)
    status, _, body = gate.call('POST', '/run', 'x', fence=('order', 4), key='k' * 256)
    check('a key that is too long: 400', status == 400, status, body)


def test_replay_sizes(toy):
    gate = open_gate(toy, '--body', '65536')
    runs = toy.runs
    status, _, body = gate.call('POST', '/run', 'x' * 65537, fence=('size', 1), key='s-1')
    check('a body that is too large to be kept: 413', status == 413 and toy.runs == runs and '--body' in body['detail'], status, body)
    status, _, body = gate.call('POST', '/run', iter([b'x' * 40000, b'y' * 40000]), fence=('size', 1), key='s-1')
    check('also in chunks', status == 413 and toy.runs == runs, status, body)
    status, _, body = gate.call('POST', '/run', iter([b'x' * 30000, b'y' * 30000]), fence=('size', 1), key='s-1')
    check('a smaller one passes', status == 200 and len(body) > 60000 and toy.runs == runs + 1, status)
    for _ in range(2):
        last = gate.call('POST', '/run?size=1000000', 'x', fence=('size', 1), key='s-2')
    check('an answer of a million bytes is kept', len(last[2]) > 1000000 and last[1].get('idempotent-replayed') == 'true' and
          toy.runs == runs + 2, last[1])
    first = gate.call('POST', '/run?size=5000000', 'x', fence=('size', 1), key='s-3')
    check('a larger one comes through', len(first[2]) > 5000000, first[0], len(first[2]))
    status, _, body = gate.call('POST', '/run?size=5000000', 'x', fence=('size', 1), key='s-3')
    check('and its repetition is refused, not done', status == 409 and body['type'] == '/problems/answer-not-kept' and
          toy.runs == runs + 3, status, body, toy.runs - runs)
    gate.stop()


def test_lost_answers(toy):
    gate = open_gate(toy)
    runs = toy.runs
    connection = gate.connect()
    connection.request('POST', '/run?sleep=700', body='pay', headers={'Dibs-Name': 'lost', 'Dibs-Fence': '1',
                                                                      'Idempotency-Key': 'l-1'})
    wait_until(lambda: toy.runs == runs + 1)
    connection.close()  # the answer is lost
    status, headers, body = gate.call('POST', '/run?sleep=700', 'pay', fence=('lost', 1), key='l-1')
    check('a client that lost the answer gets it, and the request was done once', status == 200 and toy.runs == runs + 1 and
          headers.get('idempotent-replayed') == 'true', status, headers, toy.runs - runs)
    other = open_gate(toy)
    threads = [begin(one.call, 'POST', '/run?sleep=300', 'many', fence=('lost', 1), key='l-2') for one in [gate, other] * 4]
    for thread, _ in threads:
        thread.join()
    answers = [got[0] for _, got in threads]
    check('eight at once through two gates are done once', toy.runs == runs + 2 and {a[0] for a in answers} == {200} and
          len({a[2] for a in answers}) == 1, answers, toy.runs - runs)
    gate.call('POST', '/run', 'kept', fence=('lost', 1), key='l-3')
    gate.stop(signal.SIGKILL)
    third = open_gate(toy)
    status, headers, _ = third.call('POST', '/run', 'kept', fence=('lost', 1), key='l-3')
    check('the answer outlives the gate', status == 200 and headers.get('idempotent-replayed') == 'true', status, headers)
    toy.go.clear()
    toy.started.clear()
    thread, got = begin(lambda: third.raw(b'POST /hold HTTP/1.1\r\nHost: a\r\nDibs-Name: lost\r\nDibs-Fence: 1\r\n'
                                          b'Idempotency-Key: l-4\r\nContent-Length: 1\r\n\r\nx'))
    wait_until(lambda: toy.started)
    third.stop(signal.SIGKILL)
    thread.join()
    toy.go.set()
    status, headers, _ = other.call('POST', '/hold', 'x', fence=('lost', 1), key='l-4', headers={})
    tries = 0
    while status == 409 and tries < 10:  # the lease of the killed gate has not ended
        tries += 1
        status, headers, _ = other.call('POST', '/hold', 'x', fence=('lost', 1), key='l-4')
    check('after a killed gate the key is free again: the request is done a second time, as promised',
          status == 200 and len(toy.started) == 2 and got[0] == b'', status, toy.started, got)
    other.stop()


# ---- Order ----

def test_order(toy):
    gates = [open_gate(toy, '--order', '--wait', '30s'), open_gate(toy, '--order', '--wait', '30s')]
    toy.go.set()
    toy.most_inside = 0
    threads = [begin(gates[i % 2].call, 'POST', '/hold?sleep=20', str(i), fence=('line', 1)) for i in range(12)]
    for thread, _ in threads:
        thread.join()
    check('requests of a name run one at a time, at two gates', toy.most_inside == 1 and
          all(got[0][0] == 200 for _, got in threads), toy.most_inside, [got for _, got in threads])
    toy.go.clear()
    toy.started.clear()
    first = begin(gates[0].call, 'POST', '/hold', 'first', fence=('line', 5))
    wait_until(lambda: toy.started == ['first'])
    newer = begin(gates[1].call, 'POST', '/hold', 'newer', fence=('line', 6))
    other = begin(gates[1].call, 'POST', '/hold', 'other', fence=('line 2', 1))
    wait_until(lambda: 'other' in toy.started)
    check('a newer fence waits for the older request that is on its way', 'newer' not in toy.started and newer[0].is_alive())
    check('other names do not wait', toy.started == ['first', 'other'], toy.started)
    toy.go.set()
    for thread, _ in (first, newer, other):
        thread.join()
    check('and then runs', first[1][0][0] == newer[1][0][0] == 200 and toy.started[-1] == 'newer', toy.started)
    check('the older fence is stale now', gates[0].call('POST', '/hold', 'late', fence=('line', 5))[0] == 409)
    toy.go.clear()
    toy.started.clear()
    connection = gates[0].connect()
    connection.request('POST', '/hold', body='left', headers={'Dibs-Name': 'line', 'Dibs-Fence': '6'})
    wait_until(lambda: toy.started)
    connection.close()
    after = begin(gates[1].call, 'POST', '/hold', 'after', fence=('line', 7))
    time.sleep(0.5)
    check('a client that hangs up does not end the turn of its request', toy.started == ['left'], toy.started)
    toy.go.set()
    after[0].join()
    check('the next one runs after it', toy.started == ['left', 'after'] and after[1][0][0] == 200, toy.started)
    for gate in gates:
        gate.stop()
    gate = open_gate(toy, '--order', '--wait', '0s')
    toy.go.clear()
    toy.started.clear()
    first = begin(gate.call, 'POST', '/hold', 'first', fence=('line', 8))
    wait_until(lambda: toy.started)
    status, headers, body = gate.call('POST', '/hold', 'second', fence=('line', 8))
    check('who may not wait is answered 409', status == 409 and body['type'] == '/problems/held' and
          'retry-after' in headers, status, body)
    toy.go.set()
    first[0].join()
    gate.stop()


def test_on_the_way(toy):
    """The gap that doc/gate.md describes: a body that is still being sent when a newer fence passes."""
    for name, options, wanted in (('gap', (), [2, 1]), ('none', ('--order', '--wait', '30s'), [1, 2])):
        gate = open_gate(toy, *options)
        toy.fences.clear()
        slow = socket.create_connection(('127.0.0.1', gate.port), timeout=PATIENCE_S)
        slow.sendall(f'PUT /fence?{name} HTTP/1.1\r\nHost: a\r\nDibs-Name: {name}\r\nDibs-Fence: 1\r\n'
                     'Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n'.encode())
        wait_until(lambda: f'/fence?{name}' in toy.targets)
        newer = begin(gate.call, 'PUT', '/fence', 'y', fence=(name, 2))
        newer[0].join(1 if options else None)  # with --order it waits for the other
        slow.sendall(b'0\r\n\r\n')
        status = slow.recv(15)
        newer[0].join()
        seen = [fence for _, fence in toy.fences]
        check(f'{"with" if options else "without"} --order, a request on its way and a newer one arrive as {wanted}',
              seen == wanted and newer[1][0][0] == 200, seen, status, newer[1])
        slow.close()
        gate.stop()


def test_storm(toy):
    """Writers with fences of all ages through two gates, one of which is killed again and again."""
    options = ('--order', '--wait', '30s')
    gates = [open_gate(toy, *options), open_gate(toy, *options)]
    toy.fences.clear()
    answered, lock, stop = {'ok': 0, 'stale': 0, 'lost': 0}, threading.Lock(), threading.Event()

    def write(nth):
        i = 0
        while not stop.is_set():
            i += 1
            fence = max(1, i + (nth * 7 + i * 5) % 9 - 4)
            try:
                status = gates[(nth + i) % 2].call('PUT', '/fence', 'x', fence=('storm', fence))[0]
                word = {200: 'ok', 409: 'stale'}.get(status, 'lost')
            except (OSError, http.client.HTTPException):
                word = 'lost'
                time.sleep(0.05)
            with lock:
                answered[word] += 1
    threads = [begin(write, i)[0] for i in range(8)]
    for _ in range(2):
        time.sleep(1.5)
        gates[1].process.kill()
        gates[1].process.wait()
        gates[1] = open_gate(toy, *options)
    wait_until(lambda: answered['ok'] > 50)
    stop.set()
    for thread in threads:
        thread.join()
    fences = [fence for name, fence in toy.fences if name == 'storm']
    falls = [(a, b) for a, b in zip(fences, fences[1:]) if b < a]
    # A killed gate may have a request on its way, one each time.
    check('in a storm with killed gates the service sees fences in order', len(falls) <= 2 and answered['ok'] > 50 and
          answered['stale'] > 10, falls, answered)
    check('and every answered write', len(fences) >= answered['ok'], len(fences), answered)
    for gate in gates:
        gate.stop()


# ---- The store and the end ----

def test_stop(toy):
    gate = open_gate(toy, '--order', '--wait', '30s')
    toy.go.clear()
    toy.started.clear()
    first = begin(gate.call, 'POST', '/hold', 'first', fence=('stop', 1))
    wait_until(lambda: toy.started)
    second = begin(gate.call, 'POST', '/hold', 'second', fence=('stop', 1))
    time.sleep(0.3)
    gate.process.send_signal(signal.SIGTERM)
    second[0].join()
    check('a request that waits is answered 503 at the end', second[1][0][0] == 503 and
          'retry-after' in second[1][0][1], second[1])
    toy.go.set()
    first[0].join()
    check('one that runs is finished', first[1][0][0] == 200, first[1])
    check('then the gate ends', gate.process.wait(PATIENCE_S) == 0)
    check('and the service saw one', toy.started == ['first'], toy.started)


def test_store_down(toy):
    if not STORE.startswith('sqlite'):
        return
    import sqlite3
    path = f'{FOLDER}/busy.db'
    gate = open_gate(toy, store=f'sqlite://{path}')
    gate.call('PUT', '/value', '1', fence=('busy', 1))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=PATIENCE_S)) as other:
        other.execute('BEGIN EXCLUSIVE')
        toy.value = 0
        status, headers, body = gate.call('PUT', '/value', '9', fence=('busy', 2))
        other.execute('ROLLBACK')
    check('without a proof by the store: 503 with Retry-After, and nothing was sent', status == 503 and
          'retry-after' in headers and toy.value == 0 and 'nothing was sent' in body['detail'], status, headers, body)
    status, _, _ = gate.call('PUT', '/value', '9', fence=('busy', 2))
    check('later it passes', status == 200 and toy.value == 9, status)
    gate.stop()


def main():
    toy = Toy()
    if LEASES_ONLY:
        done = subprocess.run([DIBS, 'gate', '--store', STORE, '--upstream', f'http://127.0.0.1:{toy.port}', '--listen',
                               f'127.0.0.1:{free_port()}'], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        check('a store that keeps leases only is refused', done.returncode not in (0, -6, -11) and done.stderr, done)
    else:
        gate, daemon = open_gate(toy), Program('serve')
        test_fences(toy, gate)
        test_fence_of_the_daemon(toy, gate, daemon)
        test_late_writer(toy, gate, daemon)
        test_two_gates(toy, gate)
        test_plain(toy, gate)
        test_keep_alive(toy, gate)
        test_heads(toy, gate)
        test_hang_up(toy, gate)
        test_replay(toy, gate)
        daemon.process.kill()
        gate.stop()
        for test in (test_require, test_addresses, test_tls, test_streams, test_failures, test_slow_clients,
                     test_replay_sizes,
                     test_lost_answers, test_order, test_on_the_way, test_storm, test_stop, test_store_down):
            test(toy)
    return end()


sys.exit(main())
