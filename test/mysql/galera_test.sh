#!/bin/bash
# SPDX-License-Identifier: MIT
# A node of a Galera cluster is refused: its row locks, user locks and clock are those of one node.
#   with.sh --private starts the MariaDB whose data the node uses
. "$(dirname "$0")/../e2e/tap.sh"
provider=
for path in /usr/lib/galera/libgalera_smm.so /usr/lib64/galera-4/libgalera_smm.so; do
  [ ! -f "$path" ] || provider=$path
done
if [ -z "$provider" ]; then
  echo '1..0 # SKIP Galera is not installed'
  exit 0
fi
server=$DIBS_TEST_SERVERS_DIR/mariadb
export DIBS_STORE=$DIBS_TEST_MYSQL PATH=$PATH:/usr/sbin
exits 0 'a single server is used' "$DIBS" run job -- true
ok 'it stops' "$DIBS_TEST_SERVERS_SCRIPT" stop --dir "$DIBS_TEST_SERVERS_DIR" mariadb
as=()
[ "$(id -u)" -ne 0 ] || as=(setpriv --reuid=mysql --regid="$(id -g mysql)" --init-groups)
(cd / && exec "${as[@]}" mariadbd --no-defaults --datadir="$server/data" --bind-address=127.0.0.1 \
  --port="$(<"$server/port")" --socket="$(<"$server/sockets")/mariadb.sock" --pid-file="$server/node.pid" --tmpdir="$server" \
  --skip-name-resolve --innodb-log-file-size=512M --binlog-format=ROW --innodb-autoinc-lock-mode=2 --wsrep-on=ON \
  --wsrep-provider="$provider" --wsrep-cluster-address=gcomm:// --wsrep-new-cluster \
  --wsrep-provider-options='gmcast.listen_addr=tcp://127.0.0.1:0;gcache.size=16M') >"$dir/node.log" 2>&1 &
later $!
node_answers() {
  MYSQL_PWD=$(<"$DIBS_TEST_SERVERS_DIR/admin-password") mariadb --no-defaults -h 127.0.0.1 -P "$(<"$server/port")" \
    -u admin -N -B -e "SHOW STATUS LIKE 'wsrep_ready'" | grep -q ON
}
ok 'it starts as a node of a cluster' until_true 60 node_answers
[ "$failures" = 0 ] || say "$(tail -n 15 "$dir/node.log")"
exits 125 'a node is refused' "$DIBS" run job -- true
like 'and the message says what it is' "$err" 'is a node of a Galera cluster'
done_testing
