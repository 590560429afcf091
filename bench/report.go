package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// report is the table. A line is added to once a round, and printed when its scenario is done.
type report struct {
	lines   []*line
	printed int
}

// line is one figure: what was measured, in the unit, and what it is held against, round by round.
type line struct {
	workload, unit  string
	values, against []float64
	goal            goal
}

// goal is a bound on the ratio of value to floor, or on the value where there is no floor.
type goal struct {
	limit  float64
	atMost bool
}

var noGoal = goal{}

func atMost(limit float64) goal  { return goal{limit, true} }
func atLeast(limit float64) goal { return goal{limit, false} }

// add notes a round's value and the floor measured in the same round; 0: there is none.
func (r *report) add(workload, unit string, value, floor float64, g goal) {
	i := slices.IndexFunc(r.lines, func(l *line) bool { return l.workload == workload })
	if i < 0 {
		i = len(r.lines)
		r.lines = append(r.lines, &line{workload: workload, unit: unit, goal: g})
	}
	r.lines[i].values = append(r.lines[i].values, value)
	r.lines[i].against = append(r.lines[i].against, floor)
}

// begin prints what the figures depend on, and the table's head.
func (r *report) begin(ctx context.Context, b *bench) {
	version, err := exec.CommandContext(ctx, b.relay, "version").Output()
	if err != nil {
		version = []byte("unknown version: " + err.Error())
	}
	fmt.Printf("%s; %d CPUs; medians of %d rounds (lowest to highest)\n", strings.ReplaceAll(
		strings.TrimSpace(string(version)), "\n", ", "), runtime.NumCPU(), b.rounds)
	if len(b.relayFlags) > 0 {
		fmt.Printf("outbox-relay run %s\n", strings.Join(b.relayFlags, " "))
	}
	fmt.Print("\n| workload | measured | against | ratio | goal |\n|---|---|---|---|---|\n")
}

// print prints what was not printed yet.
func (r *report) print() {
	for _, l := range r.lines[r.printed:] {
		fmt.Println(l)
	}
	r.printed = len(r.lines)
	_ = os.Stdout.Sync() // a long run is read while it goes on
}

func (l *line) String() string {
	measured, against, ratio := l.measure(l.values), "", ""
	verdict := l.values
	if l.against[0] != 0 {
		ratios := make([]float64, len(l.values))
		for i := range ratios {
			ratios[i] = l.values[i] / l.against[i]
		}
		verdict = ratios
		against = number(median(l.against)) + " " + l.unit
		ratio = fmt.Sprintf("%.2f (%.2f to %.2f)", median(ratios), slices.Min(ratios), slices.Max(ratios))
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s |", l.workload, measured, against, ratio, l.goal.judge(median(verdict)))
}

func (l *line) measure(values []float64) string {
	s := number(median(values)) + " " + l.unit
	if len(values) > 1 {
		s += fmt.Sprintf(" (%s to %s)", number(slices.Min(values)), number(slices.Max(values)))
	}
	return s
}

func (g goal) judge(v float64) string {
	switch {
	case g == noGoal:
		return ""
	case g.atMost && v <= g.limit:
		return fmt.Sprintf("≤ %v ✓", g.limit)
	case g.atMost:
		return fmt.Sprintf("≤ %v ✗", g.limit)
	case v >= g.limit:
		return fmt.Sprintf("≥ %v ✓", g.limit)
	default:
		return fmt.Sprintf("≥ %v ✗", g.limit)
	}
}

// number writes three digits, or all before the point.
func number(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case v >= 1 || v == 0:
		return strconv.FormatFloat(v, 'f', 2, 64)
	default:
		return strconv.FormatFloat(v, 'f', 3, 64)
	}
}

// median of the values, which stay as they are.
func median(values []float64) float64 { return percentile(values, 50) }

// percentile by the nearest rank; the values stay as they are.
func percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	if p == 50 && len(sorted)%2 == 0 {
		return (sorted[len(sorted)/2-1] + sorted[len(sorted)/2]) / 2
	}
	return sorted[min(int(p/100*float64(len(sorted))), len(sorted)-1)]
}
