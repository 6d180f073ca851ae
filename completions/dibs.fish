# SPDX-License-Identifier: MIT
# fish completion for dibs
function __dibs_names
    dibs ls --json 2>/dev/null | string replace -ra '\},\{' "}\n{" | string match -rg '"name":"([^"\\\\]*)"' | sort -u
end
set -l commands run lock unlock renew ls show break watch record stock once flag tier stats doctor bench lab help version
set -l first "not __fish_seen_subcommand_from $commands"
set -l times '500ms 10s 30s 2m 1h'

complete -c dibs -f
complete -c dibs -n $first -a run -d 'run a command while holding a lease'
complete -c dibs -n $first -a lock -d 'acquire a lease, for unlock and renew to use'
complete -c dibs -n $first -a unlock -d 'release a lease acquired by lock'
complete -c dibs -n $first -a renew -d 'renew a lease acquired by lock'
complete -c dibs -n $first -a ls -d 'list holders and waiters'
complete -c dibs -n $first -a show -d 'show one name'
complete -c dibs -n $first -a break -d 'take a name from its holder by force'
complete -c dibs -n $first -a watch -d 'print events of names as they happen'
complete -c dibs -n $first -a record -d 'read and write records that refuse late writers'
complete -c dibs -n $first -a stock -d 'take and give back parts of a bounded quantity'
complete -c dibs -n $first -a once -d 'run a command once for a key, and repeat its result'
complete -c dibs -n $first -a flag -d 'control how a store of several tiers uses them'
complete -c dibs -n $first -a tier -d 'show and control the tiers of a store'
complete -c dibs -n $first -a stats -d 'print the counts of all clients, and the cost of a lease'
complete -c dibs -n $first -a doctor -d 'check the store and the machine'
complete -c dibs -n $first -a bench -d 'measure what leases and tasks cost on this machine'
complete -c dibs -n $first -a lab -d 'compare strategies on a row that many clients change'
complete -c dibs -n $first -a help -d 'print help'
complete -c dibs -n $first -a version -d 'print the version'

complete -c dibs -l store -x -a 'sqlite:/// memory:' -d 'the store'
complete -c dibs -l json -d 'print JSON for programs'
complete -c dibs -l quiet -d 'no message for plain answers'
complete -c dibs -l owner -x -d 'the owner that other people see'
complete -c dibs -s h -l help -d 'print the help of the command'

complete -c dibs -n '__fish_seen_subcommand_from run lock renew once' -l ttl -x -a "$times" -d 'how long the lease lasts'
complete -c dibs -n '__fish_seen_subcommand_from run lock break stock once' -l wait -x -a "$times" -d 'how long to wait'
complete -c dibs -n '__fish_seen_subcommand_from run lock once' -l try -d 'do not wait'
complete -c dibs -n '__fish_seen_subcommand_from run lock' -l shared -d 'acquire as one of many readers'
complete -c dibs -n '__fish_seen_subcommand_from run lock' -l slots -x -d 'acquire as one of at most N holders'
complete -c dibs -n '__fish_seen_subcommand_from run' -l at-least -x -a "$times" -d 'how long the name stays held, at least'
complete -c dibs -n '__fish_seen_subcommand_from run' -l reenter -d 'run under the lease of an outer dibs, if it has one'
complete -c dibs -n '__fish_seen_subcommand_from run once' -l grace -x -a "$times" -d 'time between TERM and KILL'
complete -c dibs -n '__fish_seen_subcommand_from break' -l now -d 'do not wait for the holder'
complete -c dibs -n '__fish_seen_subcommand_from watch' -l interval -x -a "$times" -d 'time between two reads of the store'
complete -c dibs -n '__fish_seen_subcommand_from watch' -l count -x -d 'end after N changes'
complete -c dibs -n '__fish_seen_subcommand_from record stock' -l table -r -d 'your own table'
complete -c dibs -n '__fish_seen_subcommand_from record' -l if -x -d 'only if the record has this version'
complete -c dibs -n '__fish_seen_subcommand_from record' -l create -d 'only if the record does not exist'
complete -c dibs -n '__fish_seen_subcommand_from record' -l force -d 'write without a guard'
complete -c dibs -n '__fish_seen_subcommand_from stats doctor' -l probe -d 'also acquire leases'
complete -c dibs -n '__fish_seen_subcommand_from tier' -l force -d 'dissolve although other clients use the tiers'
complete -c dibs -n '__fish_seen_subcommand_from flag' -l percent -x -a '0 1 10 50 100' -d 'on for N percent of the names'
complete -c dibs -n '__fish_seen_subcommand_from stock' -l claim -x -d 'the id of the claim, for repeating the call'
complete -c dibs -n '__fish_seen_subcommand_from stock' -l partial -d 'take the rest if it is less than N'
complete -c dibs -n '__fish_seen_subcommand_from stock' -l strategy -x -a 'coalesced atomic pessimistic optimistic named fenced' -d 'the method'
complete -c dibs -n '__fish_seen_subcommand_from once' -l keep -x -a '1h 24h 168h 720h' -d 'how long the result is kept'
complete -c dibs -n '__fish_seen_subcommand_from once' -l retry -d 'keep no failure; run the command again after one'
complete -c dibs -n '__fish_seen_subcommand_from once' -l forget -d 'delete the result; run nothing'
complete -c dibs -n '__fish_seen_subcommand_from bench' -l rounds -x -d 'alternating rounds'
complete -c dibs -n '__fish_seen_subcommand_from bench' -l seconds -x -d 'of each side in each round'
complete -c dibs -n '__fish_seen_subcommand_from bench' -l calm -x -d 'run noisy rounds again'
complete -c dibs -n '__fish_seen_subcommand_from bench' -l floor -r -d 'a bare client of the server'
complete -c dibs -n '__fish_seen_subcommand_from bench' -l upset -x -d 'makes the first tier unreachable'
complete -c dibs -n '__fish_seen_subcommand_from bench' -l only -x -d 'some of the cases'
complete -c dibs -n '__fish_seen_subcommand_from bench' -l smoke -d 'everything very small'
complete -c dibs -n '__fish_seen_subcommand_from bench' -l out -r -d 'the figures as JSON'

