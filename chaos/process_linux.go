package main

import "syscall"

// attributes: a group of its own keeps a terminal's Ctrl-C from the relay; and it dies with this program.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
