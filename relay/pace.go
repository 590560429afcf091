package relay

import (
	"time"

	"github.com/outbox-relay/outbox-relay/scanner"
)

// Reason says why the relay looked.
type Reason string

// The reasons. A look that follows another without sleep in between has that one's reason.
const (
	Start     Reason = "start"
	Notify    Reason = "notify"
	Scan      Reason = "scan"
	Due       Reason = "due"
	Reconnect Reason = "reconnect"
)

const (
	// busyRate is the arrival rate, in events a second, above which the relay stays awake and polls: being rung would slow
	// the writers, who then look as if they were slow enough to be slept between. quietRate is where it rests again.
	busyRate  = 1000
	quietRate = 500
	// rateWindow is the least time over which the rate is measured.
	rateWindow = 50 * time.Millisecond
	// pollInterval is the pace of looks in a busy stream, from beginning to beginning, and the first step of the drowsy ones.
	pollInterval = time.Millisecond
	// pollRest is the least wait between the end of one such look and the next.
	pollRest = pollInterval / 4
	// drowsyInterval is the longest wait while a transaction is open that may have inserted and will not ring.
	drowsyInterval = 500 * time.Millisecond
)

// pace decides how long to wait between two looks. It belongs to the pump.
type pace struct {
	interval time.Duration // of the fallback scan
	bell     Bell

	began    time.Time // the last look
	nextScan time.Time
	nextDue  time.Time // zero: nothing is scheduled
	busy     bool
	rung     bool          // out of a sleep: an event or two wait, as a rule
	drowsy   time.Duration // the last drowsy wait
	counted  int           // events since measured
	measured time.Time
}

// scanDue tells whether the next look is to start at the bottom.
func (p *pace) scanDue(now time.Time) bool { return !now.Before(p.nextScan) }

// looked takes in what a look found.
func (p *pace) looked(now time.Time, fromBottom bool, claim scanner.Claim, look scanner.Look) {
	p.began = now
	if fromBottom {
		p.nextScan = now.Add(p.interval)
	}
	p.nextDue = time.Time{}
	if look.NextAt != nil {
		p.nextDue = now.Add(*look.NextAt)
	}
	p.counted += len(claim.Events)
	if len(claim.Events) > 0 {
		p.drowsy = 0 // more may come soon, and nobody may ring
	}
	elapsed := now.Sub(p.measured)
	switch {
	case claim.Cut && len(claim.Events) > scanner.Few:
		p.setBusy(true)
	case elapsed < rateWindow:
		return
	default:
		rate := float64(p.counted) / elapsed.Seconds()
		p.setBusy(rate > busyRate || p.busy && rate > quietRate)
	}
	p.counted, p.measured = 0, now
}

// setBusy switches between staying awake, when writers do not ring, and resting, when they do.
func (p *pace) setBusy(busy bool) {
	p.busy = busy
	p.bell.Rest(!busy)
}

// wait says how long to wait after a look, and whether it is a sleep: one in which nothing can come that does not ring, or,
// where nobody rings, one as long as the scan interval.
func (p *pace) wait(now time.Time, claim scanner.Claim, look scanner.Look) (wait time.Duration, sleep bool) {
	since, asleep := p.bell.Asleep()
	switch {
	case claim.Cut:
		return 0, false
	case p.busy:
		wait = max(pollInterval-now.Sub(p.began), pollRest)
	case asleep && look.Xmin >= since:
		wait, sleep = p.interval, true
		p.drowsy = 0
	case asleep:
		wait = p.drowse(min(p.interval, drowsyInterval))
	default:
		wait = p.drowse(p.interval)
		sleep = wait == p.interval
	}
	wait = min(wait, p.nextScan.Sub(now))
	if !p.nextDue.IsZero() {
		wait = min(wait, p.nextDue.Sub(now))
	}
	return max(wait, 0), sleep
}

// drowse gives waits that double up to longest.
func (p *pace) drowse(longest time.Duration) time.Duration {
	p.drowsy = min(max(2*p.drowsy, pollInterval), longest)
	return p.drowsy
}

// woken restarts the drowsy waits at their shortest.
func (p *pace) woken() { p.drowsy = 0 }
