package publisher

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-relay/outbox-relay/event"
)

func TestHeaderValues(t *testing.T) {
	for text, want := range map[string]any{
		`7`:                      int64(7),
		`-9223372036854775808`:   int64(math.MinInt64),
		`9223372036854775808`:    "9223372036854775808",
		`0.1`:                    0.1,
		`0.30000000000000004`:    0.30000000000000004,
		`1e2`:                    100.0,
		`12.50`:                  12.5,
		`0.10000000000000000001`: "0.10000000000000000001",
		`1e400`:                  "1e400",
		`1e-400`:                 "1e-400",
		`0.0`:                    0.0,
		`"é"`:                    "é",
		`true`:                   true,
		`null`:                   nil,
		`[1,"a",[null]]`:         []any{int64(1), "a", []any{nil}},
		`{"a":{"b":1.5}}`:        amqp.Table{"a": amqp.Table{"b": 1.5}},
	} {
		table := amqp.Table{}
		if err := parseHeaders(table, []byte(`{"h":`+text+`}`)); err != nil {
			t.Error(text, err)
		} else if got := table["h"]; fmt.Sprintf("%T %#v", got, got) != fmt.Sprintf("%T %#v", want, want) {
			t.Errorf("%s became %#v, want %#v", text, got, want)
		}
	}
}

