#!/bin/bash
# SPDX-License-Identifier: MIT
# What doctor shows of etcd's members: each, also those that are stopped or killed, the leader, alarms, and what a user may not
# see.  etcd_test.sh URI, through members.sh.
. "$(dirname "$0")/doctor.sh"
uri=$1
export DIBS_STORE=$uri ETCDCTL_API=3
members() { bash "$DIBS_TEST_ETCD_MEMBERS" "$@"; }
ctl() { etcdctl --endpoints "$(members endpoints)" "$@"; }
address() { members endpoints | cut -d, -f"$1"; }
leader=$(members leader)
follower=$((leader % 3 + 1))

says 0 'three members' "$uri" '^fine +server +etcd 3\.[0-9]+\.[0-9]+ at http://127' \
  '^fine +role +3 voting members, of which 3 answer here' "^fine +node +m$leader at http://$(address "$leader"): leader, etcd 3" \
  "^fine +node +m$follower at .*: follower" '^fine +alarm +none' '^fine +tls +none' '^fine +setting +m1: .* of the quota of 2048 MiB'

members pause "$follower"
says 116 'a member is stopped' "$uri" "^TROUBLE +node +m$follower at http://$(address "$follower") does not answer" \
  '^fine +role +3 voting members, of which 2 answer here'
# The URI names one member; the others are found, and asked.
says 0 'a member that the URI does not name' "etcd://$(address "$leader")" \
  "^WARNING +node +m$follower does not answer at http://$(address "$follower")" "^fine +node +m$leader at .*: leader"
members resume "$follower"
members kill "$follower"
says 116 'a member was killed' "$uri" "^TROUBLE +node +m$follower at http://$(address "$follower") does not answer"
members start "$follower"
ok 'it is back' until_true 60 shows '^fine +role +3 voting members, of which 3 answer here'

# An alarm, as a full database raises it.
alarm() { # alarm ACTIVATE|DEACTIVATE
  local id
  id=$(curl -sf -m 5 "http://$(address 1)/v3/maintenance/status" -d '{}' | grep -o '"member_id":"[0-9]*"' | grep -o '[0-9]*')
  curl -sf -m 5 "http://$(address 1)/v3/maintenance/alarm" -d "{\"action\":\"$1\",\"memberID\":\"$id\",\"alarm\":\"NOSPACE\"}" >/dev/null
}
alarm ACTIVATE
ok 'an alarm is shown' until_true 20 shows '^TROUBLE +alarm +NOSPACE of m1'
says 116 'an alarm, and what to do' "$uri" 'etcdctl alarm disarm'
alarm DEACTIVATE
ok 'and is gone' until_true 20 shows '^fine +alarm +none'

# A user with rights on dibs' keys alone.
ctl user add root:root-secret >/dev/null && ctl user grant-role root root >/dev/null 2>&1
ctl role add dibs >/dev/null && ctl role grant-permission dibs readwrite --prefix dibs/ >/dev/null
ctl user add dibs:dibs-secret >/dev/null && ctl user grant-role dibs dibs >/dev/null
ctl auth enable >/dev/null 2>&1
says 0 'a user without rights of maintenance' "etcd://dibs:dibs-secret@${uri#etcd://}" '^fine +server +etcd 3' \
  '^fine +node +.*: (leader|not visible|its status is not visible)'
ctl --user root:root-secret auth disable >/dev/null 2>&1
done_testing
