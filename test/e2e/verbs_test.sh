#!/bin/bash
# SPDX-License-Identifier: MIT
# Every verb, for people and as JSON.
. "$(dirname "$0")/tap.sh"
json() { # json WHAT COMMAND...: its output is JSON.
  local what=$1
  shift
  "$@" >"$dir/json" 2>"$dir/err"
  out=$(cat "$dir/json")
  ok "$what --json is JSON" "$JSON_CHECK" --lines <"$dir/json"
}

# ---- version, help ----
like 'version' "$("$DIBS" version)" '^dibs [0-9]+\.[0-9]+\.[0-9]+$'
json 'version' "$DIBS" version --json
is '--version' "$("$DIBS" --version)" "$("$DIBS" version)"
like 'help lists the commands' "$("$DIBS" help)" '^  run '
json 'help' "$DIBS" help --json
for command in run lock unlock renew ls show break watch record doctor help version; do
  like "help $command shows usage, options, exit codes, an example" "$("$DIBS" help $command | tr '\n' ' ')" \
    "usage: dibs $command.*Options.*--store.*Exit codes:.*125.*Example:"
  is "$command --help is the same" "$("$DIBS" $command --help)" "$("$DIBS" help $command)"
done

# ---- run ----
"$DIBS" run 'a name' -- env >"$dir/env"
like 'run: DIBS_NAME' "$(cat "$dir/env")" '^DIBS_NAME=a name$'
like 'run: DIBS_FENCE' "$(cat "$dir/env")" '^DIBS_FENCE=[1-9][0-9]*$'
like 'run: DIBS_LEASE' "$(cat "$dir/env")" '^DIBS_LEASE=[0-9a-f]{32}$'
like 'run: DIBS_TTL' "$(cat "$dir/env")" '^DIBS_TTL=30000ms$'
like 'run: DIBS_STORE' "$(cat "$dir/env")" "^DIBS_STORE=$DIBS_STORE\$"
is 'run: DIBS_SLOT only with --slots' "$(grep -c '^DIBS_SLOT' "$dir/env")" 0
like 'run --slots: DIBS_SLOT' "$("$DIBS" run slots --slots 3 -- env)" '^DIBS_SLOT=0$'
is 'run: an outer DIBS_SLOT is not passed on' "$(DIBS_SLOT=9 "$DIBS" run x -- sh -c 'echo "${DIBS_SLOT-none}"')" none
like 'run: a relative store is made absolute' \
  "$(mkdir -p "$dir/an other" && cd "$dir/an other" && "$DIBS" run x --store sqlite:rel.db -- sh -c 'cd / && "$DIBS" ls x')" '^x  *holds'
"$DIBS" run x --json -- true 2>"$dir/err"
ok 'run --json reports on standard error' "$JSON_CHECK" <"$dir/err"
like 'run --json: the report' "$(cat "$dir/err")" '"exit":0,.*"fence":[1-9]'
first=$("$DIBS" run x -- sh -c 'echo $DIBS_FENCE')
second=$("$DIBS" run x -- sh -c 'echo $DIBS_FENCE')
ok "run: fences grow ($first, $second)" [ "$second" -gt "$first" ]

