package demo

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestLedgerTellsWhatIsMissingAndWhatInvented(t *testing.T) {
	l := newLedger()
	good, early, lost, undone, unknown := uuid.New(), uuid.New(), uuid.New(), uuid.New(), uuid.New()
	l.committing(good, calm)
	l.committed(good)
	l.committing(early, burst) // its message arrives before the answer to COMMIT
	l.received(time.Now(), early.String(), "order.created", "2")
	l.committed(early)
	l.committing(lost, calm)
	l.committed(lost)
	l.rollingBack(undone)
	for _, id := range []string{good.String(), good.String(), undone.String(), unknown.String(), "no uuid"} {
		l.received(time.Now(), id, "order.created", "1")
	}

	counts := l.tally()
	if counts.committed != 3 || counts.rolledBack != 1 || counts.consumed != 3 || counts.duplicates != 1 || len(counts.latencies) != 2 {
		t.Errorf("%+v", counts)
	}
	missing, invented := l.compare()
	var out bytes.Buffer
	r := report{out: &out}
	r.summary(l, counters{}, missing, invented)
	for _, want := range []string{
		"MISSING, committed but not consumed: 1\n  " + lost.String(), "INVENTED, consumed but not committed: 3\n",
		undone.String() + ", which was rolled back", `"` + unknown.String() + `", which nobody wrote`, `"no uuid", which`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the summary lacks %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "Nothing missing") {
		t.Errorf("the summary claims that all is well:\n%s", out.String())
	}
}

func TestPercentileIsTheNearestRank(t *testing.T) {
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(i+1))
	}
	for p, want := range map[float64]time.Duration{0.5: 50, 0.99: 99, 1: 100} {
		if got := percentile(hundred, p); got != want {
			t.Errorf("percentile %v of 1 to 100 is %d, want %d", p, got, want)
		}
	}
	if percentile(nil, 0.5) != 0 || percentile(hundred[:1], 0.5) != 1 {
		t.Error("of none or one value")
	}
}

func TestNumber(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := number(n); got != want {
			t.Errorf("%d is written %s, want %s", n, got, want)
		}
	}
}
