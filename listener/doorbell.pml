/*
 * The doorbell, for spin: a writer rings only when it sees the relay asleep, and nothing may stay behind when the relay
 * sleeps. `make model` checks it as it stands (no error) and with -DBROKEN (an error must be found).
 *
 * How it maps to the code:
 *   asleep     the shared advisory lock is held (listener.setLock; tested by the trigger events_doorbell)
 *   snap       who is in progress after the lock: all below a transaction id taken then (listener.Asleep). The relay stays
 *              drowsy while one of these is open (relay: look.Xmin < xid); a claim's own snapshot is the look
 *   bursts     in a busy stream the relay releases the lock, and takes it again afterwards (relay: pace)
 *   losses     the LISTEN connection dies and takes the lock along; the relay claims again at the latest when it is
 *              connected again (listener.HandleBacklog), and starts with a new lock
 */
#define N 3
byte visible = 0;      /* committed, unclaimed events */
bool asleep = false;   /* advisory lock held */
bool bell = false;     /* notification queued for the relay */
bool inprog[N];        /* xid in progress */
byte done = 0;
byte losses = 1;       /* how often the connection may still die */
byte bursts = 1;       /* how often the relay may still find itself in a busy stream */

proctype writer(byte me) {
  bool ring;
  inprog[me] = true;            /* INSERT: xid assigned */
  ring = asleep;                /* AFTER trigger: gate */
  /* COMMIT: becomes visible and leaves the in-progress set in one step, the signal comes after */
  atomic { visible++; inprog[me] = false }
  if :: ring -> bell = true :: else -> skip fi;
  done++
}

proctype relay() {
  bool snap[N]; byte i; bool older;
awake:
  visible = 0;                       /* claim */
  asleep = true;                     /* take the lock */
#ifndef BROKEN
  atomic { i = 0; do :: i < N -> snap[i] = inprog[i]; i++ :: else -> break od }
drowsy:
  /* one claim: its snapshot tells who is open, and it takes all that this snapshot sees */
  atomic {
    older = false; i = 0;
    do :: i < N -> if :: snap[i] && inprog[i] -> older = true :: else -> skip fi; i++ :: else -> break od;
    visible = 0
  }
  if :: older -> goto drowsy :: else -> skip fi;
#else
  visible = 0;
#endif
end_sleep:
  if
  :: atomic { bell -> bell = false };
     visible = 0;                    /* rung: claim, with the lock held all along */
     if
     :: bursts > 0 -> atomic { bursts--; asleep = false }; goto awake
     :: true -> goto end_sleep
     fi
  :: atomic { losses > 0 -> losses--; asleep = false; bell = false }; goto awake
  fi
}

init { atomic { run relay(); run writer(0); run writer(1); run writer(2) } }

/* whenever the system is at rest (all writers done, relay blocked with no bell) nothing is pending */
never { do :: (done == N && visible > 0 && asleep && !bell && relay[1]@end_sleep) -> break :: true od }
