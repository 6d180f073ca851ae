# SPDX-License-Identifier: MIT
"""The configuration of nginx in doc/serve-deployment.md, with a real nginx.

usage: nginx_test.py DIBS
"""
import contextlib
import http.client
import os
import re
import shutil
import ssl
import subprocess
import sys

import auth_test
import serve_test as t
from checks import PATIENCE_S, check, end, wait_until
from auth_test import bearer, new_token, said, write_tokens
from serve_test import FOLDER, Server

GUIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../../doc/serve-deployment.md')
NGINX = shutil.which('nginx', path=os.environ.get('PATH', '') + ':/usr/sbin')


def guide():
    with open(GUIDE, encoding='utf-8') as file:
        return re.search(r'```nginx\n(.*?)```', file.read(), re.S).group(1)


def start(port):
    """The configuration of the guide, but for its places."""
    text = guide()
    for place, here in [('unix:/run/dibs/dibs.sock', f'unix:{FOLDER}/nginx.sock'), ('listen 443 ssl', f'listen 127.0.0.1:{port} ssl'),
                        ('/etc/dibs/tls.crt', f'{FOLDER}/one.crt'), ('/etc/dibs/tls.key', f'{FOLDER}/one.key')]:
        check(f'the guide has {place}', place in text)
        text = text.replace(place, here)
    temporary = '\n'.join(f'{kind}_temp_path {FOLDER}/nginx-{kind};' for kind in ('client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'))
    os.chmod(FOLDER, 0o711)  # the workers of a master that is root are another user
    with open(f'{FOLDER}/nginx.conf', 'w', encoding='utf-8') as file:
        file.write(f'daemon off;\nuser root;\npid {FOLDER}/nginx.pid;\nerror_log {FOLDER}/nginx.log;\nevents {{}}\n'
                   f'http {{\naccess_log off;\n{temporary}\n{text}\n}}\n')
    return subprocess.Popen([NGINX, '-e', f'{FOLDER}/nginx.log', '-c', f'{FOLDER}/nginx.conf'], stdin=subprocess.DEVNULL)


class Proxied(Server):
    """A daemon as the clients of nginx see it."""
    nginx_port = None

    def connect(self, timeout=PATIENCE_S):
        if not self.nginx_port:
            return super().connect(timeout)
        context = ssl.create_default_context(cafile=f'{FOLDER}/ca.crt')
        return http.client.HTTPSConnection('127.0.0.1', self.nginx_port, timeout=timeout, context=context)


def main():
    if not NGINX:
        print('1..0 # SKIP there is no nginx')
        return 0
    auth_test.make_certificates()
    secret, line = new_token('ann', '--prefix', 'a//b/')
    write_tokens(line)
    s = Proxied('--tokens', auth_test.TOKENS, '--listen', f'unix:{FOLDER}/nginx.sock', '--access-log', f'{FOLDER}/access.log')
    port = t.free_port()
    nginx = start(port)
    key = bearer(secret)
    try:
        s.nginx_port = port

        def lives():
            with contextlib.suppress(OSError):
                return s.call('GET', '/readyz')[0] == 200
            return False
        check('nginx passes requests on', wait_until(lives))
        lease = '/v1/leases/a%2F%2Fb%2Fc%20d'
        status, _, body = s.call('POST', lease, {'ttl': '1m'}, key)
        check('a name with // and blanks arrives as it was sent', status == 201 and body['name'] == 'a//b/c d', status, body)
        check('tokens are checked', s.call('GET', lease)[0] == 401)
        check('and their prefixes', s.call('GET', '/v1/leases/a%2Fb%2Fc', None, key)[0] == 403)
        record = '/v1/records/a%2F%2Fb%2Fr'
        check('a body', s.call('PUT', record + '?unchecked=true', b'x' * (1 << 20), key)[0] in (201, 204))
        status, headers, body = s.call('GET', record, None, key)
        check('and its ETag', status == 200 and headers['etag'] and len(body) == 1 << 20, status, headers)
        check('a body that is too large is 413', s.call('PUT', record, b'x' * (3 << 20), key)[0] == 413)
        waiting = s.connect()
        waiting.request('POST', lease, body='{"wait": "1h"}', headers=key)

        def in_line():
            return len(s.call('GET', lease, None, key)[2]['leases'])
        check('a request waits', wait_until(lambda: in_line() == 2))
        waiting.close()
        check('and leaves the queue when its client hangs up', wait_until(lambda: in_line() == 1))
        s.process.terminate()
        check('the daemon ends with 0', s.process.wait(PATIENCE_S) == 0, said(s))
        check('then nginx answers 502', s.call('GET', lease, None, key)[0] == 502)
    finally:
        nginx.terminate()
        nginx.wait(PATIENCE_S)
    return end()


if __name__ == '__main__':
    sys.exit(main())
