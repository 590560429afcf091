//go:build !failpoints

// Package failpoint kills the process at a named point, so that tests can show what a crash there leaves behind. It does
// nothing unless the program is built with the tag failpoints.
//
// Points, in the order an event passes them: claimed (committed in the table, nothing sent), sent (on the wire, no confirm
// awaited), confirmed (confirm received, nothing written back), settled (written back, not counted yet).
package failpoint

// Here is where the process may die.
func Here(string) {}
