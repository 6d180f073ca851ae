# SPDX-License-Identifier: MIT
"""Every status that /openapi.json has for a route is one that the server answers there.

usage: statuses_test.py DIBS

schema_test.py compares the other way: the server answers nothing that is not documented.
"""
import subprocess
import sys
import time
import urllib.parse

import serve_test as t
from auth_test import bearer, new_token, write_tokens
from checks import PATIENCE_S, check, end, wait_until
from schema_test import documented_of, request_each, seen_of
from serve_test import FOLDER, Server, blocked_store, send

# Statuses that each route documents although it answers them for a reason of the whole server.  This test sees each of
# `SOMEWHERE` at one route at least; the others need what it cannot have.
SOMEWHERE = {'403': 'a token that is too small; a token for some names is refused by the routes that have names',
             '429': 'a client beyond --rate', '501': 'a store that lacks the part', '503': 'a server beyond --queue'}
EXCUSED = {'414': 'libmicrohttpd answers it before there is a route; limits_test.py',
           '431': 'the same',
           '500': 'no request is known that has it; schema_test.py searches',
           '502': 'the store is damaged: operating_test.py, test_foreign_rows',
           '504': 'the outcome is not known: the store must be lost at the right moment; storm.py'}
# Of one route.
LOST = 'the lease ends between its grant and the answer'
EXCUSED_AT = {('POST', '/v1/leases/{name}'): {'410': LOST},
              ('POST', '/v1/lanes/{topic}/members'): {'410': LOST},
              ('PATCH', '/v1/lanes/{topic}'): {'412': 'another client changes the number at the same time'},
              ('POST', '/v1/once'): {'410': LOST},
              ('PUT', '/v1/once'): {'409': 'another attempt begins after this one has proved its lease, before its answer is stored'},
              ('DELETE', '/v1/once'): {'409': 'the same'}}
GENERAL = SOMEWHERE.keys() | EXCUSED.keys()
MESSAGE_RUN = b'dibs\x05\x02' + bytes(16)  # operations of a session that does not exist


# ---- Statuses of a route's own ----

def provoke_leases(s):
    lease = s.call('POST', '/v1/leases/a', {'ttl': '1m'})[2]
    mine, wrong = {'Dibs-Lease': lease['id']}, {'Dibs-Lease': '0' * 32}
    s.call('POST', '/v1/leases/a', {})
    for path in ('/v1/leases/a', '/v1/leases/none', '/v1/leases'):
        s.call('GET', path)
    for headers in (wrong, mine):
        s.call('PATCH', '/v1/leases/a', {'ttl': '1m'}, headers)
        s.call('DELETE', '/v1/leases/a', None, headers)
    # The id of a lease that has ended is not used a second time.
    s.call('POST', '/v1/leases/a', {'id': lease['id']})
    key = {'Idempotency-Key': lease['id']}
    s.call('POST', '/v1/leases/a', {}, key)
    s.call('POST', '/v1/leases/b', {'ttl': '1m'})
    s.call('DELETE', '/v1/leases/b/holders')
    s.call('DELETE', '/v1/leases/b/holders?now=true')
    s.call('DELETE', '/v1/leases/none/holders')


def provoke_records(s):
    for method in ('PUT', 'DELETE'):
        body = b'x' if method == 'PUT' else None
        s.call(method, '/v1/records/none', body, {'If-Match': '"7"'})
        s.call(method, '/v1/records/none', body)
    s.call('PUT', '/v1/records/r', b'x', {'If-None-Match': '*'})
    tag = s.call('GET', '/v1/records/r')[1]['etag']
    s.call('GET', '/v1/records/r', None, {'If-None-Match': tag})
    s.call('GET', '/v1/records/none')
    s.call('PUT', '/v1/records/r', b'x', {'If-Match': '"999"'})
    s.call('DELETE', '/v1/records/r', None, {'If-Match': '"999"'})
    s.call('DELETE', '/v1/records/r', None, {'If-Match': tag})
    first = s.call('POST', '/v1/leases/writer', {})[2]
    s.call('DELETE', '/v1/leases/writer', None, {'Dibs-Lease': first['id']})
    second = s.call('POST', '/v1/leases/writer', {})[2]
    old, new = ({'Dibs-Lease': one['id'], 'Dibs-Fence': str(one['fence'])} for one in (first, second))
    s.call('POST', '/v1/records/f/seal', None, new)
    s.call('PUT', '/v1/records/f', b'x', new)
    s.call('POST', '/v1/records/f/seal', None, new)
    s.call('POST', '/v1/records/f/seal', None, old)
    s.call('PUT', '/v1/records/f', b'x', old)
    s.call('DELETE', '/v1/records/f', None, old)


