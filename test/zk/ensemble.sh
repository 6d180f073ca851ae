# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# Three ZooKeeper servers on loopback, with sessions of 1 to 60 s; source it with `dir` set to a folder.  The servers end with the
# shell: call ensemble_end in its EXIT trap.
jar=/usr/share/java/zookeeper.jar
ports=() pids=()

free_port() {
  local port tries
  for ((tries = 0; tries < 200; tries++)); do
    port=$((12000 + SRANDOM % 18000))
    if ! (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      echo "$port"
      return 0
    fi
  done
  return 1
}
node_start() { # node_start N: 1 to 3
  java -Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp "$jar" \
    org.apache.zookeeper.server.quorum.QuorumPeerMain "$dir/node$1/zoo.cfg" >>"$dir/node$1/log" 2>&1 &
  pids[$1]=$!
}
node_kill() {
  kill -KILL "${pids[$1]}"
  wait "${pids[$1]}" 2>/dev/null
  pids[$1]=
}
# The mode of a server that serves: leader, follower; otherwise nothing.
mode() {
  local line
  exec 8<>"/dev/tcp/127.0.0.1/${ports[$1]}" || return 1
  echo srvr >&8
  while read -r -t 2 line <&8; do
    [[ $line != Mode:* ]] || echo "${line#Mode: }"
  done
  exec 8>&-
} 2>/dev/null
has_mode() { [ "$(mode "$1")" = "$2" ]; }
serves() { [ -n "$(mode "$1")" ]; }
leader() {
  local n
  for n in 1 2 3; do
    if [ -n "${pids[$n]}" ] && has_mode "$n" leader; then
      echo "$n"
      return 0
    fi
  done
  return 1
}
ensemble_make() {
  # Only a leader listens at its first port, so another test could take the port of a follower: an address of their own.
  local n servers='' among=127.$((2 + SRANDOM % 250)).$(($$ / 250 % 250)).$((1 + $$ % 250))
  for n in 1 2 3; do
    mkdir -p "$dir/node$n" && ports[n]=$(free_port) || return 1
    echo "$n" >"$dir/node$n/myid"
    servers+="server.$n=$among:$((23000 + n)):$((24000 + n))"$'\n'
  done
  for n in 1 2 3; do
    cat >"$dir/node$n/zoo.cfg" <<END
dataDir=$dir/node$n
clientPortAddress=127.0.0.1
clientPort=${ports[$n]}
tickTime=500
maxSessionTimeout=60000
initLimit=20
syncLimit=5
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=*
$servers
END
    node_start "$n"
  done
}
ensemble_end() {
  local n
  for n in 1 2 3; do
    [ -z "${pids[$n]:-}" ] || kill -KILL "${pids[$n]}" 2>/dev/null
  done
}
# For a test that has sourced test/e2e/tap.sh: makes them, and waits until all three serve; sets `hosts`.  Skips where
# ZooKeeper is not installed.
ensemble_leave() {
  ensemble_end
  finish
}
ensemble_begin() {
  local n
  if ! command -v java >/dev/null || [ ! -r "$jar" ]; then
    if [ "${DIBS_TEST_SERVERS:-}" = required ]; then
      echo 'Bail out! ZooKeeper is not installed, though servers are required here'
      exit 1
    fi
    echo '1..0 # SKIP ZooKeeper is not installed'
    exit 0
  fi
  trap ensemble_leave EXIT
  ensemble_make || exit 1
  until_true 150 leader || { cat "$dir"/node*/log | tail -n 20; exit 1; }
  for n in 1 2 3; do until_true 60 serves "$n"; done
  hosts=127.0.0.1:${ports[1]},127.0.0.1:${ports[2]},127.0.0.1:${ports[3]}
}
