# SPDX-License-Identifier: MIT
"""Checks that print TAP, and what tests of programs wait for."""
import atexit
import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time

PATIENCE_S = 120
REMOVE_S = 10
SHOWN = 2000  # characters of what a failed check saw

count = failed = 0


def check(name, fine, *seen):
    """One line of TAP."""
    global count, failed
    count += 1
    failed += not fine
    print(f"{'' if fine else 'not '}ok {count} - {name}", flush=True)
    for one in seen if not fine else ():
        for line in str(one)[:SHOWN].splitlines():
            print(f'# {line}', flush=True)


def end():
    """The plan of the TAP; the exit code of the test."""
    print(f'1..{count}')
    return int(failed > 0)


def wait_until(condition):
    by = time.monotonic() + PATIENCE_S
    while time.monotonic() < by:
        if condition():
            return True
        time.sleep(0.02)
    return False


def begin(function, *args, **named):
    """Runs it in a thread; the result is in the list that is returned, once the thread has ended."""
    got = []
    thread = threading.Thread(target=lambda: got.append(function(*args, **named)))
    thread.start()
    return thread, got


def temporary_folder(prefix):
    """A folder that is removed when this process ends, also by the TERM of a test that took too long.  What uses it is ended
    before, if it registers that later."""
    folder, owner = tempfile.mkdtemp(prefix=prefix), os.getpid()

    def remove():
        by = time.monotonic() + REMOVE_S
        while os.getpid() == owner and os.path.exists(folder) and time.monotonic() < by:
            shutil.rmtree(folder, ignore_errors=True)  # a process that was just killed may still write

    atexit.register(remove)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    return folder


def free_port():
    with contextlib.closing(socket.create_server(('127.0.0.1', 0))) as s:
        return s.getsockname()[1]
