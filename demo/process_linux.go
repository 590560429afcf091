package demo

import "syscall"

// attributes: a group of its own keeps a terminal's Ctrl-C from it, since the demo stops it in its turn; and it ends with
// the demo, should that be killed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