# ---- lock, renew, unlock ----
lease=$("$DIBS" lock "it's" --ttl 1h)
is 'lock: a shell can evaluate the output' "$(eval "$lease"; printf %s "$DIBS_NAME")" "it's"
like 'lock: the id' "$lease" '^DIBS_LEASE=[0-9a-f]{32}$'
like 'lock: the fence' "$lease" '^DIBS_FENCE=[1-9][0-9]*$'
ok 'lock: the name is held' holds "it's"
exits 0 'renew from the environment' bash -c 'eval "$0"; "$DIBS" renew --ttl 2h' "$lease"
like 'renew: the lease lasts longer' "$("$DIBS" show "it's")" ' 1h59m '
exits 0 'renew without --ttl takes that of lock' bash -c 'eval "$0"; "$DIBS" renew' "$lease"
like 'renew: the lease has the ttl of lock' "$("$DIBS" show "it's")" ' 59m[0-9]*s '
printf '%s\n' "$lease" >"$dir/lease"
exits 0 'renew from standard input' sh -c '"$DIBS" renew - <"$0"' "$dir/lease"
exits 0 'unlock from standard input' sh -c '"$DIBS" unlock - <"$0"' "$dir/lease"
is 'unlock prints nothing' "$out$err" ''
ok 'unlock: the name is free' free "it's"
exits 122 'unlock again: lost' sh -c '"$DIBS" unlock - <"$0"' "$dir/lease"
exits 122 'renew of a released lease: lost' sh -c '"$DIBS" renew - <"$0"' "$dir/lease"
json 'lock' "$DIBS" lock second --json
like 'lock --json: the output' "$out" '"name":"second","lease":"[0-9a-f]{32}","fence":[1-9][0-9]*,"ttl_ms":30000,"mode":"exclusive"'
cp "$dir/json" "$dir/second"
json 'renew' sh -c '"$DIBS" renew --json --ttl 40s - <"$0"' "$dir/second"
like 'renew --json: the output' "$out" '"ttl_ms":40000'
json 'unlock' sh -c '"$DIBS" unlock --json - <"$0"' "$dir/second"
ok 'unlock reads the JSON of lock' free second
eval "$("$DIBS" lock third)"
exits 125 'unlock: a malformed id' env DIBS_LEASE=xyz "$DIBS" unlock
exits 125 'unlock: a malformed fence' env DIBS_FENCE=-1 "$DIBS" unlock
exits 122 'unlock: another id is refused' env DIBS_LEASE=0123456789abcdef0123456789abcdef "$DIBS" unlock
exits 122 'unlock: another fence is refused' env DIBS_FENCE=1 "$DIBS" unlock
ok 'unlock: the name is still held' holds third
exits 125 'unlock: another name is refused' "$DIBS" unlock fourth
exits 0 'unlock from the environment' "$DIBS" unlock
ok 'unlock: now the name is free' free third
unset DIBS_NAME DIBS_LEASE DIBS_FENCE DIBS_TTL
for how in --shared '--slots 2'; do
  # shellcheck disable=SC2086  # words are meant
  "$DIBS" lock many $how >"$dir/one"
  # shellcheck disable=SC2086
  "$DIBS" lock many $how >"$dir/two"
  is "lock $how: two hold" "$("$DIBS" ls many | grep -c holds)" 2
  exits 120 "lock $how: an exclusive one waits" "$DIBS" lock many --try
  exits 0 "renew $how" sh -c '"$DIBS" renew - <"$0"' "$dir/one"
  exits 0 "unlock $how, one" sh -c '"$DIBS" unlock - <"$0"' "$dir/one"
  is "unlock $how: one holds" "$("$DIBS" ls many | grep -c holds)" 1
  exits 0 "unlock $how, two" sh -c '"$DIBS" unlock - <"$0"' "$dir/two"
done
exits 0 'counted: the first sets the number' "$DIBS" lock many --slots 2
exits 125 'counted: another number is refused' "$DIBS" lock many --slots 3
like 'counted: the message has the right number' "$(cat "$dir/err")" '"many" is held with [0-9]+ slots; give that number'
exits 0 'break frees it' "$DIBS" break many --now --quiet

# ---- ls, show ----
"$DIBS" lock 'build/one' --owner 'Ann' --ttl 1h >/dev/null
"$DIBS" lock 'build/two' --owner 'Bob' --ttl 1h >/dev/null
"$DIBS" run build/one --owner Cid -- true &
waiter=$!
later $waiter
until_true 20 waits build/one
is 'ls: by prefix' "$("$DIBS" ls build/t | grep -c build)" 1
like 'ls: holder' "$("$DIBS" ls build/)" '^build/one +holds +exclusive +Ann '
like 'ls: a waiter, its position and process' "$("$DIBS" ls build/)" "^build/one +waits, #1 +exclusive +Cid +$waiter "
like 'ls: another' "$("$DIBS" ls build/)" '^build/two +holds +exclusive +Bob '
is 'ls: nothing' "$("$DIBS" ls nothing)" ''
json 'ls' "$DIBS" ls --json
like 'ls --json is one array' "$out" '^\[\{.*\}\]$'
like 'ls --json: a waiter' "$out" '"owner":"Cid","pid":[0-9]*,"fence":null,.*"ahead":0'
json 'ls of nothing' "$DIBS" ls --json nothing
is 'ls --json of nothing' "$out" '[]'
is 'show: one name alone' "$("$DIBS" show build/one | grep -c build)" 2
json 'show' "$DIBS" show build/one --json

# ---- break ----
exits 0 'break --now' "$DIBS" break build/one --now --owner 'the boss'
like 'break --now warns' "$err" "^dibs: 'build/one' is free; its old holder may continue"
wait $waiter
is 'break --now: the waiter is granted the name' $? 0
like 'break is recorded, with its time' "$("$DIBS" show build/one)" '^build/one +broken [0-9]+ [A-Z][a-z]+ [0-9:]{8} +.* +the boss, from .+'
like 'break is recorded in JSON' "$("$DIBS" show build/one --json)" '"owner":"the boss",.*"taken_from":"[^"]+","broken_at_ms":1[0-9]{12}'
json 'break' "$DIBS" break build/two --now --json
like 'break --json: the output' "$out" '"name":"build/two","broken":true,"now":true'

