package vm

import (
	"errors"
	"os"
	"strconv"
	"syscall"
)

// SetPriority sets the nice value of this process and of what it starts from then on. Machines whose agents are starved
// by what runs beside them are no evidence for an analyzer. A value below the present one takes CAP_SYS_NICE.
func SetPriority(nice int) error {
	threads, err := os.ReadDir("/proc/self/task") // threads that come later have it of the one that starts them
	if err != nil {
		return err
	}
	for _, e := range threads {
		id, err := strconv.Atoi(e.Name())
		if err != nil {
			return err
		}
		if err := syscall.Setpriority(syscall.PRIO_PROCESS, id, nice); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return nil
}
