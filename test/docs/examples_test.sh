#!/bin/bash
# SPDX-License-Identifier: MIT
# Runs every shell example of README, guides and manual pages exactly as printed, under set -e.
#   examples_test.sh ROOT      with DIBS, the command; as root, in a network and a mount namespace of its own
#
# In the namespaces the hosts `db` and `cache` are this machine, PostgreSQL, MariaDB and Redis listen on their usual
# ports with the user and the password of the examples (app, secret), /etc and /usr/local/bin are copies, /run and /var/lib
# are empty.  The commands that examples run (./deploy.sh and so on) are stubs in the example's own folder.  Wrappers record
# how each dibs and curl ended.
#
# An example passes if each dibs and curl in it and the example itself ended with 0.  facts() lists the exceptions; those that
# are to fail also run without set -e.
set -u
root=$1
if [ "${2:-}" != inside ]; then
  if [ "$(id -u)" != 0 ] || ! unshare -mn true 2>/dev/null; then
    echo '1..0 # SKIP namespaces need root'
    exit 0
  fi
  exec unshare -mn --propagation private bash "$0" "$root" inside
fi
. "$root/test/e2e/tap.sh"
leave() {
  "$root/script/servers" remove --dir "$dir/servers" >/dev/null 2>&1
  cd / && umount /etc 2>/dev/null
  finish
}
trap leave EXIT
unset DIBS_STORE XDG_STATE_HOME XDG_CONFIG_HOME DIBS_MODULE_PATH
real=$DIBS

# ---- The environment of the examples ----

