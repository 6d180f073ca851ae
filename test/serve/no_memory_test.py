# SPDX-License-Identifier: MIT
"""What dibs serve answers when it has no memory for an answer.

usage: no_memory_test.py DIBS NO_MEMORY.so
"""
import os
import sys

import serve_test as t
from checks import check, end


def main():
    os.environ['LD_PRELOAD'] = os.path.abspath(sys.argv[2])
    s = t.Server(store=f'sqlite://{t.FOLDER}/dibs.db')
    del os.environ['LD_PRELOAD']
    payload = 'x' * 150000
    for _ in range(4):
        s.call('POST', '/v1/kinds/large/tasks', {'payload': payload})
    status, headers, body = s.call('POST', '/v1/kinds/large/claims', {'limit': 4})
    check('an answer for which there is no memory is 503', status == 503 and body['type'] == '/problems/no-memory' and
          headers['content-type'] == 'application/problem+json', status, headers, body)
    check('with Retry-After', headers.get('retry-after') == '1', headers)
    metrics = s.call('GET', '/metrics')[2].decode()
    check('and counted as such', 'route="/v1/kinds/{kind}/claims",status="503"} 1' in metrics, metrics)
    s.call('POST', '/v1/kinds/small/tasks', {'payload': payload})
    status, _, body = s.call('POST', '/v1/kinds/small/claims', {})
    check('a smaller one is sent', status == 200 and body['tasks'][0]['payload'] == payload, status)
    s.stop()
    return end()


if __name__ == '__main__':
    sys.exit(main())
