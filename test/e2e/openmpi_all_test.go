//go:build all

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
)

const (
	mpiSources  = "../mpi/"
	mpiBefore   = 64                     // operations without a fault; what is normal takes 40
	mpiAfter    = 40                     // operations with the fault
	mpiBytes    = 1 << 20                // of an operation; more take seconds where processors are shared
	mpiCompute  = 10 * time.Millisecond  // between two operations
	mpiLate     = 300 * time.Millisecond // of the late rank: far beyond what sharing a processor adds
	mpiSlow     = 20 * time.Millisecond  // of the slow NIC, in each of the six steps of a ring of four
	mpiAttempts = 10                     // at runs whose first part is not disturbed by the machine
	mpiPatience = 10 * time.Minute       // for what hangs
)

// mpiHosts are the nodes of ranks 0 to 3, two on each leaf.
var mpiHosts = []string{"h1", "h3", "h5", "h7"}

// openMPI is a lab in which jobs of Open MPI run, and the programs of test/mpi.
type openMPI struct {
	l       *lab.Lab
	library string // is preloaded, and writes records
	job     string
	hosts   string // file in the format of /etc/hosts
}

// TestOpenMPI runs jobs of Debian's Open MPI, whose transfers are its own, over a lab's fabric. Records come from a library at its
// profiling interface, and have operations only. A late rank is named, and the network is innocent of it; of a slow NIC the
// records say that transfers are slow, and not where. A job of the lab with the same slow NIC has the same answer from its
// operations, and names the connection by its transfers.
func TestOpenMPI(t *testing.T) {
	const name = "e2empi"
	needOpenMPI(t)
	l := fabricOf(t, name, "testdata/ring-fabric.yaml")
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		clean(t, name)
	})
	m := newOpenMPI(t, l)
	t.Run("late rank", func(t *testing.T) {
		found := undisturbed(t, func(dir string) []ccl.Record { return m.run(t, dir, 2, func() func() { return func() {} }) })
		named := slices.ContainsFunc(found, func(d workload.Diagnosis) bool {
			return d.Syndrome == workload.NonCommSlow && slices.Equal(d.Ranks, []int{2}) && slices.Equal(d.Nodes, []string{"h5"})
		})
		logDiagnoses(t, "Open MPI, operations", found)
		for _, d := range found {
			if d.Syndrome == workload.NonCommSlow && (!slices.Equal(d.Ranks, []int{2}) || d.Network.State != workload.Innocent) || d.Syndrome == workload.CommHang || d.Syndrome == workload.NonCommHang {
				t.Errorf("a wrong diagnosis: %s", describe(d))
			}
		}
		if !named {
			t.Error("rank 2 on h5 is late, and no diagnosis says so")
		}
	})
	t.Run("slow NIC", func(t *testing.T) {
		wantUnlocated(t, "Open MPI, operations", undisturbed(t, func(dir string) []ccl.Record { return m.run(t, dir, -1, func() func() { return m.slowNIC(t) }) }))
		var all []ccl.Record
		wantUnlocated(t, "the lab's job, operations", undisturbed(t, func(dir string) []ccl.Record {
			all = m.runLabJob(t, dir)
			return slices.DeleteFunc(slices.Clone(all), func(r ccl.Record) bool { _, is := r.(*ccl.Edge); return is })
		}))
		found := workload.Replay(all, workload.Options{}, nil).Diagnoses
		logDiagnoses(t, "the lab's job, operations and transfers", found)
		if !slices.ContainsFunc(found, func(d workload.Diagnosis) bool {
			return d.Syndrome == workload.CommSlow && d.Pattern != workload.Unlocated && slices.Contains(d.Nodes, "h3")
		}) {
			t.Error("transfers name no connection of h3, whose NIC is slow")
		}
	})
}

// needOpenMPI skips the test if a tool is missing, all of which make test-all installs. With GRAYLINK_REQUIRE_ALL=1 the test fails.
func needOpenMPI(t *testing.T) {
	t.Helper()
	need(t)
	for _, tool := range [][2]string{{"gcc", "gcc"}, {"mpicc", "libopenmpi-dev"}, {"mpirun", "openmpi-bin"}} {
		if _, err := exec.LookPath(tool[0]); err != nil {
			missing := fmt.Sprintf("needs %s (Debian package %s)", tool[0], tool[1])
			if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
				t.Fatal(missing)
			}
			t.Skip(missing)
		}
	}
}

