# SPDX-License-Identifier: MIT
"""Gates and daemons as processes, for the tests of dibs gate.  The arguments of the test: DIBS [URI]."""
import atexit
import contextlib
import http.client
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(__file__), '../serve'))

from checks import PATIENCE_S, check, free_port, wait_until  # noqa: E402

DIBS = sys.argv[1]
FOLDER = tempfile.mkdtemp(prefix='dibs-gate-')
atexit.register(shutil.rmtree, FOLDER, True)
STORE = sys.argv[2] if len(sys.argv) > 2 else f'sqlite://{FOLDER}/dibs.db'

resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)

# A sanitizer keeps what was freed: only some of it, where memory is measured.
ENVIRONMENT = os.environ | {'ASAN_OPTIONS': f'{os.environ.get("ASAN_OPTIONS", "")}:quarantine_size_mb=8'}


class Program:
    """dibs serve or dibs gate, as a process of its own."""

    def __init__(self, command, *options, store=STORE, environment=None):
        self.port = free_port()
        self.said = open(f'{FOLDER}/said-{self.port}', 'w+', encoding='utf-8')
        self.process = subprocess.Popen(
            [DIBS, command, '--store', store, '--listen', f'127.0.0.1:{self.port}', *options], stdin=subprocess.DEVNULL,
            stdout=self.said, stderr=self.said, env=ENVIRONMENT | (environment or {}))
        atexit.register(self.process.kill)
        if not wait_until(lambda: self.listens() or self.process.poll() is not None) or self.process.poll() is not None:
            raise SystemExit(f'Bail out! dibs {command} does not listen: {self.text()}')

    def listens(self):
        return f'at 127.0.0.1:{self.port}' in self.text()

    def text(self):
        self.said.seek(0)
        return self.said.read()

    def connect(self):
        return http.client.HTTPConnection('127.0.0.1', self.port, timeout=PATIENCE_S)

    def call(self, method, path, body=None, headers=None, connection=None, fence=None, key=None):
        """(status, headers, body); JSON is decoded.  fence: (name, number)."""
        own = connection or self.connect()
        all_headers = dict(headers or {})
        if fence:
            all_headers |= {'Dibs-Name': fence[0], 'Dibs-Fence': str(fence[1])}
        if key:
            all_headers['Idempotency-Key'] = key
        own.request(method, path, body=body, headers=all_headers)
        answer = own.getresponse()
        data = answer.read()
        found = {k.lower(): v for k, v in answer.getheaders()}
        if not connection:
            own.close()
        if 'json' in found.get('content-type', '') and data:
            data = json.loads(data)
        return answer.status, found, data

    def raw(self, request):
        """The answers to bytes on a connection that the gate closes in the end, or has closed."""
        with socket.create_connection(('127.0.0.1', self.port), timeout=PATIENCE_S) as s:
            s.sendall(request)
            data = b''
            with contextlib.suppress(ConnectionError):
                while part := s.recv(65536):
                    data += part
        return data

    def memory_kb(self, what='VmHWM'):
        with open(f'/proc/{self.process.pid}/status', encoding='utf-8') as f:
            return next(int(line.split()[1]) for line in f if line.startswith(what))

    def stop(self, signo=signal.SIGTERM):
        self.process.send_signal(signo)
        code = self.process.wait(PATIENCE_S)
        if signo == signal.SIGTERM:
            check('it ended with 0, and said nothing but where it is', code == 0 and self.text().count('\n') == 1, code,
                  self.text())


def open_gate(toy, *options, path='', store=STORE):
    return Program('gate', '--upstream', f'http://127.0.0.1:{toy.port}{path}', *options, store=store)
