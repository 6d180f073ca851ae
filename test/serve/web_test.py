# SPDX-License-Identifier: MIT
"""The dashboard in Chromium: each view, live, by keyboard, narrow, dark, in Korean; and what people do there.

usage: web_test.py DIBS [FOLDER]

FOLDER is for axe-core, which npm installs there; without npm the rules of accessibility are not checked.
DIBS_TEST_PICTURES names a folder for pictures of the views.
"""
import contextlib
import hashlib
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse

FOLDER = sys.argv.pop(2) if len(sys.argv) > 2 else None

import serve_test as t  # noqa: E402: it reads the arguments that are left
import webdriver  # noqa: E402
from checks import PATIENCE_S, check, end, wait_until  # noqa: E402
from lanes_test import Member, gets  # noqa: E402

PICTURES = os.environ.get('DIBS_TEST_PICTURES')
WEB = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../../web')
VIEWS = ['', 'names', 'tasks', 'tasks/list', 'dead', 'outbox', 'cron', 'history', 'stocks', 'counters', 'lanes', 'tiers']
ODD = 'a <b>bold</b> & "name" \'<script>window.hurt = 1</script>'
WITH_ROWS = set(VIEWS) - {'', 'tiers'}
TRACE = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
DEAD = 10000
STEP = 1000  # tasks of one request of the page, and so the least that are done when a person stops it
BATCH = 500
CHANGES = 5


def find_axe():
    """The path of axe.min.js, or None."""
    if not FOLDER or not shutil.which('npm'):
        return None
    axe = os.path.join(FOLDER, 'node_modules/axe-core/axe.min.js')
    if not os.path.exists(axe):
        os.makedirs(FOLDER, exist_ok=True)
        subprocess.run(['npm', 'install', '--no-package-lock', '--no-audit', '--no-fund', '--ignore-scripts', '--prefix', FOLDER,
                        'axe-core@4.10.2'], check=False, timeout=120, stdout=sys.stderr, stdin=subprocess.DEVNULL)
    return axe if os.path.exists(axe) else None


AXE = find_axe()


def quote(name):
    return urllib.parse.quote(name, safe='')


def add_phases(s, kind):
    s.call('POST', f'/v1/kinds/{kind}/tasks', {'tasks': [
        {'payload': 'x', 'phase': phase, 'key': key} for phase, key in (('stage', 'a'), ('stage', 'b'), ('stage', 'c'), ('sweep', 'd'), ('sweep', 'e'))]})
    claim = s.call('POST', f'/v1/kinds/{kind}/claims', {'phase': 'stage'})[2]['tasks'][0]
    s.call('POST', f'/v1/kinds/{kind}/results', {'tasks': [
        {'task': claim['task'], 'fence': claim['fence'], 'outcome': 'fail', 'delay': '1h', 'text': 'disk full'}]})


def fill(s):
    """Something for each view."""
    s.call('POST', f"/v1/leases/{quote('deploy/web')}", {'ttl': '10m', 'owner': 'ann@build-3:4121'})
    s.call('POST', f'/v1/leases/{quote(ODD)}', {'ttl': '10m', 'owner': '<i>mallory</i>'})
    s.call('POST', '/v1/kinds/mail/tasks', {'tasks': [{'payload': f'to {i}', 'max_failures': 1} for i in range(30)]})
    claims = s.call('POST', '/v1/kinds/mail/claims', {'limit': 4, 'owner': 'mailer'})[2]['tasks']
    s.call('POST', '/v1/kinds/mail/results', {'tasks': [
        {'task': claim['task'], 'fence': claim['fence'], 'outcome': outcome, 'text': '<script>window.hurt = 1</script>'}
        for claim, outcome in zip(claims, ('dead', 'dead', 'done', 'fail'))]}, {'traceparent': TRACE})
    s.call('PUT', '/v1/cron/site/table', b'0 3 * * * name=nightly echo one\n', {'If-None-Match': '*'})
    add_phases(s, 'deletion')
    s.call('PUT', '/v1/stocks/seats', {'limit': 50})
    s.call('PUT', '/v1/stocks/seats/claims/a', {'amount': 37})
    s.call('POST', f"/v1/counters/{quote('likes/4711')}", {'delta': 41})
    members = [s.call('POST', '/v1/lanes/orders/members', {'lanes': 12, 'ttl': '1h', 'owner': owner})[2] for owner in ('ann@build-3:4121', ODD)]
    for member in members:
        s.call('PATCH', f"/v1/lanes/orders/members/{member['slot']}", {'ttl': '1h'}, {'Dibs-Lease': member['id']})
    return claims[0]['task']


def is_shown(browser):
    return browser.wait("document.getElementById('state').className === 'state live' && "
                        "document.querySelector('main .rows tbody tr, main .card, main .empty:not(:empty), main .alert') && "
                        "![...document.querySelectorAll('.empty')].some((e) => e.textContent === '…')")


def serious(browser):
    """What axe finds that is serious or critical."""
    browser.js(open(AXE, encoding='utf-8').read())
    found = browser.js_later('const done = arguments[arguments.length - 1]; axe.run(document).then('
                             '(r) => done(r.violations.filter((v) => ["serious", "critical"].includes(v.impact))'
                             '.map((v) => `${v.id}: ${v.nodes.map((n) => n.html.slice(0, 120)).slice(0, 3).join(" | ")}`)),'
                             ' (e) => done([String(e)]))')
    return found


