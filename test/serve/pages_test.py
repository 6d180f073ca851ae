# SPDX-License-Identifier: MIT
"""The lists of dibs serve, page by page, and what people change by them.

usage: pages_test.py DIBS [URI]
"""
import contextlib
import json
import re
import sqlite3
import subprocess
import sys
import time

import serve_test as t
from checks import PATIENCE_S, check, end, wait_until


def pages(s, path, key, limit):
    """All entries of a list, and the number of its pages."""
    found, after, count = [], None, 0
    while True:
        more = f'&after={after}' if after is not None else ''
        status, _, body = s.call('GET', f"{path}{'&' if '?' in path else '?'}limit={limit}{more}")
        if status != 200 or len(body[key]) > limit or count > 1000:
            return [f'{status}: {body}'], count
        found += body[key]
        count += 1
        after = body['next']
        if after is None:
            return found, count


def dibs(*args):
    return subprocess.run([t.DIBS, '--store', t.STORE, *args], capture_output=True, text=True, check=False,
                          timeout=PATIENCE_S)


def test_table_prefix():
    """Listing in tables that have names of their own."""
    s = t.Server(store=f"{t.STORE}{'&' if '?' in t.STORE else '?'}prefix=own_")
    names = [f'own/{i}' for i in range(3)]
    for name in names:
        s.call('POST', t.name_path('leases', name), {'ttl': '10m'})
    found, count = pages(s, '/v1/leases', 'names', 2)
    check('names are listed from tables with a prefix', [one['name'] for one in found] == names and count == 2, found)
    s.stop()


def test_names(s):
    names = sorted(f'page/{i}' for i in range(25)) + ['page/é', 'page/한']
    for name in names:
        s.call('POST', t.name_path('leases', name), {'ttl': '10m', 'owner': 'ann'})
    s.call('POST', '/v1/leases/other', {'ttl': '10m'})
    thread, _ = t.begin(s.call, 'POST', t.name_path('leases', names[3]), {'wait': '10m', 'owner': 'bob'})
    wait_until(lambda: 'waits' in t.states_of(s, names[3]))
    found, count = pages(s, '/v1/leases?prefix=page/', 'names', 10)
    check('pages have each name once, by name', [one['name'] for one in found] == names and count == 3, found, count)
    fourth = found[3]
    check('with its holder and its waiter',
          [one['owner'] for one in fourth['leases']] == ['ann', 'bob'] and fourth['holders'] == 1 == fourth['waiters'],
          fourth)
    found, count = pages(s, '/v1/leases', 'names', 1000)
    check('without a prefix all names are listed', {'other', *names} <= {one['name'] for one in found}, found)
    status, _, body = s.call('GET', '/v1/leases?limit=0')
    check('a page has at least one entry', status == 400 and 'limit' in body['detail'], body)
    check('a break hands the name to the waiter',
          s.call('DELETE', t.name_path('leases', names[3], '/holders?now=true&by=boss'))[0] == 204)
    thread.join()
    status, _, body = s.call('GET', t.name_path('leases', names[3]))
    check('the break and its author are recorded',
          [one['owner'] for one in body['leases'] if one['state'] == 'holds'] == ['bob'] and
          any(one['state'] == 'broken' and one['owner'] == 'boss' and one['taken_from'] == 'ann' for one in body['leases']), body)
    status, _, body = s.call('DELETE', t.name_path('leases', names[4], '/holders?wait=200ms'))
    check('a holder that does not notice keeps the name until its ttl ends', status == 409 and
          body['type'] == '/problems/timeout', body)
    check('a name that nobody holds cannot be broken', s.call('DELETE', '/v1/leases/nobody/holders')[0] == 404)


def test_many_names(s):
    """More than a driver reads at a time."""
    connection = s.connect()
    for i in range(1100):
        s.call('POST', f'/v1/leases/many-{i:04}', {'ttl': '10m'}, connection=connection)
    connection.close()
    found, count = pages(s, '/v1/leases?prefix=many-', 'names', 1000)
    check('many names in pages', [one['name'] for one in found] == [f'many-{i:04}' for i in range(1100)] and count == 2)
    listed = [one['name'] for one in json.loads(dibs('ls', '--json', 'many-').stdout)]
    check('and all at once', listed == [f'many-{i:04}' for i in range(1100)], len(listed))


