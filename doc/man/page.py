# SPDX-License-Identifier: MIT
"""Makes the manual page dibs.h(3) of the public headers: page.py TEMPLATE PAGE HEADER...

The page contains every declaration and every comment, whole: prototypes under SYNOPSIS, everything under DESCRIPTION.  A
line @PROTOTYPES@ and a line @DESCRIPTION@ of the template say where.
"""
import os
import re
import sys
import textwrap

import header

# The headers have two blanks after a sentence that does not end its line.
SENTENCE_END = re.compile(r"(?<=[.!?])  +|(?<=[.!?][)\"'])  +|(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.) (?=[A-Z])")


def escaped(text):
    """Text as roff prints it unchanged."""
    text = text.replace("\\", "\\e")
    text = re.sub(r"(?<![\w-])-(?=[\w-])", r"\\-", text)  # a minus or an option; a dash within a word stays a hyphen
    return re.sub(r'"(\S) "', r'"\1\\~"', text)  # "a " stays on one line


def filled(text, names):
    """Lines of filled text: each sentence begins one; names that this page describes are bold, `code` too."""
    lines = []
    for sentence in SENTENCE_END.split(text):
        sentence = re.sub(r"`([^`]*)`", r"\\fB\1\\fP", escaped(sentence))
        sentence = re.sub(r"\b(?!dibs_)(\w+)\(\)", r"\\fB\1\\fP()", sentence)
        sentence = re.sub(r"(?<!B)\b(dibs_\w+)", lambda m: "\\fB" + m[1] + "\\fP" if m[1] in names else m[1], sentence)
        lines += textwrap.wrap(sentence, 79, break_long_words=False, break_on_hyphens=False)
    return ["\\&" + line if line[0] in ".'" else line for line in lines]


def paragraphs(comment, names):
    """The mdoc lines of a comment: paragraphs, and lists of what begins with a dash."""
    out, blocks = [], []
    for line in comment + [""]:
        if line.startswith("- "):
            blocks.append(["-", line[2:]])
        elif not line.strip():
            blocks.append(["", ""])
        elif blocks and blocks[-1][1]:
            blocks[-1][1] += " " + line.strip()
        else:
            blocks.append(["", line.strip()])
    listing = False
    for kind, text in blocks:
        if not text:
            continue
        if (kind == "-") != listing:
            out.append(".El" if listing else ".Bl -dash -compact")
            listing = not listing
        elif kind == "" and out:
            out.append(".Pp")
        if kind == "-":
            out.append(".It")
        out += filled(text, names)
    return out + ([".El"] if listing else [])


def quoted(text):
    return '"' + text + '"' if " " in text or not text else text


def typed(member):
    """`const char *name`, `char id[33]`."""
    space = "" if member.type.endswith("*") else " "
    return member.type + space + member.name + member.array


def prototype(one):
    """For SYNOPSIS."""
    result = [".Ft " + ("typedef " if one.kind == "callback" else "") + one.type]
    if one.kind == "callback":
        return result + [".Fo (*" + one.name + ")"] + [".Fa " + quoted(typed(m)) for m in one.members] + [".Fc"]
    arguments = [typed(member) for member in one.members] or ["void"]
    return result + [".Fn " + one.name + " " + " ".join(quoted(argument) for argument in arguments)]


def head(one):
    """For DESCRIPTION: the types are those of SYNOPSIS."""
    name = "(*" + one.name + ")" if one.kind == "callback" else one.name
    return ".It Fn " + " ".join([name] + [member.name for member in one.members or [header.Member("void")]])


def aligned(members):
    """Fields as C has them, names below each other."""
    width = max(len(m.type.rstrip("*").rstrip()) for m in members)
    lines = []
    for m in members:
        base, stars = re.match(r"(.*?)\s*(\**)$", m.type).groups()
        lines.append("  " + base.ljust(width) + " " + stars + m.name + m.array + ";")
    return lines