// newOpenMPI builds the programs.
func newOpenMPI(t *testing.T, l *lab.Lab) *openMPI {
	t.Helper()
	dir := t.TempDir()
	m := &openMPI{l, filepath.Join(dir, "libgraylink-pmpi.so"), filepath.Join(dir, "job"), filepath.Join(dir, "hosts")}
	for _, args := range [][]string{{"-fPIC", "-shared", "-o", m.library, mpiSources + "pmpi.c"}, {"-o", m.job, mpiSources + "job.c"}} {
		args = append([]string{"-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror"}, args...)
		if out, err := exec.Command("mpicc", args...).CombinedOutput(); err != nil {
			t.Fatalf("mpicc %v: %v\n%s", args, err, out)
		}
	}
	text := "127.0.0.1 localhost\n"
	for _, n := range l.Topology().Nodes {
		text += fmt.Sprintf("%s %s\n", n.NICs[0].Addresses[0], n.Name)
	}
	if err := os.WriteFile(m.hosts, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return m
}

// slowNIC delays what the NIC of rank 1 sends, until the returned function is called.
func (m *openMPI) slowNIC(t *testing.T) (heal func()) {
	t.Helper()
	id, err := m.l.AddFault(t.Context(), lab.Fault{Kind: lab.KindNICSlow, At: "h3/eth1", Direction: lab.DirectionOut, Delay: mpiSlow})
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := m.l.ClearFault(context.Background(), id); err != nil {
			t.Error(err)
		}
	}
}

// await waits until something holds while a program runs, whose end is an error before.
func await(t *testing.T, what string, over <-chan error, said *bytes.Buffer, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(mpiPatience); !ok(); {
		select {
		case err := <-over:
			t.Fatalf("the job ended before %s: %v\n%s", what, err, said)
		case <-time.After(100 * time.Millisecond):
		}
		if time.Now().After(end) {
			t.Fatalf("after %v, not yet: %s", mpiPatience, what)
		}
	}
}

// start starts a program that is ended with the test, and returns a channel that has its end.
func start(t *testing.T, cmd *exec.Cmd) (over <-chan error, said *bytes.Buffer) {
	t.Helper()
	said = &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = said, said
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return ended, said
}

// run runs a job of Open MPI and returns its records. A rank from 0 on is late in the second part of the job, before which fault
// is called; what that returns is called when the job is over.
func (m *openMPI) run(t *testing.T, dir string, late int, fault func() func()) []ccl.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), mpiPatience)
	defer cancel()
	var hosts []string
	for _, h := range mpiHosts {
		hosts = append(hosts, h+":1")
	}
	enter, err := filepath.Abs(mpiSources + "enter")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{mpiHosts[0], "exec", "mpirun", "--allow-run-as-root", "--bind-to", "none", "-np", strconv.Itoa(len(hosts)), "--host", strings.Join(hosts, ",")}
	for _, p := range [][2]string{{"plm_rsh_agent", enter}, {"orte_tmpdir_base", dir}, {"oob_tcp_if_include", "eth1"}, {"pml", "ob1"}, {"btl", "tcp,self"}, {"btl_tcp_if_include", "eth1"},
		{"coll_tuned_use_dynamic_rules", "1"}, {"coll_tuned_allreduce_algorithm", "4"}, {"mpi_yield_when_idle", "1"}} { // 4: a ring
		args = append(args, "--mca", p[0], p[1])
	}
	args = append(args, "-x", "LD_PRELOAD="+m.library, "-x", "GRAYLINK_MPI_DIR="+dir, m.job, strconv.Itoa(mpiBytes), strconv.FormatInt(mpiCompute.Microseconds(), 10),
		strconv.Itoa(mpiBefore), strconv.Itoa(mpiAfter), strconv.Itoa(late), strconv.FormatInt(mpiLate.Microseconds(), 10), dir)
	cmd := exec.CommandContext(ctx, enter, args...)
	cmd.Env = append(os.Environ(), "GRAYLINK_MPI_LAB="+m.l.Name(), "GRAYLINK_MPI_HOSTS="+m.hosts)
	over, said := start(t, cmd)
	await(t, "the first part is over", over, said, func() bool {
		_, err := os.Stat(filepath.Join(dir, "reached"))
		return err == nil
	})
	heal := fault()
	defer heal()
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := <-over; err != nil {
		t.Fatalf("mpirun: %v\n%s", err, said)
	}
	var records []ccl.Record
	for rank := range mpiHosts {
		of := readRecords(t, filepath.Join(dir, fmt.Sprintf("rank-%d.jsonl", rank)))
		if len(of) != 1+mpiBefore+mpiAfter {
			t.Fatalf("rank %d has %d records; one of the communicator and %d of operations are expected", rank, len(of), mpiBefore+mpiAfter)
		}
		records = append(records, of...)
	}
	return records
}

