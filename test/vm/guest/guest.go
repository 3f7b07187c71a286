// Package guest is what runs inside a machine of package vm: a service over one stream, by
// which the host runs programs, reads and writes files, and asks the machine's own HTTP
// ports. It is spoken in the standard library's net/rpc.
package guest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Port is the name of the virtio-serial port that the service is at.
const Port = "org.graylink.vm"

// Machine is the name that the service's methods are under.
const Machine = "Machine"

// maxBody bounds a page and a file, bytes.
const maxBody = 64 << 20

// Hello is what a machine says of itself once it serves.
type Hello struct {
	// Kernel is its release.
	Kernel string
	// Now is the machine's clock.
	Now time.Time
	// Problems are what went wrong while it started: modules that did not load.
	Problems []string
}

// Command is a program and what it is given.
type Command struct {
	Args  []string
	Env   []string
	Stdin []byte
	// Limit is how long it may take; 0: a minute. A program that is started, and not run,
	// has none.
	Limit time.Duration
}

// Result is what became of a program. Began and Ended are by the machine's clock.
type Result struct {
	Code           int
	Stdout, Stderr string
	Began, Ended   time.Time
}

// Read asks for what a program that was started wrote, from the line From on.
type Read struct {
	ID, From int
	// Wait is how long to wait for a line that is not there yet.
	Wait time.Duration
}

// Output is whole lines of a program's standard output and error, in the order in which they
// came. Ended says that there will be no more, and Code is the program's exit code then.
type Output struct {
	Lines []string
	Ended bool
	Code  int
}

// Signal is for a program that was started.
type Signal struct {
	ID     int
	Number int
}

// File is a file and what it holds.
type File struct {
	Path string
	Data []byte
	Mode os.FileMode
}

// Page is what an HTTP server of the machine answered.
type Page struct {
	Status int
	Header http.Header
	Body   []byte
}

// Request is for an HTTP server of the machine.
type Request struct {
	URL   string
	Limit time.Duration
	// Method is GET where there is none.
	Method string
	Header http.Header
	Body   []byte
}

// Service has the methods. Its zero value, with Problems where there were any, is ready.
type Service struct {
	Problems []string

	mu      sync.Mutex
	started []*process
}

// ServeStream answers until the stream ends.
func ServeStream(stream io.ReadWriteCloser, s *Service) error {
	server := rpc.NewServer()
	if err := server.RegisterName(Machine, s); err != nil {
		return err
	}
	server.ServeConn(stream)
	return nil
}

// Hello says that the machine is there.
func (s *Service) Hello(_ struct{}, out *Hello) error {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	*out = Hello{Kernel: strings.TrimSpace(string(release)), Now: time.Now(), Problems: s.Problems}
	return err
}

func (c *Command) execCmd(ctx context.Context) (*exec.Cmd, error) {
	if len(c.Args) == 0 {
		return nil, errors.New("a command without a program")
	}
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	cmd.Env = append(os.Environ(), c.Env...)
	// A program that left children behind, which hold its output, has ended all the same.
	cmd.WaitDelay = 10 * time.Second
	return cmd, nil
}

// exitCode returns the exit code: 128 and the signal's number for a program that was ended by one.
func exitCode(state *os.ProcessState) int {
	if w, ok := state.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return state.ExitCode()
}

