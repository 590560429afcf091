package publisher

import (
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// backlog is how much a socket keeps for a peer that reads slowly before Write waits, in bytes.
	backlog = 1 << 20
	// farewell is how long a closing socket tries to send what it has left.
	farewell = time.Second
)

// A socket stands between the AMQP client and its net.Conn, so that no call of the client can hang in a socket write
// while it holds the locks that closing, confirms and heartbeats need (amqp091-go#178, #222; under an alarm the
// heartbeats that wait behind a stuck publish end in "501 i/o timeout"):
//
//   - Write puts its bytes aside, and one goroutine writes them, many messages at a time. It waits only when backlog bytes
//     are pending, and not even then after lift(true).
//   - What comes alone is written at once, as far as the socket takes it without waiting: the way through the goroutine
//     would add some ten microseconds to the latency of a lone message.
//   - Read keeps its own deadline, which nothing can delay, and a read that fails ends the writes as well.
//   - cut frees everything at once.
//
// The goroutine ends soon after Close or cut; wait waits for it.
type socket struct {
	net.Conn
	patience atomic.Int64    // how long a Read may last, in nanoseconds; 0: as SetReadDeadline says
	raw      syscall.RawConn // nil where nothing can be written without waiting (TLS)

	mu      sync.Mutex
	work    sync.Cond // pending, closing or err has changed
	room    sync.Cond // there may be room in pending
	pending []byte
	writing bool // the goroutine is at it
	gather  bool // more will follow at once
	lifted  bool
	closing bool
	err     error
	done    chan struct{}
}

func newSocket(conn net.Conn) *socket {
	s := &socket{Conn: conn, done: make(chan struct{})}
	s.work.L, s.room.L = &s.mu, &s.mu
	if tcp, ok := conn.(syscall.Conn); ok {
		s.raw, _ = tcp.SyscallConn() // an error leaves nil
	}
	go s.flush()
	return s
}

// Write takes all of p, or none of it with an error.
func (s *socket) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.pending) >= backlog && !s.lifted && s.err == nil {
		s.room.Wait()
	}
	if s.err != nil {
		return 0, s.err
	}
	sent := 0
	if s.raw != nil && !s.gather && !s.writing && len(s.pending) == 0 {
		sent = s.writeNow(p)
	}
	if sent < len(p) {
		s.pending = append(s.pending, p[sent:]...)
		s.work.Signal()
	}
	return len(p), nil
}

// writeNow gives the socket what it takes without waiting, and returns how much. An error is the goroutine's to find.
func (s *socket) writeNow(p []byte) (sent int) {
	err := s.raw.Write(func(fd uintptr) bool {
		sent, _ = syscall.Write(int(fd), p)
		return true
	})
	if err != nil {
		return 0
	}
	return max(sent, 0)
}

// gathering says whether what is written belongs to several messages, to be sent together.
func (s *socket) gathering(on bool) {
	s.mu.Lock()
	s.gather = on
	s.mu.Unlock()
}

func (s *socket) flush() {
	defer close(s.done)
	var out []byte
	for {
		s.mu.Lock()
		for len(s.pending) == 0 && !s.closing && s.err == nil {
			s.work.Wait()
		}
		if len(s.pending) == 0 || s.err != nil {
			s.mu.Unlock()
			s.fail(net.ErrClosed)
			return
		}
		if cap(out) > 2*backlog {
			out = nil // a rare giant is not kept
		}
		out, s.pending = s.pending, out[:0]
		s.writing = true
		s.room.Broadcast()
		s.mu.Unlock()
		_, err := s.Conn.Write(out)
		s.mu.Lock()
		s.writing = false
		s.mu.Unlock()
		if err != nil {
			s.fail(err)
			return
		}
	}
}

// Read ends the socket when it fails, so that a Write that waits for a dead peer is freed, too.
func (s *socket) Read(p []byte) (int, error) {
	if d := time.Duration(s.patience.Load()); d > 0 {
		if err := s.Conn.SetReadDeadline(time.Now().Add(d)); err != nil {
			return 0, err
		}
	}
	n, err := s.Conn.Read(p)
	if err != nil {
		s.cut()
	}
	return n, err
}

// SetReadDeadline is for the handshake. The client calls it later on, too, late when its heartbeats have to wait.
func (s *socket) SetReadDeadline(t time.Time) error {
	if s.patience.Load() > 0 {
		return nil
	}
	return s.Conn.SetReadDeadline(t)
}

// lift makes Write never wait, or wait again.
func (s *socket) lift(on bool) {
	s.mu.Lock()
	s.lifted = on
	s.mu.Unlock()
	s.room.Broadcast()
}

// Close ends the socket when what is pending is sent, in farewell's time at most. It does not wait for that.
func (s *socket) Close() error {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	_ = s.SetWriteDeadline(time.Now().Add(farewell))
	s.work.Signal()
	return nil
}

// cut ends the socket now.
func (s *socket) cut() { s.fail(net.ErrClosed) }

func (s *socket) fail(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
	s.mu.Unlock()
	_ = s.Conn.Close()
	s.work.Broadcast()
	s.room.Broadcast()
}

// wait waits for the goroutine to end, after Close or cut.
func (s *socket) wait() { <-s.done }
