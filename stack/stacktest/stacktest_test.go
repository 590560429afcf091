package stacktest_test

import (
	"context"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/outbox-relay/outbox-relay/stack/stacktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDatabaseIsTheTestsOwnAndGoesWithIt(t *testing.T) {
	var gone string
	t.Run("a test with a Long name, longer than the sixty-three bytes that PostgreSQL keeps of it", func(t *testing.T) {
		gone = stacktest.Postgres(t)
		other := stacktest.Postgres(t)
		if gone == other {
			t.Fatal("the same database twice")
		}
		conn, err := pgx.Connect(t.Context(), gone)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) }) // open while the database is dropped
	})
	if conn, err := pgx.Connect(t.Context(), gone); err == nil {
		_ = conn.Close(t.Context())
		t.Error("the database is still there")
	}
}

func TestVhostIsTheTestsOwnAndGoesWithIt(t *testing.T) {
	var gone string
	t.Run("sub", func(t *testing.T) {
		gone = stacktest.AMQP(t)
		conn, err := amqp.Dial(gone)
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	u, _ := url.Parse(gone)
	if u.Path == "/" {
		t.Skip("the broker's vhost is shared")
	}
	if strings.Contains(stacktest.Rabbitmqctl(t, "list_vhosts"), strings.TrimPrefix(u.Path, "/")) {
		t.Error("the vhost is still there")
	}
}

func TestProxy(t *testing.T) {
	p := stacktest.NewProxy(t, echoServer(t))
	u, _ := url.Parse(p.URL)
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", u.Host)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	old := dial()
	say(t, old, "forwarded")
	hear(t, old, "forwarded")

	p.StallOpen()
	say(t, old, "held")
	silent(t, old)
	fresh := dial()
	say(t, fresh, "new ones work")
	hear(t, fresh, "new ones work")
	p.Resume(t)
	hear(t, old, "held")

	p.Stall()
	late := dial()
	say(t, late, "accepted")
	silent(t, late)
	p.Resume(t)
	hear(t, late, "accepted")

	if p.Accepted() != 3 || p.Open() != 3 {
		t.Errorf("%d accepted and %d open, not 3 and 3", p.Accepted(), p.Open())
	}
	p.Cut()
	for _, conn := range []net.Conn{old, fresh, late} {
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		if n, err := conn.Read(make([]byte, 1)); err == nil || n > 0 {
			t.Error("a connection outlived the cut")
		}
	}
	if conn, err := net.Dial("tcp", u.Host); err == nil {
		_ = conn.Close()
		t.Error("a connection was made after the cut")
	}
	p.Resume(t)
	again := dial()
	say(t, again, "back")
	hear(t, again, "back")
	p.Stall() // and the clean-up ends stalled connections too
}

func echoServer(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	return "tcp://" + listener.Addr().String()
}

func say(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := conn.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

func hear(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	got := make([]byte, len(text))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != text {
		t.Fatalf("heard %q, %v; not %q", got, err, text)
	}
}

func silent(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 1)); err == nil || n > 0 {
		t.Fatal("a stalled connection forwards")
	}
}