def test_stocks(s):
    keys = sorted(f'seat/{i}' for i in range(12)) + ['seat/é']
    for key in keys:
        s.call('PUT', t.name_path('stocks', key), {'limit': 50})
    s.call('PUT', '/v1/stocks/other', {'limit': 5})
    s.call('PUT', t.name_path('stocks', keys[2], '/claims/c'), {'amount': 7})
    found, count = pages(s, '/v1/stocks?prefix=seat/', 'stocks', 5)
    check('pages have each stock once, by key', [one['key'] for one in found] == keys and count == 3, found, count)
    check('with its use and limit', found[2] == {'key': keys[2], 'used': 7, 'limit': 50}, found[2])
    found, count = pages(s, '/v1/stocks', 'stocks', 7)
    check('without a prefix all are listed', [one['key'] for one in found] == ['other'] + keys and count == 2, found, count)
    check('a prefix that no key has lists none', pages(s, '/v1/stocks?prefix=t', 'stocks', 7) == ([], 1))


def make_dead(s, kind, count, error):
    """Tasks that failed at their only try."""
    for at in range(0, count, 500):
        some = min(500, count - at)
        s.call('POST', f'/v1/kinds/{kind}/tasks', {'tasks': [{'payload': str(i), 'max_failures': 1} for i in range(some)]})
        claimed = s.call('POST', f'/v1/kinds/{kind}/claims', {'limit': some})[2]['tasks']
        s.call('POST', f'/v1/kinds/{kind}/results',
               {'tasks': [{'task': one['task'], 'fence': one['fence'], 'outcome': 'fail', 'text': error}
                          for one in claimed]})


def test_tasks(s):
    make_dead(s, 'mail', 30, 'no route to host')
    make_dead(s, 'post', 3, 'stamp missing')
    s.call('POST', '/v1/kinds/mail/tasks', {'payload': 'fresh', 'phase': 'begin'})
    found, count = pages(s, '/v1/tasks?state=dead', 'tasks', 10)
    check('dead tasks in pages, by number', len(found) == 33 and count == 4 and
          [one['task'] for one in found] == sorted({one['task'] for one in found}), found)
    for query, most in [('kind=post', 3), ('text=stamp', 3), ('state=ready', 1), ('phase=begin', 1),
                        ('state=finished&kind=mail', 30), ('state=dead,ready&kind=mail', 31), ('older=1h', 0)]:
        found, _ = pages(s, f'/v1/tasks?{query}', 'tasks', 1000)
        check(f'{query} selects {most}', len(found) == most, found)
    check('an unknown state is refused', s.call('GET', '/v1/tasks?state=deaf')[0] == 400)
    number = pages(s, '/v1/tasks?kind=post', 'tasks', 10)[0][0]['task']
    status, _, body = s.call('GET', f'/v1/tasks/{number}')
    check('a task has its payload and its errors', status == 200 and body['payload'] == '0' and
          [one['text'] for one in body['errors']] == ['stamp missing'], body)
    for wrong in ['0', '999999999', 'x', '-1', '1x', '99999999999999999999999']:
        check(f'there is no task {wrong}', s.call('GET', f'/v1/tasks/{wrong}')[0] == 404)


