package scanner

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-relay/outbox-relay/event"
)

func TestMixedOutcomesInOneStatement(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := table.scanner(defaults())
	table.insert(5)
	claim, _ := table.claimFresh(s, plenty)
	settle := func(i int, o event.Settlement) event.Settlement {
		o.ID, o.ClaimID = claim.Events[i].ID, claim.ID
		return o
	}
	lost, err := s.Settle(t.Context(), []event.Settlement{
		settle(0, event.Settlement{Status: event.Published}),
		settle(1, event.Settlement{Status: event.Failed, Delay: time.Hour, Error: "nacked"}),
		settle(2, event.Settlement{Status: event.Pending, Refund: true}),
		settle(3, event.Settlement{Status: event.Dead, Error: "too large"}),
	})
	if err != nil || lost != 0 {
		t.Fatalf("lost %d, %v", lost, err)
	}
	for _, want := range []struct {
		sequence int
		row      string
	}{
		{1, "PUBLISHED, 1 attempts, published t, error none, in 0 s, claimed t"},
		{2, "FAILED, 1 attempts, published f, error nacked, in 3600 s, claimed f"},
		{3, "PENDING, 0 attempts, published f, error none, in 0 s, claimed f"},
		{4, "DEAD, 1 attempts, published f, error too large, never, claimed f"},
		{5, "PUBLISHING, 1 attempts, published f, error none, in 0 s, claimed t"},
	} {
		got := one[string](table, `select format('%s, %s attempts, published %s, error %s, %s, claimed %s', status, attempts,
			published_at is not null, coalesce(last_error, 'none'),
			case when available_at = 'infinity' then 'never'
			     else format('in %s s', greatest(0, round(extract(epoch from available_at - now())))) end,
			claim_id is not null) from outbox.events where sequence = $1`, want.sequence)
		if got != want.row {
			t.Errorf("event %d: %s; want %s", want.sequence, got, want.row)
		}
	}
	if due := table.claimDue(s, false); len(due.Events) != 1 || due.Events[0].Sequence != 3 || due.Events[0].Attempt != 1 {
		t.Errorf("due: %+v, want the one that was handed back, its attempt not spent", due.Events)
	}
}

// A relay that slept past its lease must not overwrite what another has made of the event.
func TestSettlingIsFencedByTheClaim(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := table.scanner(defaults())
	table.insert(1)
	claim, _ := table.claimFresh(s, plenty)
	stranger := claim
	stranger.ID = uuid.New()
	for _, status := range []event.Status{event.Published, event.Failed, event.Pending, event.Dead} {
		if lost := table.settle(s, stranger, event.Settlement{Status: status}); lost != 1 {
			t.Errorf("%s by another claim: lost %d, want 1", status, lost)
		}
	}
	if got := one[string](table, "select status from outbox.events"); got != "PUBLISHING" {
		t.Errorf("another claim made it %s", got)
	}
	for _, again := range []string{"first", "after an answer that was lost"} {
		if lost := table.settle(s, claim, event.Settlement{Status: event.Published}); lost != 0 {
			t.Errorf("%s: lost %d, want 0", again, lost)
		}
	}
	if lost := table.settle(s, claim, event.Settlement{Status: event.Failed}); lost != 1 {
		t.Errorf("FAILED after PUBLISHED: lost %d, want 1", lost)
	}
	if got := one[string](table, "select status from outbox.events"); got != "PUBLISHED" {
		t.Errorf("ended %s, want PUBLISHED", got)
	}
}

func TestWithoutRetentionPublishedEventsAreDeleted(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	o := defaults()
	o.Retention = 0
	s := table.scanner(o)
	table.insert(3)
	claim, _ := table.claimFresh(s, plenty)
	lost, err := s.Settle(t.Context(), []event.Settlement{
		{ID: claim.Events[0].ID, ClaimID: claim.ID, Status: event.Published},
		{ID: claim.Events[1].ID, ClaimID: uuid.New(), Status: event.Published},
		{ID: claim.Events[2].ID, ClaimID: claim.ID, Status: event.Failed},
	})
	if err != nil || lost != 1 {
		t.Errorf("lost %d, %v; want 1", lost, err)
	}
	if got := one[string](table, "select string_agg(status, ' ' order by sequence) from outbox.events"); got != "PUBLISHING FAILED" {
		t.Errorf("left: %s", got)
	}
}

func TestPruneDeletesOnlyWhatWasPublishedLongAgo(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	o := defaults()
	o.Retention = time.Hour
	s := table.scanner(o)
	table.insert(30_000)
	claim, _ := table.claimFresh(s, Limit{Events: 1 << 30, Bytes: 1 << 30})
	table.settle(s, claim, event.Settlement{Status: event.Published})
	table.exec("update outbox.events set published_at = now() - interval '2 hours' where sequence % 3 > 0")
	table.exec("update outbox.events set status = 'DEAD', published_at = null, available_at = 'infinity' where sequence % 3 = 1")
	var total int64
	steps := 0
	for ; total < 10_000 && steps < 1000; steps++ {
		deleted, next, err := s.Prune(t.Context())
		if err != nil || next <= 0 || next > time.Hour {
			t.Fatalf("next in %s, %v", next, err)
		}
		total += deleted
	}
	if total != 10_000 || steps < 2 {
		t.Errorf("deleted %d in %d steps, want 10000 in several", total, steps)
	}
	if old := one[int](table, "select count(*) from outbox.events where published_at < now() - interval '1 hour'"); old != 0 {
		t.Errorf("%d left", old)
	}
	if others := one[int](table, "select count(*) from outbox.events"); others != 20_000 {
		t.Errorf("%d events left, want 20000", others)
	}
}
