# SPDX-License-Identifier: MIT
"""Requests for tasks that share calls of the store.

usage: together_test.py DIBS

The store takes 100 ms for each call and the daemon has one thread, so a hundred requests take as long as a hundred calls
if each has its own, and as long as a few if they share them.
"""
import json
import sys
import time

import serve_test as t
from checks import check, end, wait_until
from serve_test import FOLDER, Server, blocked_store, send

MANY = 100
SHARED = 4  # at most a quarter of the calls that they would make alone


def gather(clients):
    """[(status, body)] of what was sent, in its order."""
    answers = [client.getresponse() for client in clients]
    found = [(answer.status, json.loads(answer.read())) for answer in answers]
    for client in clients:
        client.close()
    return found


def begin_server(name):
    return Server('--threads', '1', store=f'latency+sqlite://{FOLDER}/{name}.db?latency.ms=100')


def timed(function):
    began = time.monotonic()
    return function(), time.monotonic() - began


def test_adds():
    s = begin_server('adds')
    (status, _, _), alone = timed(lambda: s.call('POST', '/v1/kinds/k/tasks', {'payload': 'first'}))
    check('a lone one is added', status == 201)
    bodies = [{'payload': f'{i}', 'unique': f'u{i // 2}'} for i in range(MANY)]
    found, took = timed(lambda: gather([send(s, 'POST', '/v1/kinds/k/tasks', body) for body in bodies]))
    check(f'{MANY} that come together share calls', took < alone * MANY / SHARED, alone, took)
    check('each has its own answer', sorted(status for status, _ in found) == [200] * (MANY // 2) + [201] * (MANY // 2), found[:4])
    pairs = [(found[i][1], found[i + 1][1]) for i in range(0, MANY, 2)]
    check('two with one unique text are one task', all(one['task'] == other['task'] and {one['status'], other['status']} == {'OK', 'REPLAY'}
                                                       for one, other in pairs), pairs[:3])
    several = {'tasks': [{'payload': 'a', 'unique': 'u0'}, {'payload': 'b'}]}
    found = gather([send(s, 'POST', '/v1/kinds/k/tasks', several) for _ in range(3)])
    check('of several tasks each has its status', all([one['status'] for one in body['tasks']] == ['REPLAY', 'OK'] for _, body in found) and
          {status for status, _ in found} == {201}, found)
    tasks = s.call('POST', '/v1/kinds/k/claims', {'limit': 1000})[2]['tasks']
    check('the store has them all, once', len(tasks) == len({task['task'] for task in tasks}) == 1 + MANY // 2 + 3, len(tasks))
    check('the server ends with 0', s.stop() == 0)


def test_ends():
    s = begin_server('ends')
    s.call('POST', '/v1/kinds/k/tasks', {'tasks': [{'payload': 'x'}] * MANY})
    tasks = s.call('POST', '/v1/kinds/k/claims', {'limit': MANY, 'timeout': '10m'})[2]['tasks']
    _, alone = timed(lambda: s.call('POST', '/v1/kinds/k/results', {'tasks': [{'task': tasks[0]['task'], 'fence': tasks[0]['fence']}]}))
    # Every tenth has a fence that is not that of the claim.
    items = [{'task': task['task'], 'fence': task['fence'] + (i % 10 == 5), 'outcome': 'dead' if i % 2 else 'done', 'text': 't'}
             for i, task in enumerate(tasks)]
    found, took = timed(lambda: gather([send(s, 'POST', '/v1/kinds/k/results', {'tasks': [item]}) for item in items[1:]]))
    check(f'{MANY - 1} ends that come together share calls', took < alone * MANY / SHARED, alone, took)
    wanted = [(200, {'tasks': [{'task': item['task'], 'status': 'STALE' if i % 10 == 5 else 'OK'}]}) for i, item in enumerate(items)][1:]
    check('each has its own answer', found == wanted, [pair for pair in zip(found, wanted) if pair[0] != pair[1]][:3])
    check('and its own outcome', wait_until(lambda: s.call('GET', '/v1/kinds/k')[2]['dead'] == MANY // 2 - MANY // 10),
          s.call('GET', '/v1/kinds/k')[2])
    check('the server ends with 0', s.stop() == 0)


def test_claims():
    """Clients that wait for tasks of one kind get what comes, each up to its limit, and no task twice."""
    s = begin_server('claims')
    _, alone = timed(lambda: s.call('POST', '/v1/kinds/k/claims', {}))
    clients = [send(s, 'POST', '/v1/kinds/k/claims', {'limit': 1 + i % 3, 'wait': '2m', 'timeout': '10m'}) for i in range(MANY)]
    limits = [1 + i % 3 for i in range(MANY)]
    wait_until(lambda: t.Server.call(s, 'GET', '/v1/metrics/http.requests.waiting')[2]['samples'][0]['value'] == MANY)
    s.call('POST', '/v1/kinds/k/tasks', {'tasks': [{'payload': str(i)} for i in range(sum(limits))]})
    found, took = timed(lambda: gather(clients))
    got = [[int(task['payload']) for task in body['tasks']] for _, body in found]
    check(f'{MANY} that wait share claims', took < alone * MANY / SHARED, alone, took)
    check('each has as many as its limit', [len(one) for one in got] == limits, [len(one) for one in got])
    check('each task went to one of them', sorted(sum(got, [])) == list(range(sum(limits))))
    check('the first ones to the first', sum(got, []) == sorted(sum(got, [])), got[:5])
    found = gather([send(s, 'POST', '/v1/kinds/k/claims', {'wait': '100ms'}) for _ in range(MANY)])
    check('those whose wait ends get none', found == [(200, {'tasks': []})] * MANY, found[:3])
    s.call('POST', '/v1/kinds/k/tasks', {'tasks': [{'payload': 'x'}] * 20})
    wishes = [('10m', 'ann'), ('10m', 'bob'), ('20m', 'bob'), ('10m', None)] * 5
    found = gather([send(s, 'POST', '/v1/kinds/k/claims', {'wait': '2m', 'timeout': timeout} | ({'owner': owner} if owner else {}))
                    for timeout, owner in wishes])
    seen = []
    for (timeout, owner), (_, body) in zip(wishes, found):
        task = s.call('GET', f"/v1/tasks/{body['tasks'][0]['task']}")[2]
        seen.append(task['owner'] == owner if owner else task['owner'] not in ('ann', 'bob'))
        seen.append((body['tasks'][0]['left_ms'] > 601000) == (timeout == '20m'))
    check('a claim has the owner and the timeout of its request', all(seen), seen, found[:2])
    check('the server ends with 0', s.stop() == 0)


def test_bound():
    """As many wait for a call as for a thread; more are refused, and what was taken is done."""
    s = Server('--queue', '50')
    with blocked_store():
        clients = [send(s, 'POST', '/v1/kinds/bound/tasks', {'payload': 'x'}) for _ in range(200)]
        check('more are refused', wait_until(lambda: s.call('POST', '/v1/kinds/bound/tasks', {})[0] == 503))
    statuses = [status for status, _ in gather(clients)]
    taken = statuses.count(201)
    check('as many as may wait are done', set(statuses) == {201, 503} and 50 <= taken <= 102, taken)
    tasks = s.call('POST', '/v1/kinds/bound/claims', {'limit': 1000})[2]['tasks']
    check('and no others', len(tasks) == taken, len(tasks), taken)
    check('the server ends with 0', s.stop() == 0)


def main():
    for test in (test_adds, test_ends, test_claims, test_bound):
        test()
    return end()


if __name__ == '__main__':
    sys.exit(main())
