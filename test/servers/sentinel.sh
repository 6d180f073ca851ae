# SPDX-License-Identifier: MIT
# A sentinel that watches the Redis of a test; source it after tap.sh.

# sentinel FOLDER PRIMARY PORT: starts one, with its data in FOLDER; it watches the server on PORT, whose files are in
# the folder PRIMARY.  Sets sentinel_pid and sentinel_port.
sentinel() {
  local server
  server=$(command -v redis-server) || return 1
  sentinel_port=$((20000 + SRANDOM % 10000))
  mkdir -p "$1"
  cat >"$1/conf" <<END
bind 127.0.0.1
port $sentinel_port
dir $1
sentinel monitor main 127.0.0.1 $3 1
sentinel auth-user main admin
sentinel auth-pass main $(<"$2/admin-password")
sentinel down-after-milliseconds main 1000
sentinel failover-timeout main 5000
END
  "$server" "$1/conf" --sentinel >"$1/log" 2>&1 &
  sentinel_pid=$!
  later "$sentinel_pid"
}
sentinel_ask() { redis-cli -h 127.0.0.1 -p "$sentinel_port" SENTINEL "$@"; }
# Whether the server on port $1 is a replica that can be promoted.
sentinel_knows() {
  sentinel_ask replicas main | grep -A 60 -Fx "127.0.0.1:$1" | grep -A 1 -Fx master-link-status | grep -qx ok
}
# Whether the server on port $1 is the primary.
sentinel_has() { sentinel_ask get-master-addr-by-name main | grep -Fqx "$1"; }
