# SPDX-License-Identifier: MIT
"""The program that the Python examples of a page make together runs: page_test.py PAGE

Each line that prints has its output in a comment, and that is what it must print.
"""
import os
import re
import subprocess
import sys
import tempfile

with open(sys.argv[1], encoding="utf-8") as page:
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read(), re.S | re.M)
program = "".join(blocks)
expected = sorted(re.findall(r"\bprint\(.*\)  # (.*)$", program, re.M))  # a callback prints later than its line

with tempfile.TemporaryDirectory(prefix="dibs-page.") as folder:
    source = os.path.join(folder, "page.py")
    with open(source, "w", encoding="utf-8") as file:
        file.write(program)
    # As a reader runs it, whose library is installed.
    environment = os.environ | {"DIBS_STORE": f"sqlite://{folder}/dibs.db", "LD_LIBRARY_PATH": os.path.dirname(os.environ["DIBS_LIBRARY"])}
    ran = subprocess.run([sys.executable, source], cwd=folder, env=environment, capture_output=True, text=True, timeout=50)

printed = sorted(ran.stdout.splitlines())
wrong = ran.returncode != 0 or printed != expected or len(blocks) < 3 or len(expected) < 3
print("1..1")
print(f"{'not ok' if wrong else 'ok'} 1 - the examples of {os.path.basename(sys.argv[1])} run and print what the page says")
if wrong:
    for line in [f"{len(blocks)} blocks, exit {ran.returncode}"] + ran.stderr.splitlines() + ["printed: " + p for p in printed] + ["wanted:  " + e for e in expected]:
        print("#   " + line)
