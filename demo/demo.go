// Package demo shows the relay at work in half a minute, on real servers: a sample shop commits orders together with their
// events, `outbox-relay run` publishes them as a process of its own, and a consumer receives them. In the end the ids that
// were committed are held against those that were consumed.
//
// Contract: whatever ends it, be it the script's end, the caller's context, or the death of the relay or of a server, no
// process, file, schema, exchange or queue of its own is left. On servers that exist already it touches nothing but what it
// made there, under names that nobody else has.
//
// Limits: after a SIGKILL, or an impatient second Ctrl-C, the throwaway servers' folder is left, or on servers that exist already the two schemas and the
// exchange whose names begin with outbox_demo_. amqps with files of one's own for TLS is not for the demo.
package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/outbox-relay/outbox-relay/stack"
)

// Options say what to show, and where.
type Options struct {
	Program     string        // path of outbox-relay, which is started as a process of its own
	DatabaseURL string        // PostgreSQL that exists already; empty: a throwaway one
	AMQPURL     string        // RabbitMQ that exists already; empty: a throwaway one
	Duration    time.Duration // how long the shop takes orders
	Keep        bool          // afterwards servers and relay stay up until the context ends
	Out         io.Writer     // gets the show, line by line
}

// catchUpTimeout is how long after the last COMMIT an event may arrive and not count as missing.
const catchUpTimeout = 10 * time.Second

// errUnequal is the one error that being asked to stop does not make irrelevant.
var errUnequal = errors.New("what was consumed is not what was committed")

// Run shows it all and returns when everything is gone again. To be asked to stop, by the end of ctx, is no error.
func Run(ctx context.Context, o Options) error {
	d := &demo{Options: o, ledger: newLedger(), report: report{out: o.Out}}
	playing, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	d.fail = fail

	err := d.play(playing)
	fmt.Fprintln(o.Out)
	if ctx.Err() != nil {
		fmt.Fprintln(o.Out, "Asked to stop.")
		if !errors.Is(err, errUnequal) {
			err = nil
		}
	} else if cause := context.Cause(playing); cause != nil {
		err = cause // what err only follows from
	}
	if left := d.tearDown(); left != nil {
		return errors.Join(err, left)
	}
	fmt.Fprintln(o.Out, "Stopped. No process, file or table of the demo is left.")
	return err
}

type demo struct {
	Options
	place    place
	ledger   *ledger
	report   report
	relay    *relayProcess
	consumer *consumer
	fail     func(cause error)
	undo     []func() error // in reverse order
}

// place is where the demo plays: URLs, and the names of what it makes there.
type place struct {
	databaseURL, amqpURL string
	outbox, shop         string // schemas
	exchange, queue      string
	sharedDatabase       bool // what was made there has to be removed one by one
	sharedBroker         bool
}

// play is the script, top to bottom.
func (d *demo) play(ctx context.Context) error {
	d.report.title()
	servers, err := d.servers(ctx)
	if err != nil {
		return err
	}
	shop, err := openShop(ctx, d.place, d.ledger)
	if err != nil {
		return err
	}
	d.undo = append(d.undo, shop.close)
	d.consumer, err = startConsumer(d.place, d.ledger, d.fail)
	if err != nil {
		return err
	}
	d.undo = append(d.undo, d.consumer.close)
	d.relay, err = startRelay(d.Program, servers.Dir, d.place, d.fail)
	if err != nil {
		return err
	}
	d.undo = append(d.undo, d.relay.stop)
	if err := d.relay.awaitReady(ctx); err != nil {
		return err
	}

	counters, err := d.relay.counters(ctx)
	if err != nil {
		return err
	}
	d.report.scene(d.place, d.relay, counters)
	if err := d.trade(ctx, shop); err != nil {
		return err
	}
	counters, err = d.catchUp(ctx)
	if err != nil {
		return err
	}
	missing, invented := d.ledger.compare()
	d.report.summary(d.ledger, counters, missing, invented)
	var unequal error
	if len(missing)+len(invented) > 0 {
		unequal = fmt.Errorf("%w: %d missing, %d invented", errUnequal, len(missing), len(invented))
	}
	if d.Keep {
		return errors.Join(unequal, d.keep(ctx))
	}
	return unequal
}

// servers starts what the caller has not, and chooses the names.
func (d *demo) servers(ctx context.Context) (*stack.Stack, error) {
	p := place{
		databaseURL: d.DatabaseURL, amqpURL: d.AMQPURL, outbox: "outbox", shop: "demo", exchange: "outbox", queue: "demo.orders",
		sharedDatabase: d.DatabaseURL != "", sharedBroker: d.AMQPURL != "",
	}
	d.report.starting(p)
	servers, err := stack.Start(ctx, stack.Options{NoPostgres: p.sharedDatabase, NoRabbitMQ: p.sharedBroker, Log: d.Out})
	if err != nil {
		return nil, err
	}
	d.undo = append(d.undo, servers.Close)
	own := "outbox_demo_" + strings.ToLower(rand.Text()[:8])
	if p.sharedDatabase {
		p.outbox, p.shop = own, own+"_shop"
	} else {
		p.databaseURL = servers.DatabaseURL
	}
	if p.sharedBroker {
		p.exchange, p.queue = own, own+".orders"
	} else {
		p.amqpURL = servers.AMQPURL
	}
	d.place = p
	return servers, nil
}

// trade lets the shop take orders, a phase after the other, and prints a row a second meanwhile.
func (d *demo) trade(ctx context.Context, shop *shop) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	began := time.Now()
	for _, p := range phases {
		d.report.phase(p)
		closed := make(chan error, 1)
		go func() { closed <- shop.trade(ctx, p, time.Duration(p.share*float64(d.Duration))) }()
		for open := true; open; {
			select {
			case <-tick.C:
				counters, err := d.relay.counters(ctx)
				if err != nil {
					cancel()
					return errors.Join(err, <-closed)
				}
				d.report.row(time.Since(began), d.ledger.tally(), counters)
			case err := <-closed:
				if err == nil {
					err = ctx.Err() // the shop just closes
				}
				if err != nil {
					return err
				}
				open = false
			}
		}
	}
	return nil
}

// catchUp waits until all has arrived, or nothing more is to be expected.
func (d *demo) catchUp(ctx context.Context) (counters, error) {
	deadline := time.Now().Add(catchUpTimeout)
	for {
		counters, err := d.relay.counters(ctx)
		if err != nil {
			return nil, err
		}
		t := d.ledger.tally()
		if t.consumed == t.committed && counters.published() >= t.committed || time.Now().After(deadline) {
			return counters, d.consumer.drain(ctx)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// keep tells what arrives besides the shop's orders, until ctx ends.
func (d *demo) keep(ctx context.Context) error {
	d.report.invitation(d.place, d.relay)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			d.report.arrivals(d.ledger.takeStrangers())
		}
	}
}

func (d *demo) tearDown() error {
	var failed []error
	for i := len(d.undo) - 1; i >= 0; i-- {
		failed = append(failed, d.undo[i]())
	}
	return errors.Join(failed...)
}
