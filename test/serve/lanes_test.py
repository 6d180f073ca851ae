# SPDX-License-Identifier: MIT
"""Lanes over HTTP: members join, share the lanes, hand them over, are killed and paused; no lane has two owners.

usage: lanes_test.py DIBS [URI [--seconds N]]
"""
import os
import random
import signal
import subprocess
import sys
import threading
import time

import serve_test as t
from auth_test import bearer, new_token, write_tokens
from checks import PATIENCE_S, begin, check, end, wait_until

TTL_MS = 30000
SHORT_MS = 4000  # where leases have to end
STORM_MS = 3000
# The last lines of a shell that is a member: without TERM it does not end.
LOCAL = 'trap "exit 0" TERM; while :; do sleep 0.1; done'


class Member:
    """A client that is a member of a topic.  Each request may go to another daemon."""

    def __init__(self, servers, topic, ttl_ms=TTL_MS, **join):
        self.servers, self.topic, self.ttl_ms = servers, topic, ttl_ms
        by = time.monotonic() + PATIENCE_S
        while True:  # members of an earlier number of lanes may be about to leave
            self.joined = self.call('POST', '', {'ttl': ttl_ms, **join})
            if self.joined[0] != 409 or time.monotonic() > by:
                break
            time.sleep(0.1)
        check(f'{topic}: a member joins: 201', self.joined[0] == 201, self.joined)
        self.id, self.slot = self.joined[2]['id'], self.joined[2]['slot']
        self.rows, self.answer = [], None

    def call(self, method, rest, body, headers=None):
        return random.choice(self.servers).call(method, f'/v1/lanes/{self.topic}/members{rest}', body, headers)

    def renew(self, headers=None, **body):
        """Its lanes are those of the answer."""
        body = {'ttl': self.ttl_ms, 'held': self.rows} | body
        status, _, self.answer = self.call('PATCH', f'/{self.slot}', body, {'Dibs-Lease': self.id} | (headers or {}))
        if status == 200:
            self.rows = self.answer['held']
        return status

    def hand_over(self, **body):
        """Gives back what is to be another member's."""
        return self.renew(held=[one for one in self.rows if one['keep']], release=[one for one in self.rows if not one['keep']], **body)

    def leave(self):
        """Gives back all."""
        status = self.renew(leave=True, held=[], release=self.rows)
        check(f'{self.topic}: a member leaves', status == 200 and self.answer['state'] == 'left' and self.rows == [], status, self.answer)

    def lanes(self):
        return sorted(one['lane'] for one in self.rows)

    def fences(self):
        return {one['lane']: one['fence'] for one in self.rows}


def gets(member, count, *others):
    """Does it get so many lanes, while the others hand over?"""
    def step():
        for other in others:
            other.hand_over()
        return member.hand_over() == 200 and len(member.rows) == count and all(one['keep'] for one in member.rows)
    return wait_until(step)


def owners_of(s, topic):
    status, _, body = s.call('GET', f'/v1/lanes/{topic}')
    return {one['lane']: one['fence'] for one in body['owners'] if one['owner']} if status == 200 else {}


