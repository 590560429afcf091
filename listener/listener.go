// Package listener turns "something was inserted" into a wake-up. It owns the relay's LISTEN connection, and on it the
// doorbell's lock: while that shared advisory lock is held the relay counts as asleep and writers ring; otherwise they
// insert and say nothing. It knows neither the table's rows nor RabbitMQ.
//
// The lock lives in the session that listens, so writers ring exactly as long as somebody can hear them: a connection that
// dies takes the lock along. A session cannot be told to take or release a lock while it waits for notifications, so the
// Listener notifies itself through another connection and acts when it hears that echo. The echo also proves that the
// connection hears at all: a half-open one does not, and neither does one that leads through a transaction-mode pooler,
// where taking a session's lock would be a mistake nobody could mend. No lock is ever taken before an echo.
//
// Limits: a notification is a hint. The Listener may wake the relay for nothing, and while it is disconnected the relay has
// to look by itself.
package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgxlisten"

	"github.com/outbox-relay/outbox-relay/sql"
)

// Options configure a Listener. All fields are required.
type Options struct {
	Connect *pgx.ConnConfig // to PostgreSQL itself, not to a transaction-mode pooler
	Schema  string
	// Notify sends a notification through another connection.
	Notify func(ctx context.Context, channel, payload string) error
	Logger *slog.Logger
}

const (
	// echoInterval is how often a silent connection has to prove that it hears.
	echoInterval = 15 * time.Second
	// echoTimeout is how long an echo may take before the connection counts as deaf.
	echoTimeout = 5 * time.Second
	// minEchoRetry is the first wait before an echo that could not be sent is sent again.
	minEchoRetry = 50 * time.Millisecond
)

// Listener is made by New and works while Run runs. Its other methods may be called from any goroutine at any time.
type Listener struct {
	o       Options
	rung    chan struct{}
	changed chan struct{}
	renewed chan struct{}
	nudge   chan struct{} // to the echo goroutine: send an echo now
	backoff *backoff.ExponentialBackOff
	id      string // payload of this process's own notifications

	mu      sync.Mutex
	session *session // the connection that LISTENs; nil: none
	want    bool     // the relay wants to count as asleep
	down    outage
}

// session is one LISTEN connection's state.
type session struct {
	socket net.Conn
	heard  time.Time     // the last notification
	pulse  chan struct{} // has a value after each
	hears  bool          // an echo has come back
	asleep bool          // the lock is held
	xid    uint64        // one that began after the lock was taken
}

// New returns a Listener; nothing connects yet.
func New(o Options) *Listener {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval, b.Multiplier = 50*time.Millisecond, 3300*time.Millisecond, 2 // jittered: 5 s at most
	return &Listener{
		o: o, rung: make(chan struct{}, 1), changed: make(chan struct{}, 1), renewed: make(chan struct{}, 1), nudge: make(chan struct{}, 1),
		backoff: b, id: "relay " + uuid.NewString(), down: outage{log: o.Logger},
	}
}

// Rung has a value when a writer, or another relay with more work than it can do, rang since it was last received from.
func (l *Listener) Rung() <-chan struct{} { return l.rung }

// Changed has a value when the connection was lost or the lock came or went since it was last received from.
func (l *Listener) Changed() <-chan struct{} { return l.changed }

// Reconnected has a value when a new connection listens: what was committed before may not have rung.
func (l *Listener) Reconnected() <-chan struct{} { return l.renewed }

// Rest says whether the relay wants to count as asleep, so that writers ring. It returns at once; Asleep tells when it is so.
func (l *Listener) Rest(asleep bool) {
	l.mu.Lock()
	differs := l.want != asleep
	l.want = asleep
	l.mu.Unlock()
	if differs {
		signal(l.nudge)
	}
}

// Asleep tells whether writers see the relay asleep. If so, every transaction that began after xid does; an older one may
// have inserted before, and will not ring.
func (l *Listener) Asleep() (xid uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session == nil || !l.session.asleep || !l.want {
		return 0, false
	}
	return l.session.xid, true
}

// Connected tells whether the connection has proved that it hears.
func (l *Listener) Connected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.session != nil && l.session.hears
}

// Ring wakes the other relays that sleep on this outbox.
func (l *Listener) Ring(ctx context.Context) error { return l.o.Notify(ctx, l.o.Schema, l.id+" ring") }

// Run listens until ctx ends, reconnecting as often as it takes. It runs pgxlisten on the calling goroutine and one more
// goroutine for the echoes, and waits for it.
func (l *Listener) Run(ctx context.Context) {
	p := pgxlisten.Listener{Connect: l.connect, LogError: l.disconnected, ReconnectDelay: time.Millisecond}
	p.Handle(l.o.Schema, l)
	ctx, stop := context.WithCancel(ctx)
	var echoes sync.WaitGroup
	echoes.Go(func() { l.echoes(ctx) })
	_ = p.Listen(ctx) // returns when ctx ends
	stop()
	echoes.Wait()
}

