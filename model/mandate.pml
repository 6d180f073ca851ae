/* SPDX-License-Identifier: MIT */
/*
 * Mandates over two tiers.  Tier 1 is volatile: two servers, one of which is the master, and the other may be promoted
 * beside it.  The anchor is durable, and is also tier 2.  Each of NC clients changes one record under TURNS leases.
 *
 * Claimed: no two grants share a fence; a grant under the current mandate has the largest fence so far; the fences that
 * the record accepts never decrease, and no acknowledged increment is lost; a client that requests under the current
 * mandate is not refused if the mandate has arrived and nothing was forgotten since then.
 *
 * After the anchor was restored from a backup (RESTORES), the first two claims hold again for epochs above all that it
 * had created before; the others always hold; and a client that a record refused, and that reported this to the anchor,
 * never again gets a fence under the current mandate that the record refuses.  NOTICED: the first client that asks the
 * restored anchor notices the restore (another incarnation, a newer copy or a newer mark) and skips all epochs that the
 * anchor may have created since the backup.  Then the first two claims hold without exception.
 *
 * Abstracted: any lease may expire at any moment, so exclusion is not claimed here.  Every message may arrive at any
 * later time, at any server that acts as a master; an answer may be lost only where that matters: between creating an
 * epoch and installing it.  MISHAPS: a flush, a restart that is empty or from an old dump, a failover to a lagging
 * replica (the old master still serves the clients that reach it, and clients may return to it at any time).  A dump
 * and a replica are one copy, made at any earlier moment.  MOVES: votes are not modelled, a move may happen at any
 * time.  One bucket.  At EMAX epochs a client stops; a server's sequence is used up after SMAX.
 *
 * Rules to remove: JOINER_INSTALLS RETRY_INSTALL NO_NEW_EPOCH_ON_MISSING INSTALL_LOWERS NO_INCARNATION
 * EPOCH_AND_SEQ_APART SEQUENCE_WRAPS NO_SEAL; with RESTORES, also NO_RAISE and RAISE_ONLY_ABOVE (raises only if a
 * record's epoch is above the anchor's, not if the record refuses a grant of the same epoch); with NOTICED, also
 * PASS_OVER_NOTHING
 */
#ifndef NC
#define NC 2
#endif
#ifndef TURNS
#define TURNS 2
#endif
#ifndef MISHAPS
#define MISHAPS 1
#endif
#ifndef MOVES
#define MOVES 0
#endif
#ifndef RESTORES
#define RESTORES 0
#endif
#ifndef EMAX
#define EMAX 5
#endif
#ifndef SMAX
#define SMAX 3
#endif

#define fence_of(epoch, seq) ((epoch) * 8 + (seq))
#define epoch_of(fence) ((fence) / 8)
#define lease_of(me, turn) (1 + (me) * TURNS + (turn))

/* The anchor. */
byte a_epoch = 1, a_tier = 1, a_life, a_seq;

/* The servers of tier 1.  `life` is the current incarnation; the key contains epoch, sequence and the incarnation in which it was installed.  kept: the last epoch that arrived, if nothing was forgotten since then (only for a property). */
typedef server {
  bit master;
  byte life, epoch, epoch_life, seq, kept
};
server s[2];
byte lives = 1;
byte copy_epoch, copy_life, copy_seq; /* an old dump, or the state of a lagging replica */
bit copied;

byte mishaps, moves;
byte r_fence, r_lease, r_value;

/* The grants so far: only for properties. */
byte granted[EMAX + 1]; /* one bit for each sequence number */
byte largest;
bit behind; /* the record was restored to an older state, and no client has noticed */
byte doubt; /* the anchor may have created epochs up to this one, and forgotten them */
#if RESTORES
byte backup_epoch, backup_tier, backup_life, backup_seq, restores;
bit backed_up;
#endif

#ifdef NOTICED
#define no_two_share_a_fence(e, q) (!(granted[e] & (1 << (q))))
#define standing_is_largest(f, e) (behind || (e) != a_epoch || (f) > largest)
#else
#define no_two_share_a_fence(e, q) ((e) <= doubt || !(granted[e] & (1 << (q))))
#define standing_is_largest(f, e) ((e) != a_epoch || (e) <= doubt || (f) > largest)
#endif
#define fence_never_falls(f) ((f) >= r_fence)
#define read_still_stands (v == r_value)
#define refused(f, lease) ((f) < r_fence || ((f) == r_fence && (lease) != r_lease))

