package relay

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are what a relay counts. Names and labels are a contract; every label has few values.
type Metrics struct {
	Published           prometheus.Counter
	PublishFailures     *prometheus.CounterVec // reason: a verdict
	Dead                *prometheus.CounterVec // reason: a verdict, or lease_expired
	Wakeups             *prometheus.CounterVec // reason
	EventsClaimed       *prometheus.CounterVec // reason
	MissedNotifications prometheus.Counter
	DeliveryLag         prometheus.Histogram
	ClaimSeconds        prometheus.Histogram
	LeaseLost           prometheus.Counter
	InFlight            prometheus.Gauge
}

// NewMetrics registers them with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		reg.MustRegister(c)
		return c
	}
	byReason := func(name, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"reason"})
		reg.MustRegister(c)
		return c
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
		reg.MustRegister(h)
		return h
	}
	m := &Metrics{
		Published:           counter("outbox_published_total", "Events confirmed by RabbitMQ and marked PUBLISHED."),
		PublishFailures:     byReason("outbox_publish_failures_total", "Events that were not confirmed, by what became of them."),
		Dead:                byReason("outbox_dead_total", "Events that became DEAD, by reason."),
		Wakeups:             byReason("outbox_wakeups_total", "Wake-ups of the relay, by reason."),
		EventsClaimed:       byReason("outbox_events_claimed_total", "Events claimed, by the reason of the wake-up that found them."),
		MissedNotifications: counter("outbox_missed_notifications_total", "Events found by the scan that a notification should have told of."),
		DeliveryLag: histogram("outbox_delivery_lag_seconds", "From created_at to the confirm, by the database's clock.",
			prometheus.ExponentialBucketsRange(0.0005, 1000, 24)),
		ClaimSeconds: histogram("outbox_claim_seconds", "Duration of one claim.", prometheus.ExponentialBucketsRange(0.0001, 10, 16)),
		LeaseLost:    counter("outbox_lease_lost_total", "Events that another relay had taken before they were settled."),
		InFlight:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "outbox_in_flight_events", Help: "Events claimed and not settled yet."}),
	}
	reg.MustRegister(m.InFlight)
	for _, reason := range []Reason{Start, Notify, Scan, Due, Reconnect} {
		m.Wakeups.WithLabelValues(string(reason))
		m.EventsClaimed.WithLabelValues(string(reason))
	}
	return m
}

func (m *Metrics) claimed(began time.Time) { m.ClaimSeconds.Observe(time.Since(began).Seconds()) }