def test_changes(s):
    status, _, body = s.call('POST', '/v1/changes/retry', {})
    check('a change says which tasks', status == 400 and 'which tasks' in body['detail'], body)
    check('by numbers or by a filter, not both',
          s.call('POST', '/v1/changes/retry', {'kind': 'mail', 'tasks': [{'task': 1}]})[0] == 400)
    dry = {'kind': 'mail', 'state': 'dead', 'dry_run': True}
    status, _, body = s.call('POST', '/v1/changes/retry', dry)
    check('a dry run only counts', status == 200 and body['changed'] == 30 and
          s.call('POST', '/v1/changes/retry', dry)[2]['changed'] == 30, body)
    changed, after, requests = 0, None, 0
    while requests < 20:
        request = {'kind': 'mail', 'state': 'dead', 'limit': 7} | ({'after': after} if after else {})
        status, _, body = s.call('POST', '/v1/changes/retry', request)
        changed += body['changed']
        requests += 1
        after = body['next']
        if after is None:
            break
    check('many are retried a limited number at a time', changed == 30 and requests == 5, changed, requests)
    numbers = [one['task'] for one in pages(s, '/v1/tasks?kind=post&state=dead', 'tasks', 10)[0]]
    status, _, body = s.call('POST', '/v1/changes/purge', {'tasks': [{'task': n} for n in numbers[:2] + [999999999]]})
    check('those that are named, and no others', body['changed'] == 2 and
          [one['task'] for one in pages(s, '/v1/tasks?kind=post', 'tasks', 10)[0]] == numbers[2:], body)
    check('cancelling ends tasks', s.call('POST', '/v1/changes/cancel', {'kind': 'mail'})[2]['changed'] == 31 and
          len(pages(s, '/v1/tasks?kind=mail&state=cancelled', 'tasks', 100)[0]) == 31)
    check('a task is named by a number', s.call('POST', '/v1/changes/purge', {'tasks': [{'task': 'x'}]})[0] == 400)


def test_outbox(s):
    """The messages of a kind; the dead letters of another kind stay as they are."""
    for kind in ['letters', 'others']:
        make_dead(s, kind, 6, 'connection refused')
    s.call('POST', '/v1/kinds/letters/tasks', {'tasks': [{'payload': str(i)} for i in range(3)]})

    def counts():
        body = s.call('GET', '/v1/outbox/letters')[2]
        return [body[word] for word in ['waiting', 'sending', 'dead', 'delivered']]

    check('an outbox has its counts', wait_until(lambda: counts() == [3, 0, 6, 0]), counts())
    status, _, body = s.call('GET', '/v1/outbox/letters')
    check('and the messages that wait, with the age of the oldest one', status == 200 and body['oldest_ready_age_ms'] >= 0 and
          len(body['tasks']) == 3 and {one['state'] for one in body['tasks']} == {'ready'}, body)
    found, count = pages(s, '/v1/outbox/letters?state=dead', 'tasks', 4)
    check('dead letters come in pages', len(found) == 6 and count == 2 and
          all(one['kind'] == 'letters' and 'refused' in one['text'] for one in found), found, count)
    one, other = found[0]['task'], pages(s, '/v1/outbox/others?state=dead', 'tasks', 10)[0][0]['task']
    status, _, body = s.call('POST', '/v1/outbox/letters/retry', {'tasks': [{'task': one}, {'task': other}]})
    check('one of them is delivered again, and none of another kind', status == 200 and body['changed'] == 1, body)
    status, _, body = s.call('POST', '/v1/outbox/letters/retry', {'dry_run': True})
    check('without a filter all of them are meant', status == 200 and body['changed'] == 5, body)
    status, _, body = s.call('POST', '/v1/outbox/letters/purge', {'text': 'something else'})
    check('a filter spares the others', status == 200 and body['changed'] == 0, body)
    status, _, body = s.call('POST', '/v1/outbox/letters/purge', {'text': 'refused', 'limit': 2})
    check('dead letters are deleted', status == 200 and body['changed'] == 2 and body['next'], body)
    check('messages that wait and other kinds are not', wait_until(lambda: counts() == [4, 0, 3, 0]) and
          len(pages(s, '/v1/outbox/others?state=dead', 'tasks', 10)[0]) == 6, counts())
    status, _, body = s.call('POST', '/v1/outbox/letters/retry', {'tasks': [{'task': one}], 'text': 'x'})
    check('numbers and a filter together are refused', status == 400, body)
    check('a kind without messages is empty', s.call('GET', '/v1/outbox/nobody')[2]['tasks'] == [])
    check('another word is refused', s.call('GET', '/v1/outbox/letters?state=all')[0] == 400)


