#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""redis-py's Lock as a peer; README.md describes the arguments and the output of a peer.

Lock kinds: "default" sleeps 0.1 s between tries, the library's setting; "1ms" a hundredth of that.
"""
import json
import os
import sys
import threading
import time

import redis

TTL_S = 30


def turns(client, kind, name, until, log):
    lock = client.lock(name, timeout=TTL_S, sleep=0.001 if kind == "1ms" else 0.1)
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
    workers = int(asked["workers"])
    logs = [[] for _ in range(workers)]
    until = time.monotonic_ns() + int(seconds * 1e9)
    same = asked["workload"] == "same"
    if workers == 1:
        turns(clients[0], asked["lock"], prefix if same else prefix + ":0", until, logs[0])
        return logs
    threads = [
        threading.Thread(
            target=turns, args=(clients[i], asked["lock"], prefix if same else f"{prefix}:{i}", until, logs[i])
        )
        for i in range(workers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return logs


def main():
    words = sys.argv[1:]
    asked = {words[i].lstrip("-"): words[i + 1] for i in range(0, len(words) - 1, 2)}
    clients = [
        redis.Redis(
            host=asked["host"],
            port=int(asked["port"]),
            username=asked.get("user") or None,
            password=os.environ.get("DIBS_PEER_PASSWORD") or None,
            single_connection_client=True,
        )
        for _ in range(int(asked["workers"]))
    ]
    run(clients, asked, asked["name"] + ":warm", float(asked["warm"]))
    print("ready", flush=True)
    sys.stdin.readline()
    before = time.process_time()
    logs = run(clients, asked, asked["name"], float(asked["seconds"]))
    used = time.process_time() - before
    with open(asked["log"], "w", encoding="ascii") as out:
        for worker, log in enumerate(logs):
            out.writelines(f"{worker} {a} {g} {l} {r}\n" for a, g, l, r in log)
    print(json.dumps({"version": redis.__version__, "cpu_s": used}), flush=True)


if __name__ == "__main__":
    main()
