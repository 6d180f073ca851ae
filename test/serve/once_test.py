# SPDX-License-Identifier: MIT
"""Once over HTTP: the work of a key is done by one client, and all get its answer.

usage: once_test.py DIBS [URI]
"""
import base64
import json
import os
import signal
import subprocess
import sys
import time
import urllib.parse

import serve_test as t
from checks import PATIENCE_S, begin, check, end, wait_until

CLIENT = '''
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], data=sys.argv[3].encode(), method='POST',
                                 headers={'Idempotency-Key': sys.argv[2]})
with urllib.request.urlopen(request) as answer:
    print(answer.status, answer.read().decode().strip(), flush=True)
sys.stdin.read()
'''


def once(s, method, key, body=None, id_=None):
    """An answer.  The end of a lost lease may still be on its way to the store: 503, repeat the request."""
    headers = {'Idempotency-Key': key} | ({'Dibs-Lease': id_} if id_ else {})
    got = s.call(method, '/v1/once', body, headers)
    by = time.monotonic() + PATIENCE_S
    while got[0] == 503 and 'on its way to the store' in got[2]['detail'] and time.monotonic() < by:
        time.sleep(0.05)
        got = s.call(method, '/v1/once', body, headers)
    return got


def start_client(s, key, body):
    """A process that begins the work of a key, and then does nothing."""
    return subprocess.Popen([sys.executable, '-c', CLIENT, f'http://127.0.0.1:{s.port}/v1/once', key, json.dumps(body)],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_one_after_the_other(s):
    status, headers, first = once(s, 'POST', 'order-7')
    check('the first client begins: 201 with the id of its attempt', status == 201 and first['key'] == 'order-7' and
          headers['dibs-lease'] == first['id'] and headers['dibs-fence'] == str(first['fence']) and
          25000 < first['left_ms'] <= 30000, status, headers, first)
    status, headers, body = once(s, 'POST', 'order-7')
    check('a second one is refused while it works: 409 with Retry-After', status == 409 and
          body['type'] == '/problems/held' and 'retry-after' in headers, status, body)
    check('there is no answer yet: 404', once(s, 'GET', 'order-7')[0] == 404)
    status, _, body = once(s, 'PATCH', 'order-7', {'ttl': '5m'}, first['id'])
    check('the first one takes more time', status == 200 and body['left_ms'] > 200000 and
          body['fence'] == first['fence'], status, body)
    check('and stores its answer: 204', once(s, 'PUT', 'order-7', {'answer': 'paid 42'}, first['id'])[0] == 204)
    for method, what in [('POST', 'begins'), ('GET', 'reads')]:
        status, headers, body = once(s, method, 'order-7')
        check(f'who {what} from then on gets the answer', status == 200 and body['answer'] == 'paid 42' and
              body['key'] == 'order-7' and body['age_ms'] >= 0 and body['left_ms'] > 80000000 and
              headers['idempotent-replayed'] == 'true', status, headers, body)
    status, _, body = once(s, 'PUT', 'order-7', {'answer': 'other'}, first['id'])
    check('storing again changes nothing, and answers what is stored', status == 200 and body['answer'] == 'paid 42',
          status, body)


def test_repeated(s):
    id_ = '%032x' % 4711
    first = once(s, 'POST', 'repeat', {'id': id_, 'ttl': '10m'})[2]
    status, _, again = once(s, 'POST', 'repeat', {'id': id_.upper(), 'ttl': '10m'})
    check('a POST that is repeated with its id finds its own attempt', status == 201 and again['fence'] == first['fence'],
          status, first, again)
    check('another id does not', once(s, 'POST', 'repeat', {'id': '%032x' % 4712})[0] == 409)
    status, _, body = once(s, 'PUT', 'repeat', {'answer': 'x'}, '%032x' % 4712)
    check('nor can it store: 410', status == 410 and body['type'] == '/problems/lost', status, body)
    status, _, body = once(s, 'DELETE', 'repeat', None, '%032x' % 4712)
    check('nor give up', status == 410 and once(s, 'POST', 'repeat')[0] == 409, status, body)


def test_given_up(s):
    first = once(s, 'POST', 'give-up', {'ttl': '10m'})[2]
    check('an attempt is given up: 204', once(s, 'DELETE', 'give-up', None, first['id'])[0] == 204)
    check('once: 410', once(s, 'DELETE', 'give-up', None, first['id'])[0] == 410)
    status, _, second = once(s, 'POST', 'give-up', {'ttl': '10m'})
    check('the next client begins at once, with a larger fence', status == 201 and second['fence'] > first['fence'],
          first, second)
    check('the first one can no longer store: 410', once(s, 'PUT', 'give-up', {'answer': 'late'}, first['id'])[0] == 410)
    check('the second one can', once(s, 'PUT', 'give-up', {'answer': 'good'}, second['id'])[0] == 204 and
          once(s, 'GET', 'give-up')[2]['answer'] == 'good')


def test_waiting(s):
    first = once(s, 'POST', 'wait', {'ttl': '10m'})[2]
    waiting = [begin(once, s, 'POST', 'wait', {'wait': '10m'}) for _ in range(5)]
    check('clients may wait for the work of another', wait_until(
        lambda: t.states_of(s, 'once:wait').count('waits') == 5), t.states_of(s, 'once:wait'))
    once(s, 'PUT', 'wait', {'answer': 'shared'}, first['id'])
    for thread, _ in waiting:
        thread.join(PATIENCE_S)
    check('all of them get its answer', all(got and got[0][0] == 200 and got[0][2]['answer'] == 'shared'
                                            for _, got in waiting), waiting)
    check('and no lease is left', wait_until(lambda: t.states_of(s, 'once:wait') == []), t.states_of(s, 'once:wait'))
    status, _, body = once(s, 'POST', 'short', {'ttl': '10m'})
    status, _, body = once(s, 'POST', 'short', {'wait': '200ms'})
    check('a wait that is over answers 409', status == 409 and body['type'] == '/problems/held', status, body)


def test_killed_client(s):
    """kill -9 of the one that works, and of one that waits."""
    worker = start_client(s, 'killed', {'ttl': '2s'})
    line = worker.stdout.readline()
    first = json.loads(line.split(' ', 1)[1])
    waiter = start_client(s, 'killed', {'wait': '10m'})
    check('one waits', wait_until(lambda: 'waits' in t.states_of(s, 'once:killed')))
    waiter.kill()
    check('one that is killed leaves the queue', wait_until(lambda: 'waits' not in t.states_of(s, 'once:killed')))
    worker.kill()
    status, _, second = once(s, 'POST', 'killed', {'wait': '10m', 'ttl': '10m'})
    check('after its ttl another one works, with a larger fence', line.startswith('201') and status == 201 and
          second['fence'] > first['fence'], line, status, second)
    status, _, body = once(s, 'PUT', 'killed', {'answer': 'of the dead'}, first['id'])
    check('the answer of the first one is refused', status == 410, status, body)
    check('that of the second one counts', once(s, 'PUT', 'killed', {'answer': 'mine'}, second['id'])[0] == 204 and
          once(s, 'POST', 'killed')[2]['answer'] == 'mine')
    for client in [worker, waiter]:
        client.wait(PATIENCE_S)


def test_restarted_daemon(s):
    """The attempt belongs to the client that has its id, and any daemon takes the answer."""
    first = once(s, 'POST', 'restart', {'ttl': '10m'})[2]
    s.process.send_signal(signal.SIGKILL)
    s.process.wait(PATIENCE_S)
    s = t.Server()
    check('after kill -9 of the server the attempt holds', once(s, 'POST', 'restart')[0] == 409)
    check('and the next server takes its answer', once(s, 'PUT', 'restart', {'answer': 'survived'}, first['id'])[0] == 204)
    status, _, body = once(s, 'POST', 'restart')
    check('which stays', status == 200 and body['answer'] == 'survived', status, body)
    return s


def test_odd_keys(s):
    keys = ['a/b', '"8e03978e-40d5-43dd-bc93-6894a57f9324"', 'k' * 255, ' '.join('ab'), '%2F', '.', 'once:x', "it's", '한국']
    for key in keys:
        raw = key.encode().decode('latin-1')  # http.client sends these bytes
        status, _, body = once(s, 'POST', raw)
        fine = status == 201 and body['key'] == key
        fine = fine and once(s, 'PUT', raw, {'answer': key}, body['id'])[0] == 204
        status, _, body = once(s, 'POST', raw)
        check(f'the key {key[:12]} is kept byte by byte', fine and status == 200 and body['answer'] == key, status, body)
    for name, key in [('long', 'k' * 256), ('empty', ''), ('not UTF-8', '\xff\xfe'), ('with a control character', 'a\tb')]:
        check(f'a key that is {name} is refused', once(s, 'POST', key)[0] == 400)
    check('a request without a key is refused', s.call('POST', '/v1/once')[0] == 400)


def test_answers(s):
    """Bytes of any kind and of the largest size come back as they were."""
    answers = {'binary': bytes(range(256)) * 16, 'largest': os.urandom(1 << 20), 'empty': b''}
    for key, answer in answers.items():
        id_ = once(s, 'POST', key)[2]['id']
        body = {'answer': {'base64': base64.b64encode(answer).decode()}}
        stored = once(s, 'PUT', key, body, id_)[0]
        got = once(s, 'POST', key)[2]['answer']
        got = got.encode() if isinstance(got, str) else base64.b64decode(got['base64'])
        check(f'an answer that is {key}', stored == 204 and got == answer, stored, len(got))
    id_ = once(s, 'POST', 'too large')[2]['id']
    body = {'answer': {'base64': base64.b64encode(b'x' * ((1 << 20) + 1)).decode()}}
    check('one byte more is refused', once(s, 'PUT', 'too large', body, id_)[0] == 400)
    check('and the attempt goes on', once(s, 'PUT', 'too large', {'answer': 'small', 'keep': '1s'}, id_)[0] == 204)
    check('an answer is kept for `keep`', wait_until(lambda: once(s, 'GET', 'too large')[0] == 404) and
          once(s, 'POST', 'too large')[0] == 201)


def test_many(s):
    """A hundred clients at one time: one works, all get one answer."""
    done = []

    def client():
        while True:
            status, _, body = once(s, 'POST', 'rush', {'wait': '1m'})
            if status == 200:
                return body['answer']
            if status == 201:
                done.append(body['fence'])
                once(s, 'PUT', 'rush', {'answer': f'by {len(done)}'}, body['id'])

    clients = [begin(client) for _ in range(100)]
    for thread, _ in clients:
        thread.join(PATIENCE_S)
    check('one of a hundred clients works, and all get its answer', len(done) == 1 and
          all(got == ['by 1'] for _, got in clients), done, [got for _, got in clients])


def test_command(s):
    """The library has the same keys: what a C program stored is answered here, and the other way round."""
    body = once(s, 'POST', 'shared')[2]
    lease = urllib.parse.quote('once:shared', safe='')
    check('the attempt is a lease', s.call('GET', f'/v1/leases/{lease}')[2]['leases'][0]['state'] == 'holds')
    done = subprocess.run([t.DIBS, '--store', t.STORE, 'once', 'shared', '--try', '--', 'true'], capture_output=True,
                          text=True, check=False, timeout=PATIENCE_S)
    check('dibs once does not run beside it', done.returncode != 0, done)
    once(s, 'DELETE', 'shared', None, body['id'])
    done = subprocess.run([t.DIBS, '--store', t.STORE, 'once', 'shared', '--', 'echo', 'ran'], capture_output=True,
                          text=True, check=False, timeout=PATIENCE_S)
    status = once(s, 'POST', 'shared')[0]
    check('it runs after it, and the key is done here, too', done.stdout == 'ran\n' and status == 200, done, status)


def test_tasks(s):
    """Tasks are added once for a key, whatever became of them."""
    path, key = '/v1/kinds/mail/tasks', {'Idempotency-Key': 'signup-1'}
    status, _, first = s.call('POST', path, {'payload': 'to ann', 'unique': 'ann'}, key)
    again = s.call('POST', path, {'payload': 'to ann', 'unique': 'ann'}, key)
    check('a request that is repeated with its key gets the first answer', status == 201 and again[0] == 201 and
          again[2] == first, status, first, again)
    status, _, body = s.call('POST', path, {'payload': 'to ann', 'unique': 'ann'}, {'Idempotency-Key': 'signup-2'})
    check('another key meets the unique text', status == 200 and body == {'task': first['task'], 'status': 'REPLAY'},
          status, body)
    status, _, body = s.call('POST', '/v1/kinds/post/tasks', {'payload': 'to ann'}, key)
    check('a key of another kind is another key', status == 201 and body['task'] != first['task'], status, body)
    claim = s.call('POST', '/v1/kinds/mail/claims', {'limit': 10})[2]['tasks']
    ends = [{'task': one['task'], 'fence': one['fence'], 'outcome': 'done'} for one in claim]
    s.call('POST', '/v1/kinds/mail/results', {'tasks': ends})
    again = s.call('POST', path, {'payload': 'to ann', 'unique': 'ann'}, key)
    check('after the task is done its key adds nothing, though its unique text could', again[0] == 201 and
          again[2] == first and s.call('POST', '/v1/kinds/mail/claims', {})[2]['tasks'] == [], again)
    status, _, body = s.call('POST', path, {'payload': 'to ann', 'unique': 'ann'}, {'Idempotency-Key': 'signup-2'})
    check('the key that met the unique text keeps its answer, too', status == 200 and body['task'] == first['task'], body)
    many = {'tasks': [{'payload': str(i)} for i in range(20)]}
    answers = [begin(s.call, 'POST', path, many, {'Idempotency-Key': 'batch'}) for _ in range(8)]
    for thread, _ in answers:
        thread.join(PATIENCE_S)
    answers = [got[0] for _, got in answers]
    check('eight repeats at one time add one batch', all(one[0] == 201 and one[2] == answers[0][2] for one in answers) and
          len(s.call('GET', '/v1/tasks?kind=mail&state=unfinished')[2]['tasks']) == 20, answers)
    status, _, body = s.call('POST', path, {'tasks': many['tasks'][:3]}, {'Idempotency-Key': 'batch'})
    check('the key with another number of tasks is refused', status == 400 and 'number' in body['detail'], status, body)
    check('without a key each request adds', len({s.call('POST', path, {})[2]['task'] for _ in range(3)}) == 3)


def test_traces(s):
    """The trace of a worker elsewhere is in the history."""
    trace = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'

    def work(kind, outcome, headers):
        s.call('POST', f'/v1/kinds/{kind}/tasks', {'payload': 'x', 'max_failures': 1})
        one = s.call('POST', f'/v1/kinds/{kind}/claims', {})[2]['tasks'][0]
        end_ = {'task': one['task'], 'fence': one['fence'], 'outcome': outcome, 'text': 'said'}
        status = s.call('POST', f'/v1/kinds/{kind}/results', {'tasks': [end_]}, headers)[0]
        return status, one['task'], s.call('GET', f'/v1/history?name={kind}')[2]['runs']

    for kind, outcome, how in [('good', 'done', 'done'), ('bad', 'fail', 'failed')]:
        status, task, runs = work(kind, outcome, {'traceparent': trace})
        check(f'an end that is {how} leaves a run with its trace', status == 200 and len(runs) == 1 and
              (runs[0]['outcome'], runs[0]['task'], runs[0]['kind'], runs[0]['output'], runs[0]['command']) ==
              (how, task, 'worker', 'said', f'TRACEPARENT={trace}'), status, runs)
        story = s.call('GET', f'/v1/tasks/{task}')[2]
        check('which the story of the task has', [one['command'] for one in story['runs']] == [f'TRACEPARENT={trace}'], story)
    for headers in [{}, {'traceparent': 'secret'}, {'traceparent': trace.upper()}]:
        check(f'{headers} leaves none', work('untraced', 'done', headers)[2] == [])


def test_story(s):
    """A task has its runs, however many others of its kind ran since."""
    def work(count, end_, **more):
        s.call('POST', '/v1/kinds/told/tasks', {'tasks': [{'payload': 'x'}] * count})
        claims = s.call('POST', '/v1/kinds/told/claims', {'limit': count})[2]['tasks']
        ends = [{'task': one['task'], 'fence': one['fence'], **end_} for one in claims]
        s.call('POST', '/v1/kinds/told/results', {'tasks': ends, **more})
        return claims[0]['task']

    def story(task):
        return [(one['outcome'], one['command'], one['output'], one['duration_ms'])
                for one in s.call('GET', f'/v1/tasks/{task}')[2]['runs']]

    task = work(1, {'outcome': 'next', 'phase': 'stage two', 'text': 'half', 'took': '1500ms'}, history=True)
    check('a result leaves a run on request, with its step and its time', story(task) == [('done', 'next stage two', 'half', 1500)],
          story(task))
    claim = s.call('POST', '/v1/kinds/told/claims', {})[2]['tasks'][0]
    s.call('POST', '/v1/kinds/told/results', {'tasks': [{'task': claim['task'], 'fence': claim['fence']}], 'history': True})
    check('the latest is first', claim['task'] == task and [one[1] for one in story(task)] == ['', 'next stage two'], story(task))

    def many():
        work(500, {'text': 'y'}, history=True)
        return s.call('GET', '/v1/history?name=told&limit=1000')[2]['next']

    check('a thousand others run', wait_until(many))
    found = s.call('GET', f'/v1/tasks/{task}')[2]
    check('they do not hide the runs of the first', len(found['runs']) == 2 and not found['more_runs'], found)
    runs = s.call('GET', f'/v1/history?task={task}')[2]['runs']
    check('the history lists them by its number', [one['task'] for one in runs] == [task, task], runs)


def main():
    s = t.Server()
    if t.LEASES_ONLY:
        for method, id_ in [('POST', None), ('GET', None), ('PUT', '0' * 32), ('PATCH', '0' * 32), ('DELETE', '0' * 32)]:
            status, _, body = once(s, method, 'x', None, id_)
            check(f'{method} is 501 where only leases are kept', status == 501 and 'detail' in body, status, body)
        s.stop()
        return end()
    for test in [test_one_after_the_other, test_repeated, test_given_up, test_waiting, test_killed_client, test_odd_keys,
                 test_answers, test_many, test_command, test_tasks, test_traces, test_story]:
        test(s)
    s = test_restarted_daemon(s)
    s.stop()
    return end()


if __name__ == '__main__':
    sys.exit(main())
