# SPDX-License-Identifier: Apache-2.0
"""unittest's tests as TAP: a test's docstring is its name."""
import sys
import traceback
import unittest


class Result(unittest.TestResult):
    def __init__(self, out):
        super().__init__()
        self.out, self.number = out, 0

    def line(self, good, test, note=""):
        self.number += 1
        self.out.write(f"{'ok' if good else 'not ok'} {self.number} - {test.shortDescription() or test.id()}{note}\n")
        self.out.flush()

    def failed(self, test, error):
        self.line(False, test)
        for line in "".join(traceback.format_exception(*error)).splitlines():
            self.out.write(f"# {line}\n")

    def addSuccess(self, test):  # noqa: N802  unittest's names
        super().addSuccess(test)
        self.line(True, test)

    def addError(self, test, error):  # noqa: N802
        super().addError(test, error)
        self.failed(test, error)

    addFailure = addError  # noqa: N815

    def addSubTest(self, test, subtest, error):  # noqa: N802  without it a part that fails is not told of
        super().addSubTest(test, subtest, error)
        if error:
            self.failed(subtest, error)

    def addSkip(self, test, reason):  # noqa: N802
        super().addSkip(test, reason)
        self.line(True, test, f" # SKIP {reason}")


def main(module="__main__"):
    result = Result(sys.stdout)
    unittest.defaultTestLoader.loadTestsFromModule(sys.modules[module]).run(result)
    print(f"1..{result.number}")
    sys.exit(0 if result.wasSuccessful() else 1)
