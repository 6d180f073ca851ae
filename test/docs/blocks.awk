# SPDX-License-Identifier: MIT
# Writes each shell example of a page into a file of its own:  awk -v to=FOLDER -f blocks.awk PAGE...
# Prints a line for each: FILE PAGE:LINE FIRST LINE.  In Markdown, these are the fenced blocks of sh, and of commands
# with their output ($ before a command): the latter become FILE and FILE.seen.  Blocks of other languages are skipped.
function begin(line) {
  n++
  file = sprintf("%s/%03d", to, n)
  where = FILENAME ":" line
  first = ""
}
function finish() {
  if (!first) return
  close(file)
  close(file ".seen")
  print file "\t" where "\t" first
}
FNR == 1 { inside = 0 }
/^ *```/ {
  if (inside) finish()
  else begin(FNR)
  inside = !inside
  match($0, /^ */)
  indent = RLENGTH
  language = substr($0, indent + 4)
  next
}
!inside || (language != "sh" && language != "") { next }
{
  line = substr($0, indent + 1)
  if (language == "") { # commands and their output
    if (line ~ /^\$ /) {
      line = substr(line, 3)
    } else {
      if (first) print line >(file ".seen")
      next
    }
  }
  if (!first) first = line
  print line >file
}
