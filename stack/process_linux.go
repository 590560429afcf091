package stack

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

func attributes(account *syscall.Credential, orphaned syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: orphaned, Credential: account}
}

// family gives pid and all its descendants, parents first. A process group would not do: PostgreSQL's backends and
// Erlang's port programs each make one of their own.
func family(pid int) []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	children := map[int][]int{}
	for _, stat := range stats {
		child, _ := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
		if _, parent, ok := status(child); ok {
			children[parent] = append(children[parent], child)
		}
	}
	family := []int{pid}
	for i := 0; i < len(family); i++ {
		family = append(family, children[family[i]]...)
	}
	return family
}

// alive is false for a zombie too: it runs no more, and only its parent can remove it.
func alive(pid int) bool {
	state, _, ok := status(pid)
	return ok && state != 'Z'
}

// status reads /proc/PID/stat (proc(5)): "PID (NAME) STATE PARENT …", where NAME may hold anything.
func status(pid int) (state byte, parent int, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, false
	}
	_, err = fmt.Sscanf(string(text[bytes.LastIndexByte(text, ')')+1:]), " %c %d", &state, &parent)
	return state, parent, err == nil
}