// runLabJob runs the lab's own job on the same NICs, of which one becomes slow, and returns its records.
func (m *openMPI) runLabJob(t *testing.T, dir string) []ccl.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), mpiPatience)
	defer cancel()
	file := filepath.Join(dir, "records.jsonl")
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "graylink"), "lab", "job", "--name", m.l.Name(), "--ranks", strings.Join(mpiHosts, "/eth1,")+"/eth1",
		"--size", fmt.Sprintf("%dB", mpiBytes), "--compute", mpiCompute.String(), "--records", file)
	over, said := start(t, cmd)
	operations := func() int {
		text, err := os.ReadFile(file)
		if err != nil {
			return 0
		}
		return bytes.Count(text, []byte(`"kind":"op"`)) / len(mpiHosts)
	}
	await(t, "its first part is over", over, said, func() bool { return operations() >= mpiBefore })
	heal := m.slowNIC(t)
	defer heal()
	before := operations()
	await(t, "its second part is over", over, said, func() bool { return operations() >= before+mpiAfter })
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := <-over; err != nil {
		t.Fatalf("the lab's job: %v\n%s", err, said)
	}
	return readRecords(t, file)
}

// readRecords reads a file of records.
func readRecords(t *testing.T, file string) (records []ccl.Record) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = ccl.ReadRecords(f, func(_ int, r ccl.Record) error {
		records = append(records, r)
		return nil
	}, func(e fabric.LineError) { t.Errorf("%s: %v", file, e) })
	if err != nil {
		t.Fatal(err)
	}
	return records
}

// undisturbed runs a job and returns the diagnoses. A machine with other work may slow the job down before the fault, and
// what is normal is then wrong: it runs again.
func undisturbed(t *testing.T, run func(dir string) []ccl.Record) []workload.Diagnosis {
	t.Helper()
	for range mpiAttempts {
		records := run(t.TempDir())
		logFigures(t, records)
		found := workload.Replay(records, workload.Options{}, nil).Diagnoses
		first := slices.DeleteFunc(slices.Clone(records), func(r ccl.Record) bool {
			_, comm := r.(*ccl.Comm)
			o, op := r.(*ccl.Op)
			return !comm && (!op || o.Seq >= mpiBefore)
		})
		disturbances := workload.Replay(first, workload.Options{}, nil).Diagnoses
		if len(disturbances) == 0 {
			return found
		}
		logDiagnoses(t, "before the fault, the machine's other work", disturbances)
	}
	t.Fatalf("the first part of each of %d runs was disturbed", mpiAttempts)
	return nil
}

// logFigures logs the median duration of operations in each rank, before and after the fault.
func logFigures(t *testing.T, records []ccl.Record) {
	t.Helper()
	var parts [2][]time.Duration
	for rank := range mpiHosts {
		var took [2][]int64
		for _, r := range records {
			if o, is := r.(*ccl.Op); is && o.Rank == rank && o.State == ccl.Completed {
				part := 0
				if o.Seq >= mpiBefore {
					part = 1
				}
				took[part] = append(took[part], o.ExecNS.NS)
			}
		}
		for part, all := range took {
			if len(all) == 0 {
				t.Fatalf("rank %d has no operations", rank)
			}
			slices.Sort(all)
			parts[part] = append(parts[part], time.Duration(all[len(all)/2]).Round(100*time.Microsecond))
		}
	}
	t.Logf("operations of ranks 0 to %d take %v before the fault, and %v after it", len(mpiHosts)-1, parts[0], parts[1])
}

// logDiagnoses logs diagnoses, and what they are made of.
func logDiagnoses(t *testing.T, of string, found []workload.Diagnosis) {
	t.Helper()
	if len(found) == 0 {
		t.Logf("%s: no diagnosis", of)
	}
	for _, d := range found {
		t.Logf("%s: %s", of, describe(d))
	}
}

// describe returns the parts of a diagnosis in one line.
func describe(d workload.Diagnosis) string {
	text := fmt.Sprintf("%s, pattern %s, ranks %v, nodes %v, from operation %d", d.Syndrome, d.Pattern, d.Ranks, d.Nodes, d.FirstSeq)
	if d.Connection != nil {
		text += fmt.Sprintf(", connection from rank %d to %d", d.Connection.From, d.Connection.To)
	}
	if d.Effect != nil {
		text += fmt.Sprintf(", %v more", time.Duration(d.Effect.AddedNS).Round(100*time.Microsecond))
	}
	return text + fmt.Sprintf(", detected %.1f s after it began, network %s (%s)", d.DetectedAt.Sub(d.BeganAt).Seconds(), d.Network.State, d.Network.Reason)
}

// wantUnlocated expects that transfers are found to be slow, without a place, and that no rank is blamed.
func wantUnlocated(t *testing.T, of string, found []workload.Diagnosis) {
	t.Helper()
	logDiagnoses(t, of, found)
	slow := false
	for _, d := range found {
		if d.Syndrome != workload.CommSlow || d.Pattern != workload.Unlocated || d.Network.State != workload.Insufficient {
			t.Errorf("%s: a wrong diagnosis: %s", of, describe(d))
			continue
		}
		slow = slow || d.Effect != nil && time.Duration(d.Effect.AddedNS) >= mpiSlow
	}
	if !slow {
		t.Errorf("%s: a NIC is slow by %v, and no diagnosis says so", of, mpiSlow)
	}
}