set -l lab '__fish_seen_subcommand_from lab'
complete -c dibs -n $lab -l users -x -d 'how many at once'
complete -c dibs -n $lab -l strategies -x -a 'coalesced atomic pessimistic optimistic named fenced child-first none' -d 'some of them'
complete -c dibs -n $lab -l seconds -x -d 'how long each runs'
complete -c dibs -n $lab -l seats -x -d 'in the race'
complete -c dibs -n $lab -l rows -x -d 'of contend'
complete -c dibs -n $lab -l rounds -x -d 'alternating rounds'
complete -c dibs -n $lab -l processes -x -d 'users in N processes'
complete -c dibs -n $lab -l floor -r -d 'a bare client beside'
complete -c dibs -n $lab -l ttl -x -a "$times" -d 'of the lease in pause'
complete -c dibs -n $lab -l html -r -d 'a report with plots'
complete -c dibs -n $lab -l keep -d 'leave the tables behind'
complete -c dibs -n $lab -l strict -d 'what is expected to break fails, too'

complete -c dibs -n '__fish_seen_subcommand_from run lock unlock renew ls show break watch' -a '(__dibs_names)'
# What follows -- is a command line of its own.
function __dibs_behind_dashes
    set -l words (commandline -opc)
    contains -- -- $words
end
function __dibs_command
    set -l words (commandline -opc) (commandline -ct)
    set -l at (contains -i -- -- $words)
    complete -C "$(string join ' ' -- (string escape -- $words[(math $at + 1)..-1]))"
end
complete -c dibs -n __dibs_behind_dashes -a '(__dibs_command)'
complete -c dibs -n '__fish_seen_subcommand_from flag' -a 'ls get set'
complete -c dibs -n '__fish_seen_subcommand_from tier' -a 'status move open close auto bump strictness dissolve'
complete -c dibs -n '__fish_seen_subcommand_from record' -a 'get put rm'
complete -c dibs -n '__fish_seen_subcommand_from stock' -a 'set take give show table'
complete -c dibs -n '__fish_seen_subcommand_from stock; and __fish_seen_subcommand_from table' -a 'sqlite postgres mysql'
complete -c dibs -n '__fish_seen_subcommand_from bench' -a 'lease task'
complete -c dibs -n '__fish_seen_subcommand_from lab' -a 'race throughput deadlock pause contend'
complete -c dibs -n '__fish_seen_subcommand_from help' -a "$commands exits"
