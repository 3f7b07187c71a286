package ufm

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"time"
)

// Format is a format of telemetry.
type Format string

// Formats, by the beginning of the paths that provide them.
const (
	CSV        Format = "csv"        // /csv/..., /labels/csv/...
	JSON       Format = "json"       // /json/...
	Prometheus Format = "prometheus" // /metrics, /cset/..., /labels/...
)

// Identity is the identity of a port in telemetry.
type Identity struct {
	// Node and Port are the GUIDs of the node and of the port; 0 where the document lacks them.
	Node, Port GUID
	Number     int
	// Description and Type describe the node, where the document has them.
	Description, Type string
}

// Name is the project's name of a port: of a switch, or a NIC.
type Name struct{ Switch, Port, NIC string }

// PortNamer provides the names of ports.
type PortNamer interface {
	// NameOf returns the port's name, or false if the port is unknown.
	NameOf(Identity) (Name, bool)
	// Version returns a number that changes when names do.
	Version() uint64
}

// Sample is a reading of a column of a port.
type Sample struct {
	Port   *Port
	Column *Column
	// State is the label's value in columns of states.
	State string
	Value float64
	// At is when UFM read it; zero where the document has no time.
	At time.Time
}

// Port represents a port in the telemetry.
type Port struct {
	Identity
	Name
	// Resets is the number of readings that found a counter lower than before. Since is when the present
	// counters began; it is zero until the first reset.
	Resets uint64
	Since  time.Time

	version         uint64
	hasName         bool
	shared          bool      // another port of the service has the same name
	lastValues      []float64 // by column; counters only
	hasLast         []bool
	at              time.Time // of the last sample
	previousAt      time.Time // of the last sample of the document before
	resetInDocument bool      // a counter was lower than before in this document
	lastDocument    uint64    // the last document with this port
	columnsRead     []uint64  // bits by column, of that document
}

// Report states what a document held.
type Report struct {
	Rows, Samples int
	// Unnamed is the number of ports without a known name. Their samples are left out.
	Unnamed int
	// Shared is the number of ports whose name other ports have as well, such as planes of one cage. They
	// cannot be distinguished: in the first document the first one is used, and from the second on their
	// samples are left out.
	Shared int
	// Errors counts what was left out, by kind, without the document's own error.
	Errors map[Kind]int
	// Oldest and Newest are the times of the samples; zero if there are none.
	Oldest, Newest time.Time
}

// Limits of documents.
const (
	maxLine  = 1 << 20 // octets of a line of CSV or Prometheus text, of a text of JSON
	maxDepth = 16      // of JSON
	maxPorts = 1 << 20 // ports of one source
)

// Source reads the documents of one telemetry service, one after the other. It remembers counters, to find
// resets. It is not safe for concurrent use.
type Source struct {
	Table      *Table
	names      PortNamer
	ports      map[portKey]*Port
	document   uint64
	nameOwners map[Name]owner

	emit   func(Sample) error
	report Report
	cache  map[string]*Port // by labels of Prometheus text
	br     *bufio.Reader
}

// owner is the port that has a name: the first one in the last document that has it.
type owner struct {
	port        *Port
	doc, shared uint64 // the last documents that had it, and had it with another port
}

type portKey struct {
	node, port GUID
	number     int
}

// NewSource returns a source that has read nothing.
func NewSource(t *Table, n PortNamer) *Source {
	return &Source{Table: t, names: n, ports: map[portKey]*Port{}, nameOwners: map[Name]owner{}, cache: map[string]*Port{}, br: bufio.NewReaderSize(nil, 256<<10)}
}

// Read reads a document and calls emit with each sample. An error of emit ends it. The returned error is an
// Error; samples before it are valid.
func (s *Source) Read(f Format, r io.Reader, emit func(Sample) error) (Report, error) {
	s.document++
	s.emit = emit
	s.report = Report{Errors: map[Kind]int{}}
	s.br.Reset(r)
	defer s.br.Reset(nil)
	var err error
	switch f {
	case CSV:
		err = s.readCSV()
	case JSON:
		err = s.readJSON()
	case Prometheus:
		err = s.readPrometheus()
	default:
		err = errorf(KindMalformed, "format %q: csv, json or prometheus is expected", f)
	}
	s.dropStalePorts()
	return s.report, err
}