inline grant(e, q) {
  f = fence_of(e, q);
  assert(no_two_share_a_fence(e, q));
  assert(standing_is_largest(f, e));
  granted[e] = granted[e] | (1 << (q));
  if
  :: f > largest -> largest = f
  :: else
  fi
}

#ifdef NO_INCARNATION
#define installed_here(n, e, i) (s[n].epoch == (e))
#define told_life(n) a_life
#define life_is(n, i) true
#else
#define installed_here(n, e, i) (s[n].epoch == (e) && s[n].epoch_life == (i) && s[n].life == (i))
#define told_life(n) s[n].life
#define life_is(n, i) (s[n].life == (i))
#endif
#define arrived_is_granted(n) \
  (!(ep == a_epoch && a_tier == 1 && life == a_life && s[n].life == life && s[n].kept == ep && s[n].seq < SMAX))

/* The grant script; if it does nothing, it answers its incarnation and the epoch that was installed in it. */
inline ask_server(n) {
  if
  :: installed_here(n, ep, life) && ep > 0 && s[n].seq < SMAX -> s[n].seq++; grant(ep, s[n].seq)
#ifdef SEQUENCE_WRAPS
  :: installed_here(n, ep, life) && ep > 0 && s[n].seq == SMAX -> s[n].seq = 1; grant(ep, s[n].seq)
#endif
  :: else ->
     assert(arrived_is_granted(n));
     told_life = told_life(n);
     told_epoch = (installed_here(n, s[n].epoch, s[n].life) && s[n].seq < SMAX -> s[n].epoch : 0)
  fi
}

inline arrive(n) {
  if
#ifdef INSTALL_LOWERS
  :: life_is(n, life) ->
#else
  :: life_is(n, life) && ep > s[n].epoch ->
#endif
     s[n].epoch = ep; s[n].epoch_life = life; s[n].seq = 0;
     s[n].kept = (ep > s[n].kept -> ep : s[n].kept)
  :: else
  fi
}

#define tier_has_standing (told_epoch == a_epoch && told_life == a_life)
#define mine_stands (ep == a_epoch && life == a_life && tier == a_tier)

inline follow() { ep = a_epoch; life = a_life; tier = a_tier }

#ifdef NOTICED
#ifdef PASS_OVER_NOTHING
#define passed_over a_epoch
#else
#define passed_over doubt
#endif
inline notice() {
  if
  :: behind && passed_over < EMAX -> a_epoch = passed_over + 1; a_life = 0; a_seq = 0; behind = 0
  :: behind && passed_over == EMAX -> turn = TURNS; goto ask
  :: else
  fi
}
#else
inline notice() { skip }
#endif

inline next_epoch(to, in_life) { a_epoch++; a_tier = to; a_life = in_life; a_seq = 0; follow() }

