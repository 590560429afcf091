package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// fault is a kind of thing that goes wrong. What it does to whom is drawn before it begins.
type fault struct {
	kind   string
	hits   target
	spends bool // claims may end without an outcome, or their answers be lost, so attempts may be spent
	// strike does it, and returns when it is over: the server answers again, the process goes on, the link forwards.
	strike func(ctx context.Context, f *field, r *rand.Rand) error
}

// target is what a fault works on. The two faults of a pair have different ones.
type target int

const (
	relays target = iota
	broker
	database
	brokerLinks
	databaseLinks
)

// field is what faults strike.
type field struct {
	*world
	note func(format string, args ...any) // says what is being done
}

var faults = []fault{
	{"relay killed", relays, true, killRelay},
	{"all relays killed", relays, true, killAllRelays},
	{"relay frozen within its lease", relays, false, freezeRelay(200*time.Millisecond, lease/2)},
	{"relay frozen beyond its lease", relays, true, freezeRelay(lease+time.Second, 2*lease)},
	{"relay stopped", relays, false, stopRelay},
	{"relay leaves or joins", relays, false, resizeCrew},
	{"broker killed", broker, false, restartBroker(true)},
	{"broker stopped", broker, false, restartBroker(false)},
	{"broker frozen", broker, false, freezeBroker},
	{"broker memory alarm", broker, false, alarm},
	{"broker connections closed", brokerLinks, false, closeConnections},
	{"broker links cut", brokerLinks, false, breakLinks((*berth).toBroker, (*proxy).cut)},
	{"broker links stalled", brokerLinks, false, breakLinks((*berth).toBroker, (*proxy).stall)},
	{"broker links forgotten", brokerLinks, false, breakLinks((*berth).toBroker, forget)},
	{"database killed", database, true, restartDatabase(true)},
	{"database restarted", database, true, restartDatabase(false)},
	{"database frozen", database, true, freezeDatabase},
	{"database table locked", database, true, lockTable},
	{"database backends terminated", databaseLinks, true, terminateBackends},
	{"database links cut", databaseLinks, true, breakLinks((*berth).toDatabase, (*proxy).cut)},
	{"database links stalled", databaseLinks, true, breakLinks((*berth).toDatabase, (*proxy).stall)},
	{"database links forgotten", databaseLinks, true, breakLinks((*berth).toDatabase, forget)},
	{"listener stalled", databaseLinks, false, breakLinks((*berth).toDatabase, stallListener)},
}

func (b *berth) toBroker() *proxy   { return b.rabbitmq }
func (b *berth) toDatabase() *proxy { return b.postgres }

func forget(p *proxy)        { p.stallOpen(func(*link) bool { return true }) }
func stallListener(p *proxy) { p.stallOpen(func(l *link) bool { return l.listens }) }

func oneOf[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + upTo(r, most-least)
}

func killRelay(ctx context.Context, f *field, r *rand.Rand) error {
	b, away := oneOf(r, f.crew.sailing(true)), upTo(r, 3*time.Second)
	f.note("%s killed, %s away", b.relay.name, away)
	b.relay.kill()
	pause(ctx, away)
	return f.crew.start(b, r)
}

func killAllRelays(ctx context.Context, f *field, r *rand.Rand) error {
	away := upTo(r, 2*time.Second)
	f.note("all relays killed, %s away", away)
	all := f.crew.sailing(true)
	for _, b := range all {
		b.relay.kill()
	}
	pause(ctx, away)
	for _, b := range all {
		if err := f.crew.start(b, r); err != nil {
			return err
		}
	}
	return nil
}

func freezeRelay(least, most time.Duration) func(context.Context, *field, *rand.Rand) error {
	return func(ctx context.Context, f *field, r *rand.Rand) error {
		b, frozen := oneOf(r, f.crew.sailing(true)), between(r, least, most)
		f.note("%s frozen for %s", b.relay.name, frozen)
		b.relay.signal(syscall.SIGSTOP)
		pause(ctx, frozen)
		b.relay.signal(syscall.SIGCONT)
		return nil
	}
}

func stopRelay(ctx context.Context, f *field, r *rand.Rand) error {
	b, away := oneOf(r, f.crew.sailing(true)), upTo(r, time.Second)
	f.stopRelay(b)
	pause(ctx, away)
	return f.crew.start(b, r)
}

func resizeCrew(_ context.Context, f *field, r *rand.Rand) error {
	there, free := f.crew.sailing(true), f.crew.sailing(false)
	if len(free) > 0 && (len(there) <= 2 || r.IntN(2) == 0) {
		b := oneOf(r, free)
		f.note("relay %d joins", b.number)
		return f.crew.start(b, r)
	}
	if len(there) > 2 {
		f.stopRelay(oneOf(r, there))
	}
	return nil
}

// stopRelay asks a relay to end. It may fail to where the database can't be told of outcomes.
func (f *field) stopRelay(b *berth) {
	f.note("%s stopped", b.relay.name)
	began := time.Now()
	if err := b.relay.stop(stopTimeout); err != nil {
		f.unclean(began, err)
	}
	b.relay = nil
}