// keepFor is the number of documents for which a port is kept that is no longer listed.
const keepFor = 20

func (s *Source) dropStalePorts() {
	if s.document%keepFor != 0 {
		return
	}
	gone := false
	for k, p := range s.ports {
		if p.lastDocument+keepFor < s.document {
			delete(s.ports, k)
			gone = true
		}
	}
	for n, o := range s.nameOwners {
		if o.doc+keepFor < s.document {
			delete(s.nameOwners, n)
		}
	}
	if gone || len(s.cache) > 4*len(s.ports)+1024 {
		clear(s.cache)
	}
}

// readFailed returns the error for a body whose reading ended with err.
func readFailed(err error, where string, at int) error {
	var own *Error
	switch {
	case errors.As(err, &own):
		return err
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return errorf(KindTruncated, "%s %d: the document ends in the middle", where, at)
	}
	return &Error{transportKind(err), err}
}

// readLine returns the next line without its end. whole is false when the document ends within the line.
func (s *Source) readLine() (b []byte, whole bool, err error) {
	b, err = s.br.ReadSlice('\n')
	if err == nil {
		return bytes.TrimSuffix(b[:len(b)-1], []byte{'\r'}), true, nil
	}
	if errors.Is(err, bufio.ErrBufferFull) {
		long := append([]byte(nil), b...)
		for errors.Is(err, bufio.ErrBufferFull) {
			b, err = s.br.ReadSlice('\n')
			if long = append(long, b...); len(long) > maxLine {
				return nil, false, errorf(KindTooLarge, "a line of more than %d octets", maxLine)
			}
		}
		b = long
		if err == nil {
			return bytes.TrimSuffix(b[:len(b)-1], []byte{'\r'}), true, nil
		}
	}
	if err == io.EOF {
		return b, false, io.EOF
	}
	return nil, false, err
}

func (s *Source) countError(k Kind) { s.report.Errors[k]++ }

// portFor returns the port of an identity, prepared for the samples of this document.
func (s *Source) portFor(id Identity) *Port {
	key := portKey{id.Node, id.Port, id.Number}
	p := s.ports[key]
	if p == nil {
		if len(s.ports) >= maxPorts {
			s.countError(KindTooLarge)
			return nil
		}
		p = &Port{Identity: id, version: s.names.Version() - 1}
		s.ports[key] = p
	}
	s.preparePort(p, id)
	return p
}

// preparePort prepares a port for the samples of this document.
func (s *Source) preparePort(p *Port, id Identity) {
	if p.lastDocument == s.document {
		return
	}
	p.lastDocument, p.previousAt, p.resetInDocument = s.document, p.at, false
	clear(p.columnsRead)
	if v := s.names.Version(); v != p.version || id.Description != p.Description || id.Type != p.Type {
		p.version, p.Description, p.Type = v, id.Description, id.Type
		p.Name, p.hasName = s.names.NameOf(p.Identity)
	}
	if p.shared = false; !p.hasName {
		s.report.Unnamed++
		return
	}
	o := s.nameOwners[p.Name]
	if o.doc == s.document {
		o.shared = s.document
	} else {
		o.port, o.doc = p, s.document
	}
	s.nameOwners[p.Name] = o
	if p.shared = o.port != p || o.shared != 0 && o.shared+1 == s.document; p.shared {
		s.report.Shared++
	}
}