# ---- watch ----
"$DIBS" watch --json --interval 50ms >"$dir/events" &
watch=$!
later $watch
event() { grep -q "\"event\":\"$1\".*\"name\":\"$2\"" "$dir/events"; }
"$DIBS" lock seen --owner Dee --ttl 1h >"$dir/lease"
ok 'watch: granted' until_true 20 event granted seen
"$DIBS" run seen --owner Eve -- true &
waiter=$!
later $waiter
ok 'watch: waiting' until_true 20 event waiting seen
"$DIBS" unlock - <"$dir/lease"
ok 'watch: released' until_true 20 event released seen
wait $waiter
"$DIBS" lock fleeting --ttl 2s >/dev/null
ok 'watch: expired' until_true 20 event expired fleeting
"$DIBS" lock unseen --ttl 2s >/dev/null
ok 'watch: granted before a pause' until_true 20 event granted unseen
kill -STOP $watch
sleep 2.1
kill -CONT $watch
ok 'watch: expired during a pause that is longer than the interval' until_true 20 event expired unseen
# watch shows a break with and without --now, and of leases with and without a fence.
broken() { grep -q "\"event\":\"broken\".*\"name\":\"$1\".*\"by\":\"$2\"" "$dir/events"; }
for how in '' --shared '--slots 2'; do
  name=taken${how:0:4}
  # shellcheck disable=SC2086
  "$DIBS" lock "$name" --ttl 1h $how >/dev/null
  ok "watch: granted $how" until_true 20 event granted "$name"
  "$DIBS" break "$name" --now --owner Zoe 2>/dev/null
  ok "watch without a name: broken $how" until_true 20 broken "$name" Zoe
done
# The record of a break has the instant of the request; others see it only when it is committed.
slowly() { LD_PRELOAD=$SLOW_WRITE "$@"; }
if slowly "$DIBS" version >/dev/null 2>&1; then # not with a sanitizer
  "$DIBS" lock taken-late --ttl 1h --slots 2 >/dev/null
  ok 'watch: granted, with slots' until_true 20 event granted taken-late
  slowly "$DIBS" break taken-late --now --owner Zoe 2>/dev/null
  ok 'watch without a name: broken, and committed late' until_true 20 broken taken-late Zoe
