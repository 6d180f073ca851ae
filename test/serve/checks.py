# SPDX-License-Identifier: MIT
"""Checks that print TAP, and what tests of programs wait for."""
import contextlib
import socket
import threading
import time

PATIENCE_S = 120
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


def free_port():
    with contextlib.closing(socket.create_server(('127.0.0.1', 0))) as s:
        return s.getsockname()[1]
