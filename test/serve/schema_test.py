# SPDX-License-Identifier: MIT
"""schemathesis against dibs serve, with all its checks: what /openapi.json says is what the server does.

usage: schema_test.py DIBS [--examples N]

It looks for schemathesis in build/python (script/bootstrap --for test puts it there) and in PATH.
"""
import os
import re
import shutil
import subprocess
import sys

import serve_test as t
from checks import PATIENCE_S, check, end, wait_until

HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = os.path.join(HERE, '../../build/python/bin')
SECONDS = 500


def find_tool():
    own = os.path.join(TOOLS, 'schemathesis')
    return own if os.access(own, os.X_OK) else shutil.which('schemathesis')


# Every duration: what ends in _ms or _ns and is neither an instant nor an age (doc/serve.md, "Numbers and times").
DURATIONS = {'retry_ms', 'left_ms', 'ttl_ms', 'duration_ms', 'keep_ms', 'step_ms', 'min_down_ms', 'window_ms', 'p50_ns', 'p99_ns', 'max_ns'}
TIME = re.compile('(^|_)(ms|ns|us|s|msec|sec|secs|seconds|millis|time|at|since|until|age|date)$')


def members(schema, name=''):
    """(name, schema) of each integer, also in arrays and objects within."""
    for one in schema.get('anyOf', []) + schema.get('oneOf', []):
        yield from members(one | {'description': schema.get('description', '')}, name)
    if 'integer' in str(schema.get('type')):
        yield name, schema
    if 'items' in schema:
        yield from members(schema['items'], name)
    for inner, one in schema.get('properties', {}).items():
        yield from members(one, inner)


def integers(body):
    """Those of answers and parameters; and those of bodies, where a duration may also be a text, and has no ending."""
    for path in body['paths'].values():
        for one in path.values():
            for parameter in one.get('parameters', []):
                yield from members(parameter['schema'] | {'description': parameter['description']}, parameter['name'])
            contents = [answer.get('content', {}) for answer in one['responses'].values()]
            for content in [*contents, one.get('requestBody', {}).get('content', {})]:
                for form in content.values():
                    yield from members(form['schema'])


def is_named_well(name, schema):
    if 'milliseconds' == schema.get('description'):  # the other form of "30s"
        return not TIME.search(name)
    if 'since 1970' in schema.get('description', ''):
        return re.search('(^|_)at_ms$', name)
    return not TIME.search(name) or re.search('(^|_)(at|age)_ms$', name) or name in DURATIONS


def test_times(body):
    found = list(integers(body))
    wrong = sorted({name for name, schema in found if not is_named_well(name, schema)})
    check('instants end in at_ms, ages in age_ms, durations in another _ms', not wrong, wrong)
    names = {name for name, _ in found}
    check('all of these were found', DURATIONS | {'at_ms', 'since_at_ms', 'age_ms', 'oldest_ready_age_ms', 'ttl'} <= names, sorted(names))


def test_table(s):
    """Each operation says what it answers."""
    check('the dashboard is served', s.call('GET', '/')[0] == 200)
    body = s.call('GET', '/openapi.json')[2]
    without = [one['operationId'] for path in body['paths'].values() for one in path.values()
               for status, answer in one['responses'].items() for kind, form in answer.get('content', {}).items()
               if status < '300' and kind == 'application/json' and not form['schema']]
    check('each good JSON answer has a schema', not without, without)
    scopes = {one['operationId']: one['x-scope'] for path in body['paths'].values() for one in path.values()}
    changes = {'breakLease', 'retryTasks', 'cancelTasks', 'purgeTasks', 'setKind', 'setBreaker', 'setFlag', 'fireJob',
               'forgetFleet', 'setTable', 'retryMessages', 'purgeMessages', 'resizeTopic'}
    check('changes of others need the scope admin', all(scopes[one] == 'admin' for one in changes), scopes)
    return body


def documented_of(body):
    """{(method, path): the statuses that the description has}"""
    return {(method.upper(), path): set(one['responses']) for path, methods in body['paths'].items() for method, one in methods.items()}


def path_of(route):
    return route.replace('{task}', '999999').replace('{word}', 'none').replace('{', '').replace('}', '')


def request_each(s, documented, headers=None, query='', body=None):
    """One request to each route; most are refused, because they lack what they need."""
    for method, route in documented:
        none = '?watch=/v1/none' if route == '/v1/events' else ''  # no stream, which would have no end
        s.call(method, path_of(route) + (query or none), body, headers)


def seen_of(s, headers=None):
    """The same of what the server counted that it has answered."""
    seen, got = {}, []
    wait_until(lambda: got.append(s.call('GET', '/v1/metrics/http.requests', None, headers)) or got[-1][0] != 429)
    for sample in got[-1][2]['samples']:
        label = sample['labels']
        seen.setdefault((label['method'], label['route']), set()).add(label['status'])
    return seen


def test_served(s, body):
    """After all requests of this test."""
    documented, seen = documented_of(body), seen_of(s)
    others = seen.pop(('other', 'other'), set())
    check('what no route has is refused', others <= {'400', '404', '405', '413', '414', '431', 'other'}, others)
    more = {route: statuses - documented[route] for route, statuses in seen.items() if statuses - documented[route]}
    check('each status that was answered is documented', not more, more)
    # The tool leaves these out: messages of the driver, and a path without a segment.
    unseen = set(documented) - set(seen) - {('POST', '/v1/store'), ('GET', '/')}
    check('each route was requested', not unseen, unseen)


def run_tool(tool, s, examples):
    # Always the same requests, so that a run of all tests is no lottery; --examples draws others each time.
    vary = ['--generation-database', 'none'] if '--examples' in sys.argv else ['--generation-deterministic']
    hooks = {'SCHEMATHESIS_HOOKS': 'schema_hooks', 'PYTHONPATH': os.path.join(HERE, 'schema'), 'NO_COLOR': '1'}
    command = [tool, '--config-file', os.path.join(HERE, 'schema/schemathesis.toml'), 'run',
               f'http://127.0.0.1:{s.port}/openapi.json', '--checks', 'all', '--phases', 'examples,coverage,fuzzing',
               '--max-examples', str(examples), '--continue-on-failure', '--request-timeout', str(PATIENCE_S),
               *vary, '--exclude-operation-id', 'useStore', '--warnings', 'off']
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS, env=os.environ | hooks,
                          cwd=t.FOLDER)


def main():
    tool = find_tool()
    examples = sys.argv[sys.argv.index('--examples') + 1] if '--examples' in sys.argv else 10
    # Several tiers serve each route.
    s = t.Server(store=f'sqlite://{t.FOLDER}/first.db,sqlite://{t.FOLDER}/last.db')
    body = test_table(s)
    test_times(body)
    if tool:
        done = run_tool(tool, s, examples)
        check('schemathesis finds nothing', done.returncode == 0, *done.stdout.splitlines(), done.stderr)
        check('the server still answers', s.call('GET', '/readyz')[0] == 200)
    else:
        check('schemathesis finds nothing # SKIP it is not installed: script/bootstrap --for test', True)
        request_each(s, documented_of(body))
    test_served(s, body)
    s.stop()
    return end()


if __name__ == '__main__':
    sys.exit(main())
