#!/bin/bash
# SPDX-License-Identifier: MIT
# Workers drain a collection of the user's while answers of the store are lost, while the server is killed and started again,
# and while a worker is killed: every document ends in its last phase, and no step is done under a claim that is over.
#   worker_test.sh DIBS DOCUMENTS URI    (with.sh --private)
set -u
dibs=$1 documents=$2 uri=$3
folder=$(mktemp -d "${TMPDIR:-/tmp}/dibs-test-mongodb.XXXXXX")
workers=()
end() {
  [ ${#workers[@]} -eq 0 ] || kill "${workers[@]}" 2>/dev/null
  rm -rf "$folder"
}
trap end EXIT
trap 'exit 130' INT TERM
stop() {
  echo "worker_test: $*" >&2
  tail -n 5 "$folder"/worker* >&2
  exit 1
}

# A step appends its key and fence to a file, and moves the document to its last phase.
cat >"$folder/step" <<END
#!/bin/sh
echo "\$DIBS_KEY \$DIBS_FENCE" >>'$folder/done'
sleep 0.05
echo Deleted >"\$DIBS_NEXT_PHASE"
END
chmod +x "$folder/step"

# drain NAME COUNT TROUBLE STORE...: COUNT documents, a worker for each STORE, and TROUBLE meanwhile.
drain() {
  local name=$1 want=$2 trouble=$3 store i left=
  shift 3
  printf '[%s]\ntable = %s_%s\nkey = _id\nphase = phase\nlocked_at = lockedAt\nupdated_at = updatedAt\nfence = fence\n' "$name" \
    "$name" $$ >"$folder/$name.ini"
  : >"$folder/done"
  for ((i = 0; i < want; i++)); do
    "$documents" "$uri" "${name}_$$" "{\"_id\": \"g$i\", \"phase\": \"Deleting\"}" || stop "$name: no documents"
  done
  for store; do
    "$dibs" worker --store "$store" --table "$folder/$name.ini" --phase Deleting --timeout 2s --jobs 2 --exec "$folder/step" \
      >"$folder/worker-$name-${#workers[@]}" 2>&1 &
    workers+=($!)
  done
  "$trouble"
  for ((i = 0; i < 600; i++)); do
    left=$("$dibs" task ls --store "$uri" --table "$folder/$name.ini" --phase Deleting 2>&1 | grep -c Deleting)
    [ "$left" -eq 0 ] && [ "$("$dibs" task ls --store "$uri" --table "$folder/$name.ini" --phase Deleted | grep -c Deleted)" -eq "$want" ] && break
    sleep 0.2
  done
  [ "$i" -lt 600 ] || stop "$name: $left documents are left"
  kill "${workers[@]}" 2>/dev/null
  wait "${workers[@]}" 2>/dev/null
  workers=()
  [ "$(cut -d ' ' -f 1 "$folder/done" | sort -u | wc -l)" -eq "$want" ] || stop "$name: a document was never worked on"
  # Each claim has a fence of its own.
  [ -z "$(sort "$folder/done" | uniq -d)" ] || stop "$name: two claims had one fence: $(sort "$folder/done" | uniq -d | head -n 3)"
}
no_trouble() { :; }
server_dies() {
  until [ -s "$folder/done" ]; do sleep 0.05; done
  "$DIBS_TEST_SERVERS_SCRIPT" kill mongodb >/dev/null && "$DIBS_TEST_SERVERS_SCRIPT" start mongodb >/dev/null
}
worker_dies() {
  until [ -s "$folder/done" ]; do sleep 0.05; done
  kill -9 "${workers[0]}"
}
drain lost 14 no_trouble "fault+$uri?fault.rate=200&fault.how=unknown-after" "fault+$uri?fault.rate=200&fault.how=dead-after"
drain refused 8 no_trouble "fault+$uri?fault.rate=300&fault.how=unavailable"
drain killed 16 worker_dies "$uri" "$uri"
drain server 20 server_dies "$uri" "$uri"
