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
is 'run: an outer DIBS_SLOT does not come through' "$(DIBS_SLOT=9 "$DIBS" run x -- sh -c 'echo "${DIBS_SLOT-none}"')" none
like 'run: a relative store is made absolute' \
  "$(mkdir -p "$dir/an other" && cd "$dir/an other" && "$DIBS" run x --store sqlite:rel.db -- sh -c 'cd / && "$DIBS" ls x')" '^x  *holds'
"$DIBS" run x --json -- true 2>"$dir/err"
ok 'run --json reports on standard error' "$JSON_CHECK" <"$dir/err"
like 'run --json: what it reports' "$(cat "$dir/err")" '"exit":0,.*"fence":[1-9]'
first=$("$DIBS" run x -- sh -c 'echo $DIBS_FENCE')
second=$("$DIBS" run x -- sh -c 'echo $DIBS_FENCE')
ok "run: fences grow ($first, $second)" [ "$second" -gt "$first" ]

# ---- lock, renew, unlock ----
lease=$("$DIBS" lock "it's" --ttl 1h)
is 'lock: what it prints can be evaluated' "$(eval "$lease"; printf %s "$DIBS_NAME")" "it's"
like 'lock: the id' "$lease" '^DIBS_LEASE=[0-9a-f]{32}$'
like 'lock: the fence' "$lease" '^DIBS_FENCE=[1-9][0-9]*$'
ok 'lock: it is held' holds "it's"
exits 0 'renew from the environment' bash -c 'eval "$0"; "$DIBS" renew --ttl 2h' "$lease"
like 'renew: it lasts longer' "$("$DIBS" show "it's")" ' 1h59m '
exits 0 'renew without --ttl takes that of lock' bash -c 'eval "$0"; "$DIBS" renew' "$lease"
like 'renew: it lasts as lock had asked' "$("$DIBS" show "it's")" ' 59m[0-9]*s '
printf '%s\n' "$lease" >"$dir/lease"
exits 0 'renew from standard input' sh -c '"$DIBS" renew - <"$0"' "$dir/lease"
exits 0 'unlock from standard input' sh -c '"$DIBS" unlock - <"$0"' "$dir/lease"
is 'unlock says nothing' "$out$err" ''
ok 'unlock: it is free' free "it's"
exits 122 'unlock again: lost' sh -c '"$DIBS" unlock - <"$0"' "$dir/lease"
exits 122 'renew of what was released: lost' sh -c '"$DIBS" renew - <"$0"' "$dir/lease"
json 'lock' "$DIBS" lock second --json
like 'lock --json: what it says' "$out" '"name":"second","lease":"[0-9a-f]{32}","fence":[1-9][0-9]*,"ttl_ms":30000,"mode":"exclusive"'
cp "$dir/json" "$dir/second"
json 'renew' sh -c '"$DIBS" renew --json --ttl 40s - <"$0"' "$dir/second"
like 'renew --json: what it says' "$out" '"ttl_ms":40000'
json 'unlock' sh -c '"$DIBS" unlock --json - <"$0"' "$dir/second"
ok 'unlock takes the JSON of lock' free second
eval "$("$DIBS" lock third)"
exits 125 'unlock: an id that is none' env DIBS_LEASE=xyz "$DIBS" unlock
exits 125 'unlock: a fence that is none' env DIBS_FENCE=-1 "$DIBS" unlock
exits 122 'unlock: another id is refused' env DIBS_LEASE=0123456789abcdef0123456789abcdef "$DIBS" unlock
exits 122 'unlock: another fence is refused' env DIBS_FENCE=1 "$DIBS" unlock
ok 'unlock: it is held all the same' holds third
exits 122 'unlock: another name is refused' "$DIBS" unlock fourth
exits 0 'unlock from the environment' "$DIBS" unlock
ok 'unlock: now it is free' free third
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
like 'ls: waiter, its place and process' "$("$DIBS" ls build/)" "^build/one +waits, #1 +exclusive +Cid +$waiter "
like 'ls: another' "$("$DIBS" ls build/)" '^build/two +holds +exclusive +Bob '
is 'ls: nothing' "$("$DIBS" ls nothing)" ''
json 'ls' "$DIBS" ls --json
like 'ls --json is one array' "$out" '^\[\{.*\}\]$'
like 'ls --json: a waiter' "$out" '"owner":"Cid","pid":[0-9]*,"fence":0,.*"ahead":0'
json 'ls of nothing' "$DIBS" ls --json nothing
is 'ls --json of nothing' "$out" '[]'
is 'show: one name alone' "$("$DIBS" show build/one | grep -c build)" 2
json 'show' "$DIBS" show build/one --json

# ---- break ----
exits 0 'break --now' "$DIBS" break build/one --now --owner 'the boss'
like 'break --now warns' "$err" "^dibs: 'build/one' is free; its old holder may go on"
wait $waiter
is 'break --now: who waited gets its turn' $? 0
like 'break is recorded' "$("$DIBS" show build/one)" '^build/one +broken +.* +the boss '
json 'break' "$DIBS" break build/two --now --json
like 'break --json: what it says' "$out" '"name":"build/two","broken":true,"now":true'

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
"$DIBS" lock fleeting --ttl 200ms >/dev/null
ok 'watch: expired' until_true 20 event expired fleeting
kill -TERM $watch
wait $watch
is 'watch ends by a signal' $? 143
ok 'watch --json: each line is JSON' "$JSON_CHECK" --lines <"$dir/events"
"$DIBS" lock seen --ttl 1h >/dev/null
like 'watch: lines for people, and --count' "$("$DIBS" watch seen --count 1)" '^[0-9]+\.[0-9]{3} granted +seen '