// Run runs a program to its end.
func (s *Service) Run(c Command, out *Result) error {
	limit := c.Limit
	if limit == 0 {
		limit = time.Minute
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd, err := c.execCmd(ctx)
	if err != nil {
		return err
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(c.Stdin), &stdout, &stderr
	out.Began = time.Now()
	err = cmd.Run()
	out.Ended = time.Now()
	out.Stdout, out.Stderr = stdout.String(), stderr.String()
	if ctx.Err() != nil {
		return fmt.Errorf("%s: not over after %s; stdout %q, stderr %q", strings.Join(c.Args, " "), limit, out.Stdout, out.Stderr)
	}
	if cmd.ProcessState == nil {
		return err // it did not start
	}
	out.Code = exitCode(cmd.ProcessState)
	return nil
}

// process is a program that was started, and what it wrote.
type process struct {
	cmd *exec.Cmd

	mu    sync.Mutex
	part  []byte // a line that has no end yet
	lines []string
	ended bool
	code  int
	more  chan struct{} // closed, and replaced, when there is more
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.part = append(p.part, b...)
	for {
		line, rest, ok := bytes.Cut(p.part, []byte("\n"))
		if !ok {
			break
		}
		p.lines, p.part = append(p.lines, string(line)), rest
	}
	p.notifyWaiters()
	return len(b), nil
}

// notifyWaiters wakes those that wait. mu is held.
func (p *process) notifyWaiters() {
	close(p.more)
	p.more = make(chan struct{})
}

// Start starts a program, and returns its number here.
func (s *Service) Start(c Command, id *int) error {
	cmd, err := c.execCmd(context.Background())
	if err != nil {
		return err
	}
	p := &process{cmd: cmd, more: make(chan struct{})}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(c.Stdin), p, p
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { // ends with the program
		_ = cmd.Wait() // what it was is in the state
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.part) > 0 {
			p.lines, p.part = append(p.lines, string(p.part)), nil
		}
		p.ended, p.code = true, exitCode(cmd.ProcessState)
		p.notifyWaiters()
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started = append(s.started, p)
	*id = len(s.started) - 1
	return nil
}

func (s *Service) findProcess(id int) (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id < 0 || id >= len(s.started) {
		return nil, fmt.Errorf("no program has the number %d", id)
	}
	return s.started[id], nil
}

// Output returns what a program wrote, and waits where it wrote nothing more yet.
func (s *Service) Output(r Read, out *Output) error {
	p, err := s.findProcess(r.ID)
	if err != nil {
		return err
	}
	if r.From < 0 {
		return fmt.Errorf("line %d of a program: 0 or more is expected", r.From)
	}
	late := time.NewTimer(r.Wait)
	defer late.Stop()
	for {
		p.mu.Lock()
		more := p.more
		*out = Output{Ended: p.ended, Code: p.code}
		if r.From < len(p.lines) {
			out.Lines = append(out.Lines, p.lines[r.From:]...)
		}
		p.mu.Unlock()
		if len(out.Lines) > 0 || out.Ended {
			return nil
		}
		select {
		case <-more:
		case <-late.C:
			return nil
		}
	}
}

// Signal sends a signal to a program that was started.
func (s *Service) Signal(x Signal, _ *struct{}) error {
	p, err := s.findProcess(x.ID)
	if err != nil {
		return err
	}
	return p.cmd.Process.Signal(syscall.Signal(x.Number))
}

// ReadFile reads a file: one of procfs and sysfs, too.
func (s *Service) ReadFile(path string, out *[]byte) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	*out, err = readBounded(f, path)
	return err
}

// WriteFile replaces a file, and makes its directory.
func (s *Service) WriteFile(f File, _ *struct{}) error {
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(f.Path, f.Data, f.Mode)
}

// Get asks an HTTP server that the machine reaches, which its own are.
func (s *Service) Get(r Request, out *Page) error {
	ctx, cancel := context.WithTimeout(context.Background(), r.Limit)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, cmp.Or(r.Method, http.MethodGet), r.URL, bytes.NewReader(r.Body))
	if err != nil {
		return err
	}
	if r.Header != nil {
		q.Header = r.Header
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	out.Status, out.Header = a.StatusCode, a.Header
	out.Body, err = readBounded(a.Body, r.URL)
	return err
}

func readBounded(r io.Reader, name string) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxBody+1))
	if err == nil && len(b) > maxBody {
		err = fmt.Errorf("%s: more than %d bytes", name, maxBody)
	}
	return b, err
}
