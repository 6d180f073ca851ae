#!/bin/bash
# SPDX-License-Identifier: MIT
# Options may appear anywhere before --, in either form; durations have units; a message names the mistake and the
# correct form.
. "$(dirname "$0")/tap.sh"

for words in '--ttl 5s --wait 1s run name' 'run --ttl 5s --wait 1s name' 'run name --ttl 5s --wait 1s' \
  'run name --ttl=5s --wait=1s' '--ttl=5s run --wait 1s name' 'run --wait=1s name --ttl 5s' 'run --ttl 9s name --ttl 5s --wait 1s'; do
  # shellcheck disable=SC2086  # words are meant
  is "dibs $words --" "$("$DIBS" $words -- sh -c 'echo "$DIBS_NAME $DIBS_TTL $*"' x --ttl 9s)" 'name 5000ms --ttl 9s'
done
is 'after -- everything is the command' "$("$DIBS" run name -- echo --json --help --)" '--json --help --'
is 'a name that begins with a dash follows --' "$("$DIBS" lock --ttl 1s -- -x | grep NAME=)" "DIBS_NAME='-x'"
for pair in 250ms:250ms 2s:2000ms 3m:180000ms 1h:3600000ms; do
  is "a ttl of ${pair%:*}" "$("$DIBS" run name --ttl "${pair%:*}" -- sh -c 'echo $DIBS_TTL')" "${pair#*:}"
done
is '--store wins over DIBS_STORE' "$(DIBS_STORE=bogus: "$DIBS" run name --store "$DIBS_STORE" -- echo yes)" yes
is 'an empty DIBS_STORE is none' "$(DIBS_STORE='' XDG_STATE_HOME=$dir/state HOME=$dir "$DIBS" version | head -c 4)" dibs
is '--owner' "$("$DIBS" run name --owner 'Ann Other' -- "$DIBS" ls name | grep -c 'Ann Other')" 1

wrong() { # wrong WORDS PATTERN
  # shellcheck disable=SC2086  # words are meant
  exits 125 "dibs $1" "$DIBS" $1
  like "dibs $1 says" "$err" "$2"
}
wrong 'run x --ttl 30 -- true' "'30' has no unit; write 30s for seconds"
wrong 'run x --ttl 3x -- true' "has an unknown unit; write 500ms"
wrong 'run x --ttl soon -- true' "'soon' is not a duration"
wrong 'run x --ttl 99999999999999999999s -- true' 'too long'
wrong 'run x --ttl 9223372036854775807h -- true' 'too long'
wrong 'run x --ttl 25h -- true' 'not between 100ms and'
wrong 'run x --ttl 50ms -- true' 'not between 100ms and'
wrong 'run x --ttl -1s -- true' "'-1s' is not a duration"
wrong 'run x --ttll 3s -- true' 'did you mean --ttl\?'
wrong 'run x --owned y -- true' 'did you mean --owner\?'
wrong 'run x --quite -- true' 'did you mean --quiet\?'
wrong 'rnu x -- true' "did you mean 'run'\?"
wrong 'unlokc x' "did you mean 'unlock'\?"
wrong 'run x --try=yes -- true' '--try takes no value'
wrong 'run x --slots many -- true' 'not a number from 1 to 65535'
wrong 'run x --slots 65536 -- true' 'not a number from 1 to 65535'
wrong 'show x --ttl 3s' 'dibs show does not take --ttl; see dibs help show'
wrong 'run x true' 'put -- before the command: dibs run NAME -- true'
wrong 'worker mail' "unexpected argument 'mail': a kind follows --kind"
wrong 'run x' 'the command to run is missing'
wrong 'run -- true' 'an argument is missing: dibs run NAME'
wrong 'run x --grace 2s --ttl 3s -- true' 'is too long for a ttl of 3s: a grace is at most a third of the ttl, 1s; give a longer --ttl'
wrong 'unlock x --lease abc' 'ps shows arguments to every user'
wrong 'unlock name 0123456789abcdef0123456789abcdef' 'ps shows arguments to every user'
exits 0 'a grace of a third of the ttl' "$DIBS" run x --grace 1s --ttl 3s -- true
exits 125 'standard input without a lease' sh -c 'echo nonsense | "$DIBS" unlock -'
exits 125 'standard input that is too long' sh -c 'yes | head -c 100000 | "$DIBS" unlock -'

# dibs opens closed standard streams, so that no file of the store gets their numbers.
exits 0 'without standard input' sh -c '"$DIBS" run x -- true <&-'
exits 0 'without standard output' sh -c '"$DIBS" run x -- true >&-'
exits 0 'without standard error' sh -c '"$DIBS" run x -- true 2>&-'
exits 0 'without any' sh -c '"$DIBS" run x -- true <&- >&- 2>&-'
exits 0 'the store is intact after that' "$DIBS" doctor

# A table fits the terminal, and is complete without a terminal.
long=$(printf 'long/%0200d' 0)
wide='日本語日本語日本語日本語日本語日本語日本語日本語日本語日本語日本語日本語日本語日本語日本語'
"$DIBS" lock "$long" --ttl 1h >/dev/null
"$DIBS" lock "$wide" --ttl 1h --owner $'bell\a and \e[31mred' >/dev/null 2>"$dir/err" ||
  "$DIBS" lock "$wide" --ttl 1h >/dev/null
like 'into a pipe nothing is cut' "$("$DIBS" ls)" "$long"
is 'no control character of an owner reaches the terminal' "$("$DIBS" ls | tr -d '\n' | grep -c '[[:cntrl:]]')" 0
if command -v script >/dev/null; then
  script -qec "stty cols 60; '$DIBS' ls" /dev/null </dev/null 2>/dev/null | tr -d '\r' >"$dir/table"
  like 'on a terminal names are cut with an ellipsis' "$(cat "$dir/table")" '^long/0*…'
  ok "no line is wider than the terminal ($(wc -L <"$dir/table"))" [ "$(wc -L <"$dir/table")" -le 60 ]
  for width in 80 60 40; do
    script -qec "stty cols $width; '$DIBS' ls" /dev/null </dev/null 2>/dev/null | tr -d '\r' >"$dir/table"
    like "at $width columns the fence is complete" "$(cat "$dir/table")" " $("$DIBS" ls --json "$long" | sed 's/.*"fence":\([0-9]*\).*/\1/')"
    is "at $width columns no line is wider" "$(awk -v most="$width" '{ gsub(/…/, "."); if (length($0) > most) n++ } END { print n + 0 }' \
      <(grep -v 日 "$dir/table"))" 0
  done
fi

# dibs accepts the durations that it prints.
for span in 450ms 29.1s 2m05s 1h05m 1d00h 7d; do
  exits 0 "a duration as dibs prints it: $span" "$DIBS" run spans --wait "$span" -- true
done
done_testing
