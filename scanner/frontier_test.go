package scanner

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestParseSnapshot(t *testing.T) {
	for _, good := range []struct {
		text string
		want snapshot
	}{
		{"10:10:", snapshot{xmin: 10, xmax: 10}},
		{"10:14:10,12", snapshot{xmin: 10, xmax: 14, open: []uint64{10, 12}}},
		{"18446744073709551000:18446744073709551615:18446744073709551000", snapshot{
			xmin: 18446744073709551000, xmax: 18446744073709551615, open: []uint64{18446744073709551000},
		}},
	} {
		got, err := parseSnapshot(good.text)
		if err != nil || got.xmin != good.want.xmin || got.xmax != good.want.xmax || !slices.Equal(got.open, good.want.open) {
			t.Errorf("%q: got %+v, %v", good.text, got, err)
		}
	}
	for _, bad := range []string{"", "1", "1:2", "x:2:", "1:x:", "1:2:x"} {
		if _, err := parseSnapshot(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func TestFrontierAdvances(t *testing.T) {
	type look struct {
		snapshot      snapshot
		begun         int64
		last, claimed int64
		cut           bool
	}
	open := func(xids ...uint64) snapshot { return snapshot{xmax: 100, open: xids} }
	for _, test := range []struct {
		name  string
		looks []look
		next  int64
		open  map[uint64]int64
	}{
		{"an empty table", []look{{}}, 1, nil},
		{
			"what was claimed is passed, what was only handed out is not: its transaction may not be in the snapshot",
			[]look{{last: 9, claimed: 5}},
			6, nil,
		},
		{"what was handed out before the look before is passed", []look{{last: 9, claimed: 5}, {last: 12}}, 10, nil},
		{
			"a transaction that an earlier look did not see commits above what was handed out before that look",
			[]look{{last: 9, claimed: 9}, {last: 12, snapshot: open(7)}},
			10,
			map[uint64]int64{7: 10},
		},
		{
			"one that was open at the first look may commit anywhere",
			[]look{{last: 9, claimed: 9, snapshot: open(7)}, {last: 12}, {last: 12}},
			13, nil,
		},
		{
			"it keeps its position for as long as it is open",
			[]look{{snapshot: open(7)}, {last: 12, claimed: 12, snapshot: open(7)}, {last: 90, claimed: 90, snapshot: open(7, 8)}},
			91,
			map[uint64]int64{7: 1, 8: 13},
		},
		{
			"one that had begun beyond the snapshot's xmax is open too",
			[]look{{last: 9, claimed: 9}, {last: 12, snapshot: snapshot{xmax: 100}, begun: 2}},
			10,
			map[uint64]int64{100: 10, 101: 10},
		},
		{
			"too many of them, and it stays",
			[]look{{last: 9, claimed: 9}, {last: 5000, claimed: 5000, begun: 1001}},
			10,
			map[uint64]int64{},
		},
		{"a look that was cut short passes only what it claimed", []look{{last: 9, claimed: 5, cut: true}, {last: 9, claimed: 7, cut: true}}, 8, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFrontier()
			for _, l := range test.looks {
				f.advance(l.snapshot, l.begun, l.last, l.claimed, l.cut)
			}
			if f.next != test.next {
				t.Errorf("the next claim starts at %d, want %d", f.next, test.next)
			}
			if test.open != nil && fmt.Sprint(f.open) != fmt.Sprint(test.open) {
				t.Errorf("open transactions %v, want %v", f.open, test.open)
			}
		})
	}
}

// A model of PostgreSQL takes random steps: transactions get an xid, then sequence values, and end in any order; relays
// look, with other steps between a look's snapshot and its claim. What a look's snapshot shows must never be passed.
func TestFrontierPassesNothingThatIsVisible(t *testing.T) {
	for seed := range uint64(500) {
		m := &model{random: rand.New(rand.NewPCG(seed, 0)), nextXid: 3, lastEnded: 2, rows: map[int64]*row{}}
		for range 1 + m.random.IntN(3) {
			m.relays = append(m.relays, &modelRelay{frontier: newFrontier()})
		}
		for range 300 {
			m.step()
		}
		for len(m.transactions) > 0 {
			m.end(m.random.IntN(len(m.transactions)))
		}
		r := m.relays[0] // the others may be dead
		m.finish(r)
		for range 10 + 2*len(m.rows) { // of which some learn nothing
			m.begin(r)
			m.finish(r)
		}
		for sequence, row := range m.rows {
			if row.committed && !row.claimed {
				m.problem = fmt.Sprintf("event %d was committed and never claimed", sequence)
			}
		}
		if m.problem != "" {
			t.Fatalf("seed %d: %s", seed, m.problem)
		}
	}
}

type model struct {
	random       *rand.Rand
	nextXid      uint64
	lastEnded    uint64 // the highest xid that has ended
	sequence     int64
	transactions []*modelTransaction
	rows         map[int64]*row
	relays       []*modelRelay
	problem      string
}

type row struct{ committed, claimed bool }

type modelTransaction struct {
	xid  uint64
	rows []int64
}

type modelRelay struct {
	frontier frontier
	look     *modelLook // under way
}

type modelLook struct {
	snapshot snapshot
	visible  []int64
	start    int64
	limit    int
	begun    int64
	last     int64
	few      bool // as ClaimRung looks
}

func (m *model) step() {
	switch m.random.IntN(10) {
	case 0, 1:
		m.transactions = append(m.transactions, &modelTransaction{xid: m.nextXid})
		m.nextXid++
	case 2, 3, 4:
		if len(m.transactions) > 0 {
			tx := m.transactions[m.random.IntN(len(m.transactions))]
			m.sequence++
			tx.rows = append(tx.rows, m.sequence)
			m.rows[m.sequence] = &row{}
		}
	case 5, 6:
		if n := len(m.transactions); n > 0 && m.random.IntN(8) < n { // some stay open for long
			m.end(m.random.IntN(n))
		}
	default:
		r := m.relays[m.random.IntN(len(m.relays))]
		if r.look == nil {
			m.begin(r)
		} else {
			m.finish(r)
		}
	}
}

func (m *model) end(i int) {
	commit := m.random.IntN(5) > 0
	for _, sequence := range m.transactions[i].rows {
		m.rows[sequence].committed = commit
	}
	m.lastEnded = max(m.lastEnded, m.transactions[i].xid)
	m.transactions = slices.Delete(m.transactions, i, i+1)
}

// begin takes a look's snapshot as PostgreSQL does (GetSnapshotData: xmax is one past the highest xid that has ended), and
// decides where the claim starts as statement/claim_fresh.sql does.
func (m *model) begin(r *modelRelay) {
	xmax := m.lastEnded + 1
	look := &modelLook{snapshot: snapshot{xmin: xmax, xmax: xmax}, start: r.frontier.next, limit: 1 + m.random.IntN(6)}
	for _, tx := range m.transactions {
		if tx.xid < xmax {
			look.snapshot.xmin = min(look.snapshot.xmin, tx.xid)
			look.snapshot.open = append(look.snapshot.open, tx.xid)
		}
	}
	for sequence, row := range m.rows {
		if row.committed {
			look.visible = append(look.visible, sequence)
		}
	}
	slices.Sort(look.visible)
	xids, positions := r.frontier.obligations()
	for i, xid := range xids {
		if xid < xmax && !slices.Contains(look.snapshot.open, xid) {
			look.start = min(look.start, positions[i])
		}
	}
	if look.few = m.random.IntN(3) == 0; look.few { // statement/claim_next.sql does not know who has ended
		look.start, look.limit = r.frontier.lowest(), Few
	}
	look.begun, look.last = int64(m.nextXid-xmax), m.sequence
	r.look = look
}

// finish claims what the snapshot shows and no other relay has taken since, and checks that nothing of it is passed.
func (m *model) finish(r *modelRelay) {
	look := r.look
	r.look = nil
	if look == nil {
		return
	}
	if m.random.IntN(2) == 0 { // both may be read at any moment of the statement
		look.begun = int64(m.nextXid - look.snapshot.xmax)
	}
	if m.random.IntN(2) == 0 {
		look.last = m.sequence
	}
	var claimed int64
	n := 0
	for _, sequence := range look.visible {
		if sequence >= look.start && !m.rows[sequence].claimed && n < look.limit {
			m.rows[sequence].claimed = true
			claimed, n = sequence, n+1
		}
	}
	if n > 0 { // the claim is a transaction of its own
		m.lastEnded = m.nextXid
		m.nextXid++
	}
	if look.few {
		if n == 0 {
			return // nothing is known
		}
		look.last = 0
	}
	cut := n == look.limit
	r.frontier.advance(look.snapshot, look.begun, look.last, claimed, cut)
	for _, sequence := range look.visible {
		if !m.rows[sequence].claimed && (!cut || sequence < r.frontier.next) {
			m.problem = fmt.Sprintf("a look saw event %d, did not claim it, and goes on at %d", sequence, r.frontier.next)
		}
	}
}
