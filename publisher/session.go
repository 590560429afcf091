package publisher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
)

// handshake bounds the way from the first packet to a usable channel, unless the URL's connection_timeout does.
const handshake = 10 * time.Second

var errStopping = errors.New("the relay is stopping")

// A session is one connection with one channel in confirm mode. It is thrown away when either ends, never repaired, so
// that delivery tags and returns of two sessions cannot meet. It has two goroutines (watch and the socket's), which
// close waits for, and the client's two, which end with the socket.
type session struct {
	at       endpoint
	conn     *amqp.Connection
	ch       *amqp.Channel
	sock     *socket
	frameMax int

	inFlight atomic.Int64 // events sent whose outcomes nobody has taken yet
	blocked  atomic.Bool

	lost    chan struct{} // closed when it is over; cause is set then
	cause   error
	once    sync.Once
	watched chan struct{}

	mu           sync.Mutex
	opened       time.Time
	blockedSince time.Time
	blockedFor   time.Duration // without the time since blockedSince

	// Only for the goroutine that takes outcomes.
	returns  chan amqp.Return
	returned map[uuid.UUID]int
}

// openSession dials one endpoint. No more than room events may be sent without their outcomes being taken: as many
// returns find place, because the client drops a return that finds none for 5 seconds (amqp091-go PR#349), and an
// unroutable message would look published. prepare may use the new channel, still within the handshake's time.
// onBlocked is called by the session's goroutine.
func (o *Options) openSession(
	ctx context.Context, at endpoint, room int, prepare func(*session) error, onBlocked func(*session, amqp.Blocking),
) (*session, error) {
	limit := handshake
	if ms := at.uri.ConnectionTimeout; ms > 0 {
		limit = time.Duration(ms) * time.Millisecond
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer in %s", limit))
	defer cancel()

	s := &session{
		at: at, opened: time.Now(), returns: make(chan amqp.Return, room),
		lost: make(chan struct{}), watched: make(chan struct{}),
	}
	inTime := func() bool { return true }
	err := s.dial(o, func(network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		s.sock = newSocket(conn)
		inTime = context.AfterFunc(ctx, s.sock.cut) // the client's handshake knows no context
		return s.sock, nil
	})
	if err == nil {
		if err = s.openChannel(prepare, onBlocked); err == nil && inTime() {
			return s, nil
		}
		s.close()
	} else if s.sock != nil {
		s.sock.cut()
		s.sock.wait()
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, err
}

func (s *session) dial(o *Options, dial func(network, address string) (net.Conn, error)) (err error) {
	properties := amqp.NewConnectionProperties()
	properties["product"] = appID
	properties.SetClientConnectionName(o.Instance)
	config := amqp.Config{Dial: dial, Properties: properties}
	if s.at.uri.Scheme == "amqps" {
		if config.TLSClientConfig, err = o.tlsConfig(s.at.uri); err != nil {
			return err
		}
	}
	if s.conn, err = amqp.DialConfig(s.at.raw, config); err != nil {
		return explainDial(err, s.at.uri)
	}
	s.frameMax = s.conn.Config.FrameSize
	s.sock.patience.Store(int64(s.conn.Config.Heartbeat * 3 / 2)) // as long as the client itself would wait
	return nil
}

func (s *session) openChannel(prepare func(*session) error, onBlocked func(*session, amqp.Blocking)) (err error) {
	ends := s.conn.NotifyClose(make(chan *amqp.Error, 1))
	blocks := s.conn.NotifyBlocked(make(chan amqp.Blocking, 16))
	var channelEnds chan *amqp.Error
	if s.ch, err = s.conn.Channel(); err == nil {
		channelEnds = s.ch.NotifyClose(make(chan *amqp.Error, 1))
		s.ch.NotifyReturn(s.returns)
		err = s.ch.Confirm(false)
	}
	go s.watch(ends, channelEnds, blocks, onBlocked)
	if err != nil {
		return fmt.Errorf("opening a channel: %w", err)
	}
	return prepare(s)
}

// watch ends with the session.
func (s *session) watch(
	ends, channelEnds <-chan *amqp.Error, blocks <-chan amqp.Blocking, onBlocked func(*session, amqp.Blocking),
) {
	defer close(s.watched)
	for {
		select {
		case b, ok := <-blocks:
			if !ok {
				blocks = nil // one of the others follows
				continue
			}
			s.setBlocked(b.Active)
			onBlocked(s, b)
		case err := <-ends:
			s.end(closeError(err))
			return
		case err := <-channelEnds:
			s.end(closeError(err))
			return
		case <-s.lost:
			return
		}
	}
}

// closeError is never nil: a channel closed without an error is one that this side closed.
func closeError(err *amqp.Error) error {
	if err == nil {
		return errStopping
	}
	return err
}

// end says why the session is over. Only the first cause counts. Any goroutine may call it.
func (s *session) end(cause error) {
	s.once.Do(func() {
		s.cause = cause
		close(s.lost)
	})
}

// abandon ends a session whose peer can't be counted on to answer.
func (s *session) abandon(cause error) {
	s.end(cause)
	s.sock.cut()
}

// close ends the session, with AMQP's farewell if the broker answers in a second, and waits for its goroutines.
func (s *session) close() {
	s.end(errStopping)
	if !s.blocked.Load() {
		late := time.AfterFunc(farewell, s.sock.cut)
		_ = s.conn.CloseDeadline(time.Now().Add(farewell))
		late.Stop()
	}
	s.sock.cut()
	s.sock.wait()
	<-s.watched
}

func (s *session) setBlocked(on bool) {
	s.sock.lift(on) // a publish that waits for room must come back and see it
	s.mu.Lock()
	defer s.mu.Unlock()
	switch was := s.blocked.Swap(on); {
	case on && !was:
		s.blockedSince = time.Now()
	case was && !on:
		s.blockedFor += time.Since(s.blockedSince)
	}
}

// unblockedTime is the session's age less the time in which the broker blocked it.
func (s *session) unblockedTime() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := time.Since(s.opened) - s.blockedFor
	if s.blocked.Load() {
		t -= time.Since(s.blockedSince)
	}
	return t
}

// wasReturned tells whether the broker sent the event back. To be asked once, after the event's confirm: the client's
// one reader hands on a message's return before its confirm, so the return is here by then. Returns are counted because
// an event whose lease ran out can be in flight twice.
func (s *session) wasReturned(id uuid.UUID) bool {
	for {
		select {
		case r, ok := <-s.returns:
			if ok {
				s.noteReturn(r)
				continue
			}
			s.returns = nil
		default:
		}
		break
	}
	if s.returned[id] == 0 {
		return false
	}
	if s.returned[id]--; s.returned[id] == 0 {
		delete(s.returned, id)
	}
	return true
}

func (s *session) noteReturn(r amqp.Return) {
	id, err := uuid.Parse(r.MessageId)
	if err != nil {
		return // none of ours: all have a UUID
	}
	if s.returned == nil {
		s.returned = map[uuid.UUID]int{}
	}
	s.returned[id]++
}
