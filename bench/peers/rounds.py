# SPDX-License-Identifier: MIT
"""What `run` and `tasks` share: a server of their own, a peer's processes, alternating rounds, medians."""
import os
import re
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HERE = os.path.join(ROOT, "bench", "peers")
PATIENCE_S = 90  # beyond what a run is to take


class Failed(Exception):
    pass


def shown(value, digits=0):
    return "-" if value is None else f"{value:,.{digits}f}"


def skip(why):
    print(f"peers: {why}: skipped", file=sys.stderr)
    sys.exit(77)


def listed(text, known, what):
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word not in known:
            print(f"peers: no {what} is called {word}; there are {', '.join(known)}", file=sys.stderr)
            sys.exit(2)
    return words


class Server:
    """A server of script/servers for this run alone; it ends with this process, however that ends."""

    def __init__(self, folder, name):
        self.servers = [os.path.join(ROOT, "script", "servers")]
        self.where = ["--dir", os.path.join(folder, "servers")]
        got = subprocess.run(self.servers + ["start", "--until", str(os.getpid())] + self.where + [name],
                             capture_output=True, text=True, check=False)
        if got.returncode == 77:
            skip(f"{name} is not installed")
        if got.returncode:
            raise Failed(got.stderr.strip())
        env = subprocess.run(self.servers + ["env"] + self.where, capture_output=True, text=True, check=True).stdout
        self.uri = re.search(rf"DIBS_TEST_{name.upper()}='([^']*)'", env).group(1)

    def remove(self):
        subprocess.run(self.servers + ["remove"] + self.where, capture_output=True, check=False)


def line_of(name, child, by):
    """The next line that a peer's process prints."""
    text = child.stdout.readline()
    if not text or time.monotonic() > by:
        raise Failed(f"{name} ended or was too slow: {child.stderr.read()[-600:] if not text else ''}")
    return text


def end(children):
    for child in children:
        if child.poll() is None:
            child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout, child.stderr):
            stream.close()


def alternate(what, rounds, runs):
    """[{name: sample}] of each round.  The order changes, so that all see the same drift."""
    results = []
    names = list(runs)
    for number in range(rounds):
        got = {}
        for name in names[number % len(names):] + names[:number % len(names)]:
            if sys.stderr.isatty():
                print(f"\r\033[K{what}: round {number + 1} of {rounds}, {name}", end="", file=sys.stderr)
            got.update(runs[name]())
        results.append(got)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return results


def median(rounds, name, key):
    values = [one[name][key] for one in rounds if one.get(name, {}).get(key) is not None]
    return statistics.median(values) if values else None


def ratio(rounds, of, by, key, better=max):
    """Median, lowest and highest over the rounds of `of` divided by the better of `by`, each within its round."""
    values = []
    for one in rounds:
        beside = [one[name][key] for name in by if one.get(name, {}).get(key)]
        if beside and one.get(of, {}).get(key) is not None:
            values.append(one[of][key] / better(beside))
    return (statistics.median(values), min(values), max(values)) if values else None


def print_aims(aims, out):
    for what, seen, bound, most in aims:
        if not seen:
            continue
        met = seen[0] <= bound if most else seen[0] >= bound
        print(f"  {what}: {seen[0]:.2f} ({min(seen):.2f} .. {max(seen):.2f}), aim {'<=' if most else '>='} {bound:g}: "
              f"{'yes' if met else 'NO'}", file=out)
