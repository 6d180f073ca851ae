# SPDX-License-Identifier: MIT
"""Reads a public header of dibs: sections, comments, and what is declared.

The headers have one form, which clang-format and script/lint-style keep: a section begins with `/* ---- Title ---- */`; a
comment at the left margin describes the declarations that follow it without a blank line, or stands alone.  The
manual page dibs.h(3) and the test of the Python client are made from this.
"""
import re
from dataclasses import dataclass, field

# What only a compiler needs.
HIDDEN_MACROS = re.compile(r"DIBS_(EXPORT|MUST_USE|H|ADMIN_H|POSTGRES_H|MYSQL_H|SQLITE_H|TASK_H|CRON_H|COUNTER_H|LANE_H|TRANSACTION_H|KAFKA_H)$|DIBS__")


@dataclass
class Member:
    """A field of a struct, a constant of an enum, or an argument."""

    name: str
    type: str = ""  # of an enum's constant: its value, "" when it counts on
    array: str = ""  # "[508]"
    note: str = ""  # its comment


@dataclass
class Declaration:
    kind: str  # "function", "callback", "struct", "enum", "macro", "statuses", "opaque"
    name: str  # "" for an enum without a name
    members: list = field(default_factory=list)
    type: str = ""  # what a function or callback returns; what a macro stands for
    note: str = ""  # the comment behind it on its line


@dataclass
class Item:
    """A comment and what it describes; either may be missing."""

    comment: list  # lines, without the stars
    declarations: list


@dataclass
class Section:
    title: str
    items: list


def comment_lines(text):
    """The lines of a comment without /*, */ and the stars before each."""
    text = re.sub(r"^/\*|\*/$", "", text.strip())
    return [re.sub(r"^[ \t]*\* ?", "", line).rstrip() for line in text.strip("\n").split("\n")]


def one_line(text):
    """A comment as one line of text; two blanks still end a sentence."""
    return " ".join(line.strip() for line in comment_lines(text)).strip()


COMMENT = re.compile(r"/\*.*?\*/", re.S)


def split_statements(code):
    """A run of lines of code as statements, each with the comment behind its end."""
    position, depth, start, statements = 0, 0, 0, []
    while position < len(code):
        comment = COMMENT.match(code, position)
        if comment:
            position = comment.end()
        elif code[position] == "#" and not code[start:position].strip():
            line = re.compile(r"(?:\\\n|/\*.*?\*/|[^\n])*", re.S).match(code, position)
            statements.append((line.group(), ""))
            position = start = line.end()
        else:
            depth += {"{": 1, "}": -1}.get(code[position], 0)
            position += 1
            if depth == 0 and code[position - 1] == ";":
                note = re.compile(r"[ \t]*(/\*.*?\*/)", re.S).match(code, position)
                statements.append((code[start : position], one_line(note.group(1)) if note else ""))
                position = start = note.end() if note else position
    assert not code[start:].strip(), "no end: " + code[start:]
    return statements


def members_of(body, separator):
    """(text, note) for each member between braces.  A comment on a line of its own is about the next member."""
    members, text, before, position = [], "", "", 0
    while position < len(body):
        comment = COMMENT.match(body, position)
        if comment:
            alone = not body[: position].rsplit("\n", 1)[-1].strip()
            if alone and not text.strip():
                before = one_line(comment.group())
            elif text.strip():  # the last one has no separator
                members.append([text, before or one_line(comment.group())])
                text, before = "", ""
            else:
                members[-1][1] = " ".join(filter(None, [members[-1][1], one_line(comment.group())]))
            position = comment.end()
        elif body[position] == separator:
            members.append([text, before])
            text, before = "", ""
            position += 1
        else:
            text += body[position]
            position += 1
    if text.strip():
        members.append([text, before])
    return [(" ".join(text.split()), note) for text, note in members if text.strip()]


def declarators(text, note=""):
    """`const char *used, *limit` as one Member each."""
    first, *more = text.split(",")
    base = re.match(r"(.*?)(\**)\s*(\w+)\s*((?:\[.*\])?)$", first.strip())
    result = [Member(base[3], (base[1].strip() + " " + base[2]).strip(), base[4], note)]
    for other in more:
        part = re.match(r"\s*(\**)\s*(\w+)\s*((?:\[.*\])?)$", other)
        result.append(Member(part[2], (base[1].strip() + " " + part[1]).strip(), part[3], note))
    return result


def arguments(text):
    text = " ".join(text.split())
    return [] if text == "void" else [declarators(argument)[0] for argument in text.split(",")]


