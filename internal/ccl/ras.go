package ccl

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// RASAddress is where the RAS service of NCCL listens in each process of a job, unless NCCL_RAS_ADDR says otherwise.
const RASAddress = "127.0.0.1:28028"

// ErrRASTooOld means that the library's RAS service has no JSON, as before NCCL 2.28.7. Such versions could crash when they
// were asked for their status (NVIDIA/nccl #1669, #1718, #1762), so they are not asked.
var ErrRASTooOld = errors.New("the RAS service has no JSON: NCCL 2.28.7 or later is required")

// QueryRAS asks the RAS service at a loopback address for the status of its job, and returns the JSON text.
//
// It says SET FORMAT json and STATUS, and nothing else: the service obeys CONTROL without asking who says it, and VERBOSE
// STATUS has the same JSON. The service closes the connection behind its answer (NVIDIA/nccl, src/ras/client_support.cc of
// 2.31, read on 2026-11-27). Two jobs of one user share the port, and one of them answers.
func QueryRAS(ctx context.Context, address string) ([]byte, error) {
	if err := CheckRASAddress(address); err != nil {
		return nil, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("cannot reach the RAS service: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	text, err := rasStatus(conn)
	if err != nil && !errors.Is(err, ErrRASTooOld) {
		err = fmt.Errorf("RAS service at %s: %w", address, errors.Join(err, ctx.Err()))
	}
	return text, err
}

// CheckRASAddress returns an error unless an address is a port of a loopback address.
func CheckRASAddress(address string) error {
	if at, err := netip.ParseAddrPort(address); err != nil || !at.Addr().IsLoopback() || at.Port() == 0 {
		return fmt.Errorf("RAS address %q: a loopback address with a port is expected", address)
	}
	return nil
}

// rasStatus speaks the protocol of the service.
func rasStatus(conn io.ReadWriter) ([]byte, error) {
	if _, err := io.WriteString(conn, "SET FORMAT json\n"); err != nil {
		return nil, err
	}
	in := bufio.NewReaderSize(io.LimitReader(conn, MaxDump+1), 4096)
	answer, err := in.ReadSlice('\n')
	if err != nil {
		return nil, fmt.Errorf("no answer to SET FORMAT: %w", err)
	}
	switch text := strings.TrimSpace(string(answer)); {
	case strings.HasPrefix(text, "ERROR"):
		return nil, ErrRASTooOld
	case text != "OK":
		return nil, fmt.Errorf("OK is expected after SET FORMAT, and not %.80q", text)
	}
	if _, err := io.WriteString(conn, "STATUS\n"); err != nil {
		return nil, err
	}
	return readDump(in)
}

// ReadRAS reads a status of the RAS service (JSON, NCCL 2.28.7 or later; 2.28.9 leaves out a comma in missing_ranks) and
// hands each record to fn: the communicators, and a beat for each rank, with the operations that it has launched. at is the
// time of the status on the clock of src.Host; if it is unknown, the timestamp of the status is taken, which has seconds
// and is in the zone of the job's host. A rank that no record can be made of is reported to bad and skipped.
//
// The status is of the whole job, so no record has a host: its hosts are addresses that the job wrote.
func ReadRAS(r io.Reader, src Source, at Nanos, zone *time.Location, fn func(Record) error, bad func(fabric.LineError)) (Counts, error) {
	p := &rasReader{emitter: emitter{out: fn}, src: src, at: at, zone: zone, bad: bad}
	text, err := readDump(r)
	if err != nil {
		return p.Counts, err
	}
	p.Loose = true
	p.Reset(text)
	for p.Enter('{'); p.Key(); {
		switch string(p.Name) {
		case "timestamp":
			p.timestamp(string(p.Text()))
		case "communicators":
			for p.Enter('['); p.Element() && p.err == nil; {
				p.comm()
			}
		default:
			p.Skip()
		}
	}
	if p.err != nil {
		return p.Counts, p.err
	}
	return p.Counts, p.End()
}

// rasReader turns a status into records.
type rasReader struct {
	scanner
	emitter
	src   Source
	at    Nanos
	zone  *time.Location
	bad   func(fabric.LineError)
	comms int
}

// timestamp takes the time of the status, if no better one is known.
func (p *rasReader) timestamp(text string) {
	if p.at.Known || p.Err() != nil {
		return
	}
	t, err := time.ParseInLocation(time.DateTime, text, p.zone)
	if err != nil {
		p.Wrong("a time like 2026-01-31 23:59:59")
		return
	}
	p.at = KnownNanos(t.UnixNano())
}

// rasRank is a rank as the status has it.
type rasRank struct {
	rank               int
	launched           map[string]uint64
	unresponsive, dead bool
}

// comm reads a communicator and emits it and its ranks.
func (p *rasReader) comm() {
	p.comms++
	c := &Comm{Job: p.src.Job}
	var ranks []rasRank
	for p.Enter('{'); p.Key(); {
		switch string(p.Name) {
		case "hash":
			c.Comm = string(p.Text())
		case "size":
			c.NRanks = p.rank()
		case "ranks", "missing_ranks":
			for p.Enter('['); p.Element(); {
				r := p.readRank()
				if len(ranks) < MaxRanks {
					ranks = append(ranks, r)
				}
			}
		default:
			p.Skip()
		}
	}
	if p.Err() != nil {
		return
	}
	p.Lines++
	if p.comms > MaxComms {
		p.drop(DroppedComm, 1)
		return
	}
	where := fmt.Sprintf("communicator %d", p.comms)
	if err := p.emit(c); err != nil {
		p.report(where, err)
		return
	}
	for _, r := range ranks {
		b := &Beat{From: From{Job: c.Job, Comm: c.Comm, Rank: r.rank, NRanks: c.NRanks}, AtNS: p.at, Launched: r.launched}
		if r.dead || !r.unresponsive {
			b.Alive = new(!r.dead)
		}
		if err := p.emit(b); err != nil {
			p.report(where+", rank "+strconv.Itoa(r.rank), err)
		}
	}
}

// report counts and reports what no record could be made of.
func (p *rasReader) report(where string, err error) {
	if p.err == nil {
		p.Unreadable++
		p.bad(fabric.LineError{Err: fmt.Errorf("%s: %w", where, err)})
	}
}

// readRank reads a rank, or one that did not answer or does not know the communicator.
func (p *rasReader) readRank() rasRank {
	r := rasRank{rank: absentRank}
	for p.Enter('{'); p.Key(); {
		switch string(p.Name) {
		case "rank":
			r.rank = p.rank()
		case "status":
			for p.Enter('{'); p.Key(); {
				switch string(p.Name) {
				case "unresponsive":
					r.unresponsive = p.Bool()
				case "considered_dead":
					r.dead = p.Bool()
				default:
					p.Skip()
				}
			}
		case "collective_counts":
			r.launched = map[string]uint64{}
			for p.Enter('{'); p.Key(); {
				op := string(p.Name)
				if n := p.Uint(); len(r.launched) < 64 {
					r.launched[op] = n
				}
			}
		default:
			p.Skip()
		}
	}
	return r
}
