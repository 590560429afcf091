package main

import (
	"bytes"
	"net"
	"net/url"
	"strconv"
	"sync"

	"github.com/outbox-relay/outbox-relay/stack"
)

// proxy stands between one relay and one server, and fails on demand. One goroutine accepts, two carry each connection;
// close waits for them. Methods may be called from any goroutine.
type proxy struct {
	url             string // the server's URL with the proxy's address in its place
	address, server string
	goroutines      sync.WaitGroup

	mu       sync.Mutex
	changed  sync.Cond    // a link was stalled no more, or closed
	listener net.Listener // nil while cut
	stalled  bool         // so are new connections
	links    map[*link]struct{}
}

// link is one connection; all but client is guarded by the proxy's mutex.
type link struct {
	client  net.Conn
	server  net.Conn // nil until something may be forwarded
	listens bool     // it is PostgreSQL's, and has asked to LISTEN
	stalled bool
	closed  bool
}

func newProxy(serverURL string) (*proxy, error) {
	u, err := url.Parse(serverURL)
	if err != nil {
		return nil, err
	}
	port, err := stack.FreePort()
	if err != nil {
		return nil, err
	}
	p := &proxy{address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), server: u.Host, links: map[*link]struct{}{}}
	p.changed.L = &p.mu
	u.Host = p.address
	p.url = u.String()
	return p, p.resume()
}

func (p *proxy) close() {
	p.cut()
	p.goroutines.Wait()
}

// cut closes all connections, and new ones are refused.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	for l := range p.links {
		p.end(l)
	}
}

// stall keeps all connections open, accepts new ones, and forwards nothing.
func (p *proxy) stall() {
	p.stallOpen(func(*link) bool { return true })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled = true
}

// stallOpen stalls those of the open connections that are chosen; new ones work, as behind a firewall that forgot the old.
func (p *proxy) stallOpen(chosen func(*link) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.stalled = l.stalled || chosen(l)
	}
}

// resume ends cut and stall; what was held back passes now.
func (p *proxy) resume() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled = false
	for l := range p.links {
		l.stalled = false
	}
	p.changed.Broadcast()
	if p.listener != nil {
		return nil
	}
	listener, err := net.Listen("tcp", p.address)
	if err != nil {
		return err
	}
	p.listener = listener
	p.goroutines.Go(func() { p.accept(listener) })
	return nil
}

func (p *proxy) accept(listener net.Listener) {
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
			p.goroutines.Go(func() { p.connect(l) })
		}
		p.mu.Unlock()
	}
}

func (p *proxy) connect(l *link) {
	defer p.hangUp(l)
	if !p.mayPass(l, nil) {
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

func (p *proxy) carry(l *link, to, from net.Conn) {
	defer p.hangUp(l)
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if !p.mayPass(l, buffer[:n]) || err != nil && n == 0 {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// mayPass waits while the link is stalled, and is false when it was closed.
func (p *proxy) mayPass(l *link, chunk []byte) bool {
	listens := bytes.Contains(chunk, []byte(`listen "`))
	p.mu.Lock()
	defer p.mu.Unlock()
	l.listens = l.listens || listens
	for l.stalled && !l.closed {
		p.changed.Wait()
	}
	return !l.closed
}

func (p *proxy) hangUp(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end(l)
}

func (p *proxy) end(l *link) {
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