def macro(text):
    note = " ".join(one_line(found) for found in COMMENT.findall(text))
    text = COMMENT.sub("", text).replace("\\\n", " ")
    found = re.match(r"#define (\w+)(\(\w+\))?\s*(.*?)\s*$", text, re.S)
    if found is None or HIDDEN_MACROS.match(found[1]):
        return None
    if found[1] == "DIBS_STATUSES":
        entries = re.findall(r'X\((\w+), (\d+), "(.*?)"\)', found[3])
        return Declaration("statuses", found[1], [Member("DIBS_" + n, number, "", text) for n, number, text in entries])
    return Declaration("macro", found[1], [], " ".join(found[3].split()), note)


def declaration(text, note):
    """One statement of a header; None for what only a compiler needs."""
    if text.lstrip().startswith("#"):
        return macro(text.strip())
    bare = " ".join(COMMENT.sub("", text).split())
    bare = re.sub(r"DIBS_(EXPORT|MUST_USE) ", "", bare)
    if bare.startswith("extern") or bare == "}":
        return None
    brace = re.match(r"(?:typedef )?(struct|enum)\s*\w*\s*\{(.*)\}\s*(\w*)\s*;$", text.strip(), re.S)
    if brace and brace[1] == "struct":
        fields = [member for part, about in members_of(brace[2], ";") for member in declarators(part, about)]
        return Declaration("struct", brace[3], fields, "", note)
    if brace and "#" in brace[2]:
        return None  # the enum of the statuses, which DIBS_STATUSES lists
    if brace:
        constants = [(part.partition("="), about) for part, about in members_of(brace[2], ",")]
        return Declaration("enum", brace[3], [Member(p[0].strip(), p[2].strip(), "", a) for p, a in constants], "", note)
    callback = re.match(r"typedef (.*?)\s*\(\*(\w+)\)\((.*)\);$", bare)
    if callback:
        return Declaration("callback", callback[2], arguments(callback[3]), callback[1], note)
    opaque = re.match(r"(?:typedef )?struct (\w+)(?: (\w+))?;$", bare)
    if opaque:
        return Declaration("opaque", opaque[2] or opaque[1], [], bare, note)
    function = re.match(r"(.*?)(dibs_\w+)\((.*)\);$", bare)
    assert function, "not understood: " + text
    return Declaration("function", function[2], arguments(function[3]), function[1].strip(), note)


def drop_conditions(text):
    """Without what the preprocessor decides: guards, C++, visibility."""
    text = re.sub(r"#ifdef __cplusplus.*?#endif\n", "", text, flags=re.S)
    text = re.sub(r"#if defined\(__GNUC__\).*?#endif\n", "", text, flags=re.S)
    return re.sub(r"^#(ifndef|endif|include|undef).*\n", "", text, flags=re.M)


def read_header(path):
    """The sections of a header; the first has no title."""
    with open(path, encoding="utf-8") as file:
        text = drop_conditions(file.read())
    text = re.sub(r"^/\* SPDX.*\n", "", text)
    sections = [Section("", [])]
    position = 0
    pending = None  # a comment whose declarations may follow
    while position < len(text):
        if text[position] == "\n":
            position += 1
            pending = None
            continue
        comment = COMMENT.match(text, position)
        title = comment and re.match(r"/\* -{4} (.*?) -{4,}\s*\*/", comment.group(), re.S)
        if title:
            sections.append(Section(title[1], []))
        elif comment:
            pending = Item(comment_lines(comment.group()), [])
            sections[-1].items.append(pending)
        if comment:
            position = comment.end() + 1
            continue
        end = code_end(text, position)
        found = [declaration(*statement) for statement in split_statements(text[position:end])]
        found = [one for one in found if one]
        if found and pending is None:
            sections[-1].items.append(Item([], found))
        elif found:
            pending.declarations += found
        pending = None
        position = end
    return [section for section in sections if section.items]


def code_end(text, position):
    """Where the code that begins here ends: at a blank line or a comment at the margin, outside of braces."""
    depth = 0
    while position < len(text):
        comment = COMMENT.match(text, position)
        if comment:
            position = comment.end()
            continue
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        position += 1
        if text[position - 1] == "\n" and depth == 0 and (text[position : position + 1] in ("\n", "") or text.startswith("/*", position)):
            break
    return position


def declarations(sections):
    """All declarations of some sections, in order."""
    return [one for section in sections for item in section.items for one in item.declarations]
