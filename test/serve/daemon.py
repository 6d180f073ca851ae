# SPDX-License-Identifier: MIT
"""Daemons and proxies of a test, and requests to them."""
import http.client
import json
import os
import re
import subprocess
import time

from checks import PATIENCE_S, free_port


class Daemon:
    """`dibs serve` at a port that stays the same when it is started again."""

    def __init__(self, dibs, store, *options, folder):
        self.port = free_port()
        self.command = [dibs, 'serve', '--store', store, '--listen', f'127.0.0.1:{self.port}', *options]
        self.errors = f'{folder}/errors-{self.port}'
        self.process = None

    def start(self):
        with open(self.errors, 'ab') as errors:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
        return self

    def wait_ready(self):
        by = time.monotonic() + PATIENCE_S
        while True:
            try:
                if Client([self.port]).once(0, 'GET', '/readyz').status == 200:
                    return self
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > by:
                raise SystemExit(f'Bail out! the server does not answer: {self.said()}')
            time.sleep(0.05)

    def said(self):
        """Its messages; libmicrohttpd reports each connection that a client breaks, in many words."""
        with open(self.errors, encoding='utf-8', errors='replace') as f:
            return ''.join(line for line in f if not line.startswith(('dibs: serving ', 'Connection ', 'Socket ', 'Failed to send ')))

    def stop(self, signo=15):
        """Its exit code."""
        self.process.send_signal(signo)
        return self.process.wait(PATIENCE_S)

    def descriptors(self):
        return len(os.listdir(f'/proc/{self.process.pid}/fd'))

    def memory_kib(self):
        with open(f'/proc/{self.process.pid}/smaps_rollup', encoding='utf-8') as f:
            return int(re.search(r'^Private_Dirty:\s+(\d+)', f.read(), re.M)[1])

    def cpu_us(self):
        """The processor time that it has used."""
        with open(f'/proc/{self.process.pid}/stat', encoding='utf-8') as f:
            fields = f.read().rpartition(')')[2].split()
        return (int(fields[11]) + int(fields[12])) * 1_000_000 // os.sysconf('SC_CLK_TCK')


class Proxy:
    """The program of test/fault/proxy.h."""

    def __init__(self, program, port):
        self.process = subprocess.Popen([program, f'127.0.0.1:{port}'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline().split()[1])

    def say(self, line):
        self.process.stdin.write(line + '\n')
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def stop(self):
        self.process.stdin.close()
        self.process.wait(PATIENCE_S)


class Answer:
    def __init__(self, sent, status, headers, body):
        self.sent, self.status, self.headers, self.body = sent, status, headers, body
        self.came = time.monotonic()

    @property
    def json(self):
        return json.loads(self.body)


class Client:
    """A client with a connection to each of several daemons.  For one thread."""

    def __init__(self, ports, timeout=PATIENCE_S):
        self.connections = [http.client.HTTPConnection('127.0.0.1', port, timeout=timeout) for port in ports]

    def close(self):
        for connection in self.connections:
            connection.close()

    def once(self, nth, method, path, body=None, headers=None):
        """An answer; OSError: there was none."""
        connection = self.connections[nth]
        if isinstance(body, dict):
            body = json.dumps(body)
        sent = time.monotonic()
        try:
            connection.request(method, path, body=body, headers=headers or {})
            answer = connection.getresponse()
            return Answer(sent, answer.status, answer.headers, answer.read())
        except (OSError, http.client.HTTPException) as e:
            connection.close()
            raise OSError(str(e)) from e
