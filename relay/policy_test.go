package relay

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/outbox-relay/outbox-relay/event"
)

var policy = Policy{MaxAttempts: 3, BackoffBase: time.Second, BackoffMax: time.Minute, Unroutable: RetryUnroutable}

func TestWhatEachOutcomeMeans(t *testing.T) {
	with := func(u Unroutable) Policy {
		p := policy
		p.Unroutable = u
		return p
	}
	for _, test := range []struct {
		verdict event.Verdict
		policy  Policy
		attempt int
		status  event.Status
		refund  bool
	}{
		{event.Acked, policy, 1, event.Published, false},
		{event.Acked, policy, 3, event.Published, false},
		{event.Unsent, policy, 1, event.Pending, true},
		{event.Unsent, policy, 3, event.Pending, true},
		{event.Unknown, policy, 1, event.Pending, true},
		{event.Unknown, policy, 3, event.Pending, true},
		{event.Nacked, policy, 1, event.Failed, false},
		{event.Nacked, policy, 2, event.Failed, false},
		{event.Nacked, policy, 3, event.Dead, false},
		{event.Nacked, policy, 4, event.Dead, false},
		{event.Refused, policy, 1, event.Failed, false},
		{event.Refused, policy, 3, event.Dead, false},
		{event.Impossible, policy, 1, event.Dead, false},
		{event.Returned, policy, 1, event.Failed, false},
		{event.Returned, policy, 3, event.Dead, false},
		{event.Returned, with(DeadUnroutable), 1, event.Dead, false},
		{event.Returned, with(AcceptUnroutable), 1, event.Published, false},
	} {
		e := &event.Event{ID: uuid.New(), Attempt: test.attempt}
		claim := uuid.New()
		s := test.policy.settlement(claim, e, event.Outcome{Verdict: test.verdict, Reason: "why"})
		if s.Status != test.status || s.Refund != test.refund || s.ID != e.ID || s.ClaimID != claim || s.Error != "why" {
			t.Errorf("%s, attempt %d, unroutable %s: %+v; want %s, refund %t", test.verdict, test.attempt, test.policy.Unroutable, s,
				test.status, test.refund)
		}
		if delayed := s.Delay > 0; delayed != (test.status == event.Failed) {
			t.Errorf("%s, attempt %d: delay %s", test.verdict, test.attempt, s.Delay)
		}
	}
}

func TestBackoffDoublesToItsMaximum(t *testing.T) {
	for _, test := range []struct {
		attempt   int
		base, max time.Duration
		want      time.Duration
	}{
		{1, time.Second, time.Hour, time.Second},
		{2, time.Second, time.Hour, 2 * time.Second},
		{11, time.Second, time.Hour, 1024 * time.Second},
		{12, time.Second, time.Hour, 1024 * time.Second},
		{1000, time.Second, time.Hour, 1024 * time.Second},
		{11, time.Second, 17 * time.Minute, 17 * time.Minute},
		{3, time.Minute, 2 * time.Minute, 2 * time.Minute},
		{1, time.Nanosecond, time.Hour, time.Nanosecond},
		{11, 24 * time.Hour, 24 * time.Hour, 24 * time.Hour},
	} {
		p := Policy{BackoffBase: test.base, BackoffMax: test.max}
		var least, most time.Duration = test.want, 0
		for range 2000 {
			d := p.backoff(test.attempt)
			least, most = min(least, d), max(most, d)
		}
		if most > test.want || least < test.want*3/4 || test.want > time.Second && most-least < test.want/8 {
			t.Errorf("attempt %d of %s up to %s: between %s and %s, want %s less a quarter at most", test.attempt, test.base, test.max,
				least, most, test.want)
		}
	}
}

func TestReasonIsFitForTheTable(t *testing.T) {
	for _, reason := range []string{
		strings.Repeat("x", 5000), "x" + strings.Repeat("é", 5000), "broken \xff and \x00 in it", "\xe2\x82",
	} {
		s := policy.settlement(uuid.Nil, &event.Event{}, event.Outcome{Verdict: event.Nacked, Reason: reason})
		if len(s.Error) > errorLimit || !utf8.ValidString(s.Error) || strings.Contains(s.Error, "\x00") {
			t.Errorf("%.20q becomes %q", reason, s.Error)
		}
	}
}
