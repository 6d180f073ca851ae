/* SPDX-License-Identifier: MIT */
/* The table of commands: what the dispatcher, help, the man pages' test and the completions' test go by. */
#include "cli/cli.h"

#include <string.h>

#define MAY_ALWAYS (CLI_MAY(DONE) | CLI_MAY(FAILED) | CLI_MAY(STORE) | CLI_MAY(USAGE))
#define MAY_WAIT (CLI_MAY(BUSY) | CLI_MAY(TIMEOUT) | CLI_MAY(UNKNOWN) | CLI_MAY(SIGNAL))
#define TAKES_LEASE (CLI_TAKES(ttl) | CLI_TAKES(wait) | CLI_TAKES(try) | CLI_TAKES(shared) | CLI_TAKES(slots))

/* flat: the table of commands */
const struct cli_command dibs__cli_commands[] = {
    {"run", "NAME -- CMD [ARG...]", "run a command while holding the lease of NAME", TAKES_LEASE | CLI_TAKES(grace),
     MAY_ALWAYS | MAY_WAIT | CLI_MAY(LOST) | CLI_MAY(NOEXEC) | CLI_MAY(NOCMD), 1, 1, true, false, dibs__cli_run,
     "Waits in line for the lease, runs the command, renews the lease meanwhile,\n"
     "releases it when the command ends and returns the command's status.  The\n"
     "command gets DIBS_NAME, DIBS_FENCE, DIBS_LEASE, DIBS_STORE, DIBS_TTL and with\n"
     "--slots DIBS_SLOT, a process group of its own and the terminal; TERM INT HUP\n"
     "QUIT USR1 USR2 WINCH are passed on.  If the lease is lost or broken, the\n"
     "command and all that it started get TERM, and after the grace KILL, before\n"
     "somebody else can hold the name.  A minder process does the same if dibs\n"
     "itself is stopped or killed.\n",
     "dibs run nightly --wait 10m -- ./backup.sh"},
    {"lock", "NAME", "acquire the lease of NAME and leave it to unlock and renew", TAKES_LEASE,
     MAY_ALWAYS | MAY_WAIT | CLI_MAY(LOST), 1, 1, false, false, dibs__cli_lock,
     "Prints the lease as lines for eval, DIBS_NAME= DIBS_LEASE= DIBS_FENCE=\n"
     "DIBS_TTL=, and exports them.  Nobody renews it: it ends after its --ttl\n"
     "unless `dibs renew` is called in time.  DIBS_LEASE is a secret: who knows it\n"
     "can release the lease.\n",
     "eval \"$(dibs lock deploy --ttl 10m)\" && ./deploy.sh; dibs unlock"},
    {"unlock", "[NAME] [-]", "release a lease acquired by lock", 0, MAY_ALWAYS | CLI_MAY(LOST) | CLI_MAY(UNKNOWN), 0, 2,
     false, false, dibs__cli_unlock,
     "The id and the fence come from DIBS_LEASE and DIBS_FENCE, or with - from\n"
     "standard input as lock printed them, never from arguments, which ps shows.\n"
     "NAME may come from DIBS_NAME.\n",
     "dibs lock job > lease && ./work; dibs unlock - < lease"},
    {"renew", "[NAME] [-]", "renew a lease acquired by lock", CLI_TAKES(ttl),
     MAY_ALWAYS | CLI_MAY(LOST) | CLI_MAY(UNKNOWN), 0, 2, false, false, dibs__cli_renew,
     "Makes it last for --ttl from now, else for DIBS_TTL, else 30s.  The id and\n"
     "the fence are given as for unlock.\n",
     "dibs renew --ttl 10m || exit"},
    {"ls", "[PREFIX]", "list who holds and who waits", 0, MAY_ALWAYS, 0, 1, false, false, dibs__cli_ls,
     "Names that begin with PREFIX, else all; holders first, then waiters in line.\n", "dibs ls build/"},
    {"show", "NAME", "show one name: holders, waiters, recorded breaks", 0, MAY_ALWAYS | CLI_MAY(ABSENT), 1, 1, false,
     false, dibs__cli_show, "Exits 117 when nobody holds or waits and no break is recorded.\n", "dibs show nightly"},
    {"break", "NAME", "take a name from whoever holds it", CLI_TAKES(now) | CLI_TAKES(wait),
     MAY_ALWAYS | CLI_MAY(ABSENT) | CLI_MAY(TIMEOUT) | CLI_MAY(UNKNOWN), 1, 1, false, false, dibs__cli_break,
     "The holder is told and its next renewal is refused; the name passes on when it\n"
     "lets go, or when its ttl ends.  Waits for that, for --wait at most.  With\n"
     "--now it passes on at once, and two may hold until the old holder notices: up\n"
     "to a third of its ttl.  Who broke what is recorded; see dibs show.\n",
     "dibs break nightly --wait 1m"},
    {"watch", "[NAME]", "follow what happens to names", CLI_TAKES(interval) | CLI_TAKES(count),
     MAY_ALWAYS | CLI_MAY(SIGNAL), 0, 1, false, false, dibs__cli_watch,
     "On a terminal a table that is drawn anew when it changes; with --json, or into\n"
     "a file or pipe, a line an event: granted, released, expired, waiting, offered,\n"
     "left, breaking, broken.  It looks each --interval: what comes and goes in\n"
     "between is not seen.\n",
     "dibs watch --json nightly"},
    {"record", "get|put|seal|rm|save|load KEY [COLUMN=VALUE...]",
     "read and write records that refuse whoever comes too late",
     CLI_TAKES(table) | CLI_TAKES(if) | CLI_TAKES(create) | CLI_TAKES(force),
     MAY_ALWAYS | CLI_MAY(CONFLICT) | CLI_MAY(ABSENT) | CLI_MAY(STALE) | CLI_MAY(LOST) | CLI_MAY(UNKNOWN), 2,
     2 + DIBS_COLUMNS_MAX, false, false, dibs__cli_record,
     "get   prints what is in it; with --json its version and fence, too\n"
     "put   writes standard input, or with --table COLUMN=VALUE... (a COLUMN alone\n"
     "      becomes NULL, what is not named stays); prints the new version\n"
     "rm    removes it\n"
     "seal  raises the record's fence to the lease's and prints what is in it;\n"
     "      nothing older can write from then on\n"
     "save  writes standard input under the lease; load prints without one\n"
     "put and rm are guarded by --if, --create, the lease, or several of them: if\n"
     "one does not hold, nothing is changed and the message names what stands:\n"
     "115 another version, 118 a newer fence.  Without any, --force.\n"
     "The lease comes from DIBS_NAME, DIBS_LEASE and DIBS_FENCE, as run sets them,\n"
     "and is used wherever it is set.  A record has at most 1 MiB.\n",
     "dibs run job -- sh -c 'n=$(dibs record seal n); echo $((n+1)) | dibs record save n'"},
    {"stock", "set|take|give|show KEY [LIMIT|N|CLAIM]", "take and give back parts of a bounded quantity",
     CLI_TAKES(claim) | CLI_TAKES(partial) | CLI_TAKES(strategy) | CLI_TAKES(wait) | CLI_TAKES(table),
     MAY_ALWAYS | CLI_MAY(CONFLICT) | CLI_MAY(ABSENT) | CLI_MAY(STALE) | CLI_MAY(BUSY) | CLI_MAY(TIMEOUT) |
         CLI_MAY(LOST) | CLI_MAY(UNKNOWN),
     2, 3, false, false, dibs__cli_stock,
     "set KEY LIMIT   makes it, or changes its limit\n"
     "take KEY [N]    takes N, else 1, and prints the claim; 120 when not enough is\n"
     "                left.  With --claim ID it may be repeated: an id never counts\n"
     "                twice, and the second time tells what the first one took\n"
     "give KEY CLAIM  gives back what the claim took\n"
     "show KEY        prints what is used, and the limit\n"
     "What is taken never exceeds the limit, whoever takes at the same time.  With\n"
     "--table the row and its claims are yours.\n"
     "Strategies: coalesced, atomic, pessimistic, optimistic, named, fenced; and\n"
     "unguarded, which loses updates, for experiments.\n",
     "dibs stock set seats 50; dibs stock take seats 2 --claim order-4711"},
    {"once", "KEY -- CMD [ARG...]", "run a command once for KEY in the whole fleet, and say the same again",
     CLI_TAKES(keep) | CLI_TAKES(wait) | CLI_TAKES(try) | CLI_TAKES(ttl) | CLI_TAKES(grace) | CLI_TAKES(retry) |
         CLI_TAKES(forget),
     MAY_ALWAYS | MAY_WAIT | CLI_MAY(ABSENT) | CLI_MAY(STALE) | CLI_MAY(LOST) | CLI_MAY(NOEXEC) | CLI_MAY(NOCMD), 1, 1,
     true, false, dibs__cli_once,
     "The first caller runs the command, under a lease as `dibs run` does, while what\n"
     "it writes passes through; its output and its status are kept for --keep.\n"
     "Whoever comes meanwhile waits, and whoever comes later gets the same bytes on\n"
     "the same streams and the same status, and nothing is run.\n"
     "A failure is an answer as well and is kept; with --retry it is not, and one\n"
     "that was kept is tried again.  What was killed, or asked to end by a signal to\n"
     "dibs, has not answered: the next call runs it again, under a larger\n"
     "DIBS_FENCE; so does it after a crash.  --forget takes an answer away.\n"
     "At most 1 MiB of output is kept; more passes through, and is said to be\n"
     "missing when it is said again.\n",
     "dibs once deploy-v42 --keep 720h -- ./deploy.sh v42"},
    {"flag", "ls|get|set [NAME] [VALUE]", "what a store of several tiers is allowed to do", CLI_TAKES(percent),
     MAY_ALWAYS | CLI_MAY(UNKNOWN), 1, 3, false, false, dibs__cli_flag,
     "ls               lists them all\n"
     "get NAME         prints its percent: 0 is off, 100 is on\n"
     "set NAME VALUE   on, off, or a percent; or --percent N\n"
     "redis.enabled (as the tier is called): which part of the names may be there;\n"
     "circuit-breaker.enabled: a tier that fails most clients is left;\n"
     "mysql-fallback.enabled: for which part; least-strict.enabled: when every tier is\n"
     "down, each process goes on by its own memory.  Kept at the last tier, and\n"
     "followed by every client within a second.\n",
     "dibs flag set redis.enabled --percent 10"},
    {"tier", "status|move|open|close|auto|bump|strictness|alone [TIER|FENCE|WORD]",
     "see and steer the tiers of a store", CLI_TAKES(force), MAY_ALWAYS | CLI_MAY(UNKNOWN) | CLI_MAY(BUSY), 1, 2, false,
     false, dibs__cli_tier,
     "status            how each stands, and which clients have trouble\n"
     "move TIER|auto    everything to that tier, and keeps it there; auto ends that\n"
     "open TIER         its breaker by hand: as if it were down\n"
     "close TIER        its breaker by hand: never taken for down\n"
     "auto TIER         takes the hand off its breaker\n"
     "strictness [WORD] prints it, or sets it: fenced, strict, least-strict\n"
     "bump [FENCE]      makes later fences larger than FENCE, of every name\n"
     "alone             makes each member a store of its own again; refused while\n"
     "                  others use the tiers, but for --force\n"
     "A tier is called as its scheme is, redis or mysql, or by its number from 0.\n",
     "dibs tier status"},
    {"stats", "", "what all clients count, and what a lease costs now", 0,
     MAY_ALWAYS | CLI_MAY(UNKNOWN) | CLI_MAY(BUSY) | CLI_MAY(LOST), 0, 0, false, false, dibs__cli_stats,
     "Of a store of several tiers what its clients have reported at the anchor, and\n"
     "how each tier stands.  Of any store what a lease costs: it takes and releases\n"
     "some, of a name of its own.\n",
     "dibs stats --json"},
    {"doctor", "", "check the store and this machine", 0, MAY_ALWAYS | CLI_MAY(TROUBLE), 0, 0, false, false,
     dibs__cli_doctor,
     "Opens the store and looks at its file, permissions, file system, free space,\n"
     "schema and clock; acquires, renews and releases a lease of a name of its own.\n"
     "Says what is fine, what is not, and what to do.\n",
     "dibs doctor --store sqlite:///var/lib/app/dibs.db"},
    {"bench", "lease [OPTION...]", "measure what a lease costs here", 0, MAY_ALWAYS, 0, 0, false, true, NULL,
     "Options of its own: dibs bench lease --help.\n", "dibs bench lease"},
    {"lab", "EXPERIMENT [OPTION...]", "show every strategy on a row that many want", 0,
     MAY_ALWAYS | CLI_MAY(TROUBLE) | CLI_MAY(SIGNAL), 0, 0, false, true, dibs__cli_lab,
     "Experiments: race, throughput, deadlock, pause, contend.  Options of its own:\n"
     "dibs lab --help.\n",
     "dibs lab race --html race.html"},
    {"help", "[COMMAND|exits]", "print help", 0, CLI_MAY(DONE) | CLI_MAY(FAILED) | CLI_MAY(USAGE), 0, 1, false, false,
     dibs__cli_help, "", "dibs help exits"},
    {"version", "", "print the version", 0, CLI_MAY(DONE) | CLI_MAY(FAILED) | CLI_MAY(USAGE), 0, 0, false, false,
     dibs__cli_version, "", "dibs version --json"},
    {0}};

const struct cli_command *dibs__cli_command_find(const char *name) {
  for (const struct cli_command *c = dibs__cli_commands; c->name != NULL; c++)
    if (strcmp(c->name, name) == 0) return c;
  return NULL;
}
