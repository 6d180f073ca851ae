# SPDX-License-Identifier: MIT
"""Runs the programs of a guide to dibs serve as printed, against a daemon.

usage: guides_test.py DIBS PROXY PAGE

A block of code whose first line is a comment with a file's name becomes this file.  A block of text that begins with
`$ COMMAND` is what this command prints; it has no messages.  Each command runs twice, on a new store each time: directly, and at a server
with tokens through a proxy that loses the answers of some requests; what it prints is the same.
"""
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.append(os.path.join(os.path.dirname(__file__), '../serve'))

from checks import PATIENCE_S, check, end, free_port  # noqa: E402

DIBS, PROXY, PAGE = sys.argv[1:]
NEEDS = {'curl': ['curl'], 'python': ['python3'], 'java': ['java', 'javac'], 'go': ['go'], 'javascript': ['node']}
LANGUAGE = re.search(r'serve-(\w+)\.md$', PAGE)[1]
# What each program loses: the answers of the first two such requests.  Claims of tasks are not among them: their tasks
# would come back only after the timeout.
LOST = {'lease': 'POST\\s/v1/leases/', 'record': 'PUT\\s/v1/records/', 'seats': '/claims/client-', 'once': '/seal',
        'worker': '/results', 'nightly': 'POST\\s/v1/leases/', 'lanes': 'PATCH\\s/v1/lanes/'}


def blocks(page):
    """(files, runs) of a page: {name: text}, [(command, output)]."""
    files, runs = {}, []
    with open(page, encoding='utf-8') as f:
        for language, text in re.findall(r'^```(\w+)\n(.*?)^```$', f.read(), re.S | re.M):
            named = re.match(r'(?:#|//) (\S+\.\w+)\n', text)
            if language == 'text' and text.startswith('$ '):
                runs.append(tuple(text[2:].split('\n', 1)))
            elif named:
                files[named[1]] = text
    return files, runs


def ended(process):
    process.terminate()
    process.wait(PATIENCE_S)


def make_token(folder):
    """Makes tokens, the server's file, and token.curl.  The token."""
    token, line = subprocess.run([DIBS, 'serve', '--new-token', 'guide', '--scope', 'use'], capture_output=True, text=True,
                                 check=True).stdout.splitlines()
    for name, text in [('tokens', line), ('token.curl', f'header = "Authorization: Bearer {token}"')]:
        with open(f'{folder}/{name}', 'w', encoding='utf-8') as f:
            f.write(text + '\n')
    os.chmod(f'{folder}/tokens', 0o600)
    return token


@contextlib.contextmanager
def daemon(folder, *options):
    port = free_port()
    process = subprocess.Popen([DIBS, 'serve', '--store', f'sqlite://{folder}/dibs.db', '--listen',
                                f'127.0.0.1:{port}', '--idle', '1', *options],
                               stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        by = time.monotonic() + PATIENCE_S
        while True:
            try:
                urllib.request.urlopen(f'http://127.0.0.1:{port}/healthz', timeout=PATIENCE_S).read()
                break
            except OSError:
                if time.monotonic() > by:
                    raise
                time.sleep(0.05)
        yield port
    finally:
        ended(process)


@contextlib.contextmanager
def proxy(port, pattern):
    """Loses the answers of two requests; yields its port and a function that says how many were lost."""
    process = subprocess.Popen([PROXY, f'127.0.0.1:{port}'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        own = process.stdout.readline().split()[1]

        def say(line):
            process.stdin.write(line + '\n')
            process.stdin.flush()
            return process.stdout.readline()
        say(f'cut-after-request times=2 {pattern}')
        yield own, lambda: int(re.search(r'fired=(\d+)', say('stats'))[1])
    finally:
        process.stdin.close()
        process.wait(PATIENCE_S)


def run(command, folder, port, **more):
    env = dict(os.environ, DIBS_URL=f'http://127.0.0.1:{port}', **more)
    done = subprocess.run(['bash', '-c', command], cwd=folder, env=env,
                          capture_output=True, text=True, timeout=PATIENCE_S * 3, check=False, stdin=subprocess.DEVNULL)
    return done.stdout, done.stderr, f'exit {done.returncode}\n{done.stdout}{done.stderr}'


def main():
    missing = [name for name in NEEDS[LANGUAGE] if not shutil.which(name)]
    if missing:
        print(f"1..0 # SKIP there is no {' and no '.join(missing)}")
        return 0
    files, runs = blocks(PAGE)
    with tempfile.TemporaryDirectory(prefix='dibs-guide-') as folder:
        for name, text in files.items():
            with open(f'{folder}/{name}', 'w', encoding='utf-8') as f:
                f.write(text)
        for command, output in runs:
            with tempfile.TemporaryDirectory() as store, daemon(store) as port:
                got, errors, seen = run(command, folder, port)
                check(command, got == output and not errors, seen)
        for command, output in runs:
            pattern = next((pattern for word, pattern in LOST.items() if word in command.lower()), None)
            if not pattern:
                continue  # it sends no requests
            with tempfile.TemporaryDirectory() as store:
                token = make_token(store)
                with daemon(store, '--tokens', f'{store}/tokens') as port, proxy(port, pattern) as (own, lost):
                    got, errors, seen = run(command, folder, own, DIBS_TOKEN=token, DIBS_CURL=f'{store}/token.curl')
                    number = lost()
                check(f'{command}, with a token and lost answers', got == output and not errors, seen)
                check('and two were lost', number == 2)
    check('the page has all programs', len(runs) >= 5, runs)
    return end()


if __name__ == '__main__':
    sys.exit(main())