# Labels of the page that have Latin letters and no Korean ones.  Names of the store are in <code>, or in a list of kinds.
ENGLISH = '''
const labels = [...document.querySelectorAll('[placeholder], [aria-label]:not(input[type=range])')]
  .flatMap((e) => ['placeholder', 'aria-label'].map((name) => e.getAttribute(name) ?? ''));
return [...document.querySelectorAll('nav a, h1, h2, th, dt, button, label span, option, summary, output, .badge, .muted, .empty, '
  + '.fine, .alert, .attention a, .metric-head span, .card.count span, .state span')]
  .filter((e) => !e.closest('select[aria-label="종류"], pre, code'))
  .map((e) => [...e.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data).join('')).concat(labels)
  .filter((text) => /[A-Za-z]{2}/.test(text) && !/[가-힣]/.test(text) && !['English', 'dibs', 'p50 / p99'].includes(text));
'''

# Keys of texts that lack one of the two languages: those that the page names, and those of the counters of the tiers.
TEXTLESS = '''
const [files, more, done] = arguments;
Promise.all([import('/web/text.js'), ...files.map((file) => fetch(file).then((answer) => answer.text()))]).then(([text, ...sources]) => {
  const named = sources.flatMap((source) => [...source.matchAll(/\\bt\\('(\\w+)'/g)].map((found) => found[1]));
  done([named.length, [...named, ...more].filter((key) => !text.has(key))]);
}, (error) => done([0, [String(error)]]));
'''


def look_at(s, task, **window):
    """Every view in one kind of window."""
    browser = webdriver.Browser(**window)
    about = ' '.join(f'{name} {value}' for name, value in window.items()) or 'wide and light'
    views = VIEWS + ['tasks/list?kind=deletion', f'tasks/{task}', f"names/{quote('deploy/web')}", f"counters/{quote('likes/4711')}", 'lanes/orders']
    shown, bare, wide, errors, flaws, english, hurt = [], [], [], [], [], [], False
    for view in views:
        browser.go(f'http://127.0.0.1:{s.port}/#/{view}')
        if not is_shown(browser):
            shown.append(view)
        if view in WITH_ROWS and not browser.wait("document.querySelector('main .rows tbody tr')"):
            bare.append(view)
        width = browser.js('return [document.documentElement.scrollWidth, innerWidth]')
        if width[0] > width[1]:
            wide.append(f'{view}: {width}')
        hurt = hurt or browser.js('return Boolean(window.hurt)')
        if window.get('language') == 'ko':
            english += [f'{view}: {text}' for text in browser.js(ENGLISH)]
        if PICTURES:
            name = f"{view.replace('/', '_').replace('?', '_') or 'overview'}-{about.replace(' ', '_')}.png"
            browser.picture(os.path.join(PICTURES, name))
        errors += browser.errors()
        if AXE:
            flaws += [f'{view}: {flaw}' for flaw in serious(browser)]
    check(f'{about}: every view is shown', not shown, shown)
    check(f'{about}: each list has rows', not bare, bare)
    check(f'{about}: no view is wider than the window', not wide, wide)
    check(f'{about}: the console has no errors', not errors, errors)
    check(f'{about}: no text of the store became markup', not hurt)
    check(f"{about}: axe finds nothing serious{'' if AXE else ' # SKIP axe-core is not installed'}", not flaws, *flaws)
    if window.get('language') == 'ko':
        words = browser.js("return [document.documentElement.lang, document.querySelector('nav a:nth-child(2)').textContent]")
        check('the page is Korean for a Korean browser', words == ['ko', '이름'], words)
        check('no label of it is English', not english, *english)
        browser.click('#language')
        words = browser.js("return [document.documentElement.lang, document.querySelector('nav a:nth-child(2)').textContent]")
        check('a button changes the language', words == ['en', 'Names'], words)
    if window.get('dark'):
        dark = browser.js("return getComputedStyle(document.body).backgroundColor")
        check('the page is dark for a dark system', dark == 'rgb(18, 22, 26)', dark)
    browser.close()


NOTED = """
const [name, done] = [arguments[0], arguments[arguments.length - 1]];
const shown = () => [...document.querySelectorAll('tbody tr')].some((r) => r.dataset.key === name);
const began = performance.now();
const timer = setInterval(() => {
  if (!shown() && performance.now() - began < 20000) return;
  clearInterval(timer);
  done(Date.now());
}, 5);
fetch(`/v1/leases/${encodeURIComponent(name)}`, {method: 'POST', body: '{"ttl": "1m"}'}).then(() => { window.acquired = Date.now(); });
"""


def live(s, browser):
    """A change by another client is on the page within a second."""
    browser.go(f'http://127.0.0.1:{s.port}/#/names')
    check('the names are shown', is_shown(browser))
    other, delays = t.Server(), ([], [])
    for nr in range(2 * CHANGES):
        through = (s, other)[nr % 2]  # only the store tells our server of a change through the other
        shown = [None]
        watcher = threading.Thread(target=lambda nr=nr, shown=shown: shown.__setitem__(0, browser.js_later(
            NOTED.split('fetch(')[0], f'live-{nr}')))
        watcher.start()
        time.sleep(0.3)
        through.call('POST', f'/v1/leases/live-{nr}', {'ttl': '1m'})
        done = time.time() * 1000
        watcher.join()
        delays[nr % 2].append(shown[0] - done)
    other.stop()
    # The server reads the store each 0.4 s for changes by others, or rests for ten times as long as reading took.
    check('a new lease is shown within a second, by the median', statistics.median(delays[0]) < 1000, delays)
    check('also one that was acquired through another server, unless the machine is slow', statistics.median(delays[1]) < 5000, delays)
    print(f'# ms from the answer to the page: {[[round(d) for d in some] for some in delays]}', flush=True)
    bars = 'return [...document.querySelectorAll(".ttl .left")].map((e) => e.style.transform).join()'
    before = browser.js(bars)
    by = time.monotonic() + PATIENCE_S
    while browser.js(bars) == before and time.monotonic() < by:
        time.sleep(0.1)
    check('the bars shrink', browser.js(bars) != before, before)


