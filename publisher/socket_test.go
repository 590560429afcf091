package publisher

import (
	"io"
	"net"
	"testing"
	"time"
)

func TestSocketFreesAWaitingWrite(t *testing.T) {
	t.Parallel()
	for name, free := range map[string]func(s *socket, peer net.Conn){
		"lifted":      func(s *socket, _ net.Conn) { s.lift(true) },
		"cut":         func(s *socket, _ net.Conn) { s.cut() },
		"read failed": func(s *socket, peer net.Conn) { _ = peer.Close(); _, _ = s.Read(make([]byte, 1)) },
		"read by the peer": func(_ *socket, peer net.Conn) {
			go func() { _, _ = io.Copy(io.Discard, peer) }()
		},
	} {
		t.Run(name, func(t *testing.T) {
			near, peer := net.Pipe() // has no buffer
			s := newSocket(near)
			defer func() {
				s.cut()
				s.wait()
				_ = peer.Close()
			}()
			for range 2 { // one is being written, one is pending
				if _, err := s.Write(make([]byte, backlog)); err != nil {
					t.Fatal(err)
				}
			}
			written := make(chan struct{})
			go func() {
				defer close(written)
				_, _ = s.Write(make([]byte, 2*backlog))
				_, _ = s.Write([]byte{1})
			}()
			select {
			case <-written:
				t.Fatal("did not wait")
			case <-time.After(20 * time.Millisecond):
			}
			free(s, peer)
			select {
			case <-written:
			case <-time.After(patience):
				t.Fatal("still waits")
			}
		})
	}
}

func TestSocketClosesWhenAllIsSent(t *testing.T) {
	t.Parallel()
	near, peer := net.Pipe()
	s := newSocket(near)
	if _, err := s.Write([]byte("farewell")); err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
	got, err := io.ReadAll(peer)
	if string(got) != "farewell" || err != nil {
		t.Error(string(got), err)
	}
	s.wait()
	if _, err := s.Write([]byte("more")); err == nil {
		t.Error("it still takes bytes")
	}
}