def literal(one):
    """A declaration as C has it, without comments."""
    if one.kind == "struct":
        return ["typedef struct " + one.name + " {"] + aligned(one.members) + ["} " + one.name + ";"]
    if one.kind == "enum":
        lines = ["  " + m.name + (" = " + m.type if m.type else "") + "," for m in one.members]
        lines[-1] = lines[-1].rstrip(",")
        return [("typedef enum " + one.name if one.name else "enum") + " {"] + lines + ["}" + (" " + one.name if one.name else "") + ";"]
    if one.kind == "macro":
        begin = re.match(r"DIBS__INIT\((\w+)\)$", one.type)
        return ["#define " + one.name + " " + ("{ .size = sizeof(" + begin[1] + ") }" if begin else one.type)]
    return [one.type]  # opaque


def notes(one):
    """The comments of a declaration's members, as (names, text); members with one comment together."""
    result = []
    for member in one.members:
        if result and result[-1][1] == member.note and member.note:
            result[-1][0].append(member.name)
        elif member.note:
            result.append(([member.name], member.note))
    if one.note:
        result.append(([one.name], one.note))
    return result


def describe_types(types, names):
    """Declarations other than functions: as code, then what their comments say."""
    out = [".Bd -literal -offset indent"]
    for before, one in zip([None] + types, types):
        if before and (one.kind in ("struct", "enum") or before.kind in ("struct", "enum")):
            out.append("")
        out += [line.replace("\\", "\\e") for line in literal(one)]
    out.append(".Ed")
    found = [note for one in types for note in notes(one)]
    if found:
        out += [".Pp", ".Bl -tag -width Ds -offset indent -compact"]
        for members, text in found:
            out += [".It Va " + " , ".join(members)] + filled(text, names)
        out.append(".El")
    return out


def describe_statuses(one, names):
    out = [".Pp", ".Vt enum dibs_status , No also by Fn DIBS_STATUSES X :"]
    out += [".Bl -tag -width DIBS_UNAVAILABLE -offset indent -compact"]
    for member in one.members:
        out += [".It Dv " + member.name + " No " + member.type] + filled(member.note, names)
    return out + [".El"]


def describe_functions(functions, comment, names):
    out = []
    for one in functions:
        out.append(head(one))
        if one.note:
            out += filled(one.note[0].upper() + one.note[1:] + ("" if one.note.endswith(".") else "."), names)
    return out + paragraphs(comment, names)


def describe(section, names):
    """The mdoc lines of one section."""
    out, listing = [], False
    for item in section.items:
        functions = [one for one in item.declarations if one.kind in ("function", "callback")]
        types = [one for one in item.declarations if one not in functions]
        if functions:
            if types:
                out += [".El"] * listing + describe_types(types, names)
                listing = False
            if not listing:
                out.append(".Bl -tag -width Ds")
                listing = True
            out += describe_functions(functions, item.comment, names)
            continue
        out += [".El"] * listing
        listing = False
        if item.comment:
            out += [".Pp"] + paragraphs(item.comment, names)
        if types and types[0].kind == "statuses":
            out += describe_statuses(types[0], names)
        elif types:
            out += describe_types(types, names)
    out += [".El"] * listing
    return out[1:] if out[:1] == [".Pp"] else out


def main(template, page, *paths):
    headers = [("dibs" + path.partition("/include/dibs")[2], header.read_header(path)) for path in map(os.path.abspath, paths)]
    names = {one.name for _, sections in headers for one in header.declarations(sections)}
    prototypes, description = [], []
    for include, sections in headers:
        for section in sections:
            title = section.title or "In " + include
            found = [one for item in section.items for one in item.declarations if one.kind in ("function", "callback")]
            if found:
                prototypes += [".Ss " + title] + [line for one in found for line in prototype(one)]
            description += [".Ss " + title] + describe(section, names)
    inserted = {"@INCLUDES@": [".In " + include for include, _ in headers], "@PROTOTYPES@": prototypes, "@DESCRIPTION@": description}
    with open(template, encoding="utf-8") as source, open(page, "w", encoding="utf-8") as out:
        for line in source:
            out.writelines(text + "\n" for text in inserted.get(line.strip(), [line.rstrip("\n")]))


main(*sys.argv[1:])