proctype client(byte me) {
  byte ep, life, f, v, turn, told_epoch, told_life;
  byte tier = 1;
#if RESTORES
  byte seen, judged; /* the fence that refused it; after how many restores the anchor learned of that, plus one */
#endif

ask:
  if
  :: turn == TURNS -> goto end
  :: atomic { turn < TURNS && tier == 1 ->
       if
       :: ask_server(0)
       :: s[1].master -> ask_server(1)
       fi;
       if
       :: f > 0 -> goto holds
       :: else
       fi }
  :: atomic { turn < TURNS && tier == 2 -> /* tier 2 is the anchor: mandate and grant in one transaction */
       notice();
       if
       :: mine_stands ->
          if
          :: a_seq == SMAX && a_epoch < EMAX -> next_epoch(2, 0)
          :: a_seq == SMAX && a_epoch == EMAX -> turn = TURNS; goto ask
          :: else
          fi;
          a_seq++; grant(ep, a_seq); goto holds
       :: else -> follow(); goto ask
       fi }
  :: atomic { turn < TURNS && moves < MOVES && a_epoch < EMAX -> notice();
       if
       :: a_epoch == EMAX -> turn = TURNS; goto ask
       :: else -> moves++
       fi;
       if
       :: a_tier == 1 -> next_epoch(2, 0); goto ask
       :: a_tier == 2 -> next_epoch(1, s[0].life); goto install
       :: a_tier == 2 && s[1].master -> next_epoch(1, s[1].life); goto install
       fi }
  fi;

  atomic { /* to the anchor, with the tier's answer */
    notice();
    if
    :: a_tier == 2 -> follow()
    :: a_tier == 1 && tier_has_standing -> follow();
#ifdef JOINER_INSTALLS
       told_epoch = 0; told_life = 0; goto install
#endif
    :: a_tier == 1 && !tier_has_standing && !mine_stands -> follow(); /* repeat the request under the current mandate */
#ifdef JOINER_INSTALLS
       told_epoch = 0; told_life = 0; goto install
#endif
#ifdef NO_NEW_EPOCH_ON_MISSING
    :: a_tier == 1 && !tier_has_standing -> a_life = told_life; follow(); told_epoch = 0; told_life = 0; goto install
#else
    :: a_tier == 1 && !tier_has_standing && a_epoch < EMAX ->
       next_epoch(1, told_life); told_epoch = 0; told_life = 0; goto install
    :: a_tier == 1 && !tier_has_standing && mine_stands && a_epoch == EMAX -> turn = TURNS
#endif
    fi;
    told_epoch = 0; told_life = 0; goto ask }

install: /* by its creator, once; or the creator dies and restarts without knowledge */
  atomic {
    if
    :: arrive(0)
    :: s[1].master -> arrive(1)
    :: ep = 0; life = 0; tier = 1
    fi;
#ifdef RETRY_INSTALL
    if
    :: ep > 0 -> goto install
    :: skip
    fi;
#endif
    goto ask }

holds:
#if RESTORES
  if
  :: f <= seen -> atomic { /* drawn after the record was seen with a larger fence: does the anchor have a lower epoch? */
       notice();
       assert(!(ep == a_epoch && judged == restores + 1)); /* raised_means_above */
       if
#if defined(NO_RAISE)
       :: false
#elif defined(RAISE_ONLY_ABOVE)
       :: epoch_of(seen) > a_epoch
#else
       :: epoch_of(seen) > a_epoch || mine_stands
#endif
          ->
          if
          :: epoch_of(seen) < EMAX ->
             a_epoch = epoch_of(seen); next_epoch(a_tier, 0); judged = restores + 1
          :: else -> turn = TURNS
          fi
       :: else ->
          if
          :: mine_stands -> judged = restores + 1
          :: else
          fi;
          follow()
       fi;
       f = 0; goto ask }
  :: else
  fi;
#endif
#ifdef NO_SEAL
  v = r_value;
#else
  atomic {
    if
    :: refused(f, lease_of(me, turn)) -> goto stale
    :: else -> assert(fence_never_falls(f)); r_fence = f; r_lease = lease_of(me, turn); v = r_value
    fi }
#endif
  atomic {
    if
    :: refused(f, lease_of(me, turn)) -> goto stale
    :: else ->
       assert(fence_never_falls(f)); assert(read_still_stands);
       r_fence = f; r_lease = lease_of(me, turn); r_value = v + 1
    fi;
    f = 0; v = 0; turn++; goto ask }
stale:
  atomic {
#if RESTORES
    seen = r_fence;
#endif
    f = 0; v = 0; turn++; goto ask }
end:
}

inline forget(n) { s[n].epoch = 0; s[n].epoch_life = 0; s[n].seq = 0; s[n].kept = 0 }
inline come_back(n) {
  s[n].epoch = copy_epoch; s[n].epoch_life = copy_life; s[n].seq = copy_seq; s[n].kept = 0; new_life(n)
}
inline new_life(n) { lives++; s[n].life = lives; s[n].master = true }
inline copy(n) { copied = true; copy_epoch = s[n].epoch; copy_life = s[n].epoch_life; copy_seq = s[n].seq }

init {
  byte i;
  atomic {
    s[0].master = true; s[0].life = 1; /* empty: the first client creates the first epoch */
    do
    :: i < NC -> run client(i); i++
    :: else -> i = 0; break
    od }
end:
  do
  :: atomic { mishaps < MISHAPS -> mishaps++;
       if
       :: forget(0)
       :: s[1].master -> forget(1)
       :: forget(0); new_life(0)
       :: s[1].master -> forget(1); new_life(1)
       :: copied -> come_back(0)
       :: copied -> come_back(1) /* a restart from it, or the failover to it */
#ifdef EPOCH_AND_SEQ_APART
       :: s[0].seq = 0; s[0].kept = 0
#endif
       fi }
  :: atomic { mishaps < MISHAPS && !copied ->
       if
       :: copy(0)
       :: s[1].master -> copy(1)
       fi }
#if RESTORES
  :: atomic { !backed_up -> backed_up = true;
       backup_epoch = a_epoch; backup_tier = a_tier; backup_life = a_life; backup_seq = a_seq }
  :: atomic { backed_up && restores < RESTORES -> restores++;
       doubt = (a_epoch > doubt -> a_epoch : doubt);
       a_epoch = backup_epoch; a_tier = backup_tier; a_life = backup_life; a_seq = backup_seq; behind = 1 }
#endif
  od
}
