// Package relay is the loop that moves events: it decides when to look, claims, publishes, waits for the confirms and
// writes back what became of each. It knows neither SQL nor AMQP.
//
// Three stages and a keeper, one goroutine each, joined by channels:
//
//	pump     sleeps until there is a reason to look, claims, sends            (stops first: no new claims)
//	confirm  awaits the outcomes of each claim, in the order sent             (ends when pump has and all is confirmed)
//	settle   writes outcomes back, as many as are there in one statement      (ends when confirm has)
//	keeper   renews the leases of what is in flight, ends those of the dead, prunes
//
// What is in flight is bounded in events and bytes by the window; it is the only back-pressure. Order across events is not
// promised: a retry comes later than what followed it.
package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outbox-relay/outbox-relay/event"
	"github.com/outbox-relay/outbox-relay/scanner"
)

// Source is where the pump claims. It is called by one goroutine.
type Source interface {
	ClaimRung(ctx context.Context, limit scanner.Limit) (scanner.Claim, scanner.Look, error)
	ClaimFresh(ctx context.Context, fromBottom bool, limit scanner.Limit) (scanner.Claim, scanner.Look, error)
	ClaimDue(ctx context.Context, suspects bool, limit scanner.Limit) (scanner.Claim, error)
}

// Ledger is where outcomes are written back.
type Ledger interface {
	Settle(ctx context.Context, settlements []event.Settlement) (lost int, err error)
}

// House is what the keeper keeps.
type House interface {
	ExpireLeases(ctx context.Context) ([]scanner.Expired, error)
	RenewLeases(ctx context.Context, held []scanner.Held) error
	Prune(ctx context.Context) (deleted int64, next time.Duration, err error)
}

// Await blocks until every event of one Publish has its outcome, in the same order, or ctx ends: then the rest are Unknown.
type Await = func(ctx context.Context) []event.Outcome

// Sink is the broker.
type Sink interface {
	// Ready is closed, or will be, when events can be published.
	Ready() <-chan struct{}
	// Publish sends all events without waiting for their confirms. When ctx ends the rest stay Unsent.
	Publish(ctx context.Context, events []event.Event) Await
}

// Bell is the doorbell and whoever listens for it.
type Bell interface {
	Rung() <-chan struct{}          // an event was inserted while the relay counted as asleep
	Reconnected() <-chan struct{}   // who inserted before may not have rung
	Changed() <-chan struct{}       // the lock came or went
	Rest(asleep bool)               // whether to count as asleep
	Asleep() (xmax uint64, ok bool) // whether it does; transactions below xmax may not have noticed
	Ring(ctx context.Context) error // wake other relays
}

// Options configure a Relay.
type Options struct {
	ScanInterval time.Duration
	BatchSize    int
	Lease        time.Duration
	Policy       Policy
	Grace        time.Duration // from the end of Run's context until Run has returned
	InFlight     int           // events, at most
	InFlightSize int64         // bytes of payload, at most; one event always fits
	Logger       *slog.Logger
	Metrics      *Metrics
}

// Relay is one relay. New makes it, Run runs it once.
type Relay struct {
	o      Options
	source Source
	ledger Ledger
	house  House
	sink   Sink
	bell   Bell

	window *window
	watch  watch
	poke   chan struct{} // from settle and keeper to pump: something is due sooner than it thinks
	pace   pace

	database atomic.Pointer[error] // why the last claim failed; nil: it did not
}

// New returns a Relay; nothing starts. bell may be nil: then only the scan finds events.
func New(o Options, source Source, ledger Ledger, house House, sink Sink, bell Bell) *Relay {
	if bell == nil {
		bell = silence{}
	}
	return &Relay{
		o: o, source: source, ledger: ledger, house: house, sink: sink, bell: bell,
		window: newWindow(o.InFlight, o.InFlightSize), watch: watch{lease: o.Lease}, poke: make(chan struct{}, 1),
		pace: pace{interval: o.ScanInterval, bell: bell},
	}
}

// Trouble is why the database did not answer the last claim, or nil. Any goroutine may ask.
func (r *Relay) Trouble() error {
	if err := r.database.Load(); err != nil {
		return *err
	}
	return nil
}

// ErrUnsettled is returned by Run when the grace ended before every outcome was written: the leases of those events have to
// end before they are sent again.
var ErrUnsettled = errors.New("the grace ended before everything in flight was settled")

// Run moves events until ctx ends; then it claims no more, waits for the confirms of what was sent, hands the rest back,
// and returns within the grace.
func (r *Relay) Run(ctx context.Context) error {
	// The last quarter of the grace is for writing back what was not confirmed in the rest of it.
	confirming, cancel := outlive(ctx, r.o.Grace*3/4)
	defer cancel()
	settling, cancel := outlive(ctx, r.o.Grace)
	defer cancel()

	sent := make(chan *flight, r.o.InFlight)
	confirmed := make(chan *flight, r.o.InFlight)
	keeping, stopKeeping := context.WithCancel(settling)
	var keeper, stages sync.WaitGroup
	keeper.Go(func() { r.keep(ctx, keeping) })
	stages.Go(func() { defer close(sent); r.pump(ctx, confirming, sent) })
	stages.Go(func() { defer close(confirmed); r.confirm(confirming, sent, confirmed) })
	unsettled := r.settle(settling, confirmed)
	stages.Wait()
	stopKeeping()
	keeper.Wait()
	if unsettled > 0 {
		return fmt.Errorf("%w: %d events wait for their lease to end", ErrUnsettled, unsettled)
	}
	return nil
}

// outlive returns a context that ends a fixed time after ctx does, with ctx's values.
func outlive(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	outliving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	return outliving, func() { stop(); cancel() }
}

// silence is the bell that nobody hears.
type silence struct{}

func (silence) Rung() <-chan struct{}        { return nil }
func (silence) Reconnected() <-chan struct{} { return nil }
func (silence) Changed() <-chan struct{}     { return nil }
func (silence) Rest(bool)                    {}
func (silence) Asleep() (uint64, bool)       { return 0, false }
func (silence) Ring(context.Context) error   { return nil }
