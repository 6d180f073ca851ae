# SPDX-License-Identifier: MIT
"""The metrics of dibs serve: what they count, their format, and that dashboards and alerts name metrics that exist.

usage: metrics_test.py DIBS [URI]
"""
import json
import os
import re
import shutil
import subprocess
import sys

import auth_test as auth
import serve_test as t
from checks import check, end, wait_until

MONITORING = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../../packaging/monitoring')


ENGINE = {'postgresql': 'postgres', 'mariadb': 'mysql'}.get(t.STORE.partition(':')[0], t.STORE.partition(':')[0])
GRANTED = f'dibs_lock_acquired_total{{tier="{ENGINE}",strategy="{ENGINE}"}}'


def scrape(s):
    """The text, and its samples: {'dibs_x{a="b"}': 1.0}."""
    status, headers, body = s.call('GET', '/metrics')
    text = body.decode()
    if status != 200 or not headers['content-type'].startswith('text/plain; version=0.0.4'):
        return f'{status} {headers}', {}
    lines = [line for line in text.splitlines() if not line.startswith('#')]
    return text, {line.rpartition(' ')[0]: float(line.rpartition(' ')[2]) for line in lines}


def test_counting(s):
    _, before = scrape(s)
    held = s.call('POST', '/v1/leases/m', {'ttl': '10m'})[2]
    s.call('POST', '/v1/leases/m', {})
    s.call('PATCH', '/v1/leases/m', headers={'Dibs-Lease': held['id']})
    s.call('DELETE', '/v1/leases/m', headers={'Dibs-Lease': held['id']})
    s.call('GET', '/nowhere')
    _, after = scrape(s)

    def grew(name):
        return after.get(name, 0) - before.get(name, 0)
    check('grants have their tier and strategy', GRANTED in after, [one for one in after if 'acquired' in one])
    for name, by in [(GRANTED, 1), ('dibs_lock_busy_total', 1), ('dibs_lock_renewed_total', 1),
                     ('dibs_lock_acquire_seconds_count', 1), ('dibs_lock_release_seconds_count', 1),
                     ('dibs_http_requests_total{method="POST",route="/v1/leases/{name}",status="201"}', 1),
                     ('dibs_http_requests_total{method="POST",route="/v1/leases/{name}",status="409"}', 1),
                     ('dibs_http_requests_total{method="other",route="other",status="404"}', 1),
                     ('dibs_http_request_seconds_count{method="PATCH",route="/v1/leases/{name}"}', 1),
                     ('dibs_http_request_seconds_bucket{method="PATCH",route="/v1/leases/{name}",le="+Inf"}', 1)]:
        check(f'{name} counts', grew(name) == by, before.get(name), after.get(name))
    check('no metric has the name of a lease', not any('"m"' in name for name in after))
    check('the store answers', after['dibs_store_up'] == 1)


def test_stale(s):
    """A write with an old fence."""
    old = s.call('POST', '/v1/leases/r', {'ttl': '10m'})[2]
    s.call('DELETE', '/v1/leases/r', headers={'Dibs-Lease': old['id']})
    new = s.call('POST', '/v1/leases/r', {'ttl': '10m'})[2]
    before = scrape(s)[1]['dibs_lock_stale_total']
    for lease, want in [(new, 204), (old, 409)]:
        status = s.call('PUT', '/v1/records/r', 'x', {'Dibs-Lease': lease['id'], 'Dibs-Fence': str(lease['fence'])})[0]
        check(f'a write with the fence {lease["fence"]} is answered {want}', status == want, status)
    check('stale writes are counted', scrape(s)[1]['dibs_lock_stale_total'] == before + 1, before)
    listed = s.call('GET', '/v1/leases?prefix=r')[2]['names'][0]
    check('also of the name', listed['name'] == 'r' and listed['stale_writes'] == 1, listed)


