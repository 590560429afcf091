//go:build failpoints

package failpoint

import (
	"os"
	"syscall"
)

// Here kills the process with SIGKILL if OUTBOX_FAILPOINT names this point.
func Here(point string) {
	if os.Getenv("OUTBOX_FAILPOINT") == point {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal is on its way
	}
}
