# SPDX-License-Identifier: MIT
"""dibs.h(3), as a reader sees it, has every comment and every declaration of the public headers: page_test.py PAGE HEADER...

Comments and declarations are found here by other means than the page was made with.
"""
import re
import shutil
import subprocess
import sys

page, *headers = sys.argv[1:]
count = 0


def report(name, wrong):
    global count
    count += 1
    print(("not ok" if wrong else "ok") + f" {count} - {name}")
    for line in wrong[:20]:
        print("#   " + " ".join(line.split()))


def words(text):
    """Text with what only layout changes made equal."""
    text = re.sub(r"[\u2010-\u2015]", "-", text)
    return " ".join(re.sub(r"[`*\u201c\u201d]", "", text).split())


def missing(texts, shown):
    return [text for text in texts if words(text) not in shown]


if shutil.which("mandoc") is None:
    print("1..0 # SKIP there is no mandoc")
    sys.exit(0)
shown = subprocess.run(["mandoc", "-T", "utf8", "-O", "width=1000", page], check=True, capture_output=True, text=True).stdout
shown = re.sub(r".\x08", "", shown)
synopsis, description = shown.split("\nDESCRIPTION\n")
shown, synopsis = words(shown), words(synopsis)

comments, prototypes, members = [], [], []
for path in headers:
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for comment in re.findall(r"/\*(.*?)\*/", text, re.S):
        if "SPDX" not in comment:
            # The stars at the margin, the dashes of a title, and those of a list.
            plain = re.sub(r"^[ \t]*\*", "", comment, flags=re.M)
            parts = re.split(r"^ - ", re.sub(r"-{4,}", "", plain), flags=re.M)
            comments += [part for part in parts if part.strip()]
    code = re.sub(r"/\*.*?\*/|^#.*?[^\\]\n", "", text, flags=re.S | re.M)
    prototypes += re.findall(r"\bdibs_\w+\([^()]*\);", code)
    prototypes += [f"(*{name}){rest}" for name, rest in re.findall(r"\(\*(dibs_\w+)\)(\([^()]*\);)", code)]
    for body in re.findall(r"\bstruct \w+ \{(.*?)\}", code, re.S):
        for field in re.findall(r"[^;]+;", body):
            first, *more = field.rstrip(";").split(",")  # of `a *b, *c` the page has two
            members += [first + ";"] + [name + ";" for name in more]
    for body in re.findall(r"\benum \w*\s*\{(.*?)\}", code, re.S):
        members += re.findall(r"\bDIBS_(?!_)\w+(?: = [^,}\n]*[^,}\s])?", body)
    statuses = re.findall(r'^ *X\((\w+), (\d+), "(.*?)"\)', text, re.M)
    members += [f"DIBS_{name} {number}" for name, number, _ in statuses]
    comments += [meaning for _, _, meaning in statuses]
    members += [f"#define {name}" for name in re.findall(r"^#define (DIBS_(?!_)(?!H\b|\w+_H\b|EXPORT|MUST_USE|STATUSES)\w+)", text, re.M)]

print("1..6")
few = {"comments": (comments, 150), "prototypes": (prototypes, 60), "members": (members, 200)}
report("the headers were understood", [f"{len(found)} {what}" for what, (found, least) in few.items() if len(found) < least])
report("every comment is there, whole", missing(comments, shown))
report("every prototype is in the synopsis", missing(prototypes, synopsis))
report("every field, constant and macro is there", [one for one in members if words(one) not in shown])
lint = subprocess.run(["mandoc", "-T", "lint", "-W", "style", page], capture_output=True, text=True).stdout
report("it is well formed", [line for line in lint.splitlines() if "referenced manual not found" not in line])
report("a text that is not there is missed", [] if missing(["no such sentence is anywhere"], shown) else ["it was not"])
