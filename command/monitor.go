package command

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/outbox-relay/outbox-relay/listener"
	"github.com/outbox-relay/outbox-relay/publisher"
	"github.com/outbox-relay/outbox-relay/relay"
)

// monitor answers whoever watches the relay: /healthz is about the process, /readyz about its connections, /metrics counts.
type monitor struct {
	registry *prometheus.Registry
	pub      *publisher.Publisher
	lis      *listener.Listener // nil: --wake=none
	relay    *relay.Relay
	started  atomic.Bool // the database has answered, and holds the schema
}

func newMonitor(registry *prometheus.Registry, r *relay.Relay, pub *publisher.Publisher, lis *listener.Listener) *monitor {
	m := &monitor{registry: registry, relay: r, pub: pub, lis: lis}
	gauge := func(name, help string, is func() bool) {
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			if is() {
				return 1
			}
			return 0
		}))
	}
	gauge("outbox_broker_connected", "1 while connected to RabbitMQ.", func() bool { return pub.State().Connected })
	gauge("outbox_broker_blocked", "1 while RabbitMQ blocks publishers.", func() bool { return pub.State().Blocked })
	if lis != nil {
		gauge("outbox_listener_connected", "1 while the LISTEN connection has proved that it hears.", lis.Connected)
	}
	return m
}

// readiness is what /readyz says.
type readiness struct {
	Ready    bool   `json:"ready"`
	Database string `json:"database"`
	Broker   string `json:"broker"`
	Listener string `json:"listener"`
}

// readiness: a lost listener costs latency, not events, so it does not count.
func (m *monitor) readiness() readiness {
	r := readiness{Ready: true, Database: "ok", Broker: "ok", Listener: "off"}
	if err := m.relay.Trouble(); err != nil {
		r.Ready, r.Database = false, err.Error()
	} else if !m.started.Load() {
		r.Ready, r.Database = false, "waiting for it to answer"
	}
	switch s := m.pub.State(); {
	case s.Blocked:
		r.Ready, r.Broker = false, "blocked: "+s.Reason
	case !s.Connected:
		r.Ready, r.Broker = false, s.Reason
	}
	if m.lis != nil {
		r.Listener = "ok"
		if !m.lis.Connected() {
			r.Listener = "not connected: events wait for the fallback scan"
		}
	}
	return r
}

// serve answers until ctx ends.
func (m *monitor) serve(ctx context.Context, socket net.Listener, log *slog.Logger) {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		r := m.readiness()
		w.Header().Set("Content-Type", "application/json")
		if !r.Ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(r)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		_ = server.Close()
	})
	if err := server.Serve(socket); !errors.Is(err, http.ErrServerClosed) {
		log.Error("no longer answering", "error", err)
	}
	if !stop() {
		<-stopped
	}
}