# ---- record ----
job='n=$("$DIBS" record seal counter); echo $((n + 1)) | "$DIBS" record save counter'
for i in 1 2 3; do "$DIBS" run job -- sh -c "$job"; done
is 'record: seal and save under a lease' "$("$DIBS" record load counter)" 3
json 'record load' "$DIBS" record load counter --json
like 'record load --json: what it says' "$out" '"key":"counter","fence":[1-9][0-9]*,"length":2,"data":"3\\n"'
exits 125 'record: a lease is needed' "$DIBS" record seal counter
head -c 1048577 /dev/zero >"$dir/big"
exits 125 'record: too big' sh -c '"$DIBS" run job -- "$DIBS" record save big <"$0"' "$dir/big"
head -c 1048576 /dev/urandom >"$dir/big"
exits 0 'record: as big as may be' sh -c '"$DIBS" run job -- "$DIBS" record save big <"$0"' "$dir/big"
"$DIBS" record load big >"$dir/back"
ok 'record: bytes come back as they were' cmp "$dir/big" "$dir/back"

# ---- record by version ----
exits 0 'record put --create' sh -c 'printf one | "$DIBS" record put page --create'
is 'record put: the version' "$out" 1
json 'record get' "$DIBS" record get page --json
like 'record get --json: what it says' "$out" '"key":"page","version":"1","fence":0,"length":3,"data":"one"'
json 'record put' sh -c 'printf two | "$DIBS" record put page --if 1 --json'
like 'record put --json: what it says' "$out" '"key":"page","version":"2"'
exits 0 'record put under a lease, too' sh -c \
  '"$DIBS" run job -- sh -c "printf three | \"\$DIBS\" record put page --if 2"'
exits 125 'record put: without a guard' sh -c 'printf x | "$DIBS" record put page'
like 'record put: which there are' "$(cat "$dir/err")" '--if VERSION, --create, a lease in DIBS_LEASE and DIBS_FENCE, or --force'
exits 125 'record put: two that contradict' sh -c 'printf x | "$DIBS" record put page --if 1 --create'
exits 125 'record rm: nothing to create' "$DIBS" record rm page --create
exits 125 'record get: no guard' "$DIBS" record get page --if 1
exits 125 'record put: columns without a table' "$DIBS" record put page a=b --force
exits 0 'record put --force' sh -c 'printf four | "$DIBS" record put page --force'
is 'record get' "$("$DIBS" record get page)" four
exits 0 'record rm' "$DIBS" record rm page --if 4
exits 117 'record get: it is gone' "$DIBS" record get page

# A table of the user's: no database client is needed where one can be declared that is not there.
printf '[event]\ntable = event\nkey = id\nversion = version\ncolumns = title, body\n[odd]\nky = x\n' >"$dir/bad.ini"
exits 125 'record --table: a file that is wrong' "$DIBS" record get 7 --table "$dir/bad.ini#event"
like 'record --table: which line' "$(cat "$dir/err")" 'bad.ini:7: there is no such key'
sed '/odd/,$d' "$dir/bad.ini" >"$dir/tables.ini"
exits 125 'record --table: a section that is not there' "$DIBS" record get 7 --table "$dir/tables.ini#none"
exits 125 'record --table: a file that is not there' "$DIBS" record get 7 --table "$dir/none.ini"
exits 125 'record --table: a column that is none' "$DIBS" record put 7 tilte=x --force --table "$dir/tables.ini"
like 'record --table: which column' "$(cat "$dir/err")" "'tilte' is none of the columns of event"
exits 125 'record --table: a column twice' "$DIBS" record put 7 title=x title=y --force --table "$dir/tables.ini"
exits 125 'record --table: standard input has one value' sh -c '"$DIBS" record put 7 --force --table "$0" </dev/null' "$dir/tables.ini"
exits 125 'record --table: the table is not there' "$DIBS" record get 7 --table "$dir/tables.ini#event"
like 'record --table: it is named' "$(cat "$dir/err")" 'in table event at .*no such table: event'

# ---- doctor ----
exits 0 'doctor' "$DIBS" doctor
like 'doctor: the file' "$out" "^fine +file +$dir/dibs.db, mode 0600"
like 'doctor: timings' "$out" '^fine +acquire +[0-9]+ us'
json 'doctor' "$DIBS" doctor --json
like 'doctor --json: verdict' "$out" '"fine":true\}$'
is 'doctor leaves nothing behind' "$("$DIBS" ls dibs.doctor)" ''
exits 116 'doctor --json with trouble' "$DIBS" doctor --json --store bogus://x
ok 'doctor --json with trouble is JSON' "$JSON_CHECK" <"$dir/out"
like 'doctor --json with trouble: verdict' "$out" '"fine":false\}$'
done_testing
