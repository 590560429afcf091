package scanner

import (
	"fmt"
	"strconv"
	"strings"
)

// snapshot is pg_current_snapshot() as PostgreSQL writes it: every transaction below xmin has ended, none at or above xmax
// has, and of those between, the open ones are listed. Those at or above xmax may have begun nevertheless: xmax is one past
// the newest transaction that has *ended*.
type snapshot struct {
	xmin, xmax uint64
	open       []uint64
}

func parseSnapshot(text string) (s snapshot, err error) {
	parts := strings.SplitN(text, ":", 3)
	if len(parts) != 3 {
		return s, fmt.Errorf("parsing snapshot %q: want xmin:xmax:list", text)
	}
	if s.xmin, err = strconv.ParseUint(parts[0], 10, 64); err != nil {
		return s, fmt.Errorf("parsing snapshot %q: %w", text, err)
	}
	if s.xmax, err = strconv.ParseUint(parts[1], 10, 64); err != nil {
		return s, fmt.Errorf("parsing snapshot %q: %w", text, err)
	}
	for x := range strings.SplitSeq(parts[2], ",") {
		if x == "" {
			continue
		}
		xid, err := strconv.ParseUint(x, 10, 64)
		if err != nil {
			return s, fmt.Errorf("parsing snapshot %q: %w", text, err)
		}
		s.open = append(s.open, xid)
	}
	return s, nil
}

// frontier remembers where the next claim has to start, so that no claim walks again what earlier ones have passed.
//
// It stands on two facts. A transaction has its xid before it takes its first sequence value (a trigger sees to that), and
// the sequence only grows. So a transaction that had not begun at a look can commit nothing at or below a value that was
// handed out before that look. A claim therefore passes everything it saw, and remembers each transaction that may be open,
// listed in its snapshot or begun beyond it, with the lowest sequence that it could still commit: all that had been handed
// out before the look before is out of its reach. The claim that first sees such a transaction ended starts there once more.
// A transaction open for hours costs an entry in a map, and nothing per claim.
//
// Where the facts do not hold (the trigger is disabled, the sequence caches or was set back, a standby was promoted that
// had not received everything), the scan from the bottom finds what was passed.
type frontier struct {
	next   int64            // the next claim starts here
	open   map[uint64]int64 // open transactions, each with the lowest sequence that it could still commit
	passed int64            // handed out before the last look's snapshot
	last   int64            // handed out before the end of the last look
}

func newFrontier() frontier { return frontier{open: map[uint64]int64{}} }

// obligations are the open transactions with their positions, as two lists for the claim statement.
func (f *frontier) obligations() (xids []uint64, positions []int64) {
	xids, positions = make([]uint64, 0, len(f.open)), make([]int64, 0, len(f.open))
	for xid, position := range f.open {
		xids, positions = append(xids, xid), append(positions, position)
	}
	return xids, positions
}

// lowest is where a claim has to start that does not know which of the open transactions have ended.
func (f *frontier) lowest() int64 {
	lowest := f.next
	for _, position := range f.open {
		lowest = min(lowest, position)
	}
	return lowest
}

// maxBegun bounds how many transactions begun beyond a snapshot are remembered one by one. There are more only where one
// has that many subtransactions; the frontier stays where it is for as long.
const maxBegun = 1000

// advance takes in one look: its snapshot, how many transactions had begun at or above the snapshot's xmax a moment later,
// the sequence's last value read with it, the highest sequence it claimed (0 for none), and whether its limit cut it short.
func (f *frontier) advance(s snapshot, begun int64, last, claimed int64, cut bool) {
	if begun > maxBegun {
		return
	}
	stillOpen := make(map[uint64]int64, len(s.open)+int(begun))
	remember := func(xid uint64) {
		position, known := f.open[xid]
		if !known {
			position = f.passed + 1
		}
		stillOpen[xid] = position
	}
	for _, xid := range s.open {
		remember(xid)
	}
	for xid := s.xmax; xid < s.xmax+uint64(max(begun, 0)); xid++ {
		remember(xid)
	}
	f.open = stillOpen
	f.passed = max(f.passed, f.last, claimed)
	f.last = max(f.last, last)
	if cut {
		f.next = claimed + 1
	} else {
		f.next = f.passed + 1
	}
}
