package listener

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/outbox-relay/outbox-relay/sql"
	"github.com/outbox-relay/outbox-relay/stack/stacktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 60 * time.Second

// bench is a listener that runs until the test ends, on a migrated outbox.
type bench struct {
	*Listener
	tb     testing.TB
	pool   *pgxpool.Pool
	logs   lines
	notify atomic.Pointer[func(send func() error) error] // what to do with a notification of the listener's own; nil: send it
}

const name = "the listener under test"

// listen connects the listener at listenURL; the rest of the test is connected at url.
func listen(tb testing.TB, url, listenURL string) *bench {
	tb.Helper()
	b := &bench{tb: tb}
	conn, err := pgx.Connect(tb.Context(), url)
	if err == nil {
		err = errors.Join(sql.Migrate(tb.Context(), conn, "outbox", nil), conn.Close(tb.Context()))
	}
	if err == nil {
		b.pool, err = pgxpool.New(tb.Context(), url)
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(b.pool.Close)
	config, err := pgx.ParseConfig(listenURL)
	if err != nil {
		tb.Fatal(err)
	}
	config.RuntimeParams["application_name"] = name
	b.Listener = New(Options{
		Connect: config, Schema: "outbox", Notify: b.send,
		Logger: slog.New(slog.NewTextHandler(&b.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { b.Run(ctx) })
	tb.Cleanup(func() {
		cancel()
		running.Wait()
		if tb.Failed() {
			tb.Log(b.logs.String())
		}
	})
	return b
}

func start(tb testing.TB) *bench {
	tb.Helper()
	url := stacktest.Postgres(tb)
	b := listen(tb, url, url)
	b.eventually("connected", patience, b.Connected)
	return b
}

func (b *bench) send(ctx context.Context, channel, payload string) error {
	send := func() error {
		_, err := b.pool.Exec(ctx, "select pg_notify($1, $2)", channel, payload)
		return err
	}
	if instead := b.notify.Load(); instead != nil {
		return (*instead)(send)
	}
	return send()
}

func (b *bench) eventually(what string, within time.Duration, is func() bool) time.Duration {
	b.tb.Helper()
	began := time.Now()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		if time.Since(began) > within {
			b.tb.Fatalf("not within %s: %s", within, what)
		}
		<-tick.C
	}
	return time.Since(began)
}

func (b *bench) isAsleep() bool {
	_, ok := b.Asleep()
	return ok
}

func (b *bench) exec(sql string, args ...any) {
	b.tb.Helper()
	if _, err := b.pool.Exec(b.tb.Context(), sql, args...); err != nil {
		b.tb.Fatal(err)
	}
}

func (b *bench) count(sql string, args ...any) (n int) {
	b.tb.Helper()
	if err := b.pool.QueryRow(b.tb.Context(), sql, args...).Scan(&n); err != nil {
		b.tb.Fatal(err)
	}
	return n
}

func (b *bench) locks() int {
	b.tb.Helper()
	return b.count(`select count(*) from pg_locks where locktype = 'advisory' and mode = 'ShareLock'
		and database = (select oid from pg_database where datname = current_database())`)
}

func (b *bench) terminate() int {
	b.tb.Helper()
	return b.count(`select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database()
		and application_name = $1`, name)
}

func (b *bench) insert() {
	b.tb.Helper()
	b.exec(`insert into outbox.events (aggregate_type, aggregate_id, event_type, payload) values ('test', '1', 'test.event', '{}')`)
}

// await wants a value on a channel soon.
func (b *bench) await(c <-chan struct{}, what string, within time.Duration) {
	b.tb.Helper()
	select {
	case <-c:
	case <-time.After(within):
		b.tb.Fatalf("not within %s: %s", within, what)
	}
}

func drain(c <-chan struct{}) {
	select {
	case <-c:
	default:
	}
}

// lines collects a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Writers ring exactly while the relay counts as asleep.
func TestWritersRingOnlyWhileTheRelayRests(t *testing.T) {
	t.Parallel()
	b := start(t)
	neighbour, err := pgx.Connect(t.Context(), b.pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = neighbour.Close(context.Background()) }()
	if _, err := neighbour.Exec(t.Context(), "listen outbox"); err != nil {
		t.Fatal(err)
	}
	rings := func() (n int) { // of writers, up to now
		t.Helper()
		b.exec("notify outbox, 'up to here'")
		for {
			got, err := neighbour.WaitForNotification(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			switch got.Payload {
			case "up to here":
				return n
			case "":
				n++
			}
		}
	}
	for range 3 {
		b.insert()
		if n := rings(); n != 0 || b.locks() != 0 {
			t.Fatalf("awake: %d rings, %d locks", n, b.locks())
		}
		b.Rest(true)
		b.eventually("asleep", patience, b.isAsleep)
		if n := b.locks(); n != 1 {
			t.Fatalf("asleep: %d locks", n)
		}
		drain(b.Rung())
		b.insert()
		b.await(b.Rung(), "the writer rings", patience)
		if n := rings(); n != 1 {
			t.Fatalf("asleep: %d rings", n)
		}
		b.Rest(false)
		if b.isAsleep() {
			t.Fatal("still asleep")
		}
		b.eventually("the lock is released", patience, func() bool { return b.locks() == 0 })
	}
}

func TestWriterThatBeganBeforeTheLockIsOlderThanAsleepSays(t *testing.T) {
	t.Parallel()
	b := start(t)
	tx, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	var xid uint64
	if err := tx.QueryRow(t.Context(), "select pg_current_xact_id()").Scan(&xid); err != nil {
		t.Fatal(err)
	}
	b.Rest(true)
	b.eventually("asleep", patience, b.isAsleep)
	if since, ok := b.Asleep(); !ok || since <= xid {
		t.Errorf("asleep since %d, %t; transaction %d may not have noticed", since, ok, xid)
	}
}

func TestTerminatedConnectionComesBackAndTakesTheLockAlong(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.Rest(true)
	for range 20 {
		b.eventually("asleep", 5*time.Second, b.isAsleep)
		drain(b.Reconnected())
		if n := b.terminate(); n != 1 {
			t.Fatalf("%d connections of the listener, want 1", n)
		}
		b.await(b.Reconnected(), "a new connection", 5*time.Second)
		b.insert() // unheard, or heard: the relay looks when the connection is new
	}
	b.eventually("asleep", 5*time.Second, b.isAsleep)
	if n := b.locks(); n != 1 {
		t.Errorf("%d locks", n)
	}
	if down, back := strings.Count(b.logs.String(), "listener is down"), strings.Count(b.logs.String(), "listener is back"); down != 20 || back != 20 {
		t.Errorf("%d lines of it going down and %d of it coming back, want 20", down, back)
	}
}

// What breaks the listening connection often breaks the one that notifies, too.
func TestEchoThatCouldNotBeSentIsSentAgain(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.Rest(true)
	b.eventually("asleep", patience, b.isAsleep)
	var failures atomic.Int32
	instead := func(send func() error) error {
		if failures.Add(1) <= 3 {
			return errors.New("broken pipe")
		}
		return send()
	}
	b.notify.Store(&instead)
	b.terminate()
	b.eventually("the connection is lost", patience, func() bool { return !b.Connected() })
	took := b.eventually("asleep again", 5*time.Second, b.isAsleep)
	t.Logf("asleep again after %s and %d failures", took, failures.Load()-1)
}

// An echo that is lost along with its session must not be held against the next session.
func TestEchoOfALostSessionIsNotMissed(t *testing.T) {
	t.Parallel()
	b := start(t)
	swallowed := make(chan struct{})
	instead := func(send func() error) error {
		select {
		case <-swallowed:
			return send()
		default:
			close(swallowed)
			return nil
		}
	}
	b.notify.Store(&instead)
	b.Rest(true) // sends an echo
	b.await(swallowed, "the echo is swallowed", patience)
	drain(b.Reconnected())
	b.terminate()
	b.await(b.Reconnected(), "a new connection", 5*time.Second)
	b.eventually("asleep, on the new connection", echoTimeout-time.Second, b.isAsleep)
}

func TestHalfOpenConnectionIsReplaced(t *testing.T) {
	t.Parallel()
	url := stacktest.Postgres(t)
	proxy := stacktest.NewProxy(t, url)
	b := listen(t, url, proxy.URL)
	b.Rest(true)
	b.eventually("asleep", patience, b.isAsleep)
	drain(b.Reconnected())
	proxy.StallOpen()
	took := b.eventually("the half-open connection is given up", 30*time.Second, func() bool { return !b.Connected() })
	took += b.eventually("and replaced", 5*time.Second, b.isAsleep)
	t.Logf("replaced after %s", took)
	b.await(b.Reconnected(), "the relay is told", time.Second)
	if !strings.Contains(b.logs.String(), "half-open") {
		t.Error("the log does not say so")
	}
}

// A transaction-mode pooler accepts LISTEN and delivers nothing; so does another database. No lock may be taken there.
func TestConnectionThatNeverHearsIsNotTrusted(t *testing.T) {
	t.Parallel()
	elsewhere := stacktest.Postgres(t)
	b := listen(t, stacktest.Postgres(t), elsewhere)
	b.Rest(true)
	b.eventually("a warning", 10*time.Second, func() bool {
		return strings.Contains(b.logs.String(), "--listen-url")
	})
	if b.Connected() || b.isAsleep() {
		t.Error("counts as connected")
	}
	if n := b.count("select count(*) from pg_locks where locktype = 'advisory' and mode = 'ShareLock' and " +
		"objsubid = 1 and pid in (select pid from pg_stat_activity where application_name = '" + name + "' and datname = '" +
		elsewhere[strings.LastIndex(elsewhere, "/")+1:strings.Index(elsewhere, "?")] + "')"); n != 0 {
		t.Errorf("%d locks were taken", n)
	}
}

func TestRingWakesOthersOnly(t *testing.T) {
	t.Parallel()
	url := stacktest.Postgres(t)
	one, other := listen(t, url, url), listen(t, url, url)
	one.eventually("connected", patience, one.Connected)
	other.eventually("connected", patience, other.Connected)
	drain(other.Rung())
	if err := one.Ring(t.Context()); err != nil {
		t.Fatal(err)
	}
	one.await(other.Rung(), "the other is rung", patience)
	one.Rest(true) // its echo comes after the ring
	one.eventually("asleep", patience, one.isAsleep)
	select {
	case <-one.Rung():
		t.Error("it rang itself")
	default:
	}
}

// An outage of a minute costs at most 30 attempts, and the first after it comes within 5 seconds.
func TestReconnectsAreNeitherManyNorLate(t *testing.T) {
	for range 100 {
		waits := New(Options{}).backoff
		attempts := 0
		for total := time.Duration(0); total < time.Minute; attempts++ {
			wait := waits.NextBackOff()
			if wait > 5*time.Second {
				t.Fatalf("waits %s", wait)
			}
			total += wait
		}
		if attempts > 30 {
			t.Fatalf("%d attempts in a minute", attempts)
		}
	}
}
