package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"text/tabwriter"
	"time"
)

// shownFindings is how many are printed; the timeline has all.
const shownFindings = 30

func (w *world) report(s sums) {
	out := tabwriter.NewWriter(w.o.out, 0, 0, 2, ' ', 0)
	defer func() { _ = out.Flush() }()
	kind := "classic"
	if w.o.quorum {
		kind = "quorum"
	}
	fmt.Fprintf(out, "seed %d, %s of faults, %s queue, 2 to %d relays\n\n", w.o.seed, w.o.duration, kind, w.o.relays)
	fmt.Fprintln(out, "fault\ttimes\trecovered after, median\tlongest")
	for _, row := range w.byKind() {
		fmt.Fprintf(out, "%s\t%d\t%s\t%s\n", row.kind, row.times, row.at(50), row.at(100))
	}
	fmt.Fprintln(out)
	for _, line := range []struct {
		what  string
		value any
	}{
		{"events committed", s.committed},
		{"events rolled back", s.rolledBack},
		{"messages delivered", s.delivered},
		{"lost", s.lost},
		{"invented", s.invented},
		{"effects not exactly once", s.misapplied},
		{"duplicated by a relay", s.relayRepeats},
		{"handed out again by the broker", s.brokerRepeats},
		{"events with more than one attempt", s.retried},
		{"of these without a fault that explains it", s.retriedWithoutCause},
		{"most attempts of one event", s.mostAttempts},
		{"longest recovery", w.longest().Round(10 * time.Millisecond)},
		{"drained after the last fault in", s.drained.Round(10 * time.Millisecond)},
		{"relay processes", len(w.crew.processes)},
		{"commit to consumed without faults, p50", w.ledger.percentile(50).Round(100 * time.Microsecond)},
		{"commit to consumed without faults, p99", w.ledger.percentile(99).Round(100 * time.Microsecond)},
	} {
		fmt.Fprintf(out, "%s\t%v\n", line.what, line.value)
	}
	if len(w.findings) > 0 {
		fmt.Fprintln(out, "\nNot as promised:")
		for _, finding := range w.findings[:min(len(w.findings), shownFindings)] {
			fmt.Fprintln(out, "- "+finding)
		}
		if more := len(w.findings) - shownFindings; more > 0 {
			fmt.Fprintf(out, "- and %d more, see timeline.log\n", more)
		}
	}
}

// row is a kind of fault in the report. Pairs count for both, but their recoveries stand in a row of their own.
type row struct {
	kind       string
	times      int
	recoveries []time.Duration // sorted
}

const pairs = "two at once"

func (w *world) byKind() []*row {
	rows := map[string]*row{}
	get := func(kind string) *row {
		if rows[kind] == nil {
			rows[kind] = &row{kind: kind}
		}
		return rows[kind]
	}
	for _, e := range w.episodes {
		for _, kind := range e.kinds {
			get(kind).times++
		}
		of := get(e.kinds[0])
		if len(e.kinds) > 1 {
			of = get(pairs)
			of.times++
		}
		if e.recovery >= 0 {
			of.recoveries = append(of.recoveries, e.recovery)
		}
	}
	for _, r := range rows {
		slices.Sort(r.recoveries)
	}
	return slices.SortedFunc(maps.Values(rows), func(a, b *row) int {
		switch pairs {
		case a.kind:
			return 1
		case b.kind:
			return -1
		}
		return cmp.Compare(a.kind, b.kind)
	})
}

func (r *row) at(percent int) string {
	if len(r.recoveries) == 0 {
		return "-"
	}
	return r.recoveries[(len(r.recoveries)-1)*percent/100].Round(10 * time.Millisecond).String()
}

func (w *world) longest() (longest time.Duration) {
	for _, e := range w.episodes {
		longest = max(longest, e.recovery)
	}
	return longest
}
