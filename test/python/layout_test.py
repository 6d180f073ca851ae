# SPDX-License-Identifier: MIT
"""dibs_h.py agrees with the headers: layout_test.py ROOT [HEADER...]

The compiler says where each field is, how large each struct is and what each constant means; a parser of the headers says
which there are, and of what types.  A field that only one side has is an error, in either direction.
"""
import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile

root = sys.argv[1]
sys.path.insert(0, os.path.join(root, "doc", "man"))
import header  # noqa: E402
import dibs_h  # noqa: E402

paths = sys.argv[2:] or [os.path.join(root, "include", *name) for name in (["dibs.h"], ["dibs", "admin.h"], ["dibs", "task.h"], ["dibs", "cron.h"], ["dibs", "counter.h"], ["dibs", "lane.h"], ["dibs", "transaction.h"], ["dibs", "kafka.h"])]
declared = [one for path in paths for one in header.declarations(header.read_header(path))]
count = 0


def report(name, wrong):
    global count
    count += 1
    print(("not ok" if wrong else "ok") + f" {count} - {name}")
    for line in wrong[:20]:
        print("#   " + line)


def compare(ours, theirs, what):
    """Of two dictionaries, what differs."""
    wrong = [f"{what} {key}: Python has {ours[key]}, C has {theirs[key]}" for key in ours if key in theirs and ours[key] != theirs[key]]
    wrong += [f"{what} {key}: only Python has it" for key in ours if key not in theirs]
    return wrong + [f"{what} {key}: Python lacks it" for key in theirs if key not in ours]


# ---- What C says ----

structs = {one.name: [member.name for member in one.members] for one in declared if one.kind == "struct"}
constants = [member.name for one in declared if one.kind in ("enum", "statuses") for member in one.members]
constants += [one.name for one in declared if one.kind == "macro" and not one.name.endswith("_INIT")]
program = ["#include <stdio.h>", "#include <stddef.h>"] + [f'#include "{path}"' for path in paths]
program += ["int main(void) {", '  printf("{\\"structs\\": {");']
for i, (name, fields) in enumerate(structs.items()):
    program.append(f'  printf("{", " if i else ""}\\"{name}\\": {{\\"sizeof\\": %zu", sizeof({name}));')
    program += [f'  printf(", \\"{field}\\": [%zu, %zu]", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));' for field in fields]
    program.append('  printf("}");')
program.append('  printf("}, \\"constants\\": {");')
program += [f'  printf("{", " if i else ""}\\"{name}\\": %llu", (unsigned long long){name});' for i, name in enumerate(constants)]
program += ['  printf("}}\\n");', "  return 0;", "}"]
with tempfile.TemporaryDirectory(prefix="dibs-layout.") as folder:
    source, binary = os.path.join(folder, "layout.c"), os.path.join(folder, "layout")
    with open(source, "w", encoding="utf-8") as file:
        file.write("\n".join(program) + "\n")
    compiler = os.environ.get("CC", "cc").split()
    subprocess.run(compiler + ["-std=c17", "-I" + os.path.join(root, "include"), "-o", binary, source], check=True)
    c = json.loads(subprocess.run([binary], check=True, capture_output=True, text=True).stdout)

# ---- What Python says ----

python_structs = {}
for name, kind in vars(dibs_h).items():
    if isinstance(kind, type) and issubclass(kind, ctypes.Structure) and name.startswith("dibs_"):
        fields = {field: [getattr(kind, field).offset, getattr(kind, field).size] for field, *_ in kind._fields_}
        python_structs[name] = {"sizeof": ctypes.sizeof(kind)} | fields
python_constants = {"DIBS_" + one.name: int(one) for one in dibs_h.Status}
python_constants |= {"DIBS_" + name: value for name, value in vars(dibs_h).items() if re.fullmatch("[A-Z_]+", name) and isinstance(value, int)}

# ---- Types ----

