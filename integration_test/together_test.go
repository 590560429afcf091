package integration_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

func TestRelaysShareATable(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 4} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			c := o.consume()
			l := newLedger()
			var relays []*process
			for range n {
				relays = append(relays, o.relay("--batch-size=50", noScan))
			}
			for _, r := range relays {
				r.ready()
			}
			o.writers(l, 8, func(ctx context.Context, w *writer) error {
				for range 250 {
					err := w.write(ctx, transaction{events: 1 + rand.IntN(9), business: lasting(rand.N(2 * time.Millisecond)), rollback: rand.IntN(10) == 0})
					if err != nil {
						return err
					}
				}
				return nil
			})()
			if duplicates := o.reconcile(l, c); duplicates != 0 {
				t.Errorf("%d of %d events came twice though all relays live", duplicates, l.count())
			}
			o.eventually(patience, "the relays' counts add up to what was committed", func() bool {
				var total float64
				for _, r := range relays {
					total += r.metric("outbox_published_total")
				}
				return total == float64(l.count())
			})
			for i, r := range relays {
				published := r.metric("outbox_published_total")
				t.Logf("relay %d published %v", i+1, published)
				if published == 0 {
					t.Errorf("relay %d took no part", i+1)
				}
				r.stop()
			}
		})
	}
}