func TestRoutingKeys(t *testing.T) {
	e := event.Event{
		ID: uuid.MustParse("01890000-0000-7000-8000-000000000001"), Sequence: 5, Type: "created",
		AggregateType: "order", AggregateID: "42",
	}
	for text, want := range map[string]string{
		"": "created", "{{.EventType}}": "created", "{{ .EventType }}": "created", "fixed": "fixed",
		"{{.AggregateType}}.{{.EventType}}.{{.AggregateID}}.{{.Sequence}}.{{.ID}}": "order.created.42.5." + e.ID.String(),
		`{{if eq .EventType "created"}}new{{end}}`:                                 "new",
	} {
		r, err := compileRoute(text)
		if err != nil {
			t.Fatal(text, err)
		}
		if got, err := r(&e); got != want || err != nil {
			t.Errorf("%s gave %q %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"{{", "{{.Nothing}}", "{{nothing .EventType}}"} {
		if _, err := compileRoute(text); err == nil {
			t.Error("accepted: ", text)
		}
	}
	// It fails on some events only, so that only these pay.
	r, err := compileRoute("{{slice .AggregateID 0 8}}")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := newMapper("", r).message(&e, 0); err == nil || !strings.Contains(err.Error(), "template fails on it") {
		t.Error(err)
	}
}

func TestOptions(t *testing.T) {
	_, err := New(Options{
		URLs:   []string{"amqp://ok/", "http://u:s3cret@h", "amqp://u:s3cret@h:x/", "amqp://u:12/s3cret@h/", "amqp://u:s3cr%et@h"},
		CAFile: "", CertFile: "only", Exchange: strings.Repeat("x", 256), RoutingKey: "{{.Nothing}}",
	})
	for _, part := range []string{
		"URLs: number 2: it must begin", "number 3", "number 4: there is an @", "number 5", "Exchange: ", "RoutingKey: ",
		"ConfirmTimeout: ", "MaxInFlight: ", "Logger: ",
	} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s is not in %v", part, err)
		}
	}
	if strings.Contains(err.Error(), "s3cr") {
		t.Error(err)
	}
	o := options("amqps://u:s3cret@h/")
	o.Logger, o.CAFile = slog.New(slog.DiscardHandler), "/nowhere.pem"
	if _, err := New(o); err == nil || !strings.Contains(err.Error(), "/nowhere.pem") {
		t.Error(err)
	}
}

func FuzzEndpoint(f *testing.F) {
	f.Add("amqp://", "user", "pass", "host:5672", "/vhost")
	f.Add("amqps://", "us/er", "p@ss:w/rd", "[::1]", "/a%2Fb?heartbeat=5")
	f.Fuzz(func(t *testing.T, scheme, user, password, host, rest string) {
		const secret = "s3cr3t"
		at, err := parseEndpoint(scheme + user + ":" + secret + password + "@" + host + rest)
		// What stands before a scheme's // is no password, and what stands behind the @ is none either.
		if strings.ContainsAny(scheme+user, "/?#@%") || strings.Contains(host+rest, "@") {
			return
		}
		if err != nil && strings.Contains(err.Error(), secret) || strings.Contains(at.shown, secret) {
			t.Error(err, at.shown)
		}
		if err == nil {
			if _, err := url.Parse(at.shown); err != nil {
				t.Error(err)
			}
		}
	})
}

// Whatever passes the mapper must be encodable, in a frame of the size that was reckoned.
func FuzzMessage(f *testing.F) {
	f.Add("order.created", "order", "42", "key", "exchange", "application/json", `{"traceparent":"00","n":[1,2.5,{"a":null}]}`, int64(1))
	f.Add(strings.Repeat("é", 128), "", "", "", "", "", `{"x-outbox-attempt":1e999,"CC":["a"]}`, int64(-1))
	f.Add("", "", strings.Repeat("a", 255), "", "", "", `[]`, int64(math.MaxInt64))
	r, err := compileRoute("")
	if err != nil {
		f.Fatal(err)
	}
	m := newMapper("outbox", r)
	f.Fuzz(func(t *testing.T, kind, aggregate, id, key, exchange, contentType, headers string, n int64) {
		const frameMax = 4096
		e := event.Event{
			ID: uuid.Max, Sequence: n, Type: kind, AggregateType: aggregate, AggregateID: id, ContentType: contentType,
			RoutingKey: &key, Exchange: &exchange, Headers: []byte(headers), Attempt: int(n), CreatedAt: time.Unix(n, 0),
		}
		_, _, msg, err := m.message(&e, frameMax)
		if err != nil {
			if len(err.Error()) > 1000 {
				t.Errorf("a reason of %d bytes", len(err.Error()))
			}
			return
		}
		if err := msg.Headers.Validate(); err != nil {
			t.Error(err)
		}
		for _, short := range []string{key, exchange, msg.Type, msg.CorrelationId, msg.ContentType, msg.MessageId} {
			if len(short) > 255 {
				t.Errorf("%d bytes", len(short))
			}
		}
		if reckoned := tableSize(msg.Headers); reckoned != len(encoded(t, msg.Headers)) {
			t.Errorf("reckoned %d, encoded %d: %v", reckoned, len(encoded(t, msg.Headers)), msg.Headers)
		}
		if msg.Headers[reserved+"sequence"] != n || msg.Headers[reserved+"attempt"] != n {
			t.Error(msg.Headers)
		}
	})
}

// encoded writes a table as AMQP 0-9-1, 4.2.5.5 says, in the dialect of RabbitMQ.
func encoded(t *testing.T, table amqp.Table) []byte {
	var b bytes.Buffer
	for name, v := range table {
		b.WriteByte(byte(len(name)))
		b.WriteString(name)
		encodeField(t, &b, v)
	}
	return append([]byte{0, 0, 0, 0}, b.Bytes()...)
}

func encodeField(t *testing.T, b *bytes.Buffer, v any) {
	switch v := v.(type) {
	case nil:
		b.WriteByte('V')
	case bool:
		b.Write([]byte{'t', 0})
	case int64:
		b.Write(make([]byte, 9))
	case float64:
		b.Write(make([]byte, 9))
	case string:
		b.Write(make([]byte, 5))
		b.WriteString(v)
	case []any:
		b.Write(make([]byte, 5))
		for _, v := range v {
			encodeField(t, b, v)
		}
	case amqp.Table:
		b.WriteByte('F')
		b.Write(encoded(t, v))
	default:
		t.Errorf("%T", v)
	}
}