fi
"$DIBS" run asked --ttl 2s -- sleep 60 2>/dev/null &
later $!
ok 'watch: granted before the break' until_true 20 event granted asked
"$DIBS" break asked --owner Zoe 2>/dev/null
ok 'watch without a name: broken without --now' until_true 20 event broken asked
is 'watch: a broken lease is not shown as released' "$(grep -c '"event":"released".*"name":"\(taken[^"]*\|asked\)"' "$dir/events")" 0
kill -TERM $watch
wait $watch
is 'a signal ends watch' $? 143
ok 'watch --json: each line is JSON' "$JSON_CHECK" --lines <"$dir/events"
"$DIBS" lock seen --ttl 1h >/dev/null
like 'watch: lines for people, and --count' "$("$DIBS" watch seen --count 1)" '^[0-9]+\.[0-9]{3} granted +seen '

# ---- record ----
job='n=$("$DIBS" record get counter); echo $((n + 1)) | "$DIBS" record put counter'
for i in 1 2 3; do "$DIBS" run job -- sh -c "$job" >/dev/null; done
is 'record: get and put under a lease' "$("$DIBS" record get counter)" 3
exits 0 'record get: under a lease a record that does not exist' "$DIBS" run job -- "$DIBS" record get none
is 'record get: it has no content' "$out" ''
exits 0 'record put: --create creates it' "$DIBS" run job -- sh -c 'echo 1 | "$DIBS" record put none --create'
json 'record get, sealed' "$DIBS" record get counter --json
like 'record get, sealed: the output' "$out" '"key":"counter","version":"3","fence":[1-9][0-9]*,"length":2,"data":"3\\n"'
exits 125 'record: seal is not a verb' "$DIBS" record seal counter
exits 0 'record get: a shared lease has no fence to seal with' "$DIBS" run --shared job -- "$DIBS" record get counter
is 'record get: it reads' "$out" 3
head -c 1048577 /dev/zero >"$dir/big"
exits 125 'record: too big' sh -c '"$DIBS" run job -- "$DIBS" record put big <"$0"' "$dir/big"
head -c 1048576 /dev/urandom >"$dir/big"
exits 0 'record: the maximum size' sh -c '"$DIBS" run job -- "$DIBS" record put big <"$0"' "$dir/big"
"$DIBS" record get big >"$dir/back"
ok 'record: bytes are unchanged' cmp "$dir/big" "$dir/back"

# ---- record by version ----
exits 0 'record put --create' sh -c 'printf one | "$DIBS" record put page --create'
is 'record put: the version' "$out" 1
json 'record get' "$DIBS" record get page --json
like 'record get --json: the output' "$out" '"key":"page","version":"1","fence":null,"length":3,"data":"one"'
json 'record put' sh -c 'printf two | "$DIBS" record put page --if 1 --json'
like 'record put --json: the output' "$out" '"key":"page","version":"2"'
exits 0 'record put under a lease, too' sh -c \
  '"$DIBS" run job -- sh -c "printf three | \"\$DIBS\" record put page --if 2"'
exits 125 'record put: without a guard' sh -c 'printf x | "$DIBS" record put page'
like 'record put: the message lists the guards' "$(cat "$dir/err")" '--if VERSION, --create, a lease in DIBS_LEASE and DIBS_FENCE, or --force'
exits 125 'record put: two that contradict' sh -c 'printf x | "$DIBS" record put page --if 1 --create'
exits 125 'record rm: nothing to create' "$DIBS" record rm page --create
exits 125 'record get: no guard' "$DIBS" record get page --if 1
exits 125 'record put: columns without a table' "$DIBS" record put page a=b --force
exits 0 'record put --force' sh -c 'printf four | "$DIBS" record put page --force'
is 'record get' "$("$DIBS" record get page)" four
exits 0 'record rm' "$DIBS" record rm page --if 4
exits 117 'record get: no such record' "$DIBS" record get page

# A user's table: declaring a missing table needs no database client.
printf '[event]\ntable = event\nkey = id\nversion = version\ncolumns = title, body\n[odd]\nky = x\n' >"$dir/bad.ini"
exits 125 'record --table: a malformed file' "$DIBS" record get 7 --table "$dir/bad.ini#event"
like 'record --table: the message has the line' "$(cat "$dir/err")" 'bad.ini:7: the key is unknown'
sed '/odd/,$d' "$dir/bad.ini" >"$dir/tables.ini"
exits 125 'record --table: a missing section' "$DIBS" record get 7 --table "$dir/tables.ini#none"
exits 125 'record --table: a missing file' "$DIBS" record get 7 --table "$dir/none.ini"
exits 125 'record --table: an unknown column' "$DIBS" record put 7 tilte=x --force --table "$dir/tables.ini"
like 'record --table: the message has the column' "$(cat "$dir/err")" "'tilte' is not a column of event"
exits 125 'record --table: a column twice' "$DIBS" record put 7 title=x title=y --force --table "$dir/tables.ini"
exits 125 'record --table: standard input has one value' sh -c '"$DIBS" record put 7 --force --table "$0" </dev/null' "$dir/tables.ini"
exits 125 'record --table: a missing table' "$DIBS" record get 7 --table "$dir/tables.ini#event"
like 'record --table: the message names the table' "$(cat "$dir/err")" 'in table event at .*the table "event"'

# ---- doctor ----
exits 0 'doctor' "$DIBS" doctor --probe
like 'doctor: the file' "$out" "^fine +file +$dir/dibs.db, mode 0600"
like 'doctor: the engine' "$out" '^fine +server +SQLite 3\.[0-9]+'
like 'doctor: its settings' "$out" '^fine +setting +journal_mode = wal'
like 'doctor: timings' "$out" '^fine +acquire +median [0-9]+ us'
like 'doctor: what the store keeps' "$out" \
  '^fine +keeps +leases \(exclusive, shared, counted\), lanes, records, stocks, once keys, tasks, counters, history$'
json 'doctor' "$DIBS" doctor --json
like 'doctor --json: what it has of a finding' "$out" '"check":"server","fine":true,"level":"fine","found":"SQLite [^"]*","next":null'
like 'doctor --json: verdict' "$out" '"fine":true\}$'
is 'doctor leaves no lease' "$("$DIBS" ls dibs.doctor)" ''
exits 0 'doctor: write_sync=off' "$DIBS" doctor --store "$DIBS_STORE?write_sync=off"
like 'doctor: what a power failure may lose' "$out" '^WARNING +setting +write_sync = off'
exits 116 'doctor --json with a problem' "$DIBS" doctor --json --store bogus://x
ok 'doctor --json with a problem is JSON' "$JSON_CHECK" <"$dir/out"
like 'doctor --json with a problem: the verdict' "$out" '"fine":false\}$'
done_testing
