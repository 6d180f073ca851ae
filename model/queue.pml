/* SPDX-License-Identifier: MIT */
/*
 * Waiting for one name, with offers: each of NC clients requests it TURNS times; clients may die, leave, and receive
 * events or not.
 *
 * Claimed: never two holders, nor a holder and an offer; a client that left has nothing in the store; no client is
 * granted or offered what an earlier waiter, live and awake, waits for; a late release changes nothing of another
 * client's lease; and every client that neither died nor left gets the name: there is no state in which a client waits
 * and nothing can happen any more, and (checked for cycles, because every run is finite) no endless run.
 *
 * Abstracted: each script of the store is one step.  Time: an offer may expire at any moment after its creation, a
 * lease at any moment (EXPIRIES times while its holder lives).  The store does nothing by itself: the next request
 * notices what has expired.  A re-check that would change nothing is not modelled, so that a waiter that no event will
 * wake appears as the end of a run.  A waiter's session dies with it.
 *
 * Rules to remove: CANCEL_NOT_ATOMIC OFFER_NEVER_EXPIRES NO_RECHECK ANY_WAITER OFFER_NOT_HEEDED RELEASE_OF_ANYBODY
 */
#ifndef NC
#define NC 3
#endif
#ifndef TURNS
#define TURNS 1
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef LOSSES
#define LOSSES 3
#endif
#ifndef LEAVES
#define LEAVES 1
#endif
#ifndef EXPIRIES
#define EXPIRIES 2
#endif
#define NONE 255

/* The store. */
byte holder = NONE, offered = NONE;
bit lease_over, offer_over;
byte ticket[NC];   /* of a waiter, also while it has an offer; 0: does not wait */
byte tickets;
bit asleep[NC];    /* an offer to it was not confirmed: skipped until it asks again */
bit dead[NC];      /* its session has ended */

bit told[NC];      /* a message in flight */
byte deaths, losses, leaves, expiries;

/* The beliefs of clients; only for properties. */
byte believers;

#define one_at_a_time (holder == NONE || offered == NONE)
#define nobody_else_holds (believers == 0)
#define waits(w) (ticket[w] != 0 && !asleep[w] && !dead[w])
#define waits_before(w, t) (waits(w) && (t == 0 || ticket[w] < t))
#if NC == 2
#define somebody_before(t) (waits_before(0, t) || waits_before(1, t))
#else
#define somebody_before(t) (waits_before(0, t) || waits_before(1, t) || waits_before(2, t))
#endif

#ifdef ANY_WAITER
#define first_waits(w) waits(w)
#else
#define first_waits(w) (waits(w) && !somebody_before(ticket[w]))
#endif

/* The name is free: offers it to the first waiter, live and awake. */
inline pass_on() {
  holder = NONE; offered = NONE; lease_over = false; offer_over = false; i = 0;
  do
  :: i < NC ->
     if
     :: first_waits(i) && offered == NONE ->
        assert(!somebody_before(ticket[i])); offered = i;
        if
        :: told[i] = true
        :: losses < LOSSES -> losses++ /* the message is lost */
        fi
     :: else
     fi;
     i++
  :: else -> i = 0; break
  od
}

/* Removes what expired since the last request. */
inline tidy() {
  if
  :: holder != NONE && lease_over -> pass_on()
  :: offered != NONE && offer_over -> asleep[offered] = true;
     pass_on()
  :: else
  fi
}

inline ask() {
  told[me] = false;
  tidy();
  if
  :: offered == me -> offered = NONE; offer_over = false; get()
  :: else ->
     asleep[me] = false;
     if
#ifdef OFFER_NOT_HEEDED
     :: holder == NONE && !somebody_before(ticket[me]) -> get()
#else
     :: holder == NONE && offered == NONE && !somebody_before(ticket[me]) -> get()
#endif
     :: else ->
        if
        :: ticket[me] == 0 -> tickets++; ticket[me] = tickets
        :: else
        fi
     fi
  fi;
  assert(one_at_a_time)
}

inline get() {
  ticket[me] = 0; holder = me; lease_over = false; has = true;
  assert(nobody_else_holds); believers++
}

#define recheck_helps \
  (asleep[me] || offered == me || (holder != NONE && lease_over) || (offered != NONE && offer_over) || \
   (holder == NONE && offered == NONE && !somebody_before(ticket[me])))

#define left_nothing_behind (holder != me && offered != me && ticket[me] == 0)

proctype client(byte me) {
  byte turn, i;
  bit has, was_offered;
again:
  if
  :: turn == TURNS -> goto end
  :: atomic { turn < TURNS -> turn++; ask() }
  fi;
waiting:
  if
  :: atomic { has -> goto holds }
  :: atomic { !has && told[me] -> ask(); goto waiting }
#ifndef NO_RECHECK
  :: atomic { !has && recheck_helps -> ask(); goto waiting }
#endif
  :: atomic { !has && leaves < LEAVES -> leaves++;
#ifdef CANCEL_NOT_ATOMIC
       was_offered = (offered == me) };
     atomic {
#else
       was_offered = (offered == me);
#endif
       ticket[me] = 0; asleep[me] = false; told[me] = false;
       if
       :: was_offered && offered == me -> pass_on()
       :: else
       fi;
       was_offered = false;
       assert(left_nothing_behind);
       goto again }
  :: atomic { !has && deaths < DEATHS -> deaths++; dead[me] = true; goto end }
  fi;
holds:
  if
  :: atomic { /* a lease that ended was lost before: its holder knows */
       if
       :: holder == me && !lease_over -> believers--
       :: else
       fi;
       has = false;
#ifdef RELEASE_OF_ANYBODY
       pass_on();
#else
       if
       :: holder == me -> pass_on()
       :: else
       fi;
#endif
       assert(one_at_a_time);
       goto again }
  :: atomic { deaths < DEATHS -> deaths++; dead[me] = true; goto end }
  fi;
end:
}

init {
  byte i;
  atomic {
    do
    :: i < NC -> run client(i); i++
    :: else -> break
    od;
    /* No client must die or leave, and no message must be lost: that this is still possible is no reason to end a wait. */
    if
    :: true
    :: deaths = DEATHS
    fi;
    if
    :: true
    :: leaves = LEAVES
    fi }
end:
  do
  :: d_step { holder != NONE && !lease_over && (dead[holder] || expiries < EXPIRIES) ->
       expiries = (dead[holder] -> expiries : expiries + 1); lease_over = true; believers-- }
#ifndef OFFER_NEVER_EXPIRES
  :: d_step { offered != NONE && !offer_over && (dead[offered] || !told[offered] || expiries < EXPIRIES) ->
       expiries = (dead[offered] || !told[offered] -> expiries : expiries + 1); offer_over = true }
#endif
  od
}
