#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks what became of the messages of an outbox: outbox_check.py LOG ADDED ENDS

LOG:   of http_server.py, whose path was storm/SECONDS
ADDED: one line for each message that was committed, in their order: its payload, which ends with its key, "-" for none
ENDS:  one line for each row of the store at the end: its state (6: delivered, 7: dead) and its payload

The rules: each message that was committed is delivered or dead, once; no other message is known; a delivered one was
accepted by the receiver, a dead one was refused by it for good or has few tries ("doomed"); and when a message with a key arrives,
the receiver has accepted all earlier ones of this key.  Prints each breach, and at the end one line of numbers.
"""
import collections
import json
import sys

MOST = 20  # breaches that are printed
breaches = 0


def breach(text):
    global breaches
    breaches += 1
    if breaches <= MOST:
        print(text)


def lines(path):
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()


def check_ends(added, ends, answers):
    known = collections.Counter(payload for _, payload in ends)
    for payload in added:
        if known[payload] != 1:
            breach(f"the message '{payload}' is {known[payload]} times in the store")
    for payload in set(known) - set(added):
        breach(f"the message '{payload}' is in the store, and was never committed")
    for state, payload in ends:
        got = answers[payload]
        if state == "6" and not got["accepted"]:
            breach(f"the message '{payload}' is delivered, and was never accepted")
        if state == "7" and not got["400"] and not payload.startswith("doomed "):
            breach(f"the message '{payload}' is dead without a reason")
        if state not in ("6", "7"):
            breach(f"the message '{payload}' has the state {state}")


def check_order(added, requests):
    earlier, last = {}, {}  # the message before it with the same key
    for payload in added:
        key = payload.split()[-1]
        if key != "-":
            earlier[payload] = last.get(key)
            last[key] = payload
    accepted = set()
    for payload, answer, attempt in requests:
        before = earlier.get(payload)
        if before and before not in accepted:
            breach(f"attempt {attempt} of '{payload}' arrived before '{before}' was accepted")
        if answer == "accepted":
            accepted.add(payload)


def main():
    log, added, ends = sys.argv[1:]
    added, ends = lines(added), [line.split(" ", 1) for line in lines(ends)]
    requests = []
    for line in lines(log):
        entry = json.loads(line)
        answer = "accepted" if entry["answer"] in ("200", "slow", "lost") else entry["answer"]
        requests.append((entry["body"], answer, entry["headers"]["dibs-attempt"]))
    answers = collections.defaultdict(collections.Counter)
    for payload, answer, _ in requests:
        answers[payload][answer] += 1
    for payload in set(answers) - set(added):
        breach(f"the message '{payload}' was sent, and was never committed")
    check_ends(added, ends, answers)
    check_order(added, requests)
    again = sum(got["accepted"] > 1 for got in answers.values())
    dead = sum(state == "7" for state, _ in ends)
    print(f"{len(added)} messages, {dead} dead, {len(requests)} requests, {again} accepted more than once, "
          f"{breaches} breaches")
    sys.exit(breaches > 0)


main()
