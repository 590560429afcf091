//go:build unix && !linux

package stack

import "syscall"

func attributes(account *syscall.Credential, _ syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: account}
}

// family is the main process alone where there is no /proc; its children notice its death by themselves.
func family(pid int) []int { return []int{pid} }

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }
