#!/bin/bash
# SPDX-License-Identifier: MIT
# dibs stock: set, take, give, show.
. "$(dirname "$0")/tap.sh"
word() { printf '%s\n' "$out" | sed -n "s/^$1 //p"; }

exits 0 'set creates the stock' "$DIBS" stock set seats 5
is 'set prints nothing' "$out$err" ''
exits 0 'show' "$DIBS" stock show seats
is 'show: used and limit' "$out" "$(printf 'used 0\nlimit 5')"
exits 0 'take' "$DIBS" stock take seats
like 'take: the claim' "$(word claim)" '^[0-9a-f-]{32,36}$'
claim=$(word claim)
is 'take: one unit by default' "$(word got) $(word used) $(word limit)" '1 1 5'
exits 0 'take of several, under a given claim' "$DIBS" stock take seats 3 --claim order-1
is 'take of several: the result' "$(word claim) $(word got) $(word used)" 'order-1 3 4'
exits 0 'the same claim again' "$DIBS" stock take seats 3 --claim order-1
is 'finds what it took' "$(word claim) $(word got)" 'order-1 3'
exits 120 'not enough units are left: 120' "$DIBS" stock take seats 2
like 'and the message' "$err" '^dibs: .*seats.*4 of 5'
exits 0 '--partial takes what is left' "$DIBS" stock take seats 2 --partial --claim rest
is '--partial: so much' "$(word got) $(word used)" '1 5'
exits 120 'nothing is left for --partial either' "$DIBS" stock take seats 2 --partial
exits 0 'give' "$DIBS" stock give seats order-1
is 'give: the amount' "$(word got) $(word used)" '3 2'
exits 0 'give again' "$DIBS" stock give seats order-1
is 'give again counts once' "$("$DIBS" stock show seats | sed -n 's/^used //p')" 2
exits 0 'a generated claim can be given back' "$DIBS" stock give seats "$claim"
exits 115 'a claim that was given back takes nothing' "$DIBS" stock take seats --claim order-1
exits 117 'no such claim: 117' "$DIBS" stock give seats never
exits 115 'the give is remembered: the late take is refused' "$DIBS" stock take seats --claim never
for verb in show take; do exits 117 "no such stock: 117, $verb" "$DIBS" stock $verb nowhere; done
exits 120 'a limit below the used amount' "$DIBS" stock set seats 0
exits 0 'a larger limit' "$DIBS" stock set seats 9
is 'is the limit' "$("$DIBS" stock show seats | sed -n 's/^limit //p')" 9

# ---- As JSON ----
for words in 'set j 5' 'take j 2 --claim c' 'take j 2 --claim c' 'show j' 'give j c'; do
  # shellcheck disable=SC2086  # words are meant
  exits 0 "$words --json" "$DIBS" stock $words --json
  ok "$words --json is JSON" "$JSON_CHECK" <"$dir/out"
done
like 'give --json' "$out" '"key":"j","status":"OK","claim":"c","got":2,"used":0,"limit":5'
like 'a repeated take is reported' "$("$DIBS" stock take seats --claim rest --json)" '"status":"REPLAY","claim":"rest","got":1'
"$DIBS" stock take j 99 --json 2>"$dir/err"
like 'FULL --json' "$(cat "$dir/err")" '"exit":120,"status":"FULL"'

# ---- Every strategy ----
for strategy in coalesced atomic pessimistic optimistic named fenced; do
  "$DIBS" stock set "s-$strategy" 3
  pids=()
  for i in 1 2 3 4 5 6; do
    "$DIBS" stock take "s-$strategy" --strategy "$strategy" --claim "$strategy-$i" --wait 20s >/dev/null 2>&1 &
    pids+=($!)
  done
  taken=0 full=0
  for pid in "${pids[@]}"; do
    wait "$pid"
    case $? in 0) taken=$((taken + 1)) ;; 120) full=$((full + 1)) ;; esac
  done
  is "$strategy: six want three" "$taken $full" '3 3'
  is "$strategy: three are used" "$("$DIBS" stock show "s-$strategy" | sed -n 's/^used //p')" 3
done
exits 125 'only the lab has unguarded writes' "$DIBS" stock take seats --strategy unguarded

# ---- Wrong words ----
for words in 'set seats' 'set seats x' 'set seats -1' 'take seats 0' 'take seats 1x' 'give seats' 'show seats 1' \
  'steal seats' 'take seats --strategy best' 'show seats --claim x' 'set seats 1 --partial' 'show seats --strategy atomic' \
  'take' 'take seats 1 2'; do
  # shellcheck disable=SC2086  # words are meant
  exits 125 "125: $words" "$DIBS" stock $words
  like "125: $words: the message" "$err" '^dibs: .{12}'
done
exits 125 'an empty key' "$DIBS" stock show ''
done_testing