def test_kinds(s):
    status, _, body = s.call('PATCH', '/v1/kinds/slow', {'paused': True, 'running_limit': 2})
    check('a kind is paused and limited', status == 200 and body['paused'] and body['running_limit'] == 2, body)
    s.call('POST', '/v1/kinds/slow/tasks', {'tasks': [{}, {}, {}]})
    check('then nobody claims', s.call('POST', '/v1/kinds/slow/claims', {'limit': 3})[2]['tasks'] == [])
    status, _, body = s.call('PATCH', '/v1/kinds/slow', {'paused': False})
    check('a member that is not given stays', not body['paused'] and body['running_limit'] == 2, body)
    check('the limit holds', len(s.call('POST', '/v1/kinds/slow/claims', {'limit': 3})[2]['tasks']) == 2)

    def counted():
        body = s.call('GET', '/v1/kinds/slow')[2]
        return (body['ready'], body['claimed']) == (1, 2) and body['oldest_ready_age_ms'] >= 0
    check('the counts follow within some seconds', wait_until(counted), s.call('GET', '/v1/kinds/slow'))
    done = dibs('worker', '--once', '--kind', 'slow', '--topic', 'slow', '--lanes', '2', '--', 'true')
    check('a worker by lane', done.returncode == 0, done.stderr)
    check('the kind has its topic', wait_until(lambda: s.call('GET', '/v1/kinds/slow')[2]['topic'] == 'slow'))
    s.call('POST', '/v1/kinds/slow/tasks', {'tasks': [{'key': 'k'}]})
    s.call('PATCH', '/v1/kinds/slow', {'running_limit': 20})
    s.call('POST', '/v1/kinds/slow/claims', {'limit': 3})  # those without a key
    body = s.call('POST', '/v1/kinds/slow/claims', {'limit': 3})[2]
    check('a claim over HTTP answers where the tasks go', body['tasks'] == [] and '"slow"' in body['why'], body)
    status, _, body = s.call('PATCH', '/v1/kinds/slow', {'no_lanes': True})
    check('an operator takes them from the lanes', status == 200 and body['topic'] is None, body)
    check('then they are claimed over HTTP', len(s.call('POST', '/v1/kinds/slow/claims', {})[2]['tasks']) == 1)
    found, count = pages(s, '/v1/kinds', 'kinds', 1)
    check('kinds come in pages', [one['kind'] for one in found] == ['mail', 'post', 'slow'] and count == 3, found, count)
    found, _ = pages(s, '/v1/kinds?prefix=p', 'kinds', 10)
    check('by prefix, too', [one['kind'] for one in found] == ['post'], found)


def test_kinds_that_cannot_be_counted():
    """A failure is kept as counts are: the store is not asked for each request."""
    path, trace = f'{t.FOLDER}/uncounted.db', f'{t.FOLDER}/uncounted.trace'
    s = t.Server(store=f'trace+sqlite://{path}?trace.file={trace}')
    s.call('POST', '/v1/kinds/k/tasks', {})

    def asked():
        with open(trace, encoding='utf-8') as lines:
            return sum('"op":"task.count"' in line for line in lines)

    def rename(old, new):
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=PATIENCE_S)) as db:
            db.execute(f'ALTER TABLE {old} RENAME TO {new}')
    check('kinds are counted', wait_until(lambda: s.call('GET', '/v1/kinds/k')[2]['ready'] == 1))
    rename('dibs_task', 'elsewhere')
    began, before = time.monotonic(), asked()
    check('a page says why they are not', wait_until(lambda: 'no such table' in s.call('GET', '/v1/kinds')[2].get('detail', '')))
    answers = [s.call('GET', '/v1/kinds/k') for _ in range(60)]
    times, passed_s = asked() - before, time.monotonic() - began
    check('so do all others', all(status != 200 and 'no such table' in body['detail'] for status, _, body in answers), answers[0])
    check('and the store was asked once a second at most', 1 <= times <= passed_s + 2, times, passed_s)
    rename('elsewhere', 'dibs_task')
    check('until it counts again', wait_until(lambda: s.call('GET', '/v1/kinds/k')[2].get('ready') == 1))
    check('a change that the store made is answered', s.call('PATCH', '/v1/kinds/k', {'paused': True})[2].get('paused'))
    s.stop()


