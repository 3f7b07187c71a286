package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/unix"
)

// A helper is a process that a fault needs for as long as it lasts. It runs inside one of the lab's namespaces, so
// that Down finds it even if it was not recorded, and it ends by itself when the lab's owner dies.

// HelperArgs returns the command line, after the program's name, that starts the helper of a fault: cmd/graylink
// passes it to RunHelper.
func HelperArgs(name, id string) []string {
	return []string{"lab", "relay", "--name", name, id}
}

// readyFD is the descriptor on which a helper reports: "ok", or what is wrong.
const readyFD = 3

// helperStart bounds the wait for a helper's report. It is for helpers that hang: one that looks for flows through a
// port takes a second, and longer on a machine that is busy.
const helperStart = time.Minute

// startHelper starts the fault's helper and waits until it works.
func (l *Lab) startHelper(st *state, f *ActiveFault) error {
	logFile, err := os.OpenFile(filepath.Join(labDir(l.root, l.name), "helper-"+f.ID+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("opening the helper's log: %w", err)
	}
	defer logFile.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("making a pipe to the helper: %w", err)
	}
	defer r.Close()
	cmd := exec.Command(st.Executable, HelperArgs(l.name, f.ID)...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = logFile, logFile, []*os.File{w}
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), StateDirEnv+"="+l.root)
	// A Ctrl-C meant for the command that added the fault is not for the helper.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = unix.InNetns(l.x.byElement[f.Home].Netns, cmd.Start)
	w.Close()
	if err != nil {
		return fmt.Errorf("starting the helper: %w", err)
	}
	l.helpers.Add(1)
	go func() {
		defer l.helpers.Done()
		// How a helper ends is in its log; here it is only reaped.
		_ = cmd.Wait()
	}()
	if f.Helper, err = processOf(cmd.Process.Pid); err != nil {
		return fmt.Errorf("the helper ended at once, see %s: %w", logFile.Name(), err)
	}
	if err := r.SetReadDeadline(time.Now().Add(helperStart)); err != nil {
		return fmt.Errorf("waiting for the helper: %w", err)
	}
	line, err := bufio.NewReader(r).ReadString('\n')
	switch line = strings.TrimSpace(line); {
	case line == "ok":
		return nil
	case line != "":
		return fmt.Errorf("the helper: %s", line)
	}
	out, _ := os.ReadFile(logFile.Name())
	return fmt.Errorf("the helper said nothing: %w: %s", err, strings.TrimSpace(string(out)))
}

// stopHelper ends a helper: gently, then not.
func stopHelper(p Process, patience time.Duration) error {
	if err := p.sendSignal(syscall.SIGTERM); err != nil {
		return err
	}
	if waitGone(p, patience) {
		return nil
	}
	if err := p.sendSignal(syscall.SIGKILL); err != nil {
		return err
	}
	if !waitGone(p, killPatience) {
		return fmt.Errorf("helper process %d still runs %s after SIGKILL", p.PID, killPatience)
	}
	return nil
}

func waitGone(p Process, patience time.Duration) bool {
	for deadline := time.Now().Add(patience); p.isAlive(); time.Sleep(killPoll) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// ownerPoll is how often a helper looks whether the lab's owner still lives.
const ownerPoll = 500 * time.Millisecond

// RunHelper runs the helper of a fault, until ctx ends or the lab's owner dies. It must run in the process that
// AddFault started.
func RunHelper(ctx context.Context, name, id string) error {
	ready := os.NewFile(readyFD, "ready")
	if ready == nil {
		return errors.New("this command is started by a fault, not by hand")
	}
	defer ready.Close()
	err := runHelper(ctx, name, id, ready)
	if err != nil {
		fmt.Fprintln(ready, err)
	}
	return err
}

func runHelper(ctx context.Context, name, id string, ready io.Writer) error {
	root := stateDir()
	st, err := loadState(root, name)
	if err != nil {
		return fmt.Errorf("lab %q: %w", name, err)
	}
	i := slices.IndexFunc(st.Faults, func(f ActiveFault) bool { return f.ID == id })
	if i < 0 {
		return fmt.Errorf("lab %q has no fault %q", name, id)
	}
	f := st.Faults[i]
	ctx, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		watchOwner(ctx, cancel, st.Owner)
	}()
	defer func() { cancel(); <-watched }()
	started := func() error {
		if _, err := fmt.Fprintln(ready, "ok"); err != nil {
			return fmt.Errorf("reporting that the helper works: %w", err)
		}
		return nil
	}
	switch f.Kind {
	case KindLinkDown:
		if err := started(); err != nil {
			return err
		}
		if sleepContext(ctx, time.Until(f.Since.Add(WithdrawAfter))) != nil {
			return nil
		}
		return withdrawRoutes(ctx, root, name, id)
	case KindFlap:
		return flapLink(ctx, root, name, id, started)
	case KindCongest, KindIncast:
		d, err := fabric.ParseDirection(f.Direction)
		if err != nil {
			return err
		}
		return crossTraffic(ctx, st.currentFabric(), d, started)
	case KindBGPFlap:
		return resetSessions(ctx, root, name, f, st.currentFabric().byEnd[f.ResetAt].Name, started)
	case KindBFDFalse:
		return dropBFD(ctx, root, name, f, started)
	case KindBlackholeFIB:
		return holdEntries(ctx, f, started)
	case KindHostStall:
		return stallProcesses(ctx, st.Layout.buildIndex(), f.At, started)
	}
	delay := new(atomic.Int64)
	delay.Store(int64(f.Delay))
	stop := followDelay(ctx, root, name, f.ID, delay)
	defer func() { cancel(); stop() }()
	return relayPackets(ctx, f.Queue, delay, started)
}

// followDelay reads the delay of a fault again at each SIGHUP until ctx ends. stop waits for its end.
func followDelay(ctx context.Context, root, name, id string, delay *atomic.Int64) (stop func()) {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGHUP)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer signal.Stop(changed)
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
			st, err := loadState(root, name)
			if err != nil {
				fmt.Fprintln(os.Stderr, "reading the changed delay:", err)
				continue
			}
			for _, o := range st.Faults {
				if o.ID == id {
					delay.Store(int64(o.Delay))
				}
			}
		}
	})
	return wg.Wait
}

func watchOwner(ctx context.Context, cancel func(), owner *Process) {
	if owner == nil {
		return
	}
	for owner.isAlive() {
		if sleepContext(ctx, ownerPoll) != nil {
			return
		}
	}
	cancel()
}

func sleepContext(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// A stalled host gets the CPU for stallRun out of every stallStop + stallRun.
const (
	stallStop = 400 * time.Millisecond
	stallRun  = 100 * time.Millisecond
)

// stallProcesses starves a node's processes, and leaves them running however it ends.
func stallProcesses(ctx context.Context, x *index, node string, started func() error) (err error) {
	defer func() { err = errors.Join(err, x.resumeProcesses(node)) }()
	if err := started(); err != nil {
		return err
	}
	for {
		// Afresh each time: processes come and go.
		pids, err := x.processesOf(node)
		if err != nil {
			return err
		}
		if err := signalAll(pids, syscall.SIGSTOP); err != nil {
			return err
		}
		stopped := sleepContext(ctx, stallStop)
		if err := signalAll(pids, syscall.SIGCONT); err != nil {
			return err
		}
		if stopped != nil || sleepContext(ctx, stallRun) != nil {
			return nil
		}
	}
}
