# SPDX-License-Identifier: MIT
"""schemathesis against dibs serve, with all its checks: what /openapi.json says is what the server does.

usage: schema_test.py DIBS [--examples N]

It looks for schemathesis in build/python (script/bootstrap --for test puts it there) and in PATH.
"""
import os
import shutil
import subprocess
import sys

import serve_test as t
from checks import PATIENCE_S, check, end

HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = os.path.join(HERE, '../../build/python/bin')
SECONDS = 500


def find_tool():
    own = os.path.join(TOOLS, 'schemathesis')
    return own if os.access(own, os.X_OK) else shutil.which('schemathesis')


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
               'forgetFleet', 'setTable', 'retryMessages', 'purgeMessages'}
    check('changes of others need the scope admin', all(scopes[one] == 'admin' for one in changes), scopes)
    return body


def test_served(s, body):
    """After the tool: the server counts what it answered."""
    documented = {(method.upper(), path): set(one['responses']) for path, methods in body['paths'].items()
                  for method, one in methods.items()}
    seen = {}
    for sample in s.call('GET', '/v1/metrics/http.requests')[2]['samples']:
        label = sample['labels']
        seen.setdefault((label['method'], label['route']), set()).add(label['status'])
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
    if tool:
        done = run_tool(tool, s, examples)
        check('schemathesis finds nothing', done.returncode == 0, *done.stdout.splitlines(), done.stderr)
        check('the server still answers', s.call('GET', '/readyz')[0] == 200)
        test_served(s, body)
    else:
        check('schemathesis finds nothing # SKIP it is not installed: script/bootstrap --for test', True)
    s.stop()
    return end()


if __name__ == '__main__':
    sys.exit(main())