def test_history(s):
    for i in range(7):
        dibs('run', f'job{i}', '--', 'sh', '-c', f'exit {i % 2}')
    found, count = pages(s, '/v1/history', 'runs', 3)
    check('what ran, the latest first', [one['name'] for one in found] == [f'job{i}' for i in range(6, -1, -1)] and
          count == 3, found)
    found, _ = pages(s, '/v1/history?failed=true', 'runs', 2)
    check('only what failed', [one['name'] for one in found] == ['job5', 'job3', 'job1'], found)
    found, _ = pages(s, '/v1/history?name=job2', 'runs', 2)
    check('only one name', len(found) == 1 and found[0]['outcome'] == 'done', found)
    check('a position is the `next` of a page', s.call('GET', '/v1/history?after=yesterday')[0] == 400)


def test_cron(s):
    file = f'{t.FOLDER}/jobs.cron'
    with open(file, 'w', encoding='utf-8') as out:
        out.write('@yearly name=yearly true\n@yearly name=never-mind false\n')
    check('no crontab is kept at first', s.call('GET', '/v1/cron')[2] == {'fleets': [], 'next': None})
    with open(f'{t.FOLDER}/cron.log', 'w+', encoding='utf-8') as log:
        node = subprocess.Popen([t.DIBS, 'cron', file, '--store', t.STORE], stdin=subprocess.DEVNULL, stdout=log,
                                stderr=log)
        kept = wait_until(lambda: s.call('GET', '/v1/cron')[2]['fleets'] == [{'fleet': 'jobs.cron'}])
        log.seek(0)
        check('a node keeps its crontab in the store', kept, s.call('GET', '/v1/cron'), log.read())
    status, _, body = s.call('GET', '/v1/cron/jobs.cron')
    check('its jobs have their next firing', status == 200 and [one['name'] for one in body['jobs']] ==
          ['yearly', 'never-mind'] and all(one['next_at_ms'] > time.time() * 1e3 and one['last_outcome'] is None for one in body['jobs']), body)
    status, _, body = s.call('POST', '/v1/cron/jobs.cron/jobs/never-mind')
    check('a job is fired by hand', status == 201 and body['task'] > 0, body)
    failed = wait_until(lambda: s.call('GET', '/v1/cron/jobs.cron')[2]['jobs'][1]['last_outcome'] == 'failed')
    check('a node runs it', failed, s.call('GET', '/v1/cron/jobs.cron'))
    key, path = {'Idempotency-Key': 'deploy-7'}, '/v1/cron/jobs.cron/jobs/yearly'
    first = s.call('POST', path, None, key)
    wait_until(lambda: s.call('GET', '/v1/cron/jobs.cron')[2]['jobs'][0]['last_outcome'] == 'done')
    again = s.call('POST', path, None, key)
    check('a request that is repeated with its key fires once', first[0] == again[0] == 201 and first[2] == again[2],
          first, again)
    check('and without a key again', s.call('POST', path)[2]['task'] > first[2]['task'])
    check('another job does not exist', s.call('POST', '/v1/cron/jobs.cron/jobs/none')[0] == 404)
    check('another fleet does not exist', s.call('GET', '/v1/cron/none')[0] == 404 and
          s.call('POST', '/v1/cron/none/jobs/yearly')[0] == 404)
    status, headers, body = s.call('GET', '/v1/cron/jobs.cron/table')
    check('the crontab of a file is read', status == 200 and b'name=never-mind' in body, status, body)
    status, _, body = s.call('PUT', '/v1/cron/jobs.cron/table', '@yearly true', {'If-Match': headers['etag']})
    check('and not replaced: its nodes read the file', status == 412 and 'change the file' in body['detail'], status, body)
    node.terminate()
    node.wait(PATIENCE_S)
    check('a crontab is forgotten', s.call('DELETE', '/v1/cron/jobs.cron')[0] == 204 and
          s.call('GET', '/v1/cron')[2]['fleets'] == [] and s.call('DELETE', '/v1/cron/jobs.cron')[0] == 404)


