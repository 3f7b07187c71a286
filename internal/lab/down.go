package lab

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"

	"github.com/graylink/graylink/internal/unix"
)

// killPoll and killPatience bound the wait for killed processes to be gone.
const (
	killPoll     = 2 * time.Millisecond
	killPatience = 5 * time.Second
)

// removeLab removes a lab in whatever phase it is; the caller holds its lock.
// On an error the state stays, so that it can be tried again.
func removeLab(root string, st *state) error {
	st.Phase = phaseDown
	if st.Builder, _ = currentProcess(); st.Builder.PID != 0 {
		if err := st.saveState(root); err != nil {
			return err
		}
	}
	var errs []error
	for _, f := range st.Faults {
		errs = append(errs, f.Helper.sendSignal(syscall.SIGKILL))
	}
	errs = append(errs, killAll(st))
	for _, ns := range st.Layout.Namespaces {
		if !st.ownsNamespace(ns) {
			continue
		}
		// A socket that is still open keeps a namespace alive, but its links are removed now. Every link has an end
		// on a switch.
		if ns.Switch {
			if err := unix.InNetns(ns.Netns, removeLinks); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.EINVAL) {
				errs = append(errs, fmt.Errorf("%s: %w", ns.Element, err))
			}
		}
		errs = append(errs, unix.RemoveNetns(ns.Netns))
	}
	for _, dir := range st.Directories {
		errs = append(errs, os.RemoveAll(dir))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("taking lab %q down: %w", st.Name, err)
	}
	return forgetLab(root, st.Name)
}

// ownsNamespace reports whether the namespace that now bears the name is the lab's. A
// builder that died while making names had no time to record what they stand
// for; it made them in order, under the lab's lock.
func (st *state) ownsNamespace(ns Namespace) bool {
	id, err := unix.NetnsIDOf(unix.NetnsPath(ns.Netns))
	if err != nil {
		return false
	}
	want, recorded := st.NetnsIDs[ns.Element]
	return !recorded || id == want
}

// killAll ends every process in the lab's namespaces, and those they start
// meanwhile.
func killAll(st *state) error {
	ids := map[unix.NetnsID]bool{}
	for _, ns := range st.Layout.Namespaces {
		if id, err := unix.NetnsIDOf(unix.NetnsPath(ns.Netns)); err == nil && st.ownsNamespace(ns) {
			ids[id] = true
		}
	}
	var deadline time.Time
	for {
		found, err := unix.NetnsProcesses(ids)
		if err != nil {
			return fmt.Errorf("finding the lab's processes: %w", err)
		}
		var left []int
		for _, pids := range found {
			left = append(left, pids...)
		}
		if len(left) == 0 {
			return nil
		}
		// To look for processes may take longer than the patience on a machine that is busy: it begins with the first signal.
		if deadline.IsZero() {
			deadline = time.Now().Add(killPatience)
		} else if time.Now().After(deadline) {
			return fmt.Errorf("processes %v still run in the lab %s after SIGKILL", left, killPatience)
		}
		for _, pid := range left {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("killing process %d: %w", pid, err)
			}
		}
		time.Sleep(killPoll)
	}
}

// iflaGroup is IFLA_GROUP of if_link.h.
const iflaGroup = 27

// removeLinks removes all the links of the thread's namespace at once: the
// kernel waits for its readers per message, tens of milliseconds.
func removeLinks() error {
	req := nl.NewNetlinkRequest(syscall.RTM_DELLINK, syscall.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(syscall.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(iflaGroup, nl.Uint32Attr(linkGroup)))
	if _, err := req.Execute(syscall.NETLINK_ROUTE, 0); err != nil && !errors.Is(err, syscall.ENODEV) {
		return fmt.Errorf("removing links: %w", err)
	}
	return nil
}