def break_a_lease(s, browser):
    held = s.call('POST', '/v1/leases/broken-here', {'ttl': '10m', 'owner': 'holder'})[2]
    browser.go(f'http://127.0.0.1:{s.port}/#/names?prefix=broken')
    check('only names with the prefix are shown', browser.wait("document.querySelectorAll('tbody tr').length === 1"))
    browser.click('tr[data-key="broken-here"] button')
    check('the question names the lease', browser.wait("document.querySelector('#dialog-title')?.textContent.includes('broken-here')"))
    if AXE:
        flaws = serious(browser)
        check('axe finds nothing serious in the question', not flaws, *flaws)
    browser.js("document.querySelector('input[name=now]').checked = true; document.querySelector('input[name=who]').value = 'eve'")
    browser.click('#dialog-do')
    check('the name leaves the page', browser.wait("!document.querySelector('tr[data-key=\"broken-here\"]')"))
    status = s.call('PATCH', '/v1/leases/broken-here', {}, {'Dibs-Lease': held['id']})[0]
    check('the holder has lost it', status == 410, status)
    shown = s.call('GET', '/v1/leases/broken-here')[2]
    check('the store knows who broke it', 'eve' in str(shown), shown)


# Stops a change as soon as its progress is shown.
STOP = '''
new MutationObserver((_, observer) => {
  const stop = [...document.querySelectorAll('main button')].find((e) => e.textContent === 'Stop');
  if (!stop || !document.querySelector('main progress')) return;
  observer.disconnect();
  stop.click();
}).observe(document.querySelector('main'), {childList: true, subtree: true});
'''


def confirm(browser, *parts):
    """Does what the question is about, if the question says so."""
    asked = browser.wait("(() => { const text = document.querySelector('dialog[open]')?.textContent;"
                         " return text && arguments[0].every((part) => text.includes(part)); })()", list(parts))
    return asked and browser.click('#dialog-do') and browser.wait("!document.querySelector('dialog')")


def is_noted(browser, text):
    return browser.wait("document.getElementById('notes').textContent.includes(arguments[0])", text)


def stop_a_purge(s, browser):
    """After the first of its requests."""
    check('all are counted before a purge', press(browser, 'Purge all matching') and
          browser.wait("document.querySelector('#dialog-title')?.textContent === 'Delete 11,000 dead letters for ever?'"))
    browser.js(STOP)
    browser.click('#dialog-do')
    check('a purge can be stopped', is_noted(browser, 'Stopped after 1,000.'), browser.js("return document.getElementById('notes').textContent"))
    counted = s.call('POST', '/v1/changes/purge', {'kind': 'bulk', 'state': 'dead', 'dry_run': True, 'limit': 10000})[2]
    check('the others are still there', counted['changed'] == DEAD, counted)


def fire_a_job(s, browser):
    browser.go(f'http://127.0.0.1:{s.port}/#/cron?fleet=site')
    browser.click('tr[data-key="nightly"] [data-does="fire"]')
    check('a job is fired', confirm(browser, 'Fire “nightly” now?') and is_noted(browser, '“nightly” is fired.'))
    found = s.call('GET', '/v1/tasks?kind=cron:site')[2]['tasks']
    check('the store has its firing', len(found) == 1, found)


def pause_a_kind(s, browser):
    browser.go(f'http://127.0.0.1:{s.port}/#/tasks')
    button = 'tr[data-key="deletion"] [data-does="pause"]'
    for label, after, noted, paused in (('Pause', 'Resume', 'is paused', True), ('Resume', 'Pause', 'runs again', False)):
        check(f'{label} is offered', browser.wait(f"document.querySelector('{button}')?.textContent === '{label}'"))
        browser.click(button)
        check(f'and done: {noted}', confirm(browser, f'{label} the kind “deletion”') and is_noted(browser, f'“deletion” {noted}'))
        check(f'the row offers {after}', browser.wait(f"document.querySelector('{button}').textContent === '{after}' && "
                                                      f"Boolean(document.querySelector('tr[data-key=\"deletion\"] .badge')) === {str(paused).lower()}"))
        claims = s.call('POST', '/v1/kinds/deletion/claims', {'phase': 'sweep'})[2]['tasks']
        check('workers get nothing' if paused else 'workers get tasks', len(claims) == (0 if paused else 1), claims)