def test_web_files(s):
    """Requests of the dashboard are counted as others are."""
    def counted(route):
        return scrape(s)[1].get(f'dibs_http_requests_total{{method="GET",route="{route}",status="200"}}', 0)
    before = [counted(route) for route in ('/', '/web/{file}', '/v1/events')]
    for path in ('/', '/web/app.js', '/web/app.css'):
        s.call('GET', path)
    stream = t.send(s, 'GET', '/v1/events?watch=/v1/leases')
    stream.getresponse()
    after = [counted(route) for route in ('/', '/web/{file}', '/v1/events')]
    stream.close()
    check('the files of the dashboard and its streams are counted', [b - a for a, b in zip(before, after)] == [1, 2, 1], before, after)


def test_waiting(s):
    stream = t.send(s, 'GET', '/v1/events?watch=%2Fv1%2Fleases', None)  # it listens, and waits for nothing
    s.call('POST', '/v1/leases/w', {'ttl': '10m'})
    waiting = t.send(s, 'POST', '/v1/leases/w', {'wait': '10m'})
    check('a request that waits is counted', wait_until(lambda: scrape(s)[1]['dibs_http_requests_waiting'] == 1))
    check('with its age', wait_until(lambda: scrape(s)[1]['dibs_http_requests_oldest_waiting_seconds'] > 0.1))
    waiting.close()
    check('until it has left', wait_until(lambda: scrape(s)[1]['dibs_http_requests_waiting'] == 0))
    stream.close()


def test_tasks(s):
    kind = 'a "kind" \\ é'
    s.call('POST', t.name_path('kinds', kind, '/tasks'), {'tasks': [{}, {}]})
    name = 'dibs_tasks{kind="a \\"kind\\" \\\\ é",state="ready"}'
    check('tasks by kind and state', wait_until(lambda: scrape(s)[1].get(name) == 2), scrape(s)[0])
    oldest = 'dibs_tasks_oldest_ready_seconds{kind="a \\"kind\\" \\\\ é"}'
    check('the age of the oldest', wait_until(lambda: scrape(s)[1][oldest] > 1))


def test_task_counts(s):
    """What workers do, by kind and phase."""
    def count(family, **labels):
        labels = ','.join(f'{name}="{value}"' for name, value in labels.items())
        return scrape(s)[1].get(f'dibs_tasks_{family}_total{{{labels}}}', 0)

    s.call('POST', '/v1/kinds/work/tasks', {'tasks': [{'phase': 'pack'}, {'phase': 'pack'}, {'phase': 'send'}, {}]})
    check('tasks that are added count for their phase', [count('added', kind='work', phase=phase)
                                                         for phase in ('pack', 'send', '')] == [2, 1, 1])
    claimed = []
    wait_until(lambda: claimed.extend(s.call('POST', '/v1/kinds/work/claims', {'limit': 9, 'wait': '5s'})[2]['tasks']) or
               len(claimed) == 4)
    check('so do claims', [count('claimed', kind='work', phase=phase) for phase in ('pack', 'send', '')] == [2, 1, 1], claimed)
    ends = [{'task': one['task'], 'fence': one['fence'], 'outcome': outcome}
            for one, outcome in zip(claimed, ('done', 'done', 'dead', 'release'))]
    s.call('POST', '/v1/kinds/work/results', {'tasks': ends})
    check('and outcomes', [count('ended', kind='work', outcome=outcome) for outcome in ('done', 'dead', 'release')] == [2, 1, 1],
          [line for line in scrape(s)[1] if 'ended' in line])
    for _ in range(2):
        s.call('POST', '/v1/kinds/work/results', {'tasks': ends[:2]})
    check('a outcome that is repeated counts once', count('ended', kind='work', outcome='done') == 2, scrape(s)[0])
    for _ in range(3):
        s.call('POST', '/v1/kinds/keyed/tasks', {'tasks': [{}, {'unique': 'u'}, {'unique': 'u'}]}, {'Idempotency-Key': 'k'})
    check('so do tasks that are added with a key', count('added', kind='keyed', phase='') == 2, scrape(s)[0])
    late = next(one for one in ends if one['outcome'] == 'release')
    wait_until(lambda: s.call('POST', '/v1/kinds/work/claims', {})[2]['tasks'])
    s.call('POST', '/v1/kinds/work/results', {'tasks': [late | {'outcome': 'done'}]})
    check('and ends that come too late', count('refused', kind='work') == 1, scrape(s)[0])


