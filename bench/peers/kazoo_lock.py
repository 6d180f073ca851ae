#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""kazoo's Lock as a peer; README.md describes the arguments and the output of a peer.  A client, and so a session, for each worker."""
import json
import os
import sys
import threading
import time

import kazoo.version
from kazoo.client import KazooClient

PATIENCE_S = 30


def fail(failed):
    """A worker that ends would make the others look faster."""
    print(f"{failed.exc_type.__name__}: {failed.exc_value}", file=sys.stderr, flush=True)
    os._exit(1)


def turns(client, path, until, log):
    lock = client.Lock(path, "peer")
    clock = time.monotonic_ns
    while True:
        asked = clock()
        lock.acquire()
        granted = clock()
        lock.release()
        released = clock()
        log.append((asked, granted, granted, released))
        if released >= until:
            return


def run(clients, asked, prefix, seconds):
    logs = [[] for _ in clients]
    until = time.monotonic_ns() + int(seconds * 1e9)
    same = asked["workload"] == "same"
    paths = [f"/peers/{prefix}" if same else f"/peers/{prefix}:{i}" for i in range(len(clients))]
    if len(clients) == 1:
        turns(clients[0], paths[0], until, logs[0])
        return logs
    threads = [threading.Thread(target=turns, args=(clients[i], paths[i], until, logs[i])) for i in range(len(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return logs


def main():
    threading.excepthook = fail
    words = sys.argv[1:]
    asked = {words[i].lstrip("-"): words[i + 1] for i in range(0, len(words) - 1, 2)}
    clients = [KazooClient(hosts=f"{asked['host']}:{asked['port']}") for _ in range(int(asked["workers"]))]
    for client in clients:
        client.start(timeout=PATIENCE_S)
    run(clients, asked, asked["name"] + ":warm", float(asked["warm"]))
    print("ready", flush=True)
    sys.stdin.readline()
    before = time.process_time()
    logs = run(clients, asked, asked["name"], float(asked["seconds"]))
    used = time.process_time() - before
    with open(asked["log"], "w", encoding="ascii") as out:
        for worker, log in enumerate(logs):
            out.writelines(f"{worker} {a} {g} {l} {r}\n" for a, g, l, r in log)
    print(json.dumps({"version": kazoo.version.__version__, "cpu_s": used}), flush=True)
    for client in clients:
        client.stop()


if __name__ == "__main__":
    main()
