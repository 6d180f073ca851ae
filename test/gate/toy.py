# SPDX-License-Identifier: MIT
"""A service that checks no fences, for tests of dibs gate: what a request asks for is in its path.

/value      GET reads a number, PUT sets it
/fence      notes the fence when the request came, in `fences`; ?sleep= (ms)
/echo       what arrived, as JSON
/run        counts: the answer is the number of requests so far; ?status=, ?cookie=, ?size= and ?sleep= (ms) as asked
/stream     ?size= bytes; with ?chunked=1 in chunks, with ?pause= (ms) between them
/upload     reads the body: its length and SHA-256
/hold       waits until the test lets it go
/drop       closes the connection without an answer; ?half=1: in the middle of it
/raw        answers with the bytes that the test has put into `raw`
"""
import hashlib
import json
import socket
import sys
import threading
import time
import urllib.parse


class Toy:
    def __init__(self, path=None, tls=None, port=0):
        if path:
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(path)
            self.listener.listen(128)
        else:
            self.listener = socket.create_server(('127.0.0.1', port), backlog=512)
            self.port = self.listener.getsockname()[1]
        if tls:
            self.listener = tls.wrap_socket(self.listener, server_side=True, do_handshake_on_connect=False)
        self.lock = threading.Lock()
        self.value = 0
        self.runs = self.connections = self.inside = self.most_inside = 0
        self.started = []  # what came to /hold, in order
        self.go = threading.Event()
        self.raw = b''
        self.targets = []
        self.fences = []  # (name, fence), as they came
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def serve(self, connection):
        try:
            if connection.family == socket.AF_INET:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reader = connection.makefile('rb')
            while line := reader.readline():
                method, target, _ = line.decode('latin-1').split(' ')
                headers = []
                while (one := reader.readline()) != b'\r\n':
                    name, _, value = one.decode('latin-1').partition(':')
                    headers.append((name, value.strip()))
                if not self.answer(connection, method, target, headers, self.body(reader, headers)):
                    return
        except (OSError, ValueError):
            pass
        finally:
            connection.close()

    @staticmethod
    def body(reader, headers):
        """The parts of a body."""
        found = {name.lower(): value for name, value in headers}
        if found.get('transfer-encoding') == 'chunked':
            while size := int(reader.readline(), 16):
                while size:
                    part = reader.read1(min(size, 65536))
                    if not part:
                        raise OSError('cut off')
                    yield part
                    size -= len(part)
                reader.readline()
            reader.readline()
        left = int(found.get('content-length', 0))
        while left:
            part = reader.read1(min(left, 65536))
            if not part:
                raise OSError('cut off')
            yield part
            left -= len(part)

    def answer(self, connection, method, target, headers, body):
        """false: the connection is closed."""
        url = urllib.parse.urlsplit(target)
        asked = {k: v[-1] for k, v in urllib.parse.parse_qs(url.query).items()}
        with self.lock:
            self.targets.append(target)
        handler = getattr(self, 'at_' + url.path.rsplit('/', 1)[-1], self.at_echo)
        return handler(connection, method, target, headers, body, asked)

    @staticmethod
    def send(connection, data, status=200, headers=(), method='GET'):
        head = f'HTTP/1.1 {status} Fine\r\nContent-Length: {len(data)}\r\n'
        head += ''.join(f'{name}: {value}\r\n' for name, value in headers)
        connection.sendall(head.encode('latin-1') + b'\r\n' + (data if method != 'HEAD' else b''))
        return True

    def at_value(self, connection, method, target, headers, body, asked):
        data = b''.join(body)
        if method == 'PUT':
            self.value = int(data)
        return self.send(connection, b'%d' % self.value)

    def at_echo(self, connection, method, target, headers, body, asked):
        data = b''.join(body)
        text = json.dumps({'method': method, 'target': target, 'headers': headers, 'body': data.decode('latin-1')})
        return self.send(connection, text.encode(), method=method, headers=[('Content-Type', 'application/json')])

    def at_fence(self, connection, method, target, headers, body, asked):
        data = b''.join(body)
        found = {name.lower(): value for name, value in headers}
        with self.lock:
            self.fences.append((found['dibs-name'], int(found['dibs-fence'])))
        time.sleep(int(asked.get('sleep', 0)) / 1000)
        return self.send(connection, data)

    def at_run(self, connection, method, target, headers, body, asked):
        data = b''.join(body)
        with self.lock:
            self.runs += 1
            number = self.runs
        time.sleep(int(asked.get('sleep', 0)) / 1000)
        extra = [('X-Run', number), ('Connection', 'keep-alive, X-Hop'), ('X-Hop', 'no')]
        if 'cookie' in asked:
            extra.append(('Set-Cookie', 'session=secret'))
        text = b'%d:%s' % (number, data)
        return self.send(connection, text + b'.' * int(asked.get('size', 0)), int(asked.get('status', 200)), extra)

    def at_stream(self, connection, method, target, headers, body, asked):
        b''.join(body)
        size, part = int(asked['size']), b'0123456789abcdef' * 4096
        chunked = 'chunked' in asked
        connection.sendall(b'HTTP/1.1 200 OK\r\n' + (b'Transfer-Encoding: chunked\r\n\r\n' if chunked
                                                    else b'Content-Length: %d\r\n\r\n' % size))
        while size:
            now = part[:min(size, len(part))]
            connection.sendall(b'%x\r\n%s\r\n' % (len(now), now) if chunked else now)
            size -= len(now)
            time.sleep(int(asked.get('pause', 0)) / 1000)
        if chunked:
            connection.sendall(b'0\r\n\r\n')
        return True

    def at_upload(self, connection, method, target, headers, body, asked):
        length, digest = 0, hashlib.sha256()
        for part in body:
            length += len(part)
            digest.update(part)
            time.sleep(int(asked.get('pause', 0)) / 1000)
        return self.send(connection, b'%d %s' % (length, digest.hexdigest().encode()))

    def at_hold(self, connection, method, target, headers, body, asked):
        data = b''.join(body)
        with self.lock:
            self.started.append(data.decode())
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
        self.go.wait(60)
        time.sleep(int(asked.get('sleep', 0)) / 1000)
        with self.lock:
            self.inside -= 1
        return self.send(connection, data)

    def at_drop(self, connection, method, target, headers, body, asked):
        b''.join(body)
        with self.lock:
            self.runs += 1
        if 'half' in asked:
            connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n' + b'x' * 10000)
        return False

    def at_raw(self, connection, method, target, headers, body, asked):
        b''.join(body)
        connection.sendall(self.raw)
        return False


if __name__ == '__main__':  # toy.py PORT
    Toy(port=int(sys.argv[1]))
    threading.Event().wait()