func restartBroker(kill bool) func(context.Context, *field, *rand.Rand) error {
	return func(ctx context.Context, f *field, r *rand.Rand) error {
		away := upTo(r, 8*time.Second)
		f.note("broker ends (kill -9: %t), %s away", kill, away)
		err := f.servers.RabbitMQ.Kill
		if !kill {
			err = func() error { return f.servers.RabbitMQ.Stop(ctx) }
		}
		if err := err(); err != nil {
			return err
		}
		pause(ctx, away)
		return f.servers.RabbitMQ.Start(ctx)
	}
}

func freezeBroker(ctx context.Context, f *field, r *rand.Rand) error {
	frozen := between(r, 500*time.Millisecond, 12*time.Second)
	f.note("broker frozen for %s", frozen)
	if err := f.servers.RabbitMQ.Freeze(); err != nil {
		return err
	}
	pause(ctx, frozen)
	return f.servers.RabbitMQ.Thaw()
}

func alarm(ctx context.Context, f *field, r *rand.Rand) error {
	lasting := between(r, time.Second, 15*time.Second)
	f.note("broker memory alarm for %s", lasting)
	if _, err := f.servers.Rabbitmqctl(ctx, "set_vm_memory_high_watermark", "0.0000001"); err != nil {
		return err
	}
	pause(ctx, lasting)
	_, err := f.servers.Rabbitmqctl(ctx, "set_vm_memory_high_watermark", "0.6")
	return err
}

// closeConnections needs no broker to succeed: the other fault of the pair may have ended it.
func closeConnections(ctx context.Context, f *field, _ *rand.Rand) error {
	f.note("broker connections closed by an operator")
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if _, err := f.servers.Rabbitmqctl(ctx, "close_all_connections", "chaos"); err != nil {
		f.note("they were not: %.100q", err.Error())
	}
	return nil
}

func restartDatabase(kill bool) func(context.Context, *field, *rand.Rand) error {
	return func(ctx context.Context, f *field, r *rand.Rand) error {
		away := upTo(r, 2*lease)
		f.note("database ends (kill -9: %t), %s away", kill, away)
		end := f.servers.Postgres.Kill
		if !kill {
			end = func() error { return f.servers.Postgres.Stop(ctx) }
		}
		if err := end(); err != nil {
			return err
		}
		pause(ctx, away)
		return f.servers.Postgres.Start(ctx)
	}
}

func freezeDatabase(ctx context.Context, f *field, r *rand.Rand) error {
	frozen := between(r, 500*time.Millisecond, 2*lease)
	f.note("database frozen for %s", frozen)
	if err := f.servers.Postgres.Freeze(); err != nil {
		return err
	}
	pause(ctx, frozen)
	return f.servers.Postgres.Thaw()
}

func lockTable(ctx context.Context, f *field, r *rand.Rand) error {
	held := between(r, 500*time.Millisecond, 2*lease)
	return f.operate(ctx, func(conn *pgx.Conn) error {
		tx, err := conn.Begin(ctx)
		if err == nil {
			_, err = tx.Exec(ctx, "lock table outbox.events in access exclusive mode")
		}
		if err != nil {
			return err
		}
		f.note("table locked for %s", held)
		pause(ctx, held)
		return tx.Rollback(ctx)
	})
}

// terminateBackends hits some of the relays' sessions, or some of all.
func terminateBackends(ctx context.Context, f *field, r *rand.Rand) error {
	who, share := oneOf(r, []string{"outbox-relay", ""}), oneOf(r, []float64{0.3, 1})
	f.note("backends of %q terminated, each with a chance of %g", who, share)
	return f.operate(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `select pg_terminate_backend(pid) from pg_stat_activity
			where pid <> pg_backend_pid() and backend_type = 'client backend'
			and starts_with(application_name, $1) and random() < $2`, who, share)
		return err
	})
}

// operate does something on a connection of an operator's, who has none if the pair's other fault is in the way.
func (f *field) operate(ctx context.Context, do func(*pgx.Conn) error) error {
	connecting, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(connecting, f.servers.DatabaseURL)
	if err == nil {
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
		err = do(conn)
	}
	if err != nil {
		f.note("the operator has no luck: %.200q", err.Error())
	}
	return ctx.Err()
}

// breakLinks breaks one relay's links or those of all, and mends them after a while.
func breakLinks(link func(*berth) *proxy, breakIt func(*proxy)) func(context.Context, *field, *rand.Rand) error {
	return func(ctx context.Context, f *field, r *rand.Rand) error {
		hit, lasting := slices.Clone(f.crew.berths), between(r, 200*time.Millisecond, 15*time.Second)
		if r.IntN(2) == 0 {
			hit = []*berth{oneOf(r, hit)}
		}
		var who []string
		for _, b := range hit {
			who = append(who, fmt.Sprint(b.number))
			breakIt(link(b))
		}
		f.note("links of relay %s broken for %s", strings.Join(who, ", "), lasting)
		pause(ctx, lasting)
		for _, b := range hit {
			if err := link(b).resume(); err != nil {
				return err
			}
		}
		return nil
	}
}