// emitSample parses and passes on a value of a port.
func (s *Source) emitSample(p *Port, c *Column, text []byte, at time.Time) error {
	word, bit := c.index/64, uint64(1)<<(c.index%64)
	for len(p.columnsRead) <= word {
		p.columnsRead = append(p.columnsRead, 0)
	}
	v, state, there, err := c.parseValue(text)
	if err != nil {
		s.countError(KindValue)
		return nil
	}
	if !there || !p.hasName || p.shared {
		return nil
	}
	if p.columnsRead[word]&bit != 0 {
		s.countError(KindDuplicate)
		return nil
	}
	p.columnsRead[word] |= bit
	if c.Metric.Counter {
		p.recordCounter(c.index, v)
	}
	if !at.IsZero() {
		if s.report.Oldest.IsZero() || at.Before(s.report.Oldest) {
			s.report.Oldest = at
		}
		if at.After(s.report.Newest) {
			s.report.Newest = at
		}
		p.at = at
	}
	s.report.Samples++
	return s.emit(Sample{p, c, state, v, at})
}

// recordCounter records a counter's value. If it is lower than before, the counter was reset after the previous
// reading.
func (p *Port) recordCounter(i int, v float64) {
	for len(p.lastValues) <= i {
		p.lastValues, p.hasLast = append(p.lastValues, 0), append(p.hasLast, false)
	}
	if p.hasLast[i] && v < p.lastValues[i] && !p.resetInDocument {
		p.Resets++
		p.Since, p.resetInDocument = p.previousAt, true
	}
	p.lastValues[i], p.hasLast[i] = v, true
}

// parseUnixTime parses a time since 1970 in seconds, milliseconds, microseconds or nanoseconds. The unit
// follows from the size of the number, for times from 1973 to 5138.
func parseUnixTime(b []byte) time.Time {
	if len(b) > 20 {
		return time.Time{}
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
	if err != nil || n <= 0 {
		return time.Time{}
	}
	switch {
	case n < 1e11:
		return time.Unix(n, 0)
	case n < 1e14:
		return time.UnixMilli(n)
	case n < 1e17:
		return time.UnixMicro(n)
	}
	return time.Unix(0, n)
}

// field is a part of a row's identity that a column holds.
type field int

const (
	fieldNone field = iota
	fieldTime
	fieldNode
	fieldPort
	fieldNumber
	fieldDescription
	fieldType
)

// fields lists fields by column name; primary and secondary telemetry differ in case.
var fields = map[string]field{
	"timestamp": fieldTime, "Timestamp": fieldTime,
	"node_guid": fieldNode, "Node_GUID": fieldNode,
	"port_guid": fieldPort, "Port_GUID": fieldPort,
	"port_num": fieldNumber, "Port_Number": fieldNumber, "port_number": fieldNumber, "Port": fieldNumber,
	"node_description": fieldDescription, "device_name": fieldDescription, "node_name": fieldDescription,
	"device_type": fieldType, "node_type": fieldType,
}

// row gathers the identity of a row.
type row struct {
	id        Identity
	at        time.Time
	hasNumber bool // the number is present
	invalid   bool
}

func (r *row) setField(f field, b []byte) {
	if f == fieldTime {
		r.at = parseUnixTime(b)
		return
	}
	b = bytes.TrimSpace(b)
	if isAbsent(b) && f != fieldDescription {
		return
	}
	switch f {
	case fieldNode, fieldPort:
		g, err := ParseGUID(string(b))
		if err != nil {
			r.invalid = true
		} else if f == fieldNode {
			r.id.Node = g
		} else {
			r.id.Port = g
		}
	case fieldNumber:
		n, err := strconv.ParseUint(string(b), 10, 16)
		r.id.Number, r.hasNumber = int(n), err == nil
		r.invalid = r.invalid || err != nil
	case fieldDescription:
		if r.id.Description == "" && len(b) <= 256 && !isAbsent(b) {
			r.id.Description = string(b)
		}
	case fieldType:
		if r.id.Type == "" && len(b) <= 32 {
			r.id.Type = string(b)
		}
	}
}

// isComplete reports whether the row identifies its port.
func (r *row) isComplete() bool {
	return !r.invalid && r.hasNumber && (r.id.Node != 0 || r.id.Port != 0)
}

// EachPort calls give with the ports of the last document whose name is unique.
func (s *Source) EachPort(give func(*Port)) {
	for _, p := range s.ports {
		if p.lastDocument == s.document && p.hasName && !p.shared {
			give(p)
		}
	}
}