def test_stored_crontab(s):
    """A fleet whose nodes have no file: they read what was put into the store."""
    path, jobs = '/v1/cron/night/table', '/v1/cron/night'

    def put(text, **headers):
        return s.call('PUT', path, text, {name.replace('_', '-'): value for name, value in headers.items()})

    check('a write says what it replaces: 428', put('@yearly true')[0] == 428 and s.call('GET', path)[0] == 404)
    check('there is nothing to replace yet: 404', put('@yearly true', If_Match='"1"')[0] == 404)
    status, _, body = put('@yearly name=a true\n\n61 * * * * name=b true\n', If_None_Match='*')
    check('a bad line is 400 with its number, and nothing is stored', status == 400 and 'line 3:' in body['detail'] and
          s.call('GET', path)[0] == 404, status, body)
    with open(f'{t.FOLDER}/stored.log', 'w+', encoding='utf-8') as log:
        node = subprocess.Popen([t.DIBS, 'cron', '--name', 'night', '--store', t.STORE], stdin=subprocess.DEVNULL,
                                stdout=log, stderr=log)
        status, headers, body = put('@yearly name=first true\n', If_None_Match='*')
        tag = headers.get('etag')
        check('a crontab is stored: 204 with its ETag', status == 204 and tag, status, headers, body)
        status, headers, body = s.call('GET', path)
        check('and read as it was', status == 200 and body == b'@yearly name=first true\n' and headers['etag'] == tag and
              headers['content-type'].startswith('text/plain'), headers, body)

        def runs(job):
            s.call('POST', f'{jobs}/jobs/{job}')
            return wait_until(lambda: s.call('GET', f'/v1/history?name={job}')[2]['runs'])

        log.seek(0)
        check('a node without a file runs its jobs', runs('first'), log.read())
    status, headers, body = put('@yearly name=lost true\n', If_None_Match='*')
    check('a second new one is refused: 412', status == 412 and headers['etag'] == tag, status, headers, body)
    check('another version is refused: 412', put('@yearly name=lost true\n', If_Match='"9999"')[0] == 412)
    check('a bad line changes nothing', put('@never true\n', If_Match=tag)[0] == 400 and s.call('GET', path)[1]['etag'] == tag)
    status, headers, body = put('CRON_TZ=Europe/Berlin\n30 2 * * * name=second true\n', If_Match=tag)
    names = [(one['name'], one['zone']) for one in s.call('GET', jobs)[2]['jobs']]
    check('its version replaces it', status == 204 and headers['etag'] != tag and names == [('second', 'Europe/Berlin')],
          status, headers, body, names)
    check('the node runs the new jobs', runs('second'))
    check('dibs cron ls shows it', 'second' in dibs('cron', 'ls', '--name', 'night').stdout)
    done = dibs('cron', 'run', 'second', '--name', 'night')
    check('dibs cron run fires its jobs', done.returncode == 0 and done.stdout.strip().isdigit(), done)
    with open(f'{t.FOLDER}/night', 'w', encoding='utf-8') as out:
        out.write('@yearly name=of-file true\n')
    with open(f'{t.FOLDER}/file.log', 'w+', encoding='utf-8') as log:
        other = subprocess.Popen([t.DIBS, 'cron', f'{t.FOLDER}/night', '--store', t.STORE], stdin=subprocess.DEVNULL,
                                 stdout=log, stderr=log)

        def said():
            log.seek(0)
            return log.read()

        check('a node with a file of this name says that it does not replace it', wait_until(
            lambda: 'for nodes without a file' in said()) and b'second' in s.call('GET', path)[2], said())
        other.terminate()
        other.wait(PATIENCE_S)
    node.terminate()
    node.wait(PATIENCE_S)
    s.call('DELETE', jobs)


def test_one_store(s):
    for path in ['/v1/tiers', '/v1/breakers', '/v1/flags', '/v1/flags/redis.enabled']:
        status, _, body = s.call('GET', path)
        check(f'{path} of one store is 501, and says so', status == 501 and 'tiers' in body['detail'], status, body)


def times_in(value, name=''):
    """(name, number) of each integer in an answer."""
    if isinstance(value, dict):
        for inner, one in value.items():
            yield from times_in(one, inner)
    elif isinstance(value, list):
        for one in value:
            yield from times_in(one, name)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield name, value


