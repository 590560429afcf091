package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// recovered is the age that no waiting event has when all is well, for steady at a stretch: what a dead relay held
	// needs a moment to be seen waiting.
	recovered = time.Second
	steady    = 1500 * time.Millisecond
	// recoveryLimit is how long a recovery may take: a stalled connection has to be found out, a lease to end.
	recoveryLimit = 90 * time.Second
)

// episode is one fault, or two at once, and what it took to recover.
type episode struct {
	kinds    []string
	spends   bool
	database bool // the relays could not always reach it
	from, to time.Time
	recovery time.Duration // since to; negative: nobody waited for it
}

func (e episode) name() string {
	if len(e.kinds) == 2 {
		return e.kinds[0] + " + " + e.kinds[1]
	}
	return e.kinds[0]
}

// attack lets episodes come, one after another, until the time is over. Only what the harness can't go on with is an
// error.
func (w *world) attack(ctx context.Context, seed uint64, duration time.Duration) error {
	until := time.Now().Add(duration)
	draw := rand.New(rand.NewPCG(seed, 0))
	cards := &deck{draw: draw, only: w.o.only}
	for n := uint64(1); time.Now().Before(until); n++ {
		together := cards.next()
		hasty, calm := draw.IntN(4) == 0, between(draw, 500*time.Millisecond, 3*time.Second)
		e, err := w.strike(ctx, together, seed, n)
		if err != nil {
			return err
		}
		if hasty && len(together) == 1 {
			e.recovery = -1
		} else if e.recovery, err = w.recover(ctx, e.to); err != nil {
			w.record(e)
			return err
		} else {
			w.note("recovered %s after the end of: %s", e.recovery.Round(10*time.Millisecond), e.name())
			w.ledger.setCalm(int(n))
		}
		w.record(e)
		if !pause(ctx, calm) {
			return ctx.Err()
		}
		w.ledger.setCalm(0)
	}
	return nil
}

// deck gives faults: each kind once before any comes twice.
type deck struct {
	draw  *rand.Rand
	only  string
	cards []fault
}

// next gives one fault, or two that hit different targets.
func (d *deck) next() []fault {
	together := []fault{d.take()}
	if d.draw.IntN(2) == 0 {
		if second := d.take(); second.hits != together[0].hits {
			together = append(together, second)
		} else {
			d.cards = append(d.cards, second)
		}
	}
	return together
}

func (d *deck) take() fault {
	if len(d.cards) == 0 {
		d.cards = chosen(d.only)
		d.draw.Shuffle(len(d.cards), func(i, j int) { d.cards[i], d.cards[j] = d.cards[j], d.cards[i] })
	}
	f := d.cards[0]
	d.cards = d.cards[1:]
	return f
}

// chosen gives the faults whose kind contains the text.
func chosen(text string) []fault {
	return slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return !strings.Contains(f.kind, text) })
}

// strike lets one or two faults happen.
func (w *world) strike(ctx context.Context, together []fault, seed, n uint64) (episode, error) {
	e := episode{from: time.Now()}
	errs := make([]error, len(together))
	var over sync.WaitGroup
	for i, f := range together {
		e.kinds, e.spends = append(e.kinds, f.kind), e.spends || f.spends
		e.database = e.database || f.hits == database || f.hits == databaseLinks
		over.Go(func() {
			r := rand.New(rand.NewPCG(seed, 1000+2*n+uint64(i)))
			if i > 0 {
				pause(ctx, upTo(r, 2*time.Second))
			}
			f.strikeIn(ctx, w, r, &errs[i])
		})
	}
	over.Wait()
	e.to = time.Now()
	for i, err := range errs {
		if err != nil {
			return e, fmt.Errorf("%s: %w", together[i].kind, err)
		}
	}
	return e, nil
}

func (f fault) strikeIn(ctx context.Context, w *world, r *rand.Rand, err *error) {
	note := func(format string, args ...any) { w.note(f.kind+": "+format, args...) }
	*err = f.strike(ctx, &field{world: w, note: note}, r)
	note("over")
}

// recover waits until no event has waited long for a while, and gives the time from the end of the faults until the
// beginning of that while.
func (w *world) recover(ctx context.Context, since time.Time) (time.Duration, error) {
	well := time.Now()
	for {
		age, number := w.ledger.oldest()
		switch now := time.Now(); {
		case age >= recovered:
			well = now
		case now.Sub(well) >= steady:
			return max(well.Sub(since), 0), nil
		}
		if time.Since(since) > recoveryLimit {
			return recoveryLimit, fmt.Errorf("number %d has waited for %s, and the last fault ended %s ago",
				number, age.Round(time.Millisecond), recoveryLimit)
		}
		if !pause(ctx, 20*time.Millisecond) {
			return 0, ctx.Err()
		}
	}
}
