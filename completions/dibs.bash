# SPDX-License-Identifier: MIT
# bash completion for dibs
_dibs_names() {
  COMPREPLY=()
  local name
  while IFS= read -r name; do
    [[ $name == "$cur"* ]] && COMPREPLY+=("$(printf %q "$name")")
  done < <(dibs ls --json 2>/dev/null | sed 's/},{/}\n{/g' | sed -n 's/.*"name":"\([^"\\]*\)".*/\1/p' | sort -u)
}

_dibs_flags() {
  mapfile -t COMPREPLY < <(compgen -W "$(dibs flag ls --json 2>/dev/null | grep -o '"name":"[^"]*"' | cut -d '"' -f 4)" -- "$cur")
}
_dibs_tiers() {
  mapfile -t COMPREPLY < <(compgen -W "auto $(dibs tier status --json 2>/dev/null | grep -o '{"name":"[^"]*","store"' | cut -d '"' -f 4)" -- "$cur")
}

_dibs() {
  local cur prev word command='' before=0
  cur=${COMP_WORDS[COMP_CWORD]}
  prev=${COMP_WORDS[COMP_CWORD - 1]}
  local commands='run lock unlock renew ls show break watch record stock counter rate once history task dead worker cron relay lane flag tier stats doctor serve gate bench lab help version'
  local strategies='coalesced atomic pessimistic optimistic named fenced child-first none'
  local states='ready claimed waiting blocked parked done dead cancelled arrived unfinished finished'
  local globals='--store --json --quiet --owner --help'
  local i
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if [[ $word == -- ]]; then
      # What follows is a command line of its own.
      if declare -F _command_offset >/dev/null; then _command_offset $((i + 1)); else
        mapfile -t COMPREPLY < <(compgen -c -- "$cur")
      fi
      return
    fi
    case $word in
      --keep) [[ $command == lab ]] || ((i++)) ;; # a flag of the lab
      --kind | --phase | --key | --unique | --delay | --priority | --tries | --state | --older | --error | --rate | --running | --paused | --jobs | --exec | --timeout | --drain | --max-tasks) ((i++)) ;;
      --claim | --strategy | --level | --table | --if | --percent) ((i++)) ;;
      --prefix | --since | --until | --last | --keep-for | --name) ((i++)) ;;
      --to | --header | --ca | --batch | --lanes | --topic | --brokers | --group | --setting) ((i++)) ;;
      --store | --owner | --ttl | --wait | --slots | --grace | --at-least | --max | --interval | --count | --rounds | --seconds | --calm | --only | --out | --users | --strategies | --seats | --rows | --processes | --floor | --gate | --upset | --html | --listen | --upstream | --config | --metrics-listen | --access-log | --set | --threads | --connections | --waiters | --body | --idle) ((i++)) ;;
      --tokens | --cert | --client-ca | --cors | --new-token | --scope | --header | --bodies | --requests | --event-clients | --watched-lists | --queue | --page | --session-ids | --read | --send) ((i++)) ;;
      --require | --connect | --upstream-connections | --locks) ((i++)) ;;
      -*) ;;
      *)
        if [[ -z $command ]]; then command=$word; else ((before++)); fi
        ;;
    esac
  done
  if [[ $prev == --keep && $command != lab ]]; then
    mapfile -t COMPREPLY < <(compgen -W '1h 24h 168h 720h' -- "$cur")
    return
  fi
  case $command:$prev in
    serve:--scope) mapfile -t COMPREPLY < <(compgen -W 'read use admin' -- "$cur"); return ;;
    gate:--require) mapfile -t COMPREPLY < <(compgen -W 'writes all none' -- "$cur"); return ;;
    serve:--config | serve:--tokens | serve:--cert | serve:--key | serve:--client-ca | serve:--access-log | gate:--config | gate:--ca | gate:--cert | gate:--key | gate:--client-ca | gate:--access-log)
      mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
    gate:--wait | gate:--timeout | gate:--connect) mapfile -t COMPREPLY < <(compgen -W '1s 5s 10s 30s 1m' -- "$cur"); return ;;
    serve:--listen | serve:--cors | serve:--threads | serve:--connections | serve:--waiters | serve:--body | serve:--header | serve:--bodies | serve:--requests | serve:--event-clients | serve:--watched-lists | serve:--queue | serve:--page | serve:--session-ids | serve:--rate | serve:--idle | serve:--read | serve:--send | serve:--new-token | serve:--prefix)
      COMPREPLY=(); return ;;
    gate:--upstream | gate:--listen | gate:--scope | gate:--metrics-listen | gate:--body | gate:--bodies | gate:--header | gate:--connections | gate:--upstream-connections | gate:--waiters | gate:--idle | gate:--read | gate:--set)
      COMPREPLY=(); return ;;
  esac
  case $prev in
    --store) COMPREPLY=(); mapfile -t COMPREPLY < <(compgen -W 'sqlite:/// memory:' -- "$cur"); return ;;
    --ttl | --wait | --grace | --at-least | --max | --interval | --delay | --older | --timeout | --drain) mapfile -t COMPREPLY < <(compgen -W '500ms 10s 30s 2m 1h' -- "$cur"); return ;;
    --out | --html | --floor) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
    --strategies) COMPREPLY=(); mapfile -t COMPREPLY < <(compgen -W "$strategies redis-lease redlock session-lease redis-spin get-lock get-lock-early transaction-order" -- "$cur"); return ;;
    --users | --seats | --rows | --processes | --locks) COMPREPLY=(); return ;;
    --table) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
    --strategy) COMPREPLY=(); mapfile -t COMPREPLY < <(compgen -W 'coalesced atomic pessimistic optimistic named fenced' -- "$cur"); return ;;
    --claim) COMPREPLY=(); return ;;
    --kind) [[ $command == history ]] && mapfile -t COMPREPLY < <(compgen -W 'run once cron worker' -- "$cur") || COMPREPLY=(); return ;;
    --since | --until) mapfile -t COMPREPLY < <(compgen -W '1h 24h 7d' -- "$cur"); return ;;
    --keep-for) mapfile -t COMPREPLY < <(compgen -W '7d 30d 365d off' -- "$cur"); return ;;
    --prefix | --last | --name) COMPREPLY=(); return ;;
    --state) mapfile -t COMPREPLY < <(compgen -W "$states" -- "$cur"); return ;;
    --paused) mapfile -t COMPREPLY < <(compgen -W 'on off' -- "$cur"); return ;;
    --exec) mapfile -t COMPREPLY < <(compgen -c -- "$cur"); return ;;
    --phase | --key | --unique | --priority | --tries | --error | --rate | --running | --jobs | --max-tasks) COMPREPLY=(); return ;;
    --ca) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
    --timeout) mapfile -t COMPREPLY < <(compgen -W '2s 10s 30s' -- "$cur"); return ;;
    --to | --header | --batch | --lanes | --topic | --brokers | --group | --setting) COMPREPLY=(); return ;;
    --level) mapfile -t COMPREPLY < <(compgen -W 'durable shared buffered' -- "$cur"); return ;;
    --limit) mapfile -t COMPREPLY < <(compgen -W '10/1s 100/1m 1000/1h' -- "$cur"); return ;;
    --percent) mapfile -t COMPREPLY < <(compgen -W '0 1 10 50 100' -- "$cur"); return ;;
    --owner | --if | --slots | --count | --rounds | --seconds | --calm | --only) COMPREPLY=(); return ;;
  esac
  local options=''
  case $command in
    run) options='--ttl --wait --try --shared --slots --grace --at-least --max --reenter --no-history --keep-output --' ;;
    lock) options='--ttl --wait --try --shared --slots' ;;
    renew) options='--ttl' ;;
    break) options='--now --wait' ;;
    watch) options='--interval --count' ;;
    record) options='--table --if --create --force' ;;
    stock) options='--claim --partial --strategy --wait --table' ;;
    counter) options='--level --forget --table --wait' ;;
    rate) options='--limit --wait' ;;
    cron) options='--name --jobs --no-history' ;;
    history) options='--failed --kind --prefix --since --until --last --output --keep-for' ;;
    task) options='--kind --phase --key --unique --delay --priority --tries --state --older --error --dry-run --rate --count --running --paused --keep --no-lanes --wait --table --timeout' ;;
    dead) options='--kind --phase --key --older --error --dry-run --rate --count' ;;
    worker) options='--kind --table --phase --topic --lanes --ttl --jobs --exec --timeout --max --drain --once --max-tasks --verbose --no-history --' ;;
    flag) options='--percent' ;;
    lane) options='--lanes --brokers --group --setting --sql --jobs --ttl --grace --exec --wait --verbose --' ;;
    tier) options='--force' ;;
    stats | doctor) options='--probe' ;;
    once) options='--keep --wait --try --ttl --grace --retry --forget --no-history --' ;;
    relay) options='--to --exec --stdout --header --ca --setting --jobs --timeout --tries --batch --ttl --once' ;;
    serve) options='--config --access-log --cors --listen --tokens --cert --key --client-ca --new-token --scope --prefix --threads --connections --waiters --body --header --bodies --requests --event-clients --watched-lists --queue --page --session-ids --rate --idle --read --send' ;;
    gate) options='--upstream --config --listen --require --order --check-lease --metrics-listen --access-log --wait --timeout --connect --keep --scope --ca --cert --key --client-ca --body --header --connections --upstream-connections --waiters --idle --read --bodies' ;;
    bench) options='--rounds --seconds --calm --only --floor --upset --smoke --out' ;;
    lab) options='--users --strategies --locks --seconds --seats --rows --rounds --processes --floor --ttl --gate --html --keep --strict' ;;
  esac
  if [[ $command == gate && $before -gt 0 ]]; then options='--set'; fi # of gate fence
  if [[ $cur == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options $globals" -- "$cur")
    return
  fi
  if [[ -z $command ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$cur")
    return
  fi
  case $command:$before in
    help:0) mapfile -t COMPREPLY < <(compgen -W "$commands exits" -- "$cur") ;;
    record:0) mapfile -t COMPREPLY < <(compgen -W 'get put rm' -- "$cur") ;;
    cron:0) mapfile -t COMPREPLY < <(compgen -f -W 'ls run' -- "$cur") ;;
    cron:1 | cron:2) mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    stock:1) [[ $prev == table ]] && mapfile -t COMPREPLY < <(compgen -W 'sqlite postgres mysql' -- "$cur") ;;
    counter:0) mapfile -t COMPREPLY < <(compgen -W 'add get ls flush' -- "$cur") ;;
    stock:0) mapfile -t COMPREPLY < <(compgen -W 'set take give show table' -- "$cur") ;;
    task:0) mapfile -t COMPREPLY < <(compgen -W 'add ls show retry cancel purge counts kind' -- "$cur") ;;
    dead:0) mapfile -t COMPREPLY < <(compgen -W 'ls show requeue purge' -- "$cur") ;;
    lane:0) mapfile -t COMPREPLY < <(compgen -W 'run kafka ls of resize' -- "$cur") ;;
    flag:0) mapfile -t COMPREPLY < <(compgen -W 'ls get set' -- "$cur") ;;
    flag:1) _dibs_flags ;;
    flag:2) mapfile -t COMPREPLY < <(compgen -W 'on off' -- "$cur") ;;
    tier:0) mapfile -t COMPREPLY < <(compgen -W 'status move open close auto bump strictness dissolve' -- "$cur") ;;
    tier:1) if [[ $prev == strictness ]]; then
      mapfile -t COMPREPLY < <(compgen -W 'fenced strict least-strict' -- "$cur")
    else
      _dibs_tiers
    fi ;;
    gate:0) mapfile -t COMPREPLY < <(compgen -W 'fence' -- "$cur") ;;
    gate:1) _dibs_names ;;
    lab:0) mapfile -t COMPREPLY < <(compgen -W 'race throughput contend deadlock pause crash failover amnesia counter phases all' -- "$cur") ;;
    bench:0) mapfile -t COMPREPLY < <(compgen -W 'lease task counter' -- "$cur") ;;
    run:0 | lock:0 | unlock:0 | renew:0 | ls:0 | show:0 | break:0 | watch:0) _dibs_names ;;
    *) COMPREPLY=() ;;
  esac
}
complete -F _dibs dibs