def test_invented_kinds():
    """A client that invents kinds or phases leaves lines for the others."""
    secrets, lines = zip(*(auth.new_token(label, '--scope', 'admin') for label in ('first', 'second', 'third')))
    auth.write_tokens(*lines, path=f'{t.FOLDER}/tokens')
    s = t.Server('--tokens', f'{t.FOLDER}/tokens')

    def lines_of(prefix):
        text = s.call('GET', '/metrics', None, auth.bearer(secrets[0]))[2].decode()
        return [line for line in text.splitlines() if line.startswith(f'dibs_tasks_added_total{{kind="{prefix}')]
    for client, secret in enumerate(secrets):
        for kind in (f'invented-{client}', '(others)'):
            tasks = [{'phase': str(i)} for i in range(450)]
            s.call('POST', t.name_path('kinds', kind, '/tasks'), {'tasks': tasks}, auth.bearer(secret))
    check('each token has half of the lines that were left', [len(lines_of(f'invented-{client}')) for client in range(3)] ==
          [200, 100, 50], lines_of(''))
    check('the rest is added up, also what has that name', lines_of(r'(others)') ==
          [f'dibs_tasks_added_total{{kind="(others)",phase="(others)"}} {6 * 450 - 350}'], lines_of('(others)'))
    gauges = s.call('GET', '/metrics', None, auth.bearer(secrets[0]))[2].decode()
    check('no sample comes twice', gauges.count('dibs_tasks{kind="(others)",state="ready"}') <= 1, gauges)
    s.stop()


def test_batches(s):
    def batches():
        samples = scrape(s)[1]
        return [samples[f'dibs_store_batch_size_{what}'] for what in ('count', 'sum', 'bucket{le="+Inf"}', 'bucket{le="1"}')]
    before = batches()
    clients = [t.send(s, 'POST', f'/v1/leases/batch-{i}', {}) for i in range(40)]
    check('requests are sent to the store', {client.getresponse().status for client in clients} == {201})
    count, total, buckets, _ = batches()
    check('in batches that are counted by their size', count > before[0] and total >= before[1] + 40 and buckets == count,
          before, batches())
    body = s.call('GET', '/v1/metrics/store.batch_size')[2]['samples'][0]
    check('also as JSON', body['count'] >= count and body['buckets']['2048'] == body['count'] and body['max'] >= 1, body)


def test_queues(s):
    """The only thread is busy with a store that is slow."""
    if not t.SQLITE:
        return
    slow = t.Server('--threads', '1')
    with t.blocked_store():
        clients = [t.send(slow, 'POST', '/v1/kinds/queued/tasks', {}) for _ in range(5)]
        metrics = t.send(slow, 'GET', '/v1/metrics/http.requests.queued')
    body = json.load(metrics.getresponse())
    check('requests that wait for a thread are counted', 3 <= body['samples'][0]['value'] <= 5, body)
    check('and done', {client.getresponse().status for client in clients} == {201})
    slow.stop()


def test_many_kinds(s):
    for i in range(210):
        s.call('POST', f'/v1/kinds/many-{i:03}/tasks', {})
    check('a large number of kinds is added up', wait_until(
        lambda: scrape(s)[1].get('dibs_tasks{kind="(others)",state="ready"}', 0) >= 10))
    kinds = {line for line in scrape(s)[1] if line.startswith('dibs_tasks_oldest_ready_seconds{')}
    check('so labels are bounded', len(kinds) == 201, len(kinds))


