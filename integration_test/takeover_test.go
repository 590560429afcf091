package integration_test

import (
	"testing"
	"time"
)

// A relay's clock can't be set apart from the machine's, but the database's can: to the relay this is the same as if its
// own were a day off. Any time of the relay's own that found its way into the table would show: leases that end at once or
// never, scheduled events that come a day early or late, a lag of a day.
func TestLeasesAndSchedulesGoByTheDatabasesClock(t *testing.T) {
	t.Parallel()
	for _, ahead := range []string{"0", "24 hours", "-24 hours"} {
		t.Run(ahead, func(t *testing.T) {
			t.Parallel()
			o := newEmptyOutbox(t, "outbox")
			o.setClock(ahead)
			o.migrate()
			c := o.consume()
			l := newLedger()

			dead := o.stuck(l, 50, "--lease=4s", "--confirm-timeout=3s")
			dead.kill()
			leasesEnd := o.localTime("select max(claim_expires_at) from " + o.events)
			other := o.relay(noScan, "--lease=4s", "--confirm-timeout=3s").asleep(o)
			o.insertDue(l, "scheduled", 1, "now() + interval '1 second'")
			due := o.localTime("select max(available_at) from " + o.events + " where event_type = 'scheduled'")
			if duplicates := o.reconcile(l, c); duplicates != 0 {
				t.Errorf("%d events came twice", duplicates)
			}
			taken := 0
			for id, deliveries := range c.deliveries {
				d, earliest := deliveries[0], due
				if d.attempt == 2 {
					taken++
					earliest = leasesEnd
				}
				late := d.at.Sub(earliest)
				// A lease is looked after each quarter of it.
				if late < -10*time.Millisecond || late > 2*time.Second {
					t.Errorf("event %s, attempt %d, came %s after its time", id, d.attempt, late)
				}
			}
			if taken != 50 {
				t.Errorf("%d events were taken over, want 50", taken)
			}
			if lag := other.metric("outbox_delivery_lag_seconds_sum"); lag < 0 || lag > 51*60 {
				t.Errorf("the lags add up to %v s", lag)
			}
			other.stop()
		})
	}
}

// setClock has everybody in the database read a clock that is so much ahead of the machine's.
func (o *outbox) setClock(ahead string) {
	o.tb.Helper()
	o.exec("create schema clock")
	for function, volatility := range map[string]string{"now": "stable", "clock_timestamp": "volatile"} {
		o.exec("create function clock." + function + "() returns timestamptz language sql " + volatility +
			" as $$ select pg_catalog." + function + "() + interval '" + ahead + "' $$")
	}
	o.exec(`do $$ begin execute format('alter database %I set search_path = clock, pg_catalog, public', current_database()); end $$`)
	o.pool.Reset()
}

// localTime is when the machine's clock will be where the query's answer has the database's.
func (o *outbox) localTime(sql string) time.Time {
	o.tb.Helper()
	var at, now time.Time
	if err := o.pool.QueryRow(o.tb.Context(), "select ("+sql+"), clock_timestamp()").Scan(&at, &now); err != nil {
		o.tb.Fatal(err)
	}
	return time.Now().Add(at.Sub(now))
}
