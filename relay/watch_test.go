package relay

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestDatabaseThatWasAwayIsNotTakenForTheDeathOfOthers(t *testing.T) {
	const lease = time.Minute
	for _, c := range []struct {
		away, since time.Duration // since it is back
		had         bool
	}{
		{away: lease / 4, since: 0, had: true}, // the ordinary pace
		{away: lease / 2, since: 0, had: true}, // no lease can have ended for it
		{away: lease, since: 0},
		{away: lease, since: lease / 4},
		{away: lease, since: lease / 2, had: true},
		{away: 10 * lease, since: lease / 4},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := watch{lease: lease}
			if !w.othersHadTime() {
				t.Error("a relay that has just started waits")
			}
			w.noteAnswer()
			time.Sleep(c.away)
			if absent := c.away > lease*3/4; w.absent() != absent || w.othersHadTime() == absent {
				t.Errorf("%+v: absent %t before it is back", c, w.absent())
			}
			w.noteAnswer()
			time.Sleep(c.since)
			if w.othersHadTime() != c.had {
				t.Errorf("%+v: had time: %t", c, !c.had)
			}
		})
	}
}
