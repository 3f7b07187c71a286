package audit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Bounds of what is read of an output of a test.
const (
	maxBandwidthFile = 16 << 20 // octets
	maxRanks         = 1 << 17
	maxPoints        = 1 << 12
	maxDevices       = 64   // kinds
	maxBandwidth     = 1e15 // octets a second
)

// Lines of nccl-tests (src/common.cu) and perftest (src/perftest_parameters.c, perftest_resources.h). The name of the test is a line
// of newer outputs of nccl-tests; with older ones it is only in the command, which logs often have.
var (
	ncclRank    = regexp.MustCompile(`^#\s+Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[[^]]*\]\s*(.*?)\s*$`)
	ncclTest    = regexp.MustCompile(`\b((?:all_gather|all_reduce|alltoall|broadcast|gather|hypercube|reduce|reduce_scatter|scatter|sendrecv)_perf)\b`)
	ncclBegin   = regexp.MustCompile(`^#\s+nThread\s+\d+\s+nGpus\s+\d+`)
	perfTitle   = regexp.MustCompile(`^\s+(\S.*BW Test)\s*$`)
	perfSetting = regexp.MustCompile(`(Number of qps|Connection type|TX depth)\s*:\s*(\S+)`)
	perfHeader  = regexp.MustCompile(`^\s*#bytes\s+#iterations\s+BW peak\[(\S+)\]\s+BW average\[(\S+)\]\s+MsgRate\[Mpps\]`)
)

// perfUnits are octets a second of the units of perftest, whose megabyte has 2^20 octets.
var perfUnits = map[string]float64{"MB/sec": 1 << 20, "MiB/sec": 1 << 20, "Gb/sec": 1e9 / 8}

// LoadBandwidth reads the output of nccl-tests or perftest. The hosts have to be given for perftest, which does not write them.
func LoadBandwidth(file string, hosts []string) ([]BandwidthRun, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxBandwidthFile+1))
	if err != nil {
		return nil, err
	}
	return ParseBandwidth(file, text, hosts)
}

// bandwidthParser reads one output.
type bandwidthParser struct {
	name  string
	line  int
	hosts []string
	// columns are the names of nccl-tests' columns, and unit is the one of perftest's. One of them is set after the table's head.
	columns []string
	unit    float64
	title   string // of perftest
	setting map[string]string
	test    string // of nccl-tests
	begun   bool
	ranks   map[int]bool
	nodes   []string
	devices []string
	runs    map[string]*BandwidthRun
	order   []string
	counts  map[string]map[uint64]int // points of each size
	points  int
}

// ParseBandwidth reads the output of one run of nccl-tests or perftest. Lines of other programs are left out. It fails if the output has
// no table, a line of the table has other columns than its head, or it cannot be said what was run, and where. The name stands in errors,
// and in the runs.
func ParseBandwidth(name string, text []byte, hosts []string) ([]BandwidthRun, error) {
	if len(text) > maxBandwidthFile {
		return nil, fmt.Errorf("%s: it is larger than %d octets", name, maxBandwidthFile)
	}
	p := &bandwidthParser{name: name, hosts: hosts, setting: map[string]string{}, ranks: map[int]bool{},
		runs: map[string]*BandwidthRun{}, counts: map[string]map[uint64]int{}}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxBandwidthFile+1)
	for lines.Scan() {
		p.line++
		if err := p.readLine(strings.TrimRight(lines.Text(), "\r ")); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, p.line, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	out, err := p.finish()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return out, nil
}

func (p *bandwidthParser) readLine(line string) error {
	fields := strings.Fields(line)
	switch {
	case len(fields) == 0:
		return nil
	case isUnsigned(fields[0]):
		return p.readRow(fields)
	case ncclBegin.MatchString(line):
		if p.begun {
			return errors.New("a second run begins; a file has one")
		}
		p.begun = true
	case ncclRank.MatchString(line):
		return p.readRank(ncclRank.FindStringSubmatch(line))
	case fields[0] == "#" && slices.Contains(fields, "size") && slices.Contains(fields, "busbw"):
		if p.unit > 0 || p.columns != nil && !slices.Equal(p.columns, fields[1:]) {
			return errors.New("a second table begins; a file has one")
		}
		p.columns = fields[1:]
	case perfHeader.MatchString(line):
		m := perfHeader.FindStringSubmatch(line)
		if p.unit = perfUnits[m[2]]; p.unit == 0 {
			return fmt.Errorf("unit %q: MB/sec, MiB/sec or Gb/sec is expected", m[2])
		}
		if p.columns != nil {
			return errors.New("a second table begins; a file has one")
		}
	case perfTitle.MatchString(line):
		if p.title != "" {
			return errors.New("a second test begins; a file has one")
		}
		p.title = perfTitle.FindStringSubmatch(line)[1]
	default:
		for _, m := range perfSetting.FindAllStringSubmatch(line, -1) {
			p.setting[m[1]] = m[2]
		}
		if m := ncclTest.FindStringSubmatch(line); m != nil && p.test == "" {
			p.test = m[1]
		}
	}
	return nil
}

func isUnsigned(s string) bool {
	_, err := strconv.ParseUint(s, 10, 64)
	return err == nil
}

func (p *bandwidthParser) readRank(m []string) error {
	n, err := strconv.Atoi(m[1])
	if err != nil || n >= maxRanks {
		return fmt.Errorf("rank %s: a number below %d is expected", m[1], maxRanks)
	}
	if p.ranks[n] {
		return fmt.Errorf("rank %d is there twice", n)
	}
	p.ranks[n] = true
	if len(p.nodes) == 0 || p.nodes[len(p.nodes)-1] != m[2] { // others are removed at the end
		p.nodes = append(p.nodes, m[2])
	}
	if !slices.Contains(p.devices, m[3]) && m[3] != "" {
		if len(p.devices) == maxDevices {
			return fmt.Errorf("there are more than %d kinds of devices", maxDevices)
		}
		p.devices = append(p.devices, m[3])
	}
	return nil
}