stage() {
  ip link set lo up || return 1
  mkdir "$dir/etc" "$dir/bin" "$dir/blocks" && cp -a /etc/. "$dir/etc" && mount --bind "$dir/etc" /etc &&
    cp -a /usr/local/bin "$dir/local" && mount --bind "$dir/local" /usr/local/bin &&
    mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /var/lib && mkdir -p /etc/app && printf '127.0.0.1 localhost db cache etcd-1 etcd-2 etcd-3 zk1 zk2 zk3\n' >/etc/hosts || return 1
  local server
  for server in postgres:5432 mariadb:3306 redis:6379 etcd:2379 zookeeper:2181 mongodb:27017; do
    (umask 077 && mkdir -p "$dir/servers/${server%:*}" && echo "${server#*:}" >"$dir/servers/${server%:*}/port")
  done
  chmod a+x "$dir" "$dir/servers"
  chown postgres "$dir/servers/postgres" && chown mysql "$dir/servers/mariadb" && chown redis "$dir/servers/redis"
  "$root/script/servers" start --dir "$dir/servers" --until $$ postgres mariadb redis etcd zookeeper >"$dir/servers.log" 2>&1 || {
    sed 's/^/# /' "$dir/servers.log"
    return 1
  }
  # FerretDB is no package of Debian: without it the examples with MongoDB are skipped.
  mongodb=$("$root/script/servers" start --dir "$dir/servers" --until $$ mongodb 2>&1) && mongodb=
  eval "$("$root/script/servers" env --dir "$dir/servers")"
  record dibs "$real"
  record curl "$(command -v curl)"
  local stub
  for stub in ffmpeg rsync make-page; do printf '#!/bin/sh\necho "%s $*"\n' $stub >"$dir/bin/$stub"; done
  chmod +x "$dir/bin"/*
  cp "$dir/bin/rsync" /usr/local/bin/report
  export PATH=$dir/bin:$PATH
  admin_redis ACL SETUSER default on nopass '~*' '&*' +@all
  admin_redis ACL SETUSER app on '>secret' '~*' '&*' +@all
  sql_postgres postgres "CREATE ROLE app LOGIN PASSWORD 'secret'"
  sql_mysql "CREATE USER app@'%' IDENTIFIED BY 'secret'; CREATE USER app@localhost IDENTIFIED BY 'secret'"
}
# record NAME PROGRAM: a command that notes its exit code.
record() {
  cat >"$dir/bin/$1" <<END
#!/bin/bash
"$2" "\$@"
code=\$?
[ -z "\${EXAMPLE_CALLS:-}" ] || printf "%s\\n" "\$code $1 \${*//\$'\\n'/ }" >>"\$EXAMPLE_CALLS"
exit \$code
END
}
password() { local rest=${1#*://admin:}; echo "${rest%%@*}"; }
sql_postgres() { PGPASSWORD=$(password "$DIBS_TEST_POSTGRES_ADMIN") psql -qh 127.0.0.1 -U admin -d "$1" -c "$2" >/dev/null; }
sql_mysql() { mariadb -h 127.0.0.1 -u admin "-p$(password "$DIBS_TEST_MYSQL_ADMIN")" -e "$1"; }
admin_redis() { REDISCLI_AUTH=$(password "$DIBS_TEST_REDIS_ADMIN") redis-cli --no-auth-warning --user admin "$@" >/dev/null; }

# New databases on the servers that $servers names.
fresh_servers() {
  if [[ $servers == *postgres* ]]; then
    sql_postgres postgres 'DROP DATABASE IF EXISTS app WITH (FORCE)' 2>/dev/null
    sql_postgres postgres 'CREATE DATABASE app OWNER app'
  fi
  if [[ $servers == *mysql* ]]; then
    sql_mysql "DROP DATABASE IF EXISTS app; CREATE DATABASE app; GRANT ALL ON app.* TO app@'%'; GRANT ALL ON app.* TO app@localhost"
  fi
  admin_redis FLUSHALL
  if [[ $servers == *mongodb* ]] && [ -z "$mongodb" ]; then mongo "drop_database('app')" 2>/dev/null; fi
}

# A folder for one example, with the files that examples use.
fresh_folder() {
  cd / && rm -rf "$dir/work" "$dir/home" && mkdir "$dir/work" "$dir/home" && cd "$dir/work" || exit 1
  rm -rf /etc/app /etc/dibs /var/lib/dibs /var/lib/app && mkdir /etc/app
  local stub
  for stub in send-mail deploy.sh backup.sh report.sh rebuild-index publish report job step1 step2 migrate train work edit-for-ten-minutes; do
    printf '#!/bin/sh\necho "%s $*"\n' $stub >$stub
  done
  chmod +x ./*
  export HOME=$dir/home
  # The files that database clients find in a user's home.
  export PGHOST=db PGUSER=app PGPASSWORD=secret PGDATABASE=app
  printf '[client]\nhost=db\nuser=app\npassword=secret\n' >"$HOME/.my.cnf"
}

# The NTH block of a LANGUAGE in PAGE.
code() { # code PAGE LANGUAGE NTH
  awk -v language="$2" -v nth="$3" '/^```/ { inside = !inside && substr($0, 4) == language && ++n == nth; next } inside' "$root/$1"
}
# A function of the database below FerretDB.
mongo() {
  psql -qXh 127.0.0.1 -p "$(<"$dir/servers/mongodb/data/port2")" -U postgres -d postgres -v ON_ERROR_STOP=1 \
    -c "SELECT documentdb_api.$1" >/dev/null
}
document() { mongo "insert_one('app', '$1', '$2')"; } # COLLECTION JSON
sql_app() { PGPASSWORD=secret psql -qh 127.0.0.1 -U app -d app -v ON_ERROR_STOP=1 -c "$1"; }

# ---- Exceptions ----

# facts WHERE FIRST: the exceptions of one example.
#   given   commands that run before it, in its folder
#   codes   exit codes of a dibs in it that are also expected
#   ends    the exit code of the example: "unchanged/under set -e"
#   serves  the example runs until it is ended, which happens after this many seconds; it must not fail before
#   skipped the reason for not running it
#   servers the servers that it needs empty, besides those whose addresses are in it
#   store   its $DIBS_STORE
#   limit   how many seconds it may take
#   daemon  `dibs serve` runs meanwhile
#   behind  the service of doc/gate.md runs at port 8080; gate: and `dibs gate` in front of it
facts() {
  given='' codes='' ends=0/0 serves='' limit=60 skipped='' servers='' store='' daemon='' behind=''
  case "$1 $2" in
    'doc/man/dibs-lab.1'*) servers='postgres mysql' serves=20 ;;
    'doc/lab.md'*'dibs lab throughput'*) serves=20 ;; # a minute for each strategy
    *'dibs lab race'*) limit=240 ;; # a hundred applicants, eight strategies
    *'git clone '*) skipped='it is the first step of a test run' ;;
    *"export DIBS_STORE='postgres"*) limit=240 ;;
    'README.md'*'dibs run --ttl 30s --wait 5m deploy'*) codes=117 ends=117/117 ;; # the name is free at the end
    'doc/coming-from-select-for-update.md'*'dibs stock take'*)
      store=postgres://app:secret@db/app
      given='code doc/coming-from-select-for-update.md ini 1 >tables.ini
             sql_app "CREATE TABLE event (id bigint PRIMARY KEY, taken bigint NOT NULL DEFAULT 0, seats bigint NOT NULL);
             CREATE TABLE applicant (claim_id text PRIMARY KEY, event_id bigint REFERENCES event, given bigint NOT NULL);
             INSERT INTO event VALUES (7, 0, 50)"' ;;
    'doc/coming-from-version-columns.md'*'dibs record get'* | 'doc/tables.md'*'dibs record get'* | 'doc/man/dibs-record.1'*)
      store=postgres://app:secret@db/app
      given='code doc/tables.md ini 2 >tables.ini; sql_app "$(code doc/tables.md sql 1)"
             sql_app "INSERT INTO event (id, title, version) VALUES (7, '"'Gala'"', 3)"'
      # The last put is too late and fails.
      [[ $1 != doc/tables.md* ]] || codes=115 ends=0/115 ;;
    'doc/mongodb.md'*'dibs record get'*)
      store=mongodb://db/app
      given='code doc/mongodb.md ini 1 >tables.ini
             document events "{\"_id\": 7, \"title\": \"Gala\", \"seats\": 50, \"version\": 3}"' ;;
    'doc/mongodb.md'*'dibs stock take 7'*)
      store=mongodb://db/app
      given='code doc/mongodb.md ini 2 >tables.ini
             document gigs "{\"_id\": 7, \"booked\": 0, \"seats\": 50}"' ;;
    'doc/mongodb.md'*'delete-step'*)
      serves=5 store=mongodb://db/app
      given='code doc/mongodb.md ini 3 >tables.ini
             document gateways "{\"_id\": 7, \"phase\": \"Deleting\"}"' ;;
    'doc/mongodb.md'*'dibs task add'*) serves=4 store=mongodb://db/app ;;
    'doc/mongodb.md'*'dibs stock set'*) store=mongodb://db/app ;;
    'doc/tiers.md'*'dibs flag ls'* | 'doc/man/dibs-flag.1'* | 'doc/man/dibs-tier.1'*)
      store=redis://cache,mysql://app:secret@db/app
      given='dibs run begin -- true' ;;
    'doc/backups.md'*pg_dump*) store=postgres://app:secret@db/app given='dibs run begin -- true' ;;
    'doc/backups.md'*'script/servers start'*) skipped='the test of replicas runs these commands' ;;
    'doc/backups.md'*mariadb-dump*) store=mysql://app:secret@db/app given='dibs run begin -- true' ;;
    'doc/tables.md'*'dibs stock table'* | 'doc/man/dibs-stock.1'*) servers='postgres mysql' given='code doc/tables.md ini 1 >tables.ini' ;;
    'doc/tiers.md'*'dibs tier status') skipped='it needs a fleet with a failure' ;;
    'doc/man/dibs-counter.1'*) store=redis://cache,mysql://app:secret@db/app ;;
    'doc/man/dibs-break.1'*) given='dibs lock nightly --ttl 2s' ;;
    'doc/man/dibs-show.1'*) given='dibs lock nightly' ;;
    'doc/man/dibs-doctor.1'*)
      servers='postgres mysql'
      given='mkdir -p /var/lib/app; printf "[live]\nstore = postgres://app:secret@db/app\n" >/etc/app/dibs.ini; chmod 600 /etc/app/dibs.ini' ;;
    *'dibs lane kafka'* | *'--to kafka:'*) skipped='it needs a broker' ;;
    'doc/lanes.md'*'record put'*) skipped='it runs in a command of a lane' ;;
    'doc/lanes.md'*'./consume.sh'* | 'doc/man/dibs-lane.1'*'lane run'*)
      serves=4
      given='printf "#!/bin/sh\nsleep 9\n" >consume.sh; chmod +x consume.sh' ;;
    'doc/lanes.md'* | 'doc/man/dibs-lane.1'*) given='timeout 2 dibs lane run orders --lanes 16 -- sleep 9 || true' ;;
    'doc/man/dibs-bench.1'* | 'doc/man/dibs-watch.1'*) serves=5 ;;
    'doc/man/dibs-renew.1'*) serves=3 ;;
    'doc/outbox.md'*'relay orders --to'* | 'doc/outbox.md'*'relay orders --exec'* | 'doc/man/dibs-relay.1'*'--to'*)
      serves=3
      given='echo "Authorization: Bearer x" >/etc/app/token' ;;
    'doc/coming-from-job-queues.md'*'dibs worker --table'*)
      store=postgres://app:secret@db/app
      given='code doc/coming-from-job-queues.md ini 1 >tables.ini
             sql_app "CREATE TABLE gateway (id bigint PRIMARY KEY, phase text, locked_at timestamptz NOT NULL DEFAULT to_timestamp(0),
             updated_at timestamptz NOT NULL DEFAULT now()); INSERT INTO gateway VALUES (7, '"'Deleting'"')"
             sql_app "$(code doc/coming-from-job-queues.md sql 1)"; sql_app "$(code doc/coming-from-job-queues.md sql 2)"' ;;
    'doc/coming-from-job-queues.md'*'export DIBS_STORE'*)
      given='sql_app "CREATE TABLE outbox (id bigserial PRIMARY KEY, topic text, aggregate_id bigint, payload json,
             sent_at timestamptz); INSERT INTO outbox (topic, aggregate_id, payload) VALUES ('"'orders', 12, '{}'"')"' ;;
    'doc/coming-from-quartz.md'*) serves=8 ;;
    'doc/man/dibs-worker.1'*'--table'* | 'doc/tables.md'*'delete-step'*)
      serves=4 store=postgres://app:secret@db/app
      given='code doc/tables.md ini 3 >tables.ini; ln -s /bin/true delete-step; [[ $where != *tables.md* ]] || rm delete-step
             sql_app "CREATE TABLE gateway (id bigint PRIMARY KEY, phase text, step int NOT NULL DEFAULT 0, fence bigint,
             locked_at timestamptz NOT NULL DEFAULT to_timestamp(0), updated_at timestamptz NOT NULL DEFAULT now());
             INSERT INTO gateway VALUES (7, '"'Deleting'"')"' ;;
    'doc/man/dibs-worker.1'*'--jobs 4'* | 'doc/man/dibs-worker.1'*'--topic'* | 'doc/tasks.md'*'dibs worker --kind mail --jobs'*) serves=3 ;;
    *'dibs cron /etc/app/jobs.cron'* | *'dibs cron --store postgres'*)
      serves=4
      given='echo "0 2 * * * name=nightly true" >/etc/app/jobs.cron' ;;
    *'dibs cron ls /etc/app/jobs.cron'*) given='echo "0 2 * * * name=nightly true" >/etc/app/jobs.cron' ;;
    'doc/cron.md'*'dibs cron --name'*) serves=4 ;;
    'doc/cron.md'*'/v1/cron/'*) daemon=1 ;;
    'doc/serve.md'*'dibs serve'*) ;;
    'doc/serve.md'*'/v1/events'*) daemon=1 codes=28 ;; # curl ends it
    'doc/serve.md'* | 'doc/metrics.md'*) daemon=1 ;;
    'doc/gate.md'*'python3 value.py'*) given='code doc/gate.md python 1 >value.py' ;;
    'doc/gate.md'*'--order'* | 'doc/gate.md'*'--metrics-listen'*) behind=1 ;;
    'doc/gate.md'*) daemon=1 behind=gate ;;
    'doc/man/dibs-gate.1'*) serves=3 given='mkdir -p /run/dibs' ;;
    'doc/man/dibs-serve.1'*)
      serves=3
      given='mkdir -p /run/dibs /etc/dibs; umask 077; "$real" serve --new-token a | tail -n 1 >/etc/dibs/tokens
             openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=dibs -keyout /etc/dibs/tls.key -out /etc/dibs/tls.crt' ;;
    'doc/man/dibs-unlock.1'*) given='dibs lock job >lease' ;;
  esac
}

# ---- Running ----

# run_example FILE FLAGS: sets code, calls.
run_example() {
  fresh_folder
  [ -z "$servers" ] || fresh_servers
  if ! (
    [ -z "$store" ] || export DIBS_STORE=$store
    set -e
    eval "$given"
  ) >"$dir/given" 2>&1; then say "given: $(cat "$dir/given")"; fi
  : >"$dir/calls"
  [ -z "$store" ] || export DIBS_STORE=$store
  [ -z "$daemon" ] || start_daemon
  [ -z "$behind" ] || start_service
  EXAMPLE_CALLS=$dir/calls timeout -k 5 "${serves:-$limit}" bash $2 "$1" >"$dir/out" 2>"$dir/err" </dev/null &
  wait $!
  code=$?
  # Processes that the example left running: timeout leads their group.
  kill -- -$! 2>/dev/null
  if [ -n "$serves" ] && [ "$code" = 124 ]; then code=0; fi
  unset DIBS_STORE
  calls=$(cat "$dir/calls")
  [ -z "$daemon" ] || { kill "$daemon" && wait "$daemon"; } 2>/dev/null
  [ -z "$behind" ] || end_service
}

start_service() {
  code doc/gate.md python 1 >"$dir/value.py"
  python3 -B "$dir/value.py" >"$dir/service" 2>&1 &
  service=$! gate=
  curl -sS --retry 20 --retry-connrefused http://127.0.0.1:8080/value >/dev/null 2>&1 || cat "$dir/service"
  [ "$behind" = gate ] || return 0
  "$real" gate --upstream http://127.0.0.1:8080 >"$dir/gate" 2>&1 &
  gate=$!
  curl -sS --retry 20 --retry-connrefused http://127.0.0.1:7381/value >/dev/null 2>&1 || cat "$dir/gate"
}
end_service() {
  { kill "$service" $gate && wait "$service" $gate; } 2>/dev/null
  return 0
}

start_daemon() {
  "$real" serve >"$dir/daemon" 2>&1 &
  daemon=$!
  curl -sS --retry 20 --retry-connrefused http://127.0.0.1:7380/readyz >/dev/null 2>&1 || cat "$dir/daemon"
}

complains() { # what of $calls ended otherwise than it may
  local got what allowed
  while read -r got what; do
    [ -n "$got" ] || continue
    allowed=" 0 $codes "
    [ -z "$serves" ] || allowed="$allowed 143 "
    [[ $allowed == *" $got "* ]] || echo "exit $got: $what"
  done <<<"$calls"
}

try_example() {
  local file=$1 where=$2 first=$3 wrong
  facts "$where" "$first"
  servers+=$(grep -oE '(postgres|mysql|redis|etcd|zk|mongodb)://' <<<"$(cat "$file")$store$given")
  if [[ $servers == *mongodb* ]] && [ -n "$mongodb" ]; then skipped='no FerretDB is here'; fi
  if [ -n "$skipped" ]; then
    count=$((count + 1))
    echo "ok $count - $where # SKIP $skipped"
    return
  fi
  # An example that ends with 0 under set -e ran to its end, which it then does without set -e, too.
  run_checked -e "${ends#*/}" "$where: $first"
  [ "$ends" = 0/0 ] || run_checked '' "${ends%/*}" "$where without set -e"
  if [ -f "$file.seen" ]; then is "$where: prints the documented output" "$(cat "$dir/out" "$dir/err" | shown | sort)" "$(shown <"$file.seen" | sort)"; fi
}
run_checked() { # run_checked FLAGS CODE NAME
  run_example "$file" "$1"
  wrong=$(complains)
  if [ "$code" = "$2" ] && [ -z "$wrong" ] && [ -n "$calls$serves" ]; then report 0 "$3"; else
    report 1 "$3"
    say "ended with $code, wanted $2" "$wrong" "$(cat "$dir/err")"
  fi
}
# The output without parts that differ from run to run.
shown() { sed 's/[0-9.]*[0-9]\(ms\|us\|s\)/TIME/g; s/  */ /g'; }

# The examples of a manual page, as mandoc prints them: consecutive lines of .Dl are one example, a literal block is
# one.
# A block that is an INI file is skipped; of a crontab line the command runs, with each \% as cron reads it.
man_examples() {
  local page n=0 number text file
  for page in "$root"/doc/man/*.1; do
    while IFS=$'\t' read -r number text; do
      n=$((n + 1))
      file=$dir/blocks/man-$n
      printf '.Dd x\n.Dt X 1\n.Os OSOSOS\n.Sh X\n%b' "$text" | mandoc -T ascii -O width=300 2>/dev/null |
        sed 's/.\x08//g; s/ *$//' | sed -n '/^X$/,/^OSOSOS/{/^X$/d;/^OSOSOS/d;s/^           //;s/^     //;p;}' | grep . |
        sed -E '/^([0-9*]+ ){5}/{s///;s/\\%/%/g;}' >"$file"
      ! grep -q '^\[' "$file" || continue
      printf '%s\t%s\t%s\n' "$file" "${page#"$root"/}:$number" "$(head -n 1 "$file")"
    done < <(awk '
      function out() { if (text != "") print at "\t" text; text = "" }
      function add(line) { if (text == "") at = FNR; gsub(/\\/, "\\\\", line); text = text line "\\n" }
      FNR == 1 { inside = literal = 0 }
      /^\.Sh / { out(); inside = /EXAMPLES/; next }
      !inside { next }
      /^\.Bd/ { out(); literal = 1 }
      literal { add($0); if (/^\.Ed/) { literal = 0; out() } next }
      /^\.Dl/ { add($0); next }
      { out() }
      END { out() }' "$page")
  done
}

stage || {
  echo 'not ok 1 - the stage'
  echo '1..1'
  exit 1
}
cd "$root" || exit 1
{
  awk -v to="$dir/blocks" -f test/docs/blocks.awk README.md doc/*.md
  man_examples
} >"$dir/list"
while IFS=$'\t' read -r file where first <&3; do
  [ -z "${ONLY:-}" ] || [[ $where == *$ONLY* ]] || continue
  try_example "$file" "$where" "$first"
done 3<"$dir/list"
done_testing
