package scanner

import (
	"testing"
	"time"

	"github.com/outbox-relay/outbox-relay/event"
)

// An event that kills its relay never has an outcome: only leases that expire. It must end, and take no neighbour along.
func TestEventThatKillsItsRelayEndsDead(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	o := defaults()
	o.Lease, o.MaxAttempts = 50*time.Millisecond, 4
	s := table.scanner(o)
	table.insert(10)
	claim, _ := table.claimFresh(s, plenty)
	poison := claim.Events[3].ID
	var alone bool
	for crashes := 1; ; crashes++ {
		var expired []Expired
		table.eventually("the leases end", func() bool {
			expired = append(expired, table.expireLeases(s)...)
			return len(expired) == len(claim.Events)
		})
		if dead := expired[0].Status == event.Dead; dead {
			if crashes != o.MaxAttempts || !alone || expired[0].Attempts != crashes {
				t.Errorf("DEAD after %d crashes, %+v; want %d", crashes, expired, o.MaxAttempts)
			}
			break
		}
		if claim = table.claimDue(s, false); len(claim.Events) > 0 {
			if crashes > 1 {
				t.Errorf("%d events are no suspects after %d crashes", len(claim.Events), crashes)
			}
			continue // and crashes with them again
		}
		for { // now each is tried alone: the innocent are published
			claim = table.claimDue(s, true)
			if alone = len(claim.Events) == 1; !alone {
				t.Fatalf("claimed %d suspects, want 1", len(claim.Events))
			}
			if claim.Events[0].ID == poison {
				break
			}
			table.settle(s, claim, event.Settlement{Status: event.Published})
		}
	}
	if got := one[string](table, "select string_agg(distinct status, ' ') from outbox.events where id <> $1", poison); got != "PUBLISHED" {
		t.Errorf("the neighbours are %s", got)
	}
	if got := one[string](table, "select status from outbox.events where id = $1", poison); got != "DEAD" {
		t.Errorf("the poison is %s", got)
	}
}

func TestRenewedLeaseHolds(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	o := defaults()
	o.Lease = 300 * time.Millisecond
	s := table.scanner(o)
	table.insert(1, "available_at", "now() + interval '1 millisecond'")
	table.insert(2)
	fresh, _ := table.claimFresh(s, plenty)
	var due Claim
	table.eventually("the scheduled one is due", func() bool {
		due = table.claimDue(s, false)
		return len(due.Events) == 1
	})
	held := []Held{{due.Events[0].ID, due.ID}, {fresh.Events[0].ID, fresh.ID}}
	var expired []Expired
	table.eventually("the lease that is not renewed ends", func() bool {
		if err := s.RenewLeases(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		expired = append(expired, table.expireLeases(s)...)
		return len(expired) > 0
	})
	if len(expired) != 1 || expired[0].ID != fresh.Events[1].ID {
		t.Errorf("expired: %+v", expired)
	}
	if lost := table.settle(s, due, event.Settlement{Status: event.Published}); lost != 0 {
		t.Error("the scheduled event's claim was lost")
	}
	if lost := table.settle(s, fresh, event.Settlement{Status: event.Published}); lost != 1 {
		t.Errorf("lost %d, want the one that expired", lost)
	}
}

// The claims of another relay lie below the frontier of this one, which has passed them.
func TestExpiredLeaseIsDueAtOnce(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	o := defaults()
	o.Lease = time.Millisecond
	dead, alive := table.scanner(o), table.scanner(defaults())
	table.insert(3)
	table.claimFresh(dead, plenty)
	table.insert(1)
	table.claimFresh(alive, plenty)
	var expired []Expired
	table.eventually("the dead relay's leases end", func() bool {
		expired = append(expired, table.expireLeases(alive)...)
		return len(expired) == 3
	})
	_, look := table.claimFresh(alive, plenty)
	if look.NextAt == nil || *look.NextAt > 0 {
		t.Errorf("the next is due in %v, want now", look.NextAt)
	}
	if claim := table.claimDue(alive, false); len(claim.Events) != 3 || claim.Events[0].Attempt != 2 {
		t.Errorf("due: %+v", claim.Events)
	}
}