def provoke_stocks(s):
    claim = '/v1/stocks/seats/claims'
    s.call('PUT', '/v1/stocks/seats', {'limit': 2})
    for path in ('/v1/stocks/seats', '/v1/stocks/none', '/v1/stocks'):
        s.call('GET', path)
    for name in ('a', 'a', 'b', 'c'):
        s.call('PUT', f'{claim}/{name}', {})
    s.call('PUT', '/v1/stocks/seats', {'limit': 1})
    s.call('PUT', '/v1/stocks/none/claims/a', {})
    for _ in range(2):
        s.call('DELETE', f'{claim}/a')
    s.call('PUT', f'{claim}/a', {})
    s.call('DELETE', f'{claim}/none')
    s.call('DELETE', '/v1/stocks/none/claims/a')


def provoke_counters(s):
    most = {'delta': 2 ** 63 - 1}
    for _ in range(2):
        s.call('POST', '/v1/counters/full', most)
    for path in ('/v1/counters', '/v1/counters/full', '/v1/counters/none'):
        s.call('GET', path)
    # What the daemon has buffered does not fit to what is stored, until the daemon writes it, which is refused.
    for _ in range(20):
        s.call('POST', '/v1/counters/full', {'level': 'buffered'})
        if s.call('GET', '/v1/counters/full')[0] == 409:
            break
    s.call('POST', '/v1/quotas/q', {'limit': 1, 'per': '1m'})


def provoke_lanes(s):
    topic, member = '/v1/lanes/t', {'ttl': '1m'}
    s.call('POST', f'{topic}/members', member)
    joined = s.call('POST', f'{topic}/members', member | {'lanes': 2})[2]
    s.call('POST', f'{topic}/members', {'lanes': 3})
    for path in ('/v1/lanes', topic, '/v1/lanes/none', f'{topic}/keys/k', '/v1/lanes/none/keys/k'):
        s.call('GET', path)
    for id_ in (joined['id'], '0' * 32):
        s.call('PATCH', f"{topic}/members/{joined['slot']}", {'leave': True}, {'Dibs-Lease': id_})
    s.call('PATCH', topic, {'lanes': 3})
    s.call('PATCH', '/v1/lanes/none', {'lanes': 3})


def provoke_once(s):
    def call(method, key, body=None, id_=None):
        return s.call(method, '/v1/once', body, {'Idempotency-Key': key} | ({'Dibs-Lease': id_} if id_ else {}))[2]

    mine, other = call('POST', 'k', {'ttl': '1m'})['id'], '0' * 31 + '1'
    call('POST', 'k', {})
    call('GET', 'k')
    for method in ('PATCH', 'PUT', 'DELETE'):
        call(method, 'k', {'answer': 'x'} if method == 'PUT' else {} if method == 'PATCH' else None, other)
    call('PATCH', 'k', {'ttl': '1m'}, mine)
    call('PUT', 'k', {'answer': 'x'}, mine)
    call('PUT', 'k', {'answer': 'x'}, mine)
    call('GET', 'k')
    call('POST', 'k', {})
    call('DELETE', 'k', None, mine)
    given_up = call('POST', 'g', {})['id']
    call('DELETE', 'g', None, given_up)
    call('POST', 'g', {'id': given_up})


def provoke_tasks(s):
    unique = {'payload': 'x', 'unique': 'u'}
    for _ in range(2):
        s.call('POST', '/v1/kinds/k/tasks', unique)
    task = s.call('POST', '/v1/kinds/k/claims', {})[2]['tasks'][0]
    held = {'tasks': [{'task': task['task'], 'fence': task['fence']}]}
    s.call('POST', '/v1/kinds/k/extensions', held)
    s.call('POST', '/v1/kinds/k/results', held)
    for path in (f"/v1/tasks/{task['task']}", '/v1/tasks/999999', '/v1/tasks', '/v1/kinds', '/v1/kinds/k', '/v1/outbox/k', '/v1/history'):
        s.call('GET', path)
    s.call('PATCH', '/v1/kinds/k', {'paused': False})
    for change in ('retry', 'cancel', 'purge'):
        s.call('POST', f'/v1/changes/{change}', {'kind': 'k'})
    for change in ('retry', 'purge'):
        s.call('POST', f'/v1/outbox/k/{change}', {'tasks': [{'task': task['task']}]})


def provoke_cron(s):
    table = '/v1/cron/night/table'
    for method, path in (('GET', '/v1/cron'), ('GET', '/v1/cron/night'), ('GET', table), ('DELETE', '/v1/cron/night'),
                         ('POST', '/v1/cron/night/jobs/slow')):
        s.call(method, path)
    s.call('PUT', table, '@yearly true')
    s.call('PUT', table, '@yearly true', {'If-Match': '"1"'})
    for _ in range(2):
        s.call('PUT', table, '@yearly name=slow true\n', {'If-None-Match': '*'})
    s.call('GET', table)
    s.call('GET', '/v1/cron/night')
    for _ in range(2):  # no node has run the first one
        s.call('POST', '/v1/cron/night/jobs/slow')
    s.call('DELETE', '/v1/cron/night')
    s.call('PUT', '/v1/records/crontabs?unchecked=true', b'\n'.join([b'a'] * 1000))  # the list of fleets, which is full
    s.call('PUT', '/v1/cron/one-more/table', '@yearly true', {'If-None-Match': '*'})


