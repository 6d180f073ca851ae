# SPDX-License-Identifier: MIT
"""A browser of its own: Chromium, through chromedriver's protocol (W3C WebDriver)."""
import atexit
import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request

from checks import PATIENCE_S, free_port, temporary_folder


def missing():
    """What a browser lacks here, or None."""
    return next((f'{name} is not installed' for name in ('chromium', 'chromedriver') if not shutil.which(name)), None)


class Browser:
    """One window.  `width` of 390 is a phone."""

    def __init__(self, width=1280, height=860, language='en', dark=False):
        self.folder = temporary_folder('dibs-browser-')  # the browser leaves some of its own in it
        self.start()
        arguments = ['--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run',
                     '--disable-background-networking', f'--window-size={width},{height}', f'--lang={language}']
        wanted = {'browserName': 'chrome', 'goog:loggingPrefs': {'browser': 'ALL'},
                  'goog:chromeOptions': {'binary': shutil.which('chromium'), 'args': arguments,
                                         'prefs': {'intl.accept_languages': language}}}
        by = time.monotonic() + PATIENCE_S
        while not self.session:
            try:
                made = self.request('POST', '/session', {'capabilities': {'alwaysMatch': wanted}})
                self.session = f"/session/{made['sessionId']}"
            except OSError:
                if time.monotonic() > by:
                    raise
                if self.driver.poll() is not None:  # another program was faster to take the port
                    self.start()
                time.sleep(0.05)
        self.command('Emulation.setDeviceMetricsOverride',
                     {'width': width, 'height': height, 'deviceScaleFactor': 1, 'mobile': width < 500})
        scheme = 'dark' if dark else 'light'
        self.command('Emulation.setEmulatedMedia', {'features': [{'name': 'prefers-color-scheme', 'value': scheme}]})

    def start(self):
        port = free_port()
        self.base = f'http://127.0.0.1:{port}'
        self.session = ''
        self.driver = subprocess.Popen(['chromedriver', f'--port={port}'], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=os.environ | {'TMPDIR': self.folder})
        atexit.register(self.driver.kill)

    def request(self, method, path, body=None):
        request = urllib.request.Request(self.base + self.session + path, method=method,
                                         data=None if body is None else json.dumps(body).encode(),
                                         headers={'Content-Type': 'application/json'})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S * 2) as answer:
                return json.load(answer)['value']
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()[:600]) from None

    def command(self, name, parameters):
        return self.request('POST', '/goog/cdp/execute', {'cmd': name, 'params': parameters})

    def go(self, url):
        """Loads the page even if only the part after # differs."""
        self.request('POST', '/url', {'url': 'about:blank'})
        self.request('POST', '/url', {'url': url})

    def js(self, script, *args):
        return self.request('POST', '/execute/sync', {'script': script, 'args': list(args)})

    def js_later(self, script, *args):
        """The script calls its last argument with the result."""
        return self.request('POST', '/execute/async', {'script': script, 'args': list(args)})

    def wait(self, condition, *args):
        """Until the expression is true; False if it never is."""
        by = time.monotonic() + PATIENCE_S
        while time.monotonic() < by:
            if found := self.js(f'return {condition}', *args):
                return found
            time.sleep(0.02)
        return False

    def click(self, selector):
        """Waits until it is there and can be clicked."""
        found = self.wait('(() => { const e = document.querySelector(arguments[0]);'
                          ' return e && !e.disabled && e.checkVisibility(); })()', selector)
        if found:
            self.js('document.querySelector(arguments[0]).click()', selector)
        return found

    def keys(self, text):
        actions = [{'type': kind, 'value': key} for key in text for kind in ('keyDown', 'keyUp')]
        self.request('POST', '/actions', {'actions': [{'type': 'key', 'id': 'keyboard', 'actions': actions}]})

    def errors(self):
        """What the console got since the last call."""
        return [entry['message'] for entry in self.request('POST', '/se/log', {'type': 'browser'})
                if entry['level'] in ('SEVERE', 'WARNING')]

    def picture(self, path):
        shot = self.command('Page.captureScreenshot', {'captureBeyondViewport': True})
        with open(path, 'wb') as file:
            file.write(base64.b64decode(shot['data']))

    def close(self):
        with contextlib.suppress(OSError, RuntimeError):
            self.request('DELETE', '')
        self.driver.terminate()
        self.driver.wait()