def test_json(s):
    status, _, body = s.call('GET', '/v1/metrics')
    names = [one['name'] for one in body['metrics']]
    check('all metrics as JSON', status == 200 and 'lock.acquired' in names and len(names) == len(set(names)), body)
    status, _, body = s.call('GET', '/v1/metrics/lock.acquired')
    check('one metric', status == 200 and body['type'] == 'counter' and body['samples'][0]['value'] >= 1, body)
    body = s.call('GET', '/v1/metrics/lock.acquire.seconds')[2]
    check('a latency has percentiles', 0 < body['samples'][0]['p50'] <= body['samples'][0]['p99'], body)
    check('another one does not exist', s.call('GET', '/v1/metrics/none')[0] == 404)


def test_format(text, about):
    names = re.findall('^# TYPE (\\S+) ', text, re.M)
    check(f'each family of {about} comes once', len(names) == len(set(names)), names)
    if not shutil.which('promtool'):
        check('promtool accepts it # SKIP promtool is not installed', True)
        return
    done = subprocess.run(['promtool', 'check', 'metrics'], input=text, capture_output=True, text=True, check=False)
    check(f'promtool accepts the metrics of {about}', done.returncode == 0 and not done.stderr, done)


def named_in(text):
    return set(re.findall(r'\bdibs_[a-z_0-9]+', text))


# Only a store with Redis in front of a database has these.
OF_SHARED_SUMS = {'dibs_shared_flush_lag_seconds', 'dibs_shared_batches_waiting', 'dibs_shared_refused',
                  'dibs_shared_looked_age_seconds'}


def test_shared_sums():
    """The daemon writes shared sums to the database, and says what it has not written yet."""
    s = t.Server(store=f'{t.STORE}?prefix=sums,sqlite://{t.FOLDER}/sums.db')
    status, _, body = s.call('POST', '/v1/counters/likes', {'delta': 5, 'level': 'shared'})
    check('an addition at the level shared', status == 200 and body['level'] == 'shared', status, body)
    body = s.call('GET', '/v1/counters/likes')[2]
    check('it is in the value', body['value'] == 5 and body['stored'] + body['shared'] == 5, body)
    check('it is written', wait_until(lambda: s.call('GET', '/v1/counters/likes')[2]['stored'] == 5))
    check('the metrics of shared sums', wait_until(lambda: {name.partition('{')[0] for name in scrape(s)[1]} >= OF_SHARED_SUMS))
    check('nothing waits', wait_until(lambda: scrape(s)[1]['dibs_shared_flush_lag_seconds'] == 0 and
                                      scrape(s)[1]['dibs_shared_batches_waiting'] == 0))
    s.call('POST', '/v1/counters/most', {'delta': 2 ** 63 - 1})
    s.call('POST', '/v1/counters/most', {'delta': 7, 'level': 'shared'})
    check('a refused sum is counted', wait_until(lambda: scrape(s)[1]['dibs_shared_refused'] == 1))
    test_format(scrape(s)[0], 'shared sums')
    s.stop()