// readRow reads a line of the table. Lines that begin with a number before the table are of other programs.
func (p *bandwidthParser) readRow(fields []string) error {
	switch {
	case p.columns != nil:
		return p.readNCCLRow(fields)
	case p.unit > 0:
		return p.readPerfRow(fields)
	}
	return nil
}

func (p *bandwidthParser) readNCCLRow(fields []string) error {
	if len(fields) != len(p.columns) {
		return fmt.Errorf("%d columns: %d are expected, as the head of the table has them", len(fields), len(p.columns))
	}
	value := func(column string) string {
		if i := slices.Index(p.columns, column); i >= 0 {
			return fields[i]
		}
		return ""
	}
	size, err := strconv.ParseUint(value("size"), 10, 64)
	if err != nil {
		return fmt.Errorf("size %q: a number is expected", value("size"))
	}
	gigabytes, err := parseBandwidth(value("busbw"))
	if err != nil {
		return fmt.Errorf("busbw: %w", err)
	}
	var wrong uint64
	for i, column := range p.columns {
		if column != "#wrong" || fields[i] == "N/A" {
			continue
		}
		n, err := strconv.ParseUint(fields[i], 10, 32)
		if err != nil {
			return fmt.Errorf("#wrong %q: a number or N/A is expected", fields[i])
		}
		wrong += n
	}
	test := value("type")
	if op := value("redop"); op != "" && op != "none" {
		test += " " + op
	}
	if root := value("root"); root != "" && root != "-1" {
		test += " root " + root
	}
	return p.addPoint(test, BandwidthPoint{SizeBytes: size, BytesPerSecond: gigabytes * 1e9, Wrong: wrong})
}

// perfColumns is the least number of columns of perftest: octets, iterations, peak, average and messages a second.
const perfColumns = 5

func (p *bandwidthParser) readPerfRow(fields []string) error {
	if len(fields) < perfColumns {
		return fmt.Errorf("%d columns: at least %d are expected", len(fields), perfColumns)
	}
	size, err := strconv.ParseUint(fields[0], 10, 64)
	if err != nil {
		return fmt.Errorf("#bytes %q: a number is expected", fields[0])
	}
	average, err := parseBandwidth(fields[3])
	if err != nil {
		return fmt.Errorf("BW average: %w", err)
	}
	return p.addPoint("", BandwidthPoint{SizeBytes: size, BytesPerSecond: average * p.unit})
}

func parseBandwidth(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(v) || v < 0 || v > maxBandwidth {
		return 0, fmt.Errorf("%q: a number that is not negative is expected", text)
	}
	return v, nil
}

// addPoint adds a point. Points of the same size are averaged.
func (p *bandwidthParser) addPoint(test string, x BandwidthPoint) error {
	if p.points++; p.points > maxPoints {
		return fmt.Errorf("there are more than %d lines", maxPoints)
	}
	r := p.runs[test]
	if r == nil {
		r = &BandwidthRun{File: p.name}
		p.runs[test], p.counts[test] = r, map[uint64]int{}
		p.order = append(p.order, test)
	}
	n := p.counts[test][x.SizeBytes]
	p.counts[test][x.SizeBytes] = n + 1
	if n == 0 {
		r.Points = append(r.Points, x)
		return nil
	}
	before := &r.Points[slices.IndexFunc(r.Points, func(b BandwidthPoint) bool { return b.SizeBytes == x.SizeBytes })]
	before.BytesPerSecond += (x.BytesPerSecond - before.BytesPerSecond) / float64(n+1)
	before.Wrong += x.Wrong
	return nil
}

// finish returns the runs with what makes them alike.
func (p *bandwidthParser) finish() ([]BandwidthRun, error) {
	test, hosts := "", p.hosts
	switch {
	case len(p.order) == 0:
		return nil, errors.New("it has no table of nccl-tests or perftest with a line")
	case p.columns != nil:
		if test = p.test; test == "" {
			if m := ncclTest.FindStringSubmatch(filepath.Base(p.name)); m != nil {
				test = m[1]
			}
		}
		if test == "" {
			return nil, errors.New("the name of the test is expected in the output or in the name of the file, as all_reduce_perf")
		}
		if len(p.ranks) == 0 {
			return nil, errors.New("the lines of the ranks with their hosts are expected (# Rank ...)")
		}
		if hosts == nil {
			hosts = p.nodes
		}
		hosts = slices.Compact(slices.Sorted(slices.Values(hosts)))
		slices.Sort(p.devices)
		test = fmt.Sprintf("%s, %d ranks on %d hosts, %s", test, len(p.ranks), len(hosts), strings.Join(p.devices, " and "))
	default:
		if p.title == "" {
			return nil, errors.New("the title of the test is expected, as RDMA_Write BW Test")
		}
		if hosts = slices.Compact(slices.Sorted(slices.Values(hosts))); len(hosts) != 2 {
			return nil, errors.New("perftest does not write its hosts: NODE,NODE=FILE is expected")
		}
		test = fmt.Sprintf("%s, %s, %s queue pairs, depth %s", p.title, p.setting["Connection type"], p.setting["Number of qps"],
			p.setting["TX depth"])
	}
	var out []BandwidthRun
	for _, key := range p.order {
		r := p.runs[key]
		r.Test, r.Hosts = strings.TrimSuffix(test+", "+key, ", "), hosts
		out = append(out, *r)
	}
	return out, nil
}