basic = {
    "void": None, "int": ctypes.c_int, "char": ctypes.c_char, "size_t": ctypes.c_size_t, "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64, "uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64, "dibs_status": ctypes.c_int}
opaque = {one.name for one in declared if one.kind == "opaque"}
enums = {one.name for one in declared if one.kind == "enum"}


def kind_of(member, argument=True):
    """The ctypes type of a declaration of C.  In an argument an array is a pointer."""
    base = re.sub(r"\bconst\b", "", member.type)
    stars = base.count("*") + (1 if member.array and argument else 0)
    base = base.replace("*", "").strip()
    if stars and base in opaque | {"void"}:
        kind, stars = ctypes.c_void_p, stars - 1
    elif stars and base == "char" and stars == 2 and "const" not in member.type:
        kind, stars = ctypes.c_void_p, 1  # memory of malloc: Python must keep the pointer to free it
    elif stars and base == "char":
        kind, stars = ctypes.c_char_p, stars - 1
    else:
        kind = ctypes.c_int if base in enums else basic[base] if base in basic else getattr(dibs_h, base, base)
    for _ in range(stars):
        kind = ctypes.POINTER(kind)
    if member.array and not argument:
        kind = kind * eval(member.array.strip("[]").replace("DIBS_", "dibs_h."), {"dibs_h": dibs_h})
    return kind


def name_of(kind):
    """LP_dibs_error, dibs_lease_fn; callbacks have no name of their own."""
    own = [name for name, other in vars(dibs_h).items() if other is kind and name.startswith("dibs_")]
    return own[0] if own else getattr(kind, "__name__", str(kind))


field_types = []
for one in declared:
    if one.kind != "struct" or not hasattr(dibs_h, one.name):
        continue
    ours = dict(getattr(dibs_h, one.name)._fields_)
    for member in one.members:
        wanted = kind_of(member, argument=False)
        if (one.name, member.name) == ("dibs_value", "data"):
            wanted = ctypes.c_void_p  # bytes with a length, not a text
        if ours.get(member.name) not in (wanted, None):
            field_types.append(f"{one.name}.{member.name}: Python has {name_of(ours[member.name])}, C has {member.type}")

functions = {one.name: ([kind_of(header.Member("", one.type))] + [kind_of(m) for m in one.members]) for one in declared if one.kind == "function"}
ours = {name: [result] + arguments for name, (result, arguments) in dibs_h.FUNCTIONS.items()}
callbacks = {one.name: ([kind_of(header.Member("", one.type))] + [kind_of(m) for m in one.members]) for one in declared if one.kind == "callback"}
python_callbacks = {
    name: [kind._restype_] + list(kind._argtypes_)
    for name, kind in vars(dibs_h).items() if isinstance(kind, type) and issubclass(kind, ctypes._CFuncPtr)}


def names(signatures):
    return {name: " ".join(map(name_of, kinds)) for name, kinds in signatures.items()}


print("1..7")
enough = {"structs": (structs, 20), "constants": (constants, 80), "functions": (functions, 50), "callbacks": (callbacks, 8)}
report("the headers were understood", [f"{len(found)} {what}" for what, (found, least) in enough.items() if len(found) < least])
report("the structs are those of C", compare({n: "it" for n in python_structs}, {n: "it" for n in c["structs"]}, "struct"))
layouts = []
for name in c["structs"].keys() & python_structs.keys():
    layouts += compare(python_structs[name], c["structs"][name], name)
report("sizes and fields are those of C", layouts)
# KEEP and FOREVER are negative, or as large as size_t is.
unsigned = {name: value % 2**64 for name, value in python_constants.items()}
report("constants are those of C", compare(unsigned, c["constants"], "constant"))
report("types of fields are those of C", field_types)
report("functions have the types of C", compare(names(ours), names(functions), "function"))
report("callbacks have the types of C", compare(names(python_callbacks), names(callbacks), "callback"))