// connect is called by pgxlisten, also for the first connection.
func (l *Listener) connect(ctx context.Context) (*pgx.Conn, error) {
	l.mu.Lock()
	retry := l.down.since != time.Time{}
	l.mu.Unlock()
	if retry {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(l.backoff.NextBackOff()):
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return pgx.ConnectConfig(ctx, l.o.Connect.Copy())
}

// HandleBacklog is called by pgxlisten after each LISTEN, on the listening goroutine.
func (l *Listener) HandleBacklog(_ context.Context, _ string, conn *pgx.Conn) error {
	l.mu.Lock()
	l.session = &session{socket: conn.PgConn().Conn(), heard: time.Now(), pulse: make(chan struct{}, 1)}
	l.mu.Unlock()
	signal(l.renewed)
	signal(l.nudge)
	return nil
}

// HandleNotification is called by pgxlisten on the listening goroutine.
func (l *Listener) HandleNotification(ctx context.Context, n *pgconn.Notification, conn *pgx.Conn) error {
	l.mu.Lock()
	s := l.session
	if s != nil {
		s.heard = time.Now()
		signal(s.pulse)
	}
	l.mu.Unlock()
	own, isOwn := strings.CutPrefix(n.Payload, l.id)
	switch {
	case !isOwn && strings.HasSuffix(n.Payload, " echo"): // another relay's
		return nil
	case !isOwn:
		signal(l.rung)
		return nil
	case own == " echo" && s != nil:
		return l.heardEcho(ctx, conn, s)
	default:
		return nil
	}
}

// heardEcho proves the connection and brings the lock into the wanted state.
func (l *Listener) heardEcho(ctx context.Context, conn *pgx.Conn, s *session) error {
	l.mu.Lock()
	want := l.want
	if !s.hears {
		s.hears = true
		l.backoff.Reset()
		l.down.end()
	}
	l.mu.Unlock()
	if s.asleep == want { // asleep is written on this goroutine only
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, echoTimeout)
	defer cancel()
	xid, err := l.setLock(ctx, conn, want)
	if err != nil {
		_ = conn.Close(ctx) // whether the lock is held is unknown; the session's end settles it
		return err
	}
	l.mu.Lock()
	s.asleep, s.xid = want, xid
	differs := l.want != want
	l.mu.Unlock()
	signal(l.changed)
	if differs {
		signal(l.nudge)
	}
	return nil
}

// setLock takes or releases the doorbell's lock. The xid is taken after the lock, in a transaction of its own. A snapshot's
// xmax would not do: it is one past the newest transaction that has ended, and those beyond it may have begun, and found
// the bell unwatched.
func (l *Listener) setLock(ctx context.Context, conn *pgx.Conn, hold bool) (xid uint64, err error) {
	if !hold {
		if _, err := conn.Exec(ctx, "select pg_advisory_unlock_shared($1)", sql.DoorbellLock(l.o.Schema)); err != nil {
			return 0, fmt.Errorf("releasing the doorbell's lock: %w", err)
		}
		return 0, nil
	}
	if _, err := conn.Exec(ctx, "select pg_advisory_lock_shared($1)", sql.DoorbellLock(l.o.Schema)); err != nil {
		return 0, fmt.Errorf("taking the doorbell's lock: %w", err)
	}
	if err := conn.QueryRow(ctx, "select pg_current_xact_id()").Scan(&xid); err != nil {
		return 0, fmt.Errorf("taking a transaction id: %w", err)
	}
	return xid, nil
}

// echoes sends an echo whenever the lock's state is to change, a connection is new, or one has been silent for long; and
// ends a connection that does not hear it. One that could not be sent is sent again, soon at first: what broke the listening
// connection has often broken those that notify as well.
func (l *Listener) echoes(ctx context.Context) {
	tick := time.NewTicker(echoInterval / 4)
	defer tick.Stop()
	var retry <-chan time.Time
	delay := minEchoRetry
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.nudge:
		case <-retry:
		case <-tick.C:
			l.mu.Lock()
			fresh := l.session == nil || time.Since(l.session.heard) < echoInterval
			l.mu.Unlock()
			if fresh {
				continue
			}
		}
		if l.prove(ctx) {
			retry, delay = nil, minEchoRetry
			continue
		}
		retry = time.After(delay)
		delay = min(2*delay, echoInterval/4)
	}
}

// prove sends one echo and waits until the session has heard something since; false: it could not be sent.
func (l *Listener) prove(ctx context.Context) (sent bool) {
	l.mu.Lock()
	s := l.session
	l.mu.Unlock()
	if s == nil {
		return true
	}
	began := time.Now()
	sending, cancel := context.WithTimeout(ctx, echoTimeout)
	defer cancel()
	if err := l.o.Notify(sending, l.o.Schema, l.id+" echo"); err != nil {
		l.o.Logger.Debug("echo not sent", "error", err)
		return false
	}
	for {
		l.mu.Lock()
		heard, current := s.heard.After(began), l.session == s
		l.mu.Unlock()
		if heard || !current {
			return true
		}
		select {
		case <-s.pulse:
		case <-sending.Done():
			if ctx.Err() == nil {
				l.deaf(s)
			}
			return true
		}
	}
}

// deaf ends a session that did not hear its own notification.
func (l *Listener) deaf(s *session) {
	l.mu.Lock()
	hint := "the connection is half-open"
	if !s.hears {
		hint = "the listen URL seems to lead through a transaction-mode pooler: point --listen-url at PostgreSQL itself"
	}
	current := l.session == s
	if current {
		l.lost(fmt.Errorf("no echo within %s: %s", echoTimeout, hint))
	}
	l.mu.Unlock()
	if current {
		_ = s.socket.Close() // frees the goroutine that waits on it
	}
}

// disconnected is called by pgxlisten with every error, also that of a clean stop.
func (l *Listener) disconnected(ctx context.Context, err error) {
	if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost(err)
}

// lost is called with the mutex held.
func (l *Listener) lost(err error) {
	if l.session != nil {
		signal(l.session.pulse) // whoever waits for an echo on it need not
		l.session = nil
	}
	l.down.begin(err)
	signal(l.changed)
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
