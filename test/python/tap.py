# SPDX-License-Identifier: MIT
"""Runs unittest's tests and prints TAP: a line for each test as it ends."""
import sys
import traceback
import unittest


class Tap(unittest.TestResult):
    def startTestRun(self):
        self.stream = sys.stdout

    def line(self, good, test, note=""):
        print(f"{'ok' if good else 'not ok'} {self.testsRun} - {test.id().split('.')[-1]}{note}", flush=True)

    def addSuccess(self, test):
        self.line(True, test)

    def addSkip(self, test, reason):
        self.line(True, test, f" # SKIP {reason}")

    def addError(self, test, error):
        super().addError(test, error)
        self.line(False, test)
        print("".join("#   " + line + "\n" for line in "".join(traceback.format_exception(*error)).splitlines()), end="", flush=True)

    addFailure = addError


def run(module, only=()):
    """All tests of a module, or those whose names contain one of `only`; ends the program."""
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules[module])
    tests = [test for case in suite for test in case if not only or any(word in test.id() for word in only)]
    print(f"1..{len(tests)}")
    result = Tap()
    result.startTestRun()
    unittest.TestSuite(tests).run(result)
    sys.exit(not result.wasSuccessful())
