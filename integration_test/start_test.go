package integration_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outbox-relay/outbox-relay/stack/stacktest"
)

func TestMissingSchemaSaysMigrate(t *testing.T) {
	t.Parallel()
	o := newEmptyOutbox(t, "outbox")
	for _, args := range [][]string{
		append([]string{"run", "--http-addr="}, o.flags()...),
		{"status", "--database-url=" + o.databaseURL},
	} {
		code, said := o.run(args...)
		if code != 1 || !strings.Contains(said, "outbox-relay migrate") {
			t.Errorf("%s: exit code %d and %s", args[0], code, said)
		}
	}
}

// A server that is away when the relay starts, or goes away later, is waited for, and /readyz says for which.
func TestOutagesAreWaitedOut(t *testing.T) {
	t.Parallel()
	for _, server := range []string{"PostgreSQL", "RabbitMQ"} {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			database, broker := stacktest.NewProxy(t, o.databaseURL), stacktest.NewProxy(t, o.amqpURL)
			proxy, part := database, "database"
			if server == "RabbitMQ" {
				proxy, part = broker, "broker"
			}
			c := o.consume()
			l := newLedger()
			o.insert(l, "before", 10)
			proxy.Cut()
			// A claim whose answer is lost in the cut comes back when its lease ends.
			relay := o.via(database.URL, broker.URL).relay(noScan, "--lease=3s", "--confirm-timeout=2s")
			relay.notReady(part)
			proxy.Resume(t)
			relay.ready()
			o.reconcile(l, c)

			for range 2 {
				proxy.Cut()
				relay.notReady(part)
				o.insert(l, "in the outage", 10)
				proxy.Resume(t)
				relay.ready()
				o.reconcile(l, c)
			}
			if n := o.count("select max(attempts - lease_expiries) from " + o.events); n > 1 {
				t.Errorf("an outage has cost attempts: %d", n)
			}
			relay.stop()
		})
	}
}

// notReady waits for /readyz to say 503 and name this part as the reason.
func (p *process) notReady(part string) {
	p.tb.Helper()
	last := ""
	defer func() {
		if p.tb.Failed() {
			p.tb.Log("/readyz: ", last)
		}
	}()
	eventually(p.tb, 10*time.Second, "/readyz says that the "+part+" is away", func() bool {
		p.alive()
		status, body := p.get("/readyz")
		last = fmt.Sprint(status, " ", body)
		var said map[string]any
		return status == 503 && json.Unmarshal([]byte(body), &said) == nil && said["ready"] == false && said[part] != "ok" && said[part] != ""
	})
}

func TestSchemaOfAnyName(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{
		`ev"; drop table x;--`, "Ünï", "UPPER", "📮", `it's \ {{.}} %s`, strings.Repeat("ß", 31) + "x",
	} {
		t.Run(schema, func(t *testing.T) {
			t.Parallel()
			o := newEmptyOutbox(t, schema)
			database := []string{"--database-url=" + o.databaseURL, "--schema=" + schema}
			if code, said := o.run(append([]string{"migrate"}, database...)...); code != 0 {
				t.Fatalf("migrate: exit code %d and %s", code, said)
			}
			c := o.consume()
			relay := o.relay(noScan).asleep(o)
			l := newLedger()
			o.insert(l, "inserted", 3)
			o.insertDue(l, "scheduled", 1, "now() + interval '100 milliseconds'")
			o.reconcile(l, c)
			relay.scanFoundNothing()

			enqueue := append([]string{
				"enqueue", "--aggregate-type=order", "--aggregate-id=17", "--event-type=order.placed", `--payload={"number": 0}`,
			}, database...)
			if code, said := o.run(enqueue...); code != 0 {
				t.Errorf("enqueue: exit code %d and %s", code, said)
			}
			o.eventually(patience, "the event by hand is consumed", func() bool { return c.events() == 5 })
			o.allPublished()
			code, said := o.run(append([]string{"status", "--output=json"}, database...)...)
			var status struct {
				Events map[string]int
				Relays []any
			}
			if err := json.Unmarshal([]byte(said), &status); code != 0 || err != nil {
				t.Fatalf("status: exit code %d, %v and %s", code, err, said)
			}
			if status.Events["PUBLISHED"] != 5 || len(status.Relays) != 1 {
				t.Errorf("status: %s", said)
			}
			relay.stop()
		})
	}
}

func TestSeveralMigrateAtOnce(t *testing.T) {
	t.Parallel()
	o := newEmptyOutbox(t, "outbox")
	migrate := append([]string{"migrate"}, "--database-url="+o.databaseURL)
	applied := 0
	var mu sync.Mutex
	var all sync.WaitGroup
	for range 8 {
		p := o.start(migrate...)
		all.Go(func() {
			<-p.ended
			mu.Lock()
			defer mu.Unlock()
			if code := p.cmd.ProcessState.ExitCode(); code != 0 {
				t.Errorf("exit code %d and %s", code, p.log.String())
			}
			if strings.Contains(p.log.String(), "applying version 1") {
				applied++
			}
		})
	}
	all.Wait()
	if applied != 1 {
		t.Errorf("%d of them applied version 1", applied)
	}
	if code, said := o.run(migrate...); code != 0 || !strings.Contains(said, "up to date") {
		t.Errorf("once more: exit code %d and %s", code, said)
	}
}
