package listener

import (
	"log/slog"
	"time"
)

// outage logs one line when the connection goes, one a minute while it is away, and one when it is back.
type outage struct {
	log      *slog.Logger
	since    time.Time // zero: connected
	reminded time.Time
	ever     bool // it was connected once
}

func (o *outage) begin(err error) {
	now := time.Now()
	switch {
	case o.since.IsZero():
		o.since, o.reminded = now, now
		o.log.Warn("listener is down: events wait for the fallback scan", "error", err)
	case now.Sub(o.reminded) >= time.Minute:
		o.reminded = now
		o.log.Warn("listener is still down", "error", err, "down_for", now.Sub(o.since).Round(time.Second))
	}
}

func (o *outage) end() {
	switch {
	case !o.since.IsZero():
		o.log.Info("listener is back", "down_for", time.Since(o.since).Round(time.Millisecond))
	case !o.ever:
		o.log.Info("listener is connected")
	}
	o.since, o.ever = time.Time{}, true
}