def test_alone(s):
    a = Member([s], 'alone', lanes=4, owner='ann')
    check('the first member gets all lanes', gets(a, 4) and a.lanes() == [0, 1, 2, 3], a.answer)
    check('each with a fence of its own', len(set(a.fences().values())) == 4, a.rows)
    before = a.fences()
    check('a renewal keeps them, with their fences', a.renew() == 200 and a.fences() == before and a.answer['lost'] == [], a.answer)
    check('for the ttl', all(TTL_MS // 2 < one['left_ms'] <= TTL_MS for one in a.rows) and TTL_MS // 2 < a.answer['left_ms'] <= TTL_MS, a.answer)
    body = s.call('GET', '/v1/lanes/alone')[2]
    check('the topic shows them', {one['lane']: one['fence'] for one in body['owners']} == before and
          {one['owner'] for one in body['owners']} == {'ann'} and [(one['slot'], one['owner']) for one in body['members']] == [(a.slot, 'ann')] and
          body['lanes'] == 4 and body['leaving'] == 0, body)
    row = a.rows[0]
    status, _, one = s.call('PATCH', t.name_path('leases', row['name']), {'ttl': TTL_MS}, {'Dibs-Lease': row['id']})
    check('a lane is a lease: its name and id renew it', status == 200 and one['fence'] == row['fence'], status, one)
    if not t.LEASES_ONLY:
        guard = {'Dibs-Lease': row['id'], 'Dibs-Fence': str(row['fence'])}
        check('and guard a record', s.call('PUT', '/v1/records/position', b'7', guard)[0] == 204)
    for slot in (a.slot + 1, 77):
        status, _, body = a.call('PATCH', f'/{slot}', {'held': a.rows}, {'Dibs-Lease': a.id})
        check(f'it can\'t be the member in slot {slot}: 400', status == 400 and f'not {slot}' in body['detail'], status, body)
    twins = [one | {'id': a.rows[0]['id']} for one in a.rows[:2]]
    status, _, body = a.call('PATCH', f'/{a.slot}', {'held': twins}, {'Dibs-Lease': a.id})
    check('two lanes with one id: 400', status == 400 and a.rows[0]['id'] in body['detail'], status, body)
    a.leave()
    check('it has given all back', owners_of(s, 'alone') == {}, owners_of(s, 'alone'))
    status, _, body = a.call('PATCH', f'/{a.slot}', {}, {'Dibs-Lease': a.id})
    check('a member that has left is none: 410', status == 410, status, body)


def test_two(s):
    a = Member([s], 'two', lanes=5)
    gets(a, 5)
    b = Member([s], 'two')
    check('a second member learns the number of lanes', b.joined[2]['lanes'] == 5, b.joined)
    check('it gets none as long as the first one has them', b.renew() == 200 and b.rows == [], b.answer)
    check('the first one hears of it', a.renew() == 200 and len(a.rows) == 5 and sum(not one['keep'] for one in a.rows) in (2, 3), a.answer)
    check('and still has what it is to give back', all(one['left_ms'] > TTL_MS // 2 for one in a.rows), a.rows)
    leaving = {one['lane'] for one in a.rows if not one['keep']}
    check('the second one still gets none', b.renew() == 200 and b.rows == [], b.answer)
    a.hand_over()
    check('then it gets exactly these, in one request', b.renew() == 200 and set(b.lanes()) == leaving, b.answer, leaving)
    check('the two have all lanes', sorted(a.lanes() + b.lanes()) == [0, 1, 2, 3, 4], a.rows, b.rows)
    status, _, body = a.call('POST', '', {'lanes': 9})
    check('a member for another number is refused: 409', status == 409 and body['type'] == '/problems/lanes' and '5 lanes' in body['detail'], status, body)
    b.leave()
    check('when it leaves, the first one gets them back', gets(a, 5), a.answer)
    a.leave()


def test_wait(s):
    a = Member([s], 'wait', lanes=2, ttl_ms=60000)
    gets(a, 2)
    b = Member([s], 'wait', ttl_ms=60000)
    thread, got = begin(b.renew, wait='30s')
    thread_a, got_a = begin(a.renew, wait='30s')
    thread_a.join(PATIENCE_S)
    check('a request that waits is answered when a lane is to be handed over', got_a == [200] and sum(one['keep'] for one in a.rows) == 1, a.answer)
    check('the other one still waits', thread.is_alive())
    a.hand_over()
    thread.join(PATIENCE_S)
    check('and is answered when it gets the lane', got == [200] and len(b.rows) == 1, b.answer)
    began = time.monotonic()
    check('without a change the wait ends', b.renew(wait='1s') == 200 and time.monotonic() - began > 0.9 and len(b.rows) == 1, b.answer)

    def waiting():
        return s.call('GET', '/v1/metrics/http.requests.waiting')[2]['samples'][0]['value']

    connection = t.send(s, 'PATCH', f'/v1/lanes/wait/members/{b.slot}', {'ttl': 60000, 'held': b.rows, 'wait': '30s'}, {'Dibs-Lease': b.id})
    check('a request waits', wait_until(lambda: waiting() == 1), waiting())
    connection.close()
    check('its client hangs up, and it waits no more', wait_until(lambda: waiting() == 0), waiting())
    check('the next request is that of the same member', b.renew() == 200 and len(b.rows) == 1, b.answer)
    check('a lane that an operator breaks is lost', lost_after_break(s, b), b.answer)
    a.leave()
    b.leave()


def lost_after_break(s, member):
    lane = member.rows[0]['lane']
    s.call('DELETE', t.name_path('leases', member.rows[0]['name'], '/holders?now=true'))
    return member.renew() == 200 and [one['lane'] for one in member.answer['lost']] == [lane] and lane not in member.lanes()


def test_repeated(s):
    """The answer to a request was lost."""
    a = Member([s], 'repeated', lanes=3, ttl_ms=SHORT_MS)
    key = {'Idempotency-Key': os.urandom(16).hex()}
    a.renew(key)
    first, a.rows = a.rows, []
    check('the same request again finds the lanes of the first', len(first) == 3 and a.renew(key) == 200 and
          {(one['id'], one['fence']) for one in a.rows} == {(one['id'], one['fence']) for one in first}, a.answer, first)
    a.rows = []
    check('another key does not, until their leases end', a.renew({'Idempotency-Key': 'other'}) == 200 and a.rows == [], a.answer)
    check('then it gets them under larger fences', gets(a, 3) and min(a.fences().values()) > max(one['fence'] for one in first), a.rows, first)
    id_ = os.urandom(16).hex()
    twice = [s.call('POST', '/v1/lanes/repeated/members', {'id': id_, 'ttl': TTL_MS})[2] for _ in range(2)]
    check('a repeated POST is one membership', twice[0]['slot'] == twice[1]['slot'] != a.slot, twice)
    for held, what in (([a.rows[0]] * 2, 'is there twice'), ([a.rows[0] | {'lane': 3}], 'does not exist')):
        status, _, body = a.call('PATCH', f'/{a.slot}', {'held': held}, {'Dibs-Lease': a.id})
        check(f'held: a lane that {what}: 400', status == 400 and what in body['detail'], status, body)
    status, _, body = a.call('PATCH', '/x', {}, {'Dibs-Lease': a.id})
    check('a slot is a number: 400', status == 400, status, body)
    a.leave()


def test_silent(s):
    """A member sends nothing any more."""
    a, b = Member([s], 'silent', lanes=4, ttl_ms=SHORT_MS), Member([s], 'silent', ttl_ms=SHORT_MS)
    gets(a, 2, b)
    check('two members share', gets(b, 2, a), a.rows, b.rows)
    last, dead = time.monotonic(), b.fences()
    b.renew()
    check('the lanes of a member that is silent pass on', gets(a, 4), a.answer)
    check('not before its leases have ended', time.monotonic() - last > SHORT_MS / 1000 * 0.9, time.monotonic() - last)
    check('under larger fences', all(a.fences()[lane] > fence for lane, fence in dead.items()), a.fences(), dead)
    if not t.LEASES_ONLY:
        lane = next(iter(dead))
        new, old = ([one for one in m.rows if one['lane'] == lane][0] for m in (a, b))
        guards = [{'Dibs-Lease': one['id'], 'Dibs-Fence': str(one['fence'])} for one in (new, old)]
        check('the new owner writes', s.call('PUT', '/v1/records/lane-position', b'new', guards[0])[0] == 204)
        check('the late write of the old one is refused: 409', s.call('PUT', '/v1/records/lane-position', b'old', guards[1])[0] == 409)
    check('when it wakes up, it is no member: 410', b.renew() == 410, b.answer)
    a.leave()


def test_local(s):
    """Members of a process and of HTTP share a topic."""
    a = Member([s], 'local', lanes=4)
    gets(a, 4)
    command = [t.DIBS, 'lane', 'run', 'local', '--lanes', '4', '--ttl', f'{TTL_MS}ms', '--store', t.STORE, '--', 'sh', '-c', LOCAL]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        check('a process gets half of the lanes', gets(a, 2) and wait_until(lambda: a.hand_over() == 200 and len(owners_of(s, 'local')) == 4),
              a.answer, owners_of(s, 'local'))
        own, owners = a.fences(), owners_of(s, 'local')
        check('and not those that are kept', all(owners.get(lane) == fence for lane, fence in own.items()), own, owners)
        key = s.call('GET', '/v1/lanes/local/keys/customer%2F7')[2]
        said = subprocess.run([t.DIBS, 'lane', 'of', 'local', 'customer/7', '--store', t.STORE], capture_output=True, text=True,
                              check=False, timeout=PATIENCE_S)
        check('the lane of a key is the same for both', said.stdout.strip() == str(key['lane']) and key['key'] == 'customer/7' and
              key['fence'] == owners.get(key['lane']), said, key, owners)
        process.send_signal(signal.SIGTERM)
        check('it ends, and its lanes come back', gets(a, 4), a.answer)
    finally:
        process.kill()
        process.wait(PATIENCE_S)
    a.leave()


def test_number(s):
    """The number of lanes changes."""
    a = Member([s], 'number', lanes=2)
    gets(a, 2)
    if t.LEASES_ONLY:
        check('where only leases are kept, the number is that of the members: 501', s.call('PATCH', '/v1/lanes/number', {'lanes': 3})[0] == 501)
        a.leave()
        return
    old = a.fences()
    status, _, body = s.call('PATCH', '/v1/lanes/number', {'lanes': 3})
    check('it is changed at once, and the old member is counted', status == 200 and (body['lanes'], body['leaving']) == (3, 1), status, body)
    status, _, body = s.call('POST', '/v1/lanes/number/members', {})
    check('no member of the new number joins before it has left: 409', status == 409 and body['type'] == '/problems/lanes', status, body)
    check('it hears of the change', a.renew() == 200 and a.answer['state'] == 'resized' and [one['keep'] for one in a.rows] == [False] * 2, a.answer)
    check('and has its lanes until it gives them back', s.call('GET', '/v1/lanes/number')[2]['leaving'] == 1)
    # It leaves the topic, and one of its lanes is still held.
    kept = a.rows[0]
    a.rows = a.rows[1:]
    a.leave()
    b = Member([s], 'number')
    check('a new member gets no lane while one of the old number is held', b.renew() == 200 and b.answer['lanes'] == 3 and b.rows == [], b.answer)
    s.call('DELETE', t.name_path('leases', kept['name']), None, {'Dibs-Lease': kept['id']})
    check('then it gets them under larger fences', gets(b, 3) and min(b.fences().values()) > max(old.values()), b.rows, old)
    b.leave()


def test_topics(s):
    members = [Member([s], topic, lanes=3) for topic in ('page.a', 'page.a!', 'page.b')]
    gets(members[0], 3)
    rows, after = [], ''
    while after is not None:
        _, _, body = s.call('GET', f'/v1/lanes?prefix=page&limit=1&after={after}')
        rows += body['topics']
        after = body['next']
    by_name = {one['topic']: one for one in rows}
    check('topics come page by page, each once', len(rows) == 3 and set(by_name) == {'page.a', 'page.a!', 'page.b'}, rows)
    check('with their members and lanes', by_name['page.a'] == {'topic': 'page.a', 'lanes': 3, 'members': 1, 'owned': 3, 'leaving': 0}, rows)
    for path in ('/v1/lanes/none', '/v1/lanes/none/keys/k'):
        check(f'{path}: 404', s.call('GET', path)[0] == 404)
    check('a topic has no #: 400', s.call('POST', '/v1/lanes/a%23b/members', {'lanes': 1})[0] == 400)
    check('without a number of lanes there is no first member: 404', s.call('POST', '/v1/lanes/none/members', {})[0] == 404)
    for one in members:
        one.leave()


def test_tokens():
    token, other = new_token('team', '--scope', 'use', '--prefix', 'team.'), new_token('reader', '--scope', 'read')
    write_tokens(token[1], other[1])
    s = t.Server('--tokens', f'{t.FOLDER}/tokens')
    status, _, joined = s.call('POST', '/v1/lanes/team.orders/members', {'lanes': 1}, bearer(token[0]))
    check('a token joins a topic with its prefix', status == 201, joined)
    check('and no other: 403', s.call('POST', '/v1/lanes/orders/members', {'lanes': 1}, bearer(token[0]))[0] == 403)
    path = f"/v1/lanes/team.orders/members/{joined['slot']}"
    mine = {'Dibs-Lease': joined['id']}
    check('reading does not renew: 403', s.call('PATCH', path, {}, bearer(other[0]) | mine)[0] == 403)
    status, _, body = s.call('PATCH', path, {}, bearer(token[0]) | mine)
    check('it gets lanes', status == 200 and len(body['held']) == 1, status, body)
    owner = s.call('GET', '/v1/lanes/team.orders', None, bearer(other[0]))[2]['owners'][0]['owner']
    check('whose owner is the label of the token', owner == 'team', owner)
    s.stop()


# ---- Several members at several daemons, of which one is killed ----

class Claim:
    """That somebody owns a lane, as its client believes: from when it heard of it until its lease or its work ended."""

    def __init__(self, lane, fence, begins):
        self.lane, self.fence, self.begins, self.ends = lane, fence, begins, begins


class Worker(threading.Thread):
    """Joins, works, hands over, and falls silent or leaves now and then."""

    def __init__(self, ports, topic, seed, until):
        super().__init__()
        self.ports, self.topic, self.until = ports, topic, until
        self.random = random.Random(seed)
        self.claims, self.lost, self.joins = [], 0, 0

    def send(self, method, rest, body, headers=None):
        """The answer of the first daemon that gives one."""
        order = self.random.sample(self.ports, len(self.ports))
        for port in order:
            try:
                return port.call(method, f'/v1/lanes/{self.topic}/members{rest}', body, headers)
            except OSError:
                continue
        return 503, {}, {}

    def run(self):
        while time.monotonic() < self.until:
            status, _, joined = self.send('POST', '', {'ttl': STORM_MS, 'lanes': 6})
            if status != 201:
                time.sleep(0.05)
                continue
            self.joins += 1
            self.work(joined)

    def work(self, joined):
        """Until it leaves, or is silent for longer than its ttl."""
        open_claims, rows = {}, []
        ends, leaves = time.monotonic() + self.random.uniform(2, 7), self.random.random() < 0.5
        key = os.urandom(8).hex()
        while True:
            over = time.monotonic() > min(ends, self.until)
            if over and not leaves:
                time.sleep(STORM_MS / 1000 * 1.2)  # silent: its leases end
                return
            keep = [one for one in rows if one['keep'] and not over]
            back = [one for one in rows if one not in keep]
            sent = time.monotonic()
            for one in back:  # it stops its work before it sends this
                claim = open_claims.pop(one['lane'])
                claim.ends = min(claim.ends, sent)
            status, _, body = self.send('PATCH', f"/{joined['slot']}", {'ttl': STORM_MS, 'held': keep, 'release': back, 'leave': over,
                                                                       'wait': self.random.choice(('0s', '200ms'))},
                                        {'Dibs-Lease': joined['id'], 'Idempotency-Key': key})
            if status in (503, 504):
                rows = keep  # what was to be released ends with its lease
                time.sleep(0.05)
                continue
            if status == 410 or (status == 200 and body['state'] == 'left'):
                return
            check_quietly(status == 200, (status, body))
            key, came = os.urandom(8).hex(), time.monotonic()
            self.lost += len(body['lost'])
            for one in body['held']:
                claim = open_claims.get(one['lane'])
                if not claim or claim.fence != one['fence']:
                    claim = open_claims[one['lane']] = Claim(one['lane'], one['fence'], came)
                    self.claims.append(claim)
                claim.ends = sent + one['left_ms'] / 1000
            rows = body['held']
            for lane in set(open_claims) - {one['lane'] for one in rows}:
                del open_claims[lane]
            time.sleep(0.02)


unexpected = []


def check_quietly(fine, seen):
    if not fine:
        unexpected.append(seen)


def breaches_of(claims):
    """Two that believed to own a lane at one time, or a fence that did not grow."""
    found, last = [], {}
    for claim in sorted(claims, key=lambda c: (c.lane, c.fence)):
        before = last.get(claim.lane)
        if before and claim.begins < before.ends:
            found.append(f'lane {claim.lane}: {before.fence} until {before.ends:.3f}, {claim.fence} from {claim.begins:.3f}')
        last[claim.lane] = claim
    return found


def test_storm(seconds):
    first, second = t.Server(), t.Server()
    until = time.monotonic() + seconds
    seed = random.randrange(1 << 30)
    workers = [Worker([first, second], 'storm', seed + i, until) for i in range(4)]
    for worker in workers:
        worker.start()
    time.sleep(seconds / 2)
    first.process.kill()  # all go on with the other one
    for worker in workers:
        worker.join(PATIENCE_S)
    claims = [claim for worker in workers for claim in worker.claims]
    found = breaches_of(claims)
    check(f'no lane had two owners at one time (seed {seed})', not found, *found)
    check('each answer was a possible one', not unexpected, *unexpected)
    check('lanes moved', len(claims) > 6 and sum(worker.joins for worker in workers) >= 4, len(claims), [w.joins for w in workers])
    check('each lane had owners', {claim.lane for claim in claims} == set(range(6)))
    second.stop()


def test_killed_daemon():
    first, second = t.Server(), t.Server()
    a = Member([first], 'killed', lanes=3, ttl_ms=60000)
    gets(a, 3)
    before = a.fences()
    first.process.kill()
    a.servers = [second]
    check('a member keeps its lanes when its daemon is killed', a.renew() == 200 and a.fences() == before and a.answer['lost'] == [], a.answer)
    a.leave()
    second.stop()


def test_stopped_daemon():
    """Requests that wait are answered when the daemon stops."""
    s = t.Server()
    a = Member([s], 'stopped', lanes=1, ttl_ms=60000)
    gets(a, 1)
    thread, got = begin(a.renew, wait='30s')
    wait_until(lambda: s.call('GET', '/v1/metrics/http.requests.waiting')[2]['samples'][0]['value'] == 1)
    check('the daemon ends with 0', s.stop() == 0)
    thread.join(PATIENCE_S)
    check('its waiting request was answered 503', got == [503], got, a.answer)


def wait_in_line(s, topic, headers, headers_of_others):
    """Three times the same request of a member that waits: one looks for news, the others wait for their turn."""
    status, _, joined = s.call('POST', f'/v1/lanes/{topic}/members', {'lanes': 1, 'ttl': 60000}, headers)
    check(f'{topic}: a member joins', status == 201, status, joined)
    path, headers = f"/v1/lanes/{topic}/members/{joined['slot']}", headers | {'Dibs-Lease': joined['id']}
    held = s.call('PATCH', path, {'ttl': 60000}, headers)[2]['held']
    lines = [begin(s.call, 'PATCH', path, {'ttl': 60000, 'held': held, 'wait': '10m'}, headers) for _ in range(3)]
    check(f'{topic}: three requests of it wait', wait_until(lambda: waiting(s, headers_of_others) == 3), waiting(s, headers_of_others))
    return lines


def waiting(s, headers):
    return s.call('GET', '/v1/metrics/http.requests.waiting', None, headers)[2]['samples'][0]['value']


def statuses_of(lines):
    for thread, _ in lines:
        thread.join(PATIENCE_S)
    return [got[0][0] if got else None for _, got in lines]


def test_stopped_in_line():
    """The end of a request lets the next one of its member begin, which is to end, too."""
    s = t.Server()
    lines = wait_in_line(s, 'stopped.line', {}, {})
    check('the daemon ends with 0', s.stop() == 0)
    statuses = statuses_of(lines)
    check('each was answered 503', statuses == [503] * 3, statuses)


def test_revoked_in_line():
    (token, line), (other, other_line) = new_token('line', '--scope', 'use'), new_token('admin', '--scope', 'admin')
    write_tokens(line, other_line)
    s = t.Server('--tokens', f'{t.FOLDER}/tokens')
    lines = wait_in_line(s, 'revoked.line', bearer(token), bearer(other))
    write_tokens(other_line)
    s.process.send_signal(signal.SIGHUP)
    statuses = statuses_of(lines)
    check('each request whose token was removed is answered 401', statuses == [401] * 3, statuses)
    check('none waits any more', waiting(s, bearer(other)) == 0)
    s.process.terminate()
    check('the daemon ends with 0', s.process.wait(PATIENCE_S) == 0)


def main():
    seconds = float(sys.argv[sys.argv.index('--seconds') + 1]) if '--seconds' in sys.argv else 10
    s = t.Server()
    for test in (test_alone, test_two, test_wait, test_repeated, test_silent, test_local, test_number, test_topics):
        test(s)
    check('the daemon ends with 0', s.stop() == 0)
    test_tokens()
    test_killed_daemon()
    test_stopped_daemon()
    test_stopped_in_line()
    test_revoked_in_line()
    test_storm(seconds)
    return end()


if __name__ == '__main__':
    sys.exit(main())
