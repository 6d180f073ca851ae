#!/bin/bash
# SPDX-License-Identifier: MIT
# The targets of relative links and anchors in Markdown pages exist: links_test.sh ROOT
cd "$1" || exit 1
mapfile -t pages < <(printf '%s\n' README.md CONTRIBUTING.md; find doc -name '*.md' | sort)
count=0
report() { # report CODE WHAT [MISSING]
  count=$((count + 1))
  if [ "$1" = 0 ]; then echo "ok $count - $2"; else echo "not ok $count - $2"; sed 's/^/#   /' <<<"$3"; fi
}

# broken PAGE...: prints PAGE:LINE: and the reason for each link whose file or anchor does not exist.
# An anchor is what GitHub makes of a heading: lower case, punctuation removed, a hyphen for each blank, and -1, -2, ...
# for repeated headings.  Code blocks and code spans are not links.
broken() {
  LC_ALL=C awk '
    function anchors_of(file,    line, in_code, text, n) {
      if (file in read) return
      read[file] = 1
      while ((getline line < file) > 0) {
        if (line ~ /^ *```/) in_code = !in_code
        while (match(line, /<a (id|name)="[^"]*"/)) {
          text = substr(line, RSTART, RLENGTH)
          line = substr(line, RSTART + RLENGTH)
          gsub(/^[^"]*"|"$/, "", text)
          has[file "#" text] = 1
        }
        if (in_code || line !~ /^#+ /) continue
        text = tolower(line)
        sub(/^#+ +/, "", text)
        sub(/ +#* *$/, "", text)
        while (match(text, /\[[^]]*\]\([^)]*\)/)) { # a link in a heading counts with its text
          n = substr(text, RSTART + 1, RLENGTH - 1)
          sub(/\].*/, "", n)
          text = substr(text, 1, RSTART - 1) n substr(text, RSTART + RLENGTH)
        }
        gsub(/[^a-z0-9_ \200-\377-]/, "", text)
        gsub(/ /, "-", text)
        n = seen[file "#" text]++
        has[file "#" text (n ? "-" n : "")] = 1
      }
      close(file)
    }
    function folded(path,    part, kept, n, i, out) { # without . and ..
      n = split(path, part, "/")
      out = ""
      kept = 0
      for (i = 1; i <= n; i++) {
        if (part[i] == "" || part[i] == ".") continue
        if (part[i] == ".." && kept > 0) { kept--; continue }
        name[++kept] = part[i]
      }
      for (i = 1; i <= kept; i++) out = out (i > 1 ? "/" : "") name[i]
      return out
    }
    FNR == 1 { in_code = 0; folder = FILENAME; if (!sub(/\/[^\/]*$/, "", folder)) folder = "." }
    /^ *```/ { in_code = !in_code; next }
    in_code { next }
    {
      gsub(/`[^`]*`/, "")
      rest = $0
      while (match(rest, /\]\([^() ]+( "[^"]*")?\)/) || match(rest, /^ *\[[^]]+\]: +[^ ]+/)) {
        target = substr(rest, RSTART, RLENGTH)
        rest = substr(rest, RSTART + RLENGTH)
        if (target ~ /^\]/) { target = substr(target, 3, length(target) - 3); sub(/ ".*/, "", target) }
        else sub(/^.*: +/, "", target)
        if (target ~ /^[a-z][a-z0-9+.-]*:/) continue # another site
        anchor = target
        if (!sub(/^[^#]*#/, "", anchor)) anchor = ""
        sub(/#.*/, "", target)
        file = target == "" ? FILENAME : folded(folder "/" target)
        where = FILENAME ":" FNR ": "
        if (system("test -e \"" file "\"") != 0) { print where "no such file: " target; continue }
        if (anchor == "" || file !~ /\.md$/) continue
        anchors_of(file)
        if (!((file "#" anchor) in has)) print where "no such heading: " target "#" anchor
      }
    }' "$@" || echo "awk failed"
}

missing=$(broken "${pages[@]}")
report "$([ -z "$missing" ]; echo $?)" 'the targets of relative links and anchors exist' "$missing"

# The check can fail, and it derives anchors as GitHub does.
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
cat >"$folder/page.md" <<'END'
# The `first.c` part: fences, & seals
[fine](#the-firstc-part-fences--seals), [fine](other.md#twice-1), [fine](https://example.org/none)
`[not](a-link.md)`
[no file](none.md), [no heading](other.md#thrice), [no heading here](#part)
END
printf '# Twice\n\n```\n# Thrice\n```\n\n# Twice\n' >"$folder/other.md"
found=$(cd "$folder" && broken page.md)
expected='page.md:4: no such file: none.md
page.md:4: no such heading: other.md#thrice
page.md:4: no such heading: #part'
report "$([ "$found" = "$expected" ]; echo $?)" 'a broken file, anchor and anchor of the same page are found, and nothing else' "$found"
echo "1..$count"
