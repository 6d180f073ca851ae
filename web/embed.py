#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the files of the dashboard as C arrays: embed.py OUT FILE..."""
import gzip
import hashlib
import pathlib
import sys

TYPES = {'.html': 'text/html; charset=utf-8', '.css': 'text/css; charset=utf-8',
         '.js': 'text/javascript; charset=utf-8', '.svg': 'image/svg+xml'}


def array(name, data):
    rows = (', '.join(map(str, data[i:i + 24])) for i in range(0, len(data), 24))
    return f'static unsigned char {name}[] = {{\n' + ',\n'.join(rows) + '};\n'


def main():
    out = ['/* SPDX-License-Identifier: MIT */\n/* Made by web/embed.py. */\n#include "serve/web.h"\n\n']
    rows = []
    for nr, path in enumerate(map(pathlib.Path, sys.argv[2:])):
        data = path.read_bytes()
        tag = hashlib.sha256(data).hexdigest()[:16]
        out.append(array(f'bytes_{nr}', data))
        out.append(array(f'gzip_{nr}', gzip.compress(data, 9, mtime=0)))
        rows.append(f'    {{"{path.name}", "{TYPES[path.suffix]}", "\\"{tag}\\"", bytes_{nr}, gzip_{nr}, '
                    f'sizeof bytes_{nr}, sizeof gzip_{nr}}},\n')
    out.append('const struct web_file dibs__web_files[] = {\n' + ''.join(rows) + '};\n')
    out.append('const size_t dibs__web_file_count = sizeof dibs__web_files / sizeof *dibs__web_files;\n')
    pathlib.Path(sys.argv[1]).write_text(''.join(out), encoding='ascii')


main()