def change_letters(s, browser):
    """One letter, some that are selected, and all."""
    s.call('POST', '/v1/kinds/letters/tasks', {'tasks': [{'payload': 'x', 'max_failures': 1}] * 7})
    claims = s.call('POST', '/v1/kinds/letters/claims', {'limit': 7})[2]['tasks']
    s.call('POST', '/v1/kinds/letters/results', {'tasks': [{'task': c['task'], 'fence': c['fence'], 'outcome': 'dead'} for c in claims]})
    nrs = [c['task'] for c in claims]

    def left(state='dead'):
        return [one['task'] for one in s.call('GET', f'/v1/tasks?kind=letters&state={state}')[2]['tasks']]

    browser.go(f'http://127.0.0.1:{s.port}/#/tasks/{nrs[0]}')
    check('one letter is retried from its story', press(browser, f'Retry task {nrs[0]}') and confirm(browser, f'Retry task {nrs[0]}?') and
          is_noted(browser, '1 tasks are ready again.') and left('ready') == nrs[:1], left('ready'))
    check('its story says so', browser.wait("document.querySelector('.story').textContent.includes('Now: ready')"))
    rows = "[...document.querySelectorAll('main tbody tr')].map((e) => Number(e.dataset.key)).join()"

    def select(*which):
        for nr in which:
            browser.click(f'tr[data-key="{nr}"] input')

    def shows(wanted):
        return browser.wait(f'{rows} === arguments[0]', ','.join(map(str, wanted)))

    browser.go(f'http://127.0.0.1:{s.port}/#/dead?kind=letters')
    check('the others are listed', shows(nrs[1:]), browser.js(f'return {rows}'))
    select(*nrs[1:3])
    check('two are selected and retried', press(browser, 'Retry 2 selected') and confirm(browser, 'Retry 2 dead letters?') and
          is_noted(browser, '2 tasks are ready again.') and left('ready') == nrs[:3], left('ready'))
    check('they leave the page', shows(nrs[3:]), browser.js(f'return {rows}'))
    select(nrs[3])
    check('one is selected and purged', press(browser, 'Purge 1 selected') and confirm(browser, 'Delete 1 dead letters for ever?') and
          is_noted(browser, '1 tasks are deleted.') and shows(nrs[4:]), browser.js(f'return {rows}'))
    check('the store has no such task', s.call('GET', f'/v1/tasks/{nrs[3]}')[0] == 404)
    check('the rest is purged', press(browser, 'Purge all matching') and confirm(browser, 'Delete 3 dead letters for ever?') and
          is_noted(browser, '3 tasks are deleted.') and left() == [], left())
    check('the page is empty', browser.wait("document.querySelector('main .empty')?.textContent.includes('matches')"))


