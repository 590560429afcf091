package stacktest

import (
	"net"
	"net/url"
	"strconv"
	"sync"
	"testing"

	"github.com/outbox-relay/outbox-relay/stack"
)

// Proxy stands between clients and a server's TCP port, and fails on demand. It forwards until told otherwise. One
// goroutine accepts, two carry each connection; all end with the test. Methods may be called from any goroutine.
type Proxy struct {
	URL string // the server's URL with the proxy's address in its place

	address, server string
	goroutines      sync.WaitGroup

	mu       sync.Mutex
	changed  sync.Cond    // a link was stalled no more, or closed
	listener net.Listener // nil after Cut
	stalled  bool         // so are new connections
	links    map[*link]struct{}
	accepted int
}

// link is one connection; all but client is guarded by the proxy's mutex.
type link struct {
	client  net.Conn
	server  net.Conn // nil until there was something that may be forwarded
	stalled bool
	closed  bool
}

// NewProxy starts a proxy on a loopback port of its own for the server that the URL names.
func NewProxy(tb testing.TB, serverURL string) *Proxy {
	tb.Helper()
	u, err := url.Parse(serverURL)
	if err != nil || u.Port() == "" {
		tb.Fatal("the proxy needs a URL with a port")
	}
	port, err := stack.FreePort()
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{
		address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		server:  u.Host,
		links:   map[*link]struct{}{},
	}
	p.changed.L = &p.mu
	u.Host = p.address
	p.URL = u.String()
	p.Resume(tb)
	tb.Cleanup(func() {
		p.Cut()
		p.goroutines.Wait()
	})
	return p
}

// Cut closes all connections, and new ones are refused, as if the server's process had died.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	for l := range p.links {
		p.close(l)
	}
}

// Stall keeps all connections open, accepts new ones, and forwards nothing, not even that one side hung up: a black
// hole. What was read from a socket before Stall returns may still pass; what is held back passes after Resume.
func (p *Proxy) Stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled = true
	p.stallOpen()
}

// StallOpen stalls the connections that are open now; new ones work: a firewall that forgot the old ones.
func (p *Proxy) StallOpen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stallOpen()
}

func (p *Proxy) stallOpen() {
	for l := range p.links {
		l.stalled = true
	}
}

// Resume ends Cut and Stall.
func (p *Proxy) Resume(tb testing.TB) {
	tb.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled = false
	for l := range p.links {
		l.stalled = false
	}
	p.changed.Broadcast()
	if p.listener != nil {
		return
	}
	listener, err := net.Listen("tcp", p.address)
	if err != nil {
		tb.Fatal(err)
	}
	p.listener = listener
	p.goroutines.Go(func() { p.accept(listener) })
}

// Accepted counts the connections ever made.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Open counts the connections that neither side has closed as far as the proxy has seen.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

func (p *Proxy) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return // cut
		}
		p.mu.Lock()
		if p.listener != listener { // cut between accepting and here
			_ = client.Close()
		} else {
			l := &link{client: client, stalled: p.stalled}
			p.links[l] = struct{}{}
			p.accepted++
			p.goroutines.Go(func() { p.connect(l) })
		}
		p.mu.Unlock()
	}
}

func (p *Proxy) connect(l *link) {
	defer p.hangUp(l)
	if !p.mayPass(l) {
		return
	}
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	p.mu.Lock()
	l.server = server
	if l.closed {
		_ = server.Close()
	}
	p.mu.Unlock()
	p.goroutines.Go(func() { p.carry(l, l.client, server) })
	p.carry(l, server, l.client)
}

func (p *Proxy) carry(l *link, to, from net.Conn) {
	defer p.hangUp(l)
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if !p.mayPass(l) || err != nil && n == 0 {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// mayPass waits while the link is stalled, and is false when it was closed.
func (p *Proxy) mayPass(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l.stalled && !l.closed {
		p.changed.Wait()
	}
	return !l.closed
}

func (p *Proxy) hangUp(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.close(l)
}

func (p *Proxy) close(l *link) {
	if l.closed {
		return
	}
	l.closed = true
	delete(p.links, l)
	_ = l.client.Close()
	if l.server != nil {
		_ = l.server.Close()
	}
	p.changed.Broadcast()
}