def test_times(s):
    """A number is an instant, ms since 1970, if and only if its name ends in at_ms."""
    number = s.call('GET', '/v1/tasks?state=dead')[2]['tasks'][0]['task']
    paths = ['/v1/leases', '/v1/kinds', '/v1/tasks?limit=1000', f'/v1/tasks/{number}', '/v1/history?limit=1000',
             '/v1/outbox/letters', '/v1/series']
    found = [one for path in paths for one in times_in(s.call('GET', path)[2])]
    now = time.time() * 1e3
    recent = {name for name, value in found if abs(value - now) < 2 * 366 * 86400e3 and name != 'fence'}
    others = {name for name, value in found if abs(value - now) >= 2 * 366 * 86400e3}
    check('instants end in at_ms', recent and all(re.search('(^|_)at_ms$', name) for name in recent), sorted(recent))
    check('and nothing else does', not any(name.endswith('at_ms') for name in others), sorted(others))
    check('they are in tasks, errors and runs', {'added_at_ms', 'changed_at_ms', 'at_ms', 'started_at_ms', 'ended_at_ms'} <= recent,
          sorted(recent))


def test_tiers():
    """Two files as tiers: the flags and breakers of a fleet."""
    folder = t.FOLDER
    s = t.Server(store=f'sqlite://{folder}/first.db,sqlite://{folder}/last.db')
    s.call('POST', '/v1/leases/x')
    status, _, body = s.call('GET', '/v1/tiers')
    check('tiers with their state', status == 200 and [one['name'] for one in body['tiers']] == ['sqlite', 'sqlite-2'] and
          body['client_count'] == 1 and len(body['clients']) == 1 and body['counts']['acquired'] == 1, body)
    status, _, body = s.call('GET', '/v1/breakers')
    check('breakers', [(one['tier'], one['breaker'], one['mode']) for one in body['breakers']] ==
          [('sqlite', 'closed', 'auto'), ('sqlite-2', 'closed', 'auto')], body)
    status, _, body = s.call('GET', '/v1/flags')
    flags = {one['name']: one['percent'] for one in body['flags']}
    check('flags', flags.get('sqlite.enabled') == 100, body)
    status, _, body = s.call('PUT', '/v1/flags/sqlite.enabled', {'percent': 10})
    check('a flag is set', status == 200 and s.call('GET', '/v1/flags/sqlite.enabled')[2]['percent'] == 10, body)
    for wrong in [{'percent': 101}, {'percent': -1}, {'percent': 'x'}, {}]:
        check(f'{wrong} is no percentage', s.call('PUT', '/v1/flags/sqlite.enabled', wrong)[0] == 400)
    status, _, body = s.call('PUT', '/v1/flags/nothing', {'percent': 1})
    check('another flag does not exist, and the flags are named', status == 404 and 'sqlite.enabled' in body['detail'],
          body)
    status, _, body = s.call('PUT', '/v1/breakers/sqlite', {'mode': 'open'})
    check('a breaker is opened by hand', status == 200 and
          s.call('GET', '/v1/breakers')[2]['breakers'][0]['mode'] == 'open', body)
    check('and closed', s.call('PUT', '/v1/breakers/sqlite', {'mode': 'auto'})[0] == 200)
    check('another tier does not exist', s.call('PUT', '/v1/breakers/none', {'mode': 'open'})[0] == 404)
    s.stop()


def main():
    s = t.Server()
    tests = [test_names, test_many_names, test_one_store]
    if not t.LEASES_ONLY:
        tests += [test_stocks, test_tasks, test_changes, test_kinds, test_history, test_cron, test_stored_crontab, test_outbox,
                  test_times]
    for test in tests:
        test(s)
    if t.SQLITE:
        test_tiers()
        test_kinds_that_cannot_be_counted()
    elif not t.LEASES_ONLY:
        test_table_prefix()
    if t.LEASES_ONLY:
        for path in ['/v1/tasks', '/v1/kinds', '/v1/history', '/v1/stocks', '/v1/cron', '/v1/cron/x', '/v1/outbox/x']:
            check(f'{path} is 501 where only leases are kept', s.call('GET', path)[0] == 501)
    s.stop()
    return end()


if __name__ == '__main__':
    sys.exit(main())
