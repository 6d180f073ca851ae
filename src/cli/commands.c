/* SPDX-License-Identifier: MIT */
/* The table of commands.  The dispatcher, help, and the tests of the man pages and the completions read it. */
#include "cli/cli.h"

#define MAY_ALWAYS (CLI_MAY(DONE) | CLI_MAY(FAILED) | CLI_MAY(STORE) | CLI_MAY(USAGE))
#define MAY_WAIT (CLI_MAY(BUSY) | CLI_MAY(TIMEOUT) | CLI_MAY(UNKNOWN) | CLI_MAY(SIGNAL))
#define TAKES_LEASE (CLI_TAKES(ttl) | CLI_TAKES(wait) | CLI_TAKES(try) | CLI_TAKES(shared) | CLI_TAKES(slots))

#define TAKES_FILTER                                                                                                   \
  (CLI_TAKES(kind) | CLI_TAKES(phase) | CLI_TAKES(key) | CLI_TAKES(older) | CLI_TAKES(error) | CLI_TAKES(dry_run) |    \
   CLI_TAKES(rate) | CLI_TAKES(count))

/* flat: the table of commands */
const struct cli_command dibs__cli_commands[] = {
    {"run", "NAME -- CMD [ARG...]", "run a command while holding a lease",
     TAKES_LEASE | CLI_TAKES(grace) | CLI_TAKES(at_least) | CLI_TAKES(max) | CLI_TAKES(reenter) |
         CLI_TAKES(no_history) | CLI_TAKES(keep_output),
     MAY_ALWAYS | MAY_WAIT | CLI_MAY(OVERTIME) | CLI_MAY(LOST) | CLI_MAY(NOEXEC) | CLI_MAY(NOCMD), 1, 1, true, false,
     dibs__cli_run,
     "Waits in the queue for the lease, runs the command, renews the lease while it\n"
     "runs, releases it when the command ends, and returns the command's status.  The\n"
     "command gets DIBS_NAME, DIBS_FENCE, DIBS_LEASE, DIBS_STORE, DIBS_TTL and with\n"
     "--slots DIBS_SLOT, its own process group and the terminal; dibs passes on TERM\n"
     "INT HUP QUIT USR1 USR2 WINCH.  If the lease is lost or broken, the command and\n"
     "all processes that it started get TERM, and KILL after the grace, before\n"
     "another client can hold the name.  A minder process does the same if dibs itself\n"
     "is stopped or killed.  With --at-least the name stays held until that time has\n"
     "passed since the command started, also if the command ends sooner; dibs itself\n"
     "ends with the command.  With --max dibs ends a command that takes longer than\n"
     "that, in the same way as for a lost lease, and releases the lease.\n"
     "The run is kept in the store's history: see dibs history.\n",
     "dibs run nightly --wait 10m -- ./backup.sh"},
    {"lock", "NAME", "acquire a lease, for unlock and renew to use", TAKES_LEASE, MAY_ALWAYS | MAY_WAIT | CLI_MAY(LOST),
     1, 1, false, false, dibs__cli_lock,
     "Prints the lease as lines for eval, DIBS_NAME= DIBS_LEASE= DIBS_FENCE=\n"
     "DIBS_TTL=, and exports them.  Nothing renews the lease: it expires after its\n"
     "--ttl unless you call `dibs renew` in time.  If dibs can't acquire it, it prints\n"
     "`(exit N)`, so that `eval \"$(dibs lock ...)\"` fails, too.  DIBS_LEASE is a\n"
     "secret: any process that knows it can release the lease.\n",
     "l=$(dibs lock deploy --ttl 10m) && eval \"$l\" && { ./deploy.sh; dibs unlock; }"},
    {"unlock", "[NAME] [-]", "release a lease acquired by lock", 0, MAY_ALWAYS | CLI_MAY(LOST) | CLI_MAY(UNKNOWN), 0, 2,
     false, false, dibs__cli_unlock,
     "Takes the id and the fence from DIBS_LEASE and DIBS_FENCE, or with - from\n"
     "standard input, as lock printed them; never from arguments, which ps shows.\n"
     "Without NAME it uses DIBS_NAME.\n",
     "dibs lock job > lease && ./work; dibs unlock - < lease"},
    {"renew", "[NAME] [-]", "renew a lease acquired by lock", CLI_TAKES(ttl),
     MAY_ALWAYS | CLI_MAY(LOST) | CLI_MAY(UNKNOWN), 0, 2, false, false, dibs__cli_renew,
     "The lease then lasts for --ttl, otherwise for DIBS_TTL, otherwise for 30s.\n"
     "Takes the id and the fence as unlock does.\n",
     "dibs renew --ttl 10m || exit"},
    {"ls", "[PREFIX]", "list holders and waiters", 0, MAY_ALWAYS, 0, 1, false, false, dibs__cli_ls,
     "Lists the names that begin with PREFIX, without PREFIX all names; for each name\n"
     "the holders first, then the queue.\n",
     "dibs ls build/"},
    {"show", "NAME", "show one name", 0, MAY_ALWAYS | CLI_MAY(ABSENT), 1, 1, false, false, dibs__cli_show,
     "Shows holders, waiters and recorded breaks of NAME.  Exits with 117 if it has\n"
     "none of them.\n",
     "dibs show nightly"},
    {"break", "NAME", "take a name from its holder by force", CLI_TAKES(now) | CLI_TAKES(wait),
     MAY_ALWAYS | CLI_MAY(ABSENT) | CLI_MAY(TIMEOUT) | CLI_MAY(UNKNOWN), 1, 1, false, false, dibs__cli_break,
     "Refuses the holder's next renewal and notifies the holder.  The next waiter gets\n"
     "the name when the holder releases it, or when its ttl ends; break waits for\n"
     "that, for at most --wait.  With --now the name passes on at once, and two may\n"
     "hold it until the old holder notices: for up to a third of its ttl.  The store\n"
     "records the break; see dibs show.\n",
     "dibs break nightly --wait 1m"},
    {"watch", "[NAME]", "print events of names as they happen", CLI_TAKES(interval) | CLI_TAKES(count),
     MAY_ALWAYS | CLI_MAY(SIGNAL), 0, 1, false, false, dibs__cli_watch,
     "On a terminal it shows a table, which it draws again after each --interval.\n"
     "With --json, or into a file or pipe, it prints one line for each event: granted,\n"
     "released, expired, waiting, offered, left, breaking, broken.  It misses what\n"
     "begins and ends between two reads of the store.\n",
     "dibs watch --json nightly"},
    {"record", "get|put|rm KEY [COLUMN=VALUE...]", "read and write records that refuse late writers",
     CLI_TAKES(table) | CLI_TAKES(if) | CLI_TAKES(create) | CLI_TAKES(force),
     MAY_ALWAYS | CLI_MAY(CONFLICT) | CLI_MAY(ABSENT) | CLI_MAY(STALE) | CLI_MAY(LOST) | CLI_MAY(UNKNOWN), 2,
     2 + DIBS_COLUMNS_MAX, false, false, dibs__cli_record,
     "get   prints the content; with --json its version and fence, too.  Under a\n"
     "      lease it also seals: it raises the record's fence to that of the\n"
     "      lease, and no older lease can write from then on\n"
     "put   writes standard input, or with --table COLUMN=VALUE... (a COLUMN alone\n"
     "      becomes NULL, other columns are unchanged); prints the new version\n"
     "rm    removes it\n"
     "put and rm need a guard: --if, --create, the lease, or several of them.  If a\n"
     "guard fails, nothing changes and the message names the present state:\n"
     "115 another version, 118 a newer fence.  --force writes without a guard.\n"
     "The lease comes from DIBS_NAME, DIBS_LEASE and DIBS_FENCE, as run sets them,\n"
     "and is used wherever it is set.  A record has at most 1 MiB.\n",
     "dibs run job -- sh -c 'n=$(dibs record get n); echo $((n+1)) | dibs record put n'"},
    {"stock", "set|take|give|show|table KEY [LIMIT|N|CLAIM]", "take and give back parts of a bounded quantity",
     CLI_TAKES(claim) | CLI_TAKES(partial) | CLI_TAKES(strategy) | CLI_TAKES(wait) | CLI_TAKES(table),
     MAY_ALWAYS | CLI_MAY(CONFLICT) | CLI_MAY(ABSENT) | CLI_MAY(STALE) | CLI_MAY(BUSY) | CLI_MAY(TIMEOUT) |
         CLI_MAY(LOST) | CLI_MAY(UNKNOWN),
     1, 3, false, false, dibs__cli_stock,
     "set KEY LIMIT   creates the stock, or changes its limit\n"
     "take KEY [N]    takes N, otherwise 1, and prints the claim; exits with 120 if\n"
     "                less is left.  With --claim ID you may repeat the call: an id\n"
     "                never counts twice, and a repetition prints the first result\n"
     "give KEY CLAIM  gives back what the claim took\n"
     "show KEY        prints the used quantity and the limit\n"
     "table [ENGINE]  prints the SQL of its tables for sqlite, postgres or mysql\n"
     "Concurrent takes never exceed the limit.  With --table the stock and its claims\n"
     "are in your own tables.\n"
     "Strategies: coalesced, atomic, pessimistic, optimistic, named, fenced.\n",
     "dibs stock set seats 50; dibs stock take seats 2 --claim order-4711"},
    {"counter", "add|get|ls|flush [KEY] [N]", "add to counters, and read them",
     CLI_TAKES(table) | CLI_TAKES(wait) | CLI_TAKES(level) | CLI_TAKES(forget),
     MAY_ALWAYS | CLI_MAY(ABSENT) | CLI_MAY(BUSY) | CLI_MAY(UNKNOWN), 1, 3, false, false, dibs__cli_counter,
     "add KEY [N]   adds N, otherwise 1; N may be below 0.  It is committed when the\n"
     "              command ends\n"
     "add -         adds each line of standard input, KEY and N with a blank between,\n"
     "              or KEY alone; many lines travel together.  All of them are\n"
     "              committed when the command ends\n"
     "get KEY       prints the value\n"
     "ls [PREFIX]   lists the counters whose keys begin with PREFIX\n"
     "flush         writes what all processes have added with --level shared to the\n"
     "              database, and waits until it is there.  Prints what the database\n"
     "              has refused; with --forget, removes that\n"
     "With --level shared an addition is in Redis when the command ends, and in the\n"
     "database when a process that uses this level, or flush, has written it: in a\n"
     "store redis://...,DATABASE.\n"
     "An addition counts once, also if the answer of the store is lost.  With --table\n"
     "the counter is a column of your own table; a key without a row is refused: 117.\n"
     "If the sum does not fit, it is refused, too: 120.  After 124 it may be added or\n"
     "not, and repeating the command may count twice.\n",
     "dibs counter add likes/4711"},
    {"rate", "KEY [N]", "take from a quota", CLI_TAKES(limit) | CLI_TAKES(wait),
     MAY_ALWAYS | CLI_MAY(BUSY) | CLI_MAY(UNKNOWN), 1, 2, false, false, dibs__cli_rate,
     "Takes N, otherwise 1, of the quota --limit, which all clients of the store share:\n"
     "--limit 100/1m allows a hundred at once, and a hundred a minute in the long run.\n"
     "If less is left, it takes nothing, prints the time after which to try again, and\n"
     "exits with 120.  With --wait it waits for that, and for at most the given time.\n",
     "dibs rate mail/ann --limit 100/1m && ./send-mail"},
    {"once", "KEY -- CMD [ARG...]", "run a command once for a key, and repeat its result",
     CLI_TAKES(keep) | CLI_TAKES(wait) | CLI_TAKES(try) | CLI_TAKES(ttl) | CLI_TAKES(grace) | CLI_TAKES(retry) |
         CLI_TAKES(forget) | CLI_TAKES(no_history),
     MAY_ALWAYS | MAY_WAIT | CLI_MAY(ABSENT) | CLI_MAY(STALE) | CLI_MAY(LOST) | CLI_MAY(NOEXEC) | CLI_MAY(NOCMD), 1, 1,
     true, false, dibs__cli_once,
     "The first caller runs the command under a lease, as `dibs run` does.  Its output\n"
     "passes through; dibs keeps its output and its status for --keep.  A second\n"
     "caller waits as long as the command runs; later callers get the same bytes on\n"
     "the same streams and the same status, and run nothing.\n"
     "A failure is a result, too, and is kept.  With --retry it is not kept, and the\n"
     "command runs again after a kept failure.  If the command was killed, or ended by\n"
     "a signal to dibs, there is no result: the next call runs it again, under a\n"
     "larger DIBS_FENCE; so it does after a crash.  --forget deletes a result.\n"
     "At most 1 MiB of output is kept; the rest only passes through, and dibs prints\n"
     "how much a repetition lacks.\n",
     "dibs once deploy-v42 --keep 720h -- ./deploy.sh v42"},
    {"cron", "[FILE | ls [FILE] | run JOB [FILE]]", "fire the jobs of a crontab once in the fleet",
     CLI_TAKES(name) | CLI_TAKES(jobs) | CLI_TAKES(no_history),
     MAY_ALWAYS | CLI_MAY(ABSENT) | CLI_MAY(BUSY) | CLI_MAY(UNKNOWN) | CLI_MAY(SIGNAL), 0, 3, false, false,
     dibs__cli_cron,
     "FILE          runs as a node: fires the jobs when they are due, and runs them.\n"
     "              Start it on any number of machines with the same file and store:\n"
     "              each firing runs on one of them, and they need no leader\n"
     "ls FILE       prints the next and the last run of each job, and how many\n"
     "              firings were missed or skipped\n"
     "run JOB FILE  fires a job by hand, for the nodes to run\n"
     "--name NAME without a FILE is the crontab that the store has under this name:\n"
     "              dibs serve stores it (PUT /v1/cron/NAME/table)\n"
     "The time is the store's.  A node reads the file again when it changes, reports\n"
     "bad lines, and continues with the others.  TERM waits for the commands that\n"
     "run; a second one ends them.  Before the command dibs reads settings:\n"
     "name= zone= catch-up=none|last:1h|all:1h overlap=skip|queue|allow timeout= jitter=\n",
     "dibs cron /etc/app/jobs.cron"},
    {"history", "[NAME]", "list what ran, and how it ended",
     CLI_TAKES(failed) | CLI_TAKES(kind) | CLI_TAKES(prefix) | CLI_TAKES(since) | CLI_TAKES(until) | CLI_TAKES(last) |
         CLI_TAKES(output) | CLI_TAKES(keep_for),
     MAY_ALWAYS | CLI_MAY(UNKNOWN), 0, 1, false, false, dibs__cli_history,
     "Each command of `dibs run`, `once`, `cron` and `worker` leaves a row in the store\n"
     "when it has ended: when, where and how long it ran, its fence, and whether it is\n"
     "done, failed, lost, overtime, killed or not run.  Lists them, the latest end\n"
     "first.  --since and --until take a duration before now, or a date and time of your time zone:\n"
     "2026-11-22, \"2026-11-22 02:30\".  With --output each run has the last lines of\n"
     "its output, where they were kept.\n"
     "Rows are kept for 30 days; --keep-for sets that for the whole store, and off\n"
     "keeps no runs from now on.  A command leaves none with --no-history, or with\n"
     "DIBS_HISTORY=off in the environment.  Redis alone keeps no history.\n",
     "dibs history nightly --since 7d"},
    {"task", "add|ls|show|retry|cancel|purge|counts|kind [KIND|NR...] [PAYLOAD]", "add, list and change tasks",
     TAKES_FILTER | CLI_TAKES(unique) | CLI_TAKES(delay) | CLI_TAKES(priority) | CLI_TAKES(tries) | CLI_TAKES(state) |
         CLI_TAKES(running) | CLI_TAKES(paused) | CLI_TAKES(keep) | CLI_TAKES(wait) | CLI_TAKES(table) |
         CLI_TAKES(timeout) | CLI_TAKES(no_lanes),
     MAY_ALWAYS | CLI_MAY(ABSENT) | CLI_MAY(UNKNOWN), 1, CLI_POS_MAX, false, false, dibs__cli_task,
     "add KIND [PAYLOAD]  adds a task and prints its number; - is standard input,\n"
     "                    @FILE the bytes of a file.  With --unique, the number of\n"
     "                    the unfinished task that has the text already\n"
     "ls                  lists tasks, by number\n"
     "show NR             prints one with its payload and its errors\n"
     "retry               makes parked, waiting, dead and cancelled tasks ready\n"
     "cancel              ends unfinished tasks; a claim of one is refused from then on\n"
     "purge               deletes finished and parked tasks, with their errors\n"
     "counts [KIND]       prints how many tasks of each kind are in each state\n"
     "kind KIND           prints the settings of a kind, or sets them\n"
     "With --table ls and show print the rows of a table of yours, show by their key.\n"
     "ls, retry, cancel and purge take numbers, or --kind, --phase, --key, --state,\n"
     "--older, --error: the tasks that match all of these.\n"
     "States: ready, claimed, waiting, blocked, parked, done, dead, cancelled;\n"
     "arrived: inserted by a statement of yours; also unfinished and finished.\n",
     "dibs task add mail '{\"to\":\"ann\"}' --key ann --delay 10m"},
    {"dead", "ls|show|requeue|purge [NR...]", "list, retry and purge tasks that failed for good", TAKES_FILTER,
     MAY_ALWAYS | CLI_MAY(ABSENT) | CLI_MAY(UNKNOWN), 1, CLI_POS_MAX, false, false, dibs__cli_dead,
     "The same as dibs task ls, show, retry and purge with --state dead,parked.  A task\n"
     "is dead when it has failed as often as it may; with a key it is parked, and the\n"
     "later tasks of this key wait.\n",
     "dibs dead requeue --kind mail --error 'connection refused' --rate 50"},
    {"worker", "--kind KIND --exec CMD | -- CMD [ARG...]", "run a command for each task of a kind",
     CLI_TAKES(kind) | CLI_TAKES(table) | CLI_TAKES(phase) | CLI_TAKES(jobs) | CLI_TAKES(exec) | CLI_TAKES(timeout) |
         CLI_TAKES(max) | CLI_TAKES(drain) | CLI_TAKES(once) | CLI_TAKES(max_tasks) | CLI_TAKES(verbose) |
         CLI_TAKES(no_history) | CLI_TAKES(topic) | CLI_TAKES(lanes) | CLI_TAKES(ttl),
     MAY_ALWAYS | CLI_MAY(ABSENT) | CLI_MAY(CONFLICT) | CLI_MAY(BUSY) | CLI_MAY(SIGNAL), 0, 0, true, false,
     dibs__cli_worker,
     "The command gets the payload on standard input, and DIBS_TASK, DIBS_KIND,\n"
     "DIBS_PHASE, DIBS_KEY, DIBS_FENCE, DIBS_ATTEMPT and DIBS_STORE.  Its exit status is\n"
     "the verdict:\n"
     "  0      done\n"
     "  75     wait: not a failure; again after a tenth of its age, at most 30s\n"
     "  85     again: ready at once\n"
     "  86     next phase: the last line of the file that DIBS_NEXT_PHASE names\n"
     "  87     dead: it can never succeed\n"
     "  other  failed: again after a random time of up to 1s, 2s, 4s, ... 1h\n"
     "With --table instead of --kind the tasks are rows of a table of yours: DIBS_KEY is\n"
     "the key, 0 also means that the row is free for its next step, and is in the phase\n"
     "that was written to the file of DIBS_NEXT_PHASE, if any.\n"
     "With --topic the worker is a member of the topic, as dibs lane run makes one, and\n"
     "does the tasks whose keys belong to its lanes: those of one key one after the\n"
     "other, those of different keys in parallel.  The first member gives --lanes P.  Then\n"
     "DIBS_NAME, DIBS_LEASE and DIBS_FENCE are those of the lane, also DIBS_TOPIC,\n"
     "DIBS_LANE and DIBS_LANES are set, and tasks of the kind that have a key go only to\n"
     "workers with this topic, until dibs task kind KIND --no-lanes.  Use a topic for one\n"
     "kind only: all its members share its lanes.\n"
     "The last 4 KiB of its output are kept with the task.  dibs extends the claim while\n"
     "the command runs.  If that fails, dibs ends the command and all processes that it\n"
     "started before another worker can claim the task; a minder process does the same\n"
     "if dibs itself is stopped or killed.  On TERM or INT dibs claims no more, waits for\n"
     "running commands for --drain, ends the others and gives their tasks back, and exits\n"
     "with 0.  Each run is kept in the store's history: see dibs history.\n",
     "dibs worker --kind mail --jobs 4 --exec ./send-mail"},
    {"relay", "KIND", "deliver the messages of an outbox",
     CLI_TAKES(to) | CLI_TAKES(exec) | CLI_TAKES(lines) | CLI_TAKES(header) | CLI_TAKES(ca) | CLI_TAKES(jobs) |
         CLI_TAKES(batch) | CLI_TAKES(tries) | CLI_TAKES(timeout) | CLI_TAKES(ttl) | CLI_TAKES(once) |
         CLI_TAKES(setting),
     MAY_ALWAYS | CLI_MAY(SIGNAL), 1, 1, false, false, dibs__cli_relay,
     "A message is a task of the kind KIND, which a program added in a transaction of\n"
     "its own.  Delivers each at least once; those with the same key in their order.\n"
     "--to URL   by HTTP, with the headers Idempotency-Key, Dibs-Task, Dibs-Fence and\n"
     "           others.  2xx: delivered.  408, 425, 429, 5xx and no answer: tried\n"
     "           again after a random pause that grows, and not before Retry-After.\n"
     "           Everything else: dead at once; redirects are not followed\n"
     "--to kafka://HOST:PORT/TOPIC  to Kafka: the key of the message is that of the task\n"
     "--exec CMD each to a command, as dibs worker runs it: the payload is its standard\n"
     "           input.  Exit status 0: delivered; others: a failed try\n"
     "--stdout   as lines of JSON; a message is delivered when its line is written\n"
     "A message that failed too often is dead; one with a key is parked, and the later\n"
     "ones with its key wait.  After TERM the relay finishes what it has begun, gives\n"
     "the rest back, and exits with 0; after a second one it gives up at once.\n",
     "dibs relay orders --to https://example.org/hooks/orders"},
    {"lane", "run|kafka|ls|of|resize TOPIC [KEY] [-- CMD [ARG...]]", "give each lane of keys one owner in the fleet",
     CLI_TAKES(lanes) | CLI_TAKES(ttl) | CLI_TAKES(grace) | CLI_TAKES(exec) | CLI_TAKES(wait) | CLI_TAKES(verbose) |
         CLI_TAKES(brokers) | CLI_TAKES(group) | CLI_TAKES(setting) | CLI_TAKES(jobs) | CLI_TAKES(sql),
     MAY_ALWAYS | CLI_MAY(ABSENT) | CLI_MAY(CONFLICT) | CLI_MAY(TIMEOUT) | CLI_MAY(UNKNOWN) | CLI_MAY(BUSY) |
         CLI_MAY(SIGNAL) | CLI_MAY(NOEXEC) | CLI_MAY(NOCMD),
     2, 3, true, false, dibs__cli_lane,
     "run TOPIC --lanes P -- CMD  becomes a member of the topic, whose keys hash to P\n"
     "                            lanes, and runs one command for each lane that it owns\n"
     "ls TOPIC                    lists the lanes, their owners and fences\n"
     "of TOPIC KEY                prints the lane of the key\n"
     "resize TOPIC --lanes P      changes P: all members end their commands first\n"
     "Members share the lanes evenly.  The command gets DIBS_LANE (from 0), DIBS_LANES\n"
     "(P), DIBS_TOPIC, DIBS_NAME, DIBS_FENCE, DIBS_LEASE, DIBS_TTL and DIBS_STORE, and\n"
     "nothing on standard input.  It and all processes that it started get TERM, and KILL\n"
     "after the grace, before another member owns the lane; a minder process does the\n"
     "same if dibs itself is stopped or killed.  A command that ends by itself is started\n"
     "again after a pause.  The first member creates the topic with its P; later ones are\n"
     "refused with another P.  When resize changes P, running members end with 115.  On\n"
     "TERM or INT dibs ends its commands, gives its lanes back and exits with 0.\n"
     "\n"
     "kafka TOPIC --brokers HOST:PORT --group GROUP -- CMD  joins a consumer group of\n"
     "Kafka.  Each partition that the group assigns is a lane: dibs acquires its lease,\n"
     "begins at the offset that the store has, and runs the command once for each\n"
     "message, with the payload on standard input, DIBS_KEY and DIBS_OFFSET.  After exit\n"
     "status 0 it stores the next offset under the lease; otherwise it runs the command\n"
     "for this message again.  A member that was stopped too long is refused.  With --sql\n"
     "what the command prints is SQL, which takes effect in one transaction with the\n"
     "offset: once, whatever crashes.\n",
     "dibs lane run orders --lanes 16 -- ./consume.sh"},
    {"flag", "ls|get|set [NAME] [VALUE]", "control how a store of several tiers uses them", CLI_TAKES(percent),
     MAY_ALWAYS | CLI_MAY(UNKNOWN), 1, 3, false, false, dibs__cli_flag,
     "ls               lists the flags\n"
     "get NAME         prints the percentage of a flag: 0 is off, 100 is on\n"
     "set NAME VALUE   on, off, or a percentage; or --percent N\n"
     "redis.enabled (named after the tier): the part of the names that may be on it;\n"
     "circuit-breaker.enabled: names leave a tier that fails for most clients;\n"
     "mysql-fallback.enabled: the part of the names that may leave; and\n"
     "least-strict.enabled: when every tier is down, each process continues alone.\n"
     "The last tier stores the flags; every client follows them within a second.\n",
     "dibs flag set redis.enabled --percent 10"},
    {"tier", "status|move|open|close|auto|bump|strictness|dissolve [TIER|FENCE|WORD]",
     "show and control the tiers of a store", CLI_TAKES(force), MAY_ALWAYS | CLI_MAY(UNKNOWN) | CLI_MAY(BUSY), 1, 2,
     false, false, dibs__cli_tier,
     "status            prints the state of each tier, and the clients in trouble\n"
     "move TIER|auto    moves all names to that tier and keeps them there; auto ends\n"
     "                  that\n"
     "open TIER         opens its breaker by hand: the tier counts as down\n"
     "close TIER        closes its breaker by hand: the tier never counts as down\n"
     "auto TIER         removes the manual setting of its breaker\n"
     "strictness [WORD] prints the rule, or sets it: fenced, strict, least-strict\n"
     "bump [FENCE]      makes all later fences larger than FENCE\n"
     "dissolve          makes each member a store of its own again; refused while\n"
     "                  other clients use the tiers, unless you pass --force\n"
     "A tier has the name of its scheme, redis or mysql, or its number, from 0.\n",
     "dibs tier status"},
    {"stats", "", "print the counts of all clients, and the cost of a lease", CLI_TAKES(probe),
     MAY_ALWAYS | CLI_MAY(UNKNOWN) | CLI_MAY(BUSY) | CLI_MAY(LOST), 0, 0, false, false, dibs__cli_stats,
     "For a store of several tiers it prints the counts that its clients reported at\n"
     "the anchor, and the state of each tier.  It only reads.  With --probe it also\n"
     "acquires and releases leases of a separate name, and prints what one costs.\n",
     "dibs stats --json"},
    {"doctor", "", "check the store and the machine", CLI_TAKES(probe), MAY_ALWAYS | CLI_MAY(TROUBLE), 0, 0, false,
     false, dibs__cli_doctor,
     "Opens the store and checks its file, permissions, file system, free space,\n"
     "schema and clock, its servers and their settings, and lists what it keeps.\n"
     "Prints what is fine, what is not, and what to do.  A WARNING is a setting that\n"
     "weakens a promise, and does not change the exit status.  It only reads.  With\n"
     "--probe it also acquires, renews and releases a lease of a separate name.\n",
     "dibs doctor --store sqlite:///var/lib/app/dibs.db"},
    {"serve", "[OPTION...]", "serve the store over HTTP", 0, MAY_ALWAYS | CLI_MAY(NOEXEC) | CLI_MAY(NOCMD), 0, 0, false,
     true, dibs__cli_start_serve,
     "Starts the program dibs-serve of the package dibs-serve.  For its own options see\n"
     "dibs serve --help.\n",
     "dibs serve --listen 127.0.0.1:7380"},
    {"gate", "--upstream URL [OPTION...]", "refuse stale fences in front of a service that does not check them", 0,
     MAY_ALWAYS | CLI_MAY(NOEXEC) | CLI_MAY(NOCMD), 0, 0, false, true, dibs__cli_start_gate,
     "Starts the program dibs-gate of the package dibs-gate.  For its own options see\n"
     "dibs gate --help.\n",
     "dibs gate --upstream http://127.0.0.1:8080"},
    {"bench", "lease|task|counter [OPTION...]", "measure what leases, tasks and counters cost on this machine", 0,
     MAY_ALWAYS | CLI_MAY(NOEXEC) | CLI_MAY(NOCMD), 0, 0, false, true, dibs__cli_start_lab,
     "Starts the program dibs-lab of the package dibs-lab.  For its own options see\n"
     "dibs bench --help.\n",
     "dibs bench lease"},
    {"lab", "EXPERIMENT [OPTION...]", "compare strategies on a row that many clients change", 0,
     MAY_ALWAYS | CLI_MAY(TROUBLE) | CLI_MAY(NOEXEC) | CLI_MAY(NOCMD) | CLI_MAY(SIGNAL), 0, 0, false, true,
     dibs__cli_start_lab,
     "Experiments: race, throughput, deadlock, pause, contend.  Starts the program\n"
     "dibs-lab of the package dibs-lab.  For its own options see dibs lab --help.\n",
     "dibs lab race --html race.html"},
    {"help", "[COMMAND|exits]", "print help", 0, CLI_MAY(DONE) | CLI_MAY(FAILED) | CLI_MAY(USAGE), 0, 1, false, false,
     dibs__cli_help, "", "dibs help exits"},
    {"version", "", "print the version", 0, CLI_MAY(DONE) | CLI_MAY(FAILED) | CLI_MAY(USAGE), 0, 0, false, false,
     dibs__cli_version, "", "dibs version --json"},
    {0}};
