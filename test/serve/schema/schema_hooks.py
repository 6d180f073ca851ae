# SPDX-License-Identifier: MIT
"""Hooks of schemathesis for the API of dibs serve: what a JSON schema cannot say, and no request waits for long."""
import re
import uuid

import schemathesis

DURATION = re.compile(r'^(?=.)([0-9]{1,4}d)?([0-9]{1,6}h)?([0-9]{1,7}m)?([0-9]{1,9}s)?([0-9]{1,12}ms)?$')
# A time of the right form may be out of the limits of its field.
FITTING = {'wait': '5ms', 'ttl': '30s', 'delay': '1s', 'keep': '1s', 'at_least': '1s', 'timeout': '30s', 'older': '1s', 'per': '1s'}
DAY_MS = 86400000
DEFAULT_MS = 30000
TOPIC_MAX = 200
BYTES_MAX = 64  # of the shortest text; the server counts bytes, the schema characters


def replace_times(values):
    for name, value in values.items():
        if name in FITTING and isinstance(value, str) and (value == 'forever' or DURATION.match(value)):
            values[name] = FITTING[name]
        elif name == 'wait' and isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= DAY_MS:
            values[name] = 5
        elif isinstance(value, list):
            for one in value:
                if isinstance(one, dict):
                    replace_times(one)


def texts(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from (() if key == 'payload' else texts(one))
    elif isinstance(value, list):
        for one in value:
            yield from texts(one)


def is_consistent(case):
    """Members that exclude or need each other."""
    operation = case.operation.definition.raw['operationId']
    headers = {name.lower() for name in case.headers or {}}
    body = case.body if isinstance(case.body, dict) else {}
    topics = [case.path_parameters.get('topic') if case.path_parameters else None]
    if operation == 'listTopics':
        topics += [(case.query or {}).get(name) for name in ('prefix', 'after')]
    if any(isinstance(one, str) and len(one.encode('utf-8', 'replace')) > TOPIC_MAX for one in topics):
        return False
    if operation == 'renewMember':
        rows = [row for name in ('held', 'release') for row in body.get(name) or []]
        lanes = [(row.get('lane'), row.get('lanes')) for row in rows]
        return all(lane < of for lane, of in lanes) and len(set(lanes)) == len(lanes)
    if 'Record' in operation:
        return ('dibs-lease' in headers) == ('dibs-fence' in headers) and (
            operation != 'sealRecord' or 'dibs-lease' in headers) and not {'if-match', 'if-none-match'} <= headers
    if operation in ('acquireLease', 'renewLease'):
        times = [DEFAULT_MS if body.get('ttl') is None else body['ttl'], body.get('delay')]
        short = sum(value for value in times if isinstance(value, (int, float))) <= DAY_MS - DEFAULT_MS
        counted = (body.get('mode') == 'counted') == (body.get('slots') is not None)
        return short and counted
    if operation == 'extendTasks':
        return body.get('phase') is None or len(body.get('tasks', [])) == 1
    if operation in ('retryMessages', 'purgeMessages'):
        return body.get('tasks') is None or all(body.get(name) is None for name in ('key', 'text', 'older'))
    if operation == 'setTable':
        return not {'if-match', 'if-none-match'} <= headers
    if operation in ('retryTasks', 'cancelTasks', 'purgeTasks'):
        filters = [body.get(name) for name in ('kind', 'phase', 'key', 'text', 'state', 'older')]
        return (body.get('tasks') is None) != all(value is None for value in filters)
    return True


@schemathesis.hook
def filter_case(context, case):
    if case.meta and case.meta.generation.mode.is_negative:
        return True
    parts = [case.path_parameters, case.query, case.headers, case.body]
    fits = all(len(text.encode('utf-8', 'replace')) <= 4 * BYTES_MAX - 1 for part in parts for text in texts(part))
    return fits and is_consistent(case)


def mend_headers(case):
    """The coverage phase asks no filter_case, and its shortest tags do not have their patterns."""
    operation = case.operation.definition.raw['operationId']
    for name in list(case.headers or {}):
        unlike = (name.lower() == 'if-match' and not case.headers[name].endswith('"')) or (
            operation in ('putRecord', 'setTable') and name.lower() == 'if-none-match' and case.headers[name] != '*')
        if name.lower() == 'dibs-lease' and operation in (
                'renewLease', 'releaseLease', 'renewMember', 'renewOnce', 'storeOnce', 'leaveOnce'):
            case.headers[name] = uuid.uuid4().hex
        if name.lower() == 'idempotency-key' and operation == 'addTasks':
            case.headers[name] = uuid.uuid4().hex  # a key belongs to one request
        if unlike:
            del case.headers[name]


def mend_crontab(case):
    if case.operation.definition.raw['operationId'] == 'setTable':
        case.body = b'@yearly true'
        if case.query and 'zone' in case.query:
            case.query['zone'] = 'UTC'


def mend_quota(case):
    if case.operation.definition.raw['operationId'] == 'takeFromQuota' and isinstance(case.body, dict):
        if (case.body.get('amount') or 1) > case.body['limit']:
            case.body['amount'] = case.body['limit']  # more is never allowed


def mend_counter(case):
    if case.operation.definition.raw['operationId'] == 'addToCounter' and isinstance(case.body, dict) and case.body.get('level') == 'shared':
        case.body['level'] = 'durable'  # the store of the test has no fast store in front of it: 501


@schemathesis.hook
def before_call(context, case, kwargs):
    if not (case.meta and case.meta.generation.mode.is_negative):
        mend_headers(case)
        mend_crontab(case)
        mend_quota(case)
        mend_counter(case)
        if isinstance(case.body, dict) and case.body.get('id'):
            case.body['id'] = uuid.uuid4().hex  # one that is used again belongs to the lease that it had
    for part in (case.body, case.query):
        if isinstance(part, dict):
            replace_times(part)