def test_monitoring():
    """Of several tiers, which have all metrics."""
    s = t.Server(store=f'sqlite://{t.FOLDER}/first.db,sqlite://{t.FOLDER}/last.db')
    s.call('POST', '/v1/leases/x')
    s.call('POST', '/v1/kinds/k/tasks', {})
    done = s.call('POST', '/v1/kinds/k/claims', {'wait': '10s'})[2]['tasks'][0]
    for fence in (1, done['fence']):
        s.call('POST', '/v1/kinds/k/results', {'tasks': [{'task': done['task'], 'fence': fence}]})
    s.call('POST', '/v1/kinds/k/tasks', {})
    check('a task is counted', wait_until(lambda: 'dibs_tasks{kind="k",state="ready"}' in scrape(s)[1]))
    text, samples = scrape(s)
    test_format(text, 'tiers')
    served = {name.partition('{')[0] for name in samples}
    check('the tiers have metrics', samples.get('dibs_tier_buckets{tier="sqlite"}') == 100 and
          samples.get('dibs_breaker_state{tier="sqlite-2"}') == 0, text)
    check('grants by tier', samples.get('dibs_lock_acquired_total{tier="sqlite",strategy="sqlite"}') == 1 and
          samples.get('dibs_lock_acquired_total{tier="sqlite-2",strategy="sqlite"}') == 0, text)
    check('no metric of the library is left out', {'dibs_lock_fallback_total', 'dibs_fleet_clients'} <= served, served)
    with open(os.path.join(MONITORING, '../../doc/metrics.md'), encoding='utf-8') as read:
        page = named_in(read.read())
    kinds = set(re.findall('^# TYPE (\\S+) ', text, re.M))
    check('the page lists each metric, and no other', page - OF_SHARED_SUMS == kinds, page ^ kinds)
    for file in ['dibs-alerts.yml', 'dibs-dashboard.json']:
        with open(os.path.join(MONITORING, file), encoding='utf-8') as read:
            named = named_in(read.read())
        check(f'each metric that {file} names exists', named and named <= served, named - served)
    with open(os.path.join(MONITORING, 'dibs-dashboard.json'), encoding='utf-8') as read:
        check('the dashboard is JSON', len(json.load(read)['panels']) > 10)
    if shutil.which('promtool'):
        done = subprocess.run(['promtool', 'check', 'rules', os.path.join(MONITORING, 'dibs-alerts.yml')],
                              capture_output=True, text=True, check=False)
        check('promtool accepts the alerts', done.returncode == 0, done)
        test_daemon_down()
    s.stop()


DOWN = '''
rule_files: [ALERTS]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'up{job="dibs", instance="one"}', values: '1x5 0x10'}
      - {series: 'dibs_build_info{job="dibs", instance="one"}', values: '1x5 stale'}
      - {series: 'up{job="dibs", instance="two"}', values: '1x20'}
      - {series: 'dibs_build_info{job="dibs", instance="two"}', values: '1x20'}
      - {series: 'up{job="database", instance="three"}', values: '0x20'}
    alert_rule_test:
      - {eval_time: 5m, alertname: DibsDaemonDown}
      - eval_time: 10m
        alertname: DibsDaemonDown
        exp_alerts:
          - exp_labels: {severity: critical, job: dibs, instance: one}
            exp_annotations:
              summary: dibs serve one does not answer
              description: Clients that use HTTP cannot get or renew a lease. Start the daemon; leases stay with their holders until their ttl ends.
'''


def test_daemon_down():
    """One of two daemons is down; a program that is not dibs, too."""
    path = f'{t.FOLDER}/down.yml'
    with open(path, 'w', encoding='utf-8') as file:
        file.write(DOWN.replace('ALERTS', os.path.realpath(os.path.join(MONITORING, 'dibs-alerts.yml'))))
    done = subprocess.run(['promtool', 'test', 'rules', path], capture_output=True, text=True, check=False)
    check('one daemon of several that is down raises the alert', done.returncode == 0, done.stdout, done.stderr)


def main():
    s = t.Server()
    for test in [test_counting, test_web_files, test_waiting] + ([] if t.LEASES_ONLY else [test_stale, test_tasks, test_task_counts, test_queues]) + [
            test_batches, test_json]:
        test(s)
    test_format(scrape(s)[0], 'one store')
    if not t.LEASES_ONLY:
        test_many_kinds(s)
        test_invented_kinds()
    if t.SQLITE:
        test_monitoring()
    if ENGINE == 'redis':
        test_shared_sums()
    s.stop()
    return end()


if __name__ == '__main__':
    sys.exit(main())
