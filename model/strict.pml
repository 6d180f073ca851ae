/* SPDX-License-Identifier: MIT */
/*
 * Strict moves: NC clients request one name while its bucket moves between two tiers and a tier loses its memory.
 *
 * Claimed: at no time do two clients believe that they hold the name.
 *
 * Abstracted: time is a counter up to TMAX that may stay or advance between any two steps; all clocks run at the same
 * rate (the margin covers the remaining drift).  Every message arrives at any later time.  A client believes that it
 * holds for the ttl from before its request; it may renew, and release.  T is how long a confirmed copy of the mandate
 * may be used.  The first tier has a server that loses its memory, or a second server that is promoted beside it (LOSSES); the second tier has one server.  Votes, and which client creates the next epoch first, are not modelled.
 *
 * Rules to remove: MOVE_AT_ONCE LOSS_AT_ONCE LONGER_TTL_NOT_RECORDED RECORDED_UNDER_ANY_MANDATE LONGEST_FORGOTTEN
 * COPY_USED_FOR_EVER DEADLINE_FROM_ANSWER
 */
#ifndef NC
#define NC 2
#endif
#ifndef MOVES
#define MOVES 2
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#ifndef TMAX
#define TMAX 5
#endif
#define T 1
#define SHORT 1
#define LONG 2
#define EMAX 7

byte now, moves, losses;

/* The anchor: nothing is granted under the current epoch before a_since. */
byte a_epoch = 1, a_tier, a_since, a_longest = SHORT;

typedef server { /* 0 and 1: the first tier; 2: the second */
  byte epoch, holder, ends
};
server s[3];
bit promoted;

byte until[NC]; /* which clients believe that they hold, and until when; only for a property */

#define others_hold_nothing (until[1 - me] <= now)

inline longest(ttl) {
  if
  :: ttl > a_longest -> a_longest = ttl
  :: else
  fi
}

inline next_mandate(to, wait) {
  a_epoch++; a_tier = to;
#if defined(LONGEST_FORGOTTEN)
  a_since = now + (wait); a_longest = SHORT
#else
  a_since = now + (wait)
#endif
}

inline ask_server(n) {
  if
  :: s[n].epoch != epoch -> answer = 1
  :: s[n].epoch == epoch && s[n].holder != 0 && s[n].holder != me + 1 && s[n].ends > now -> answer = 2
  :: else ->
     s[n].holder = me + 1; s[n].ends = now + ttl;
#ifdef DEADLINE_FROM_ANSWER
     asked = now;
#endif
     if
     :: asked + ttl > now -> assert(others_hold_nothing); until[me] = asked + ttl
     :: else
     fi
  fi
}

inline release(n) {
  if
  :: s[n].holder == me + 1 && s[n].epoch == epoch -> s[n].holder = 0; s[n].ends = 0
  :: else
  fi
}

inline arrive(n, e) {
  if
  :: e > s[n].epoch -> s[n].epoch = e; s[n].holder = 0; s[n].ends = 0
  :: else
  fi
}

#ifdef COPY_USED_FOR_EVER
#define copy_is_fresh true
#else
#define copy_is_fresh (now <= confirmed + T)
#endif

proctype client(byte me) {
  byte epoch, tier, since, confirmed, asked, ttl, answer;
confirm:
  atomic { confirmed = now; epoch = 0; tier = 0; since = 0 };
  atomic { epoch = a_epoch; tier = a_tier; since = a_since };
again:
  if
  :: atomic { copy_is_fresh && now >= since -> asked = now; ttl = SHORT }
  :: atomic { copy_is_fresh && now >= since ->
#ifndef LONGER_TTL_NOT_RECORDED
       if
#ifdef RECORDED_UNDER_ANY_MANDATE
       :: true -> longest(LONG)
#else
       :: epoch == a_epoch -> longest(LONG)
       :: else -> goto confirm
#endif
       fi
#endif
     };
     atomic {
       if
       :: copy_is_fresh -> asked = now; ttl = LONG
       :: else -> goto confirm
       fi }
  :: atomic { until[me] > now -> until[me] = 0; /* first forgets the lease, then sends the release */
       if
       :: tier == 0 -> release(0); release(1)
       :: else -> release(2)
       fi;
       goto again }
  :: atomic { now < TMAX -> goto confirm }
  :: atomic { now == TMAX -> goto end }
  fi;
  atomic {
    answer = 0;
    if
    :: tier == 0 -> ask_server(0)
    :: tier == 0 && promoted -> ask_server(1)
    :: tier == 1 -> ask_server(2)
    fi;
    asked = 0; ttl = 0;
    if
    :: answer == 1 -> answer = 0
    :: else -> answer = 0; goto again
    fi };
  /* The tier has another epoch, or none: creates the next if this one is still current. */
  atomic {
    if
    :: epoch == a_epoch && a_tier == 0 && a_epoch < EMAX ->
#ifdef LOSS_AT_ONCE
       next_mandate(0, 0);
#else
       next_mandate(0, T + a_longest);
#endif
       epoch = a_epoch
    :: else -> goto confirm
    fi };
  atomic {
    if
    :: arrive(0, epoch)
    :: promoted -> arrive(1, epoch)
    fi;
    goto confirm };
end:
}

inline over(by, what) {
  if
  :: by <= now -> by = 0; what = 0
  :: else
  fi
}

proctype clock() {
end:
  do
  :: d_step { now < TMAX -> now++;
       /* Ended leases are forgotten: fewer states. */
       over(until[0], until[0]); over(until[1], until[1]); over(a_since, a_since);
       over(s[0].ends, s[0].holder); over(s[1].ends, s[1].holder); over(s[2].ends, s[2].holder) }
  od
}

init {
  byte epoch;
  atomic { s[0].epoch = 1; run clock(); run client(0); run client(1) }
end:
  do
  :: atomic { moves < MOVES && a_epoch < EMAX -> moves++;
#ifdef MOVE_AT_ONCE
       next_mandate(1 - a_tier, 0);
#else
       next_mandate(1 - a_tier, T + a_longest);
#endif
       epoch = a_epoch };
     atomic {
       if
       :: a_tier == 0 -> arrive(0, epoch)
       :: a_tier == 0 && promoted -> arrive(1, epoch)
       :: a_tier == 1 -> arrive(2, epoch)
       :: true /* the client died */
       fi;
       epoch = 0 }
  :: d_step { losses < LOSSES -> losses++; s[0].epoch = 0; s[0].holder = 0; s[0].ends = 0 }
  :: d_step { losses < LOSSES && !promoted -> losses++; promoted = true }
  od
}