def retry_many(s, browser):
    for _ in range((DEAD + STEP) // BATCH):
        s.call('POST', '/v1/kinds/bulk/tasks', {'tasks': [{'payload': 'x', 'max_failures': 1}] * BATCH})
        claims = s.call('POST', '/v1/kinds/bulk/claims', {'limit': BATCH})[2]['tasks']
        s.call('POST', '/v1/kinds/bulk/results', {'tasks': [
            {'task': c['task'], 'fence': c['fence'], 'outcome': 'dead', 'text': 'refused by the other side'} for c in claims]})
    browser.go(f'http://127.0.0.1:{s.port}/#/dead?kind=bulk')
    stop_a_purge(s, browser)
    check('a page of dead letters is shown', browser.wait("document.querySelectorAll('tbody tr').length === 50"))
    browser.click('#dead-count')
    check('a dry run counts them', browser.wait("document.getElementById('dead-counted').textContent.includes('10,000')"),
          browser.js("return document.getElementById('dead-counted').textContent"))
    browser.click('tbody tr:nth-child(2) input')
    check('a letter can be selected', browser.wait("document.querySelector('main').textContent.includes('Retry 1 selected')"))
    browser.click('#dead-retry')
    check('the question has their number', browser.wait("document.querySelector('#dialog-title')?.textContent.includes('10,000')"))
    began = time.monotonic()
    browser.click('#dialog-do')
    check('the progress is shown', browser.wait("document.querySelector('progress') || document.querySelector('.note')"))
    check('all are retried', browser.wait("document.getElementById('notes').textContent.includes('10,000')"))
    print(f'# s to retry {DEAD}: {time.monotonic() - began:.1f}', flush=True)
    check('none is left on the page', browser.wait("document.querySelector('main .empty')?.textContent.includes('matches')"))
    left = s.call('GET', '/v1/tasks?kind=bulk&state=dead')[2]['tasks']
    ready = s.call('GET', '/v1/tasks?kind=bulk&state=ready&limit=1')[2]['tasks']
    check('the store has none left, and ready ones', not left and ready, left, ready)


def names_of_tiers(s, browser):
    """Names of two tiers come in pages, each once, with their tiers."""
    wanted = [f'paged-{i:02}' for i in range(40)]
    for name in wanted:
        s.call('POST', f'/v1/leases/{name}', {'ttl': '10m'})
    got, after = [], ''
    while after is not None:
        body = s.call('GET', f'/v1/leases?prefix=paged&limit=7&after={after}')[2]
        got += body['names']
        after = body['next']
    check('each name is listed once', [one['name'] for one in got] == wanted, got)
    tiers = {one['leases'][0]['tier'].rpartition('/')[2].partition('?')[0] for one in got}
    check('with its tier', tiers == {'first.db', 'anchor.db'}, tiers)
    browser.go(f'http://127.0.0.1:{s.port}/#/names')
    check('the page has the tier of each name', browser.wait("document.querySelectorAll('td.tier')[0]?.checkVisibility() && "
                                                            "document.querySelector('td.tier').textContent === 'sqlite'"))


def attention(s, browser):
    """What needs a person comes first, with a link."""
    browser.go(f'http://127.0.0.1:{s.port}/#/')
    link = "[...document.querySelectorAll('#attention a')].find((a) => a.textContent.startsWith('mail: 3 dead letters'))"
    check('the overview names dead letters', browser.wait(link), browser.js("return document.querySelector('main').textContent.slice(0, 500)"))
    browser.js(f'{link}.focus()')
    browser.keys('\ue007')
    check('Enter leads to them', browser.wait("location.hash === '#/dead?kind=mail' && document.querySelectorAll('tbody tr').length === 3"))
    own = t.Server(store=f'sqlite://{t.FOLDER}/calm.db')
    browser.go(f'http://127.0.0.1:{own.port}/#/')
    check('without problems it says so', browser.wait("document.querySelector('#attention .fine')"))
    own.stop()


def stale_writes(s, browser):
    old = s.call('POST', '/v1/leases/late', {'ttl': '10m'})[2]
    s.call('DELETE', '/v1/leases/late', headers={'Dibs-Lease': old['id']})
    new = s.call('POST', '/v1/leases/late', {'ttl': '10m'})[2]
    for lease in (new, old):
        s.call('PUT', '/v1/records/guarded', b'x', {'Dibs-Lease': lease['id'], 'Dibs-Fence': str(lease['fence'])})
    browser.go(f'http://127.0.0.1:{s.port}/#/names?prefix=late')
    check('a refused stale write is shown with its name',
          browser.wait("document.querySelector('tr[data-key=late] [data-label=\"Stale writes\"]')?.textContent === '1'"))


def story(s, browser):
    """What happened to a task, in order: claims, steps, errors, runs."""
    task = s.call('POST', '/v1/kinds/told/tasks', {'payload': 'x', 'max_failures': 9})[2]['task']

    def work(owner, **end_):
        claim = s.call('POST', '/v1/kinds/told/claims', {'owner': owner, 'timeout': '10m'})[2]['tasks'][0]
        if end_:
            s.call('POST', '/v1/kinds/told/results', {'tasks': [{'task': task, 'fence': claim['fence'], **end_}], 'history': True})
        return claim['fence']

    fences = [work('ann', outcome='next', phase='sweep', text='staged', took='1ms'),
              work('bob', outcome='fail', delay='0ms', text='disk full', took='1ms')]
    check('the failed task is ready again', wait_until(lambda: s.call('GET', f'/v1/tasks/{task}')[2]['state'] == 'ready'))
    fences.append(work('eve'))
    browser.go(f'http://127.0.0.1:{s.port}/#/tasks/{task}')
    told = "[...document.querySelectorAll('.story li')].map((e) => e.firstChild.textContent)"
    check('the story has each step', browser.wait(f'{told}.length === 8'), browser.js(f'return {told}'))
    lines = browser.js(f'return {told}')
    parts = [['Added'], ['Claimed by', f'fence {fences[0]}'], ['Ran on', 'done', 'next phase sweep', 'staged'], ['Claimed by bob', f'fence {fences[1]}'],
             ['disk full'], ['disk full'], ['Claimed by eve', f'fence {fences[2]}', 'attempt 3'], ['Now: claimed']]
    check('in order, with owner, fence and attempt', len(lines) == len(parts) and all(one in line for line, some in zip(lines, parts) for one in some), *lines)
    check('the error and its run are both there', any('bob' in line for line in lines[4:6]) and any('Ran on' in line for line in lines[4:6]), *lines)
    if PICTURES:
        browser.picture(os.path.join(PICTURES, 'story.png'))


def press(browser, label):
    """Clicks the button of the view that has this label."""
    return browser.wait("(() => { const found = [...document.querySelectorAll('main button')].find((e) => e.textContent === arguments[0]"
                        " && !e.disabled && e.checkVisibility()); found?.click(); return Boolean(found); })()", label)


def tasks_by_phase(s, browser):
    add_phases(s, 'phased')
    browser.go(f'http://127.0.0.1:{s.port}/#/tasks/list?kind=phased')
    rows = "[...document.querySelectorAll('main table[aria-label=Tasks] tbody tr')].map((e) => e.children[3].textContent).sort().join()"
    check('the tasks of a kind have their phases', browser.wait(f"{rows} === 'stage,stage,stage,sweep,sweep'"), browser.js(f'return {rows}'))
    counted = "[...document.querySelectorAll('table[aria-label=Phases] tbody tr')].map((e) => [0, 3, 4].map((i) => e.children[i].textContent).join(' ')).join()"
    check('the phases are counted', browser.wait(f"{counted} === 'stage 3 1,sweep 2 0'"), browser.js(f'return {counted}'))
    rates = "[...document.querySelectorAll('table[aria-label=Phases] tbody tr')].map((e) => e.children[1].textContent)"
    check('with the rates of the last minute', browser.js(f'return {rates}.every((text) => /^[1-9][0-9.,]*[/]min$/.test(text))'), browser.js(f'return {rates}'))
    if PICTURES:
        browser.picture(os.path.join(PICTURES, 'phases.png'))

    def look_for(name, text, wanted):
        browser.js('document.querySelector(`input[name=${arguments[0]}]`).select()', name)
        browser.keys(text + '\ue007')
        return browser.wait(f"location.hash.includes('{name}=') && {rows} === '{wanted}'")

    check('a phase can be looked for', look_for('phase', 'sweep', 'sweep,sweep'), browser.js(f'return [location.hash, {rows}]'))
    check('and a key of it', look_for('key', 'e', 'sweep'), browser.js(f'return [location.hash, {rows}]'))
    browser.go(f'http://127.0.0.1:{s.port}/#/tasks/list?kind=phased&phase=stage')
    check('the phase of the address is used', browser.wait(f"{rows} === 'stage,stage,stage'"))
    check('and the text of an error', look_for('text', 'disk', 'stage') and 'phase=stage' in browser.js('return location.hash'),
          browser.js(f'return [location.hash, {rows}]'))
    own = s.call('GET', '/v1/kinds/phased/phases')[2]
    check('a phase has its counts', [(one['phase'], one['added'], one['claimed']) for one in own['phases']] == [('stage', 3, 1), ('sweep', 2, 0)], own)


def outbox(s, browser):
    s.call('POST', '/v1/kinds/outbox/tasks', {'tasks': [{'payload': 'x', 'max_failures': 1}] * 5})
    claim = s.call('POST', '/v1/kinds/outbox/claims', {'limit': 1})[2]['tasks'][0]
    s.call('POST', '/v1/kinds/outbox/results', {'tasks': [{'task': claim['task'], 'fence': claim['fence'], 'outcome': 'dead', 'text': 'no such host'}]})
    check('its messages are counted', wait_until(lambda: s.call('GET', '/v1/kinds/outbox')[2].get('dead') == 1))
    browser.go(f'http://127.0.0.1:{s.port}/#/outbox')
    counted = "[...document.querySelectorAll('.card.count strong')].map((e) => e.textContent).slice(0, 4).join()"
    check('the outbox is found and counted', browser.wait(f"{counted} === '4,0,1,0'"), browser.js(f'return {counted}'))
    check('its waiting messages are listed', browser.wait("document.querySelectorAll('tbody tr').length === 4"))
    browser.click('.card.count.bad')
    check('and its dead ones, with the error', browser.wait("document.querySelector('tbody')?.textContent.includes('no such host')"))


def replace_a_crontab(s, browser):
    put = s.call('PUT', '/v1/cron/web/table', b'0 3 * * * nightly echo one\n', {'If-None-Match': '*'})
    browser.go(f'http://127.0.0.1:{s.port}/#/cron?fleet=web')
    browser.click('#crontab')
    check('the crontab is shown as text', browser.wait("document.querySelector('dialog textarea')?.value.includes('echo one')"), put)
    if AXE:
        flaws = serious(browser)
        check('axe finds nothing serious in it', not flaws, *flaws)
    browser.js("document.querySelector('dialog textarea').value = '0 4 * * * nightly echo two\\n'")
    browser.click('#dialog-do')
    check('it is replaced', browser.wait("document.getElementById('notes').textContent.includes('replaced')"),
          browser.js("return document.getElementById('notes').textContent"))
    text = s.call('GET', '/v1/cron/web/table')[2]
    check('the store has the new one', b'echo two' in text, text)
    browser.errors()


def many_pages(s, browser):
    """A browser has six connections to a server for all of its pages."""
    for _ in range(8):
        browser.go(f'http://127.0.0.1:{s.port}/#/names')
    check('the ninth page in one tab is live', is_shown(browser))
    first = browser.request('GET', '/window')
    tabs = [browser.request('POST', '/window/new', {'type': 'tab'})['handle'] for _ in range(7)]
    for tab in tabs:
        browser.request('POST', '/window', {'handle': tab})
        browser.request('POST', '/url', {'url': f'http://127.0.0.1:{s.port}/#/names'})
        shown = is_shown(browser)
    check('the eighth tab is live', shown)
    for tab in tabs:
        browser.request('POST', '/window', {'handle': tab})
        browser.request('DELETE', '/window')
    browser.request('POST', '/window', {'handle': first})
    check('the first one is live when it is seen again', is_shown(browser))


def tiers_in_korean(s, browser):
    counts = s.call('GET', '/v1/tiers')[2]['counts']
    files = [f"/web/{name}" for name in sorted(os.listdir(WEB)) if name.endswith('.js')]
    count, textless = browser.js_later(TEXTLESS, files, [f'n_{name}' for name in counts])
    check('every text that the page names, and of each counter, is there in both languages', count > 200 and not textless, count, textless)
    browser.click('#language')
    check('the counters are shown in Korean', browser.wait("document.querySelector('.counts dt')?.textContent === '클라이언트' && "
                                                           f"document.querySelectorAll('.counts dt').length === {len(counts) + 1}"))
    english = browser.js(ENGLISH)
    check('no label of the tiers is English', not english, *english)
    if PICTURES:
        browser.picture(os.path.join(PICTURES, 'tiers-two-korean.png'))
    browser.click('#language')


@contextlib.contextmanager
def using(*calls):
    """Each of them again and again, in a thread of its own."""
    done = threading.Event()

    def run(call):
        while not done.is_set():
            call()

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def changes_of_tiers(s, browser, uri):
    """The breaker of one of two clients opens, and stays so: the next points of the last hour have it, and its vote."""
    def first():
        return s.call('GET', '/v1/tiers')[2]['tiers'][0]

    other = t.Server(store=uri)
    # One that is still of the first tier.  Only clients that used a tier in the last 10 s have a vote about it.
    name = next(name for name in (f'second-{nr}' for nr in range(10000))
                if 'first.db' in other.call('POST', f'/v1/leases/{name}', {'ttl': '1s'})[2].get('tier', ''))

    def use(server):
        server.call('POST', f'/v1/leases/{name}', {'ttl': '200ms'})
        time.sleep(0.2)

    with using(lambda: use(s), lambda: use(other)):
        check('two clients use the tier', wait_until(lambda: first()['clients_active'] == 2))
    with contextlib.closing(sqlite3.connect(f'{t.FOLDER}/first.db', isolation_level=None)) as locked:
        locked.execute('BEGIN IMMEDIATE')
        with using(*[lambda: s.call('POST', f'/v1/leases/{name}', {'ttl': '200ms'})] * 8):
            opened = wait_until(lambda: first()['local']['breaker'] == 'open')
        locked.execute('ROLLBACK')
    check('the breaker of a locked tier opens', opened)
    with using(lambda: use(s), lambda: use(other)):
        check('one of two clients reports it', wait_until(lambda: first()['clients_down'] == 1), first())
        browser.go(f'http://127.0.0.1:{s.port}/#/tiers')
        card = "document.querySelector('.card').textContent"
        check('the card of the tier has its breaker and the votes', browser.wait(f"['open', '1 of 2 clients'].every((text) => {card}.includes(text))"),
              browser.js(f'return {card}'))
        for what, text in (('move', 'sqlite serves 10 % of the names; before, 100 %'), ('vote', '1 clients report sqlite down; before, 0'),
                           ('breaker', 'The breaker of sqlite in this daemon is open')):
            check(f'the {what} is in the list of changes', browser.wait("document.getElementById('changes').textContent.includes(arguments[0])", text),
                  browser.js("return document.getElementById('changes').textContent"))
    other.stop()


def move_a_flag(browser):
    # A breaker opens after five failures of ten calls, none of which fails only because the machine is slow; then it stays open.
    uri = f'sqlite://{t.FOLDER}/first.db,sqlite://{t.FOLDER}/anchor.db?tiers.wait=600000&tiers.window=10&tiers.timeout=1000'
    s = t.Server(store=uri)
    browser.go(f'http://127.0.0.1:{s.port}/#/tiers')
    slider = '[data-flag="sqlite.enabled"] input'
    check('tiers and flags are shown', browser.wait(f"document.querySelector('{slider}') && document.querySelectorAll('.chart').length > 0"))
    s.call('POST', '/v1/leases/first', {'ttl': '1s'})  # the tiers serve nothing before the first use
    check('the server knows what the tiers serve', wait_until(lambda: any(
        one['name'] == 'tier_buckets' and one['label'] == 'sqlite' and one['points'][-1] == 100
        for one in s.call('GET', '/v1/series')[2]['series'])))
    browser.js(f"const e = document.querySelector('{slider}'); e.value = 10; e.dispatchEvent(new Event('input'))")
    browser.click('[data-flag="sqlite.enabled"] button')
    check('the question names the flag and both values', browser.wait(
        "document.querySelector('#dialog-title')?.textContent === 'Set sqlite.enabled from 100 % to 10 %?'"))
    browser.click('#dialog-do')
    check('the page has the new value', browser.wait("document.getElementById('notes').textContent.includes('10 %')"))
    percent = s.call('GET', '/v1/flags/sqlite.enabled')[2]
    check('the flag is moved', percent.get('percent') == 10, percent)
    check('the names move', wait_until(lambda: s.call('GET', '/v1/tiers')[2]['tiers'][0]['buckets'] == 10))
    names_of_tiers(s, browser)
    changes_of_tiers(s, browser, uri)
    if AXE:
        flaws = serious(browser)
        check('axe finds nothing serious in tiers', not flaws, *flaws)
    if PICTURES:
        browser.picture(os.path.join(PICTURES, 'tiers-two.png'))
    tiers_in_korean(s, browser)
    check('the console has no errors', not (errors := browser.errors()), errors)
    s.stop()


def keyboard(s, browser):
    browser.go(f'http://127.0.0.1:{s.port}/#/names')
    is_shown(browser)
    browser.keys('/')
    check('/ moves to the filter', browser.wait("document.activeElement.type === 'search'"))
    browser.keys('deploy')
    check('the filter is applied', browser.wait("document.querySelectorAll('tbody tr').length === 1"))
    for _ in range(3):
        browser.keys('\ue004')
        if browser.js("return document.activeElement.dataset.does === 'break'"):
            break
    check('the button of a row is reached with Tab', browser.js("return document.activeElement.dataset.does") == 'break')
    browser.keys('\ue007')
    check('Enter opens the question', browser.wait("document.querySelector('dialog[open]')"))
    browser.keys('\ue00c')
    check('Escape closes it, and nothing is done', browser.wait("!document.querySelector('dialog')") and
          s.call('GET', f"/v1/leases/{quote('deploy/web')}")[0] == 200)


def watch_counters(s, browser):
    browser.go(f'http://127.0.0.1:{s.port}/#/counters?prefix=page')
    check('no counter has the prefix', browser.wait("document.querySelector('main .empty')?.textContent === 'There are no such counters.'"))
    s.call('POST', '/v1/counters/page.a', {'delta': 5})
    row = "document.querySelector('tr[data-key=\"page.a\"]')"
    check('a new counter is shown', browser.wait(f"{row}?.cells[1].textContent === '5'"), browser.js("return document.querySelector('main').textContent"))
    s.call('POST', '/v1/counters/page.a', {'delta': 1000})
    check('and its new value', browser.wait(f"{row}?.cells[1].textContent === '1,005'"))
    check('with how fast it changes', browser.wait(f"/^[0-9.,]+\\/s$/.test({row}.querySelector('.rate span').textContent) && "
                                                   f"{row}.querySelector('.rate .left').style.transform === 'scaleX(1)'"))
    browser.click('tr[data-key="page.a"] a')
    check('one counter has its value, and a chart', browser.wait("document.querySelector('.card.count strong')?.textContent === '1,005' && "
                                                                  "document.querySelector('.chart')"))
    browser.click('#correct')
    check('the question names the counter', browser.wait("document.querySelector('#dialog-title')?.textContent === 'Correct the counter “page.a”?'"))
    browser.js("document.querySelector('input[name=delta]').value = '-5'")
    browser.click('#dialog-do')
    check('it is corrected', is_noted(browser, '-5 was added to “page.a”.') and
          browser.wait("document.querySelector('.card.count strong').textContent === '1,000'"))
    check('in the store, too', s.call('GET', '/v1/counters/page.a')[2]['value'] == 1000)


CELLS = "[...document.querySelectorAll('.lanes .lane')]"


def watch_lanes(s, browser):
    ann = Member([s], 'page-lanes', ttl_ms=600000, lanes=6, owner='ann')
    gets(ann, 6)
    browser.go(f'http://127.0.0.1:{s.port}/#/lanes')
    check('the topics are shown', browser.wait("document.querySelector('tr[data-key=\"page-lanes\"]')?.cells[1].textContent === '6'"))
    browser.click('tr[data-key="page-lanes"] a')
    check('the picture has each lane, all in one color', browser.wait(f"{CELLS}.length === 6 && new Set({CELLS}.map((e) => e.className)).size === 1"))
    check('and says so to a reader', browser.js("return document.querySelector('.lanes').getAttribute('aria-label')") == '6 lanes by their owners. ann: 6')
    bob = Member([s], 'page-lanes', ttl_ms=600000, owner='bob')
    check('a new member is shown, and the lanes are to move', browser.wait("document.querySelector('.head .badge').textContent === 'lanes are moving'"))
    gets(bob, 3, ann)
    check('each has half of them, live', browser.wait(f"{CELLS}.filter((e) => e.title.endsWith(': bob')).length === 3 && "
                                                      "document.querySelector('.head .badge').textContent === 'balanced'"))
    lane, fence = next(iter(bob.fences().items()))
    moved = browser.js("return document.getElementById('moves').textContent")
    check('the moves say from whom to whom', f'Lane {lane}, fence {fence}: ann → bob' in moved, moved)
    browser.js("const e = document.querySelector('main input[type=search]'); e.value = 'customer-7'; e.dispatchEvent(new Event('change'))")
    of_key = s.call('GET', '/v1/lanes/page-lanes/keys/customer-7')[2]
    check('a key has its lane', browser.wait("document.querySelector('.lane.found')?.dataset.lane === String(arguments[0]) && "
                                             "document.getElementById('lane-of-key').textContent === `Lane ${arguments[0]}, owned by ${arguments[1]}`",
                                             of_key['lane'], of_key['owner']))
    if AXE:
        flaws = serious(browser)
        check('axe finds nothing serious in a topic', not flaws, *flaws)
    if PICTURES:
        browser.picture(os.path.join(PICTURES, 'lanes-two.png'))
    browser.click('#resize')
    check('the question names the topic', browser.wait("document.querySelector('#dialog-title')?.textContent === 'Change the number of lanes of “page-lanes”?'"))
    browser.js("document.querySelector('input[name=lanes]').value = '8'")
    browser.click('#dialog-do')
    check('the number is changed', is_noted(browser, '“page-lanes” has 8 lanes from now on.') and s.call('GET', '/v1/lanes/page-lanes')[2]['lanes'] == 8)
    check('members of the old number are to leave', browser.wait("document.querySelector('.alert.warn')?.textContent.includes('2 members')"))
    for member in (ann, bob):
        member.leave()


def use_a_token(browser):
    secret = 'k' * 40
    path = f'{t.FOLDER}/web-tokens'
    with open(path, 'w', encoding='ascii') as file:
        file.write(f'ann admin * sha256:{hashlib.sha256(secret.encode()).hexdigest()}\n')
    os.chmod(path, 0o600)
    s = t.Server('--tokens', path)
    bearer = {'Authorization': f'Bearer {secret}'}
    s.call('POST', '/v1/leases/secret-name', {'ttl': '10m'}, bearer)
    browser.go(f'http://127.0.0.1:{s.port}/#/names')
    check('the page requests a token', browser.wait("document.querySelector('dialog input[name=token]')"))
    check('and shows nothing without it', not browser.js("return document.body.textContent.includes('secret-name')"))
    browser.js("document.querySelector('dialog input[name=token]').value = arguments[0]", secret)
    browser.click('#dialog-do')
    check('with it the names are shown', browser.wait("document.querySelector('tr[data-key=\"secret-name\"]')"))
    kept = browser.js("return [Object.values(sessionStorage).includes(arguments[0]), Object.values(localStorage).includes(arguments[0]), "
                      "document.cookie, location.href.includes(arguments[0])]", secret)
    check('it is kept in the tab only', kept == [True, False, '', False], kept)
    browser.click('tr[data-key="secret-name"] button')
    browser.click('input[name=now]')
    browser.click('#dialog-do')
    check('an action is done with it', browser.wait("!document.querySelector('tr[data-key=\"secret-name\"]')"))
    s.errors.seek(0)
    said = s.errors.read()
    check('the log has the action and its author', '"action":"breakLease","token":"ann"' in said, said)
    browser.errors()  # the 401s
    s.stop()


def restart(browser):
    """The page says that the server is gone, and goes on when it is back."""
    s = t.Server()
    browser.go(f'http://127.0.0.1:{s.port}/#/names')
    check('the page is live', is_shown(browser))
    s.stop()
    check('the page shows that the connection is lost', browser.wait("document.getElementById('state').className === 'state lost'"))
    port, t.free_port = s.port, lambda: s.port
    again = t.Server()
    check('it is live again by itself', again.port == port and browser.wait("document.getElementById('state').className === 'state live'"))
    again.stop()


def main():
    lacks = webdriver.missing()
    if lacks:
        print(f'1..0 # SKIP {lacks}')
        return 0
    s = t.Server()
    task = fill(s)
    for window in ({}, {'width': 390, 'height': 844}, {'dark': True}, {'language': 'ko', 'width': 390, 'dark': True}):
        look_at(s, task, **window)
    browser = webdriver.Browser()
    attention(s, browser)
    live(s, browser)
    many_pages(s, browser)
    stale_writes(s, browser)
    outbox(s, browser)
    story(s, browser)
    tasks_by_phase(s, browser)
    replace_a_crontab(s, browser)
    fire_a_job(s, browser)
    pause_a_kind(s, browser)
    change_letters(s, browser)
    watch_counters(s, browser)
    watch_lanes(s, browser)
    keyboard(s, browser)
    break_a_lease(s, browser)
    retry_many(s, browser)
    check('the console has no errors at the end', not (errors := browser.errors()), errors)
    move_a_flag(browser)
    use_a_token(browser)
    restart(browser)
    browser.close()
    check('the server ends', s.stop() == 0)
    return end()


sys.exit(main())
