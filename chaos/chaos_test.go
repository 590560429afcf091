package main

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute and a half")
	}
	o := options{seed: 2456, duration: 55 * time.Second, relays: 4, out: t.Output(), verbose: true}
	if err := run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}