def provoke_fleet(s):
    for path in ('/v1/tiers', '/v1/breakers', '/v1/flags', '/v1/flags/none', '/v1/metrics', '/metrics', '/v1/metrics/none', '/v1/series',
                 '/healthz', '/readyz', '/openapi.json', '/problems', '/problems/held', '/problems/none', '/v1/metrics/http.requests'):
        s.call('GET', path)
    flag = s.call('GET', '/v1/flags')[2]['flags'][0]['name']
    s.call('GET', f'/v1/flags/{urllib.parse.quote(flag, safe="")}')
    s.call('PUT', f'/v1/flags/{urllib.parse.quote(flag, safe="")}', {'percent': 100})
    s.call('PUT', '/v1/flags/none', {'percent': 10})
    tier = s.call('GET', '/v1/breakers')[2]['breakers'][0]['tier']
    for name in (tier, 'none'):
        s.call('PUT', f'/v1/breakers/{urllib.parse.quote(name, safe="")}', {'mode': 'auto'})


def provoke_pages(s, store_uri):
    for path in ('/', '/web/app.js'):
        tag = s.call('GET', path)[1]['etag']
        s.call('GET', path, None, {'If-None-Match': tag})
    s.call('GET', '/web/none.js')
    for watch in ('/v1/leases', '/v1/none', '/v1/leases/x/holders', '/v1/changes/retry'):
        stream = send(s, 'GET', f"/v1/events?watch={urllib.parse.quote(watch, safe='')}")
        stream.getresponse()
        stream.close()
    s.call('POST', '/v1/store', MESSAGE_RUN)
    subprocess.run([t.DIBS, 'ls', '--store', store_uri], capture_output=True, timeout=PATIENCE_S, check=True)


# ---- Statuses for a reason of the whole server ----

def provoke_refusals(documented):
    """401 and 403 of each route; 429, 501 and 503 of some.  The servers, for what they have seen."""
    use, reader, some = new_token('use'), new_token('reader', '--scope', 'read'), new_token('some', '--scope', 'admin', '--prefix', 'zzz')
    write_tokens(use[1], reader[1], some[1])
    guarded = Server('--tokens', f'{FOLDER}/tokens')
    request_each(guarded, documented)
    for secret in (use[0], reader[0], some[0]):
        request_each(guarded, documented, bearer(secret))
    hurried = Server('--rate', '1')
    for _ in range(2):
        request_each(hurried, documented)
    full = Server('--threads', '1', '--queue', '1')
    with blocked_store():
        clients = [send(full, 'POST', '/v1/kinds/full/tasks', {}, {'Idempotency-Key': f'k{i}'}) for i in range(3)]
        for client in clients:
            client.sock.settimeout(PATIENCE_S)
        time.sleep(0.2)
        check('a full queue refuses', wait_until(lambda: full.call('GET', '/v1/history')[0] == 503))
    for client in clients:
        client.getresponse()
        client.close()
    return [(guarded, bearer(reader[0])), (hurried, None), (full, None)]


def missing_of(documented, seen):
    """Statuses of a route that nobody has seen, without those that are excused."""
    found = {f'{method} {route}': sorted(statuses - seen.get((method, route), set()) - GENERAL - EXCUSED_AT.get((method, route), {}).keys())
             for (method, route), statuses in documented.items()}
    return {route: statuses for route, statuses in found.items() if statuses}


def join(*all_seen):
    whole = {}
    for seen in all_seen:
        for route, statuses in seen.items():
            whole.setdefault(route, set()).update(statuses)
    return whole


def main():
    store = f'sqlite://{FOLDER}/first.db,sqlite://{FOLDER}/last.db'
    s = Server('--body', '2000', store=store)
    documented = documented_of(s.call('GET', '/openapi.json')[2])
    for provoke in (provoke_leases, provoke_records, provoke_stocks, provoke_counters, provoke_lanes, provoke_once, provoke_tasks, provoke_cron, provoke_fleet):
        provoke(s)
    provoke_pages(s, f'http://127.0.0.1:{s.port}')
    request_each(s, documented, query='?no_such_parameter=1')
    request_each(s, documented, body=b'x' * 3000)
    servers = [(s, None), *provoke_refusals(documented)]
    seen = join(*(seen_of(one, headers) for one, headers in servers))
    seen.pop(('other', 'other'), None)
    more = {route: statuses - documented[route] for route, statuses in seen.items() if statuses - documented[route]}
    check('each status that was answered is documented', not more, more)
    missing = missing_of(documented, seen)
    check('each status that is documented was answered', not missing, *(f'{route}: {statuses}' for route, statuses in missing.items()))
    for status, why in SOMEWHERE.items():
        check(f'{status}: {why}', any(status in statuses for statuses in seen.values()))
    unused = [(route, status) for route, excused in EXCUSED_AT.items() for status in excused
              if status not in documented[route] or status in seen.get(route, ())]
    check('no excuse is left that is not needed', not unused, unused)
    for one, _ in servers:
        one.process.terminate()
        check('the server ends with 0', one.process.wait(PATIENCE_S) == 0)
    return end()


if __name__ == '__main__':
    sys.exit(main())
