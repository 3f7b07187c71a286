package stamp

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os/exec"
	"reflect"
	"testing"

	"github.com/graylink/graylink/test/scapy"
)

type scapyTLV [3]any // flags, type, value in hex

type scapyFields struct {
	Kind      string     `json:"kind"`
	Seq       uint32     `json:"seq"`
	TS        uint64     `json:"ts"`
	Err       uint16     `json:"err"`
	SSID      uint16     `json:"ssid"`
	Receive   uint64     `json:"receive"`
	SenderSeq uint32     `json:"sender_seq"`
	SenderTS  uint64     `json:"sender_ts"`
	SenderErr uint16     `json:"sender_err"`
	TTL       uint8      `json:"ttl"`
	TLVs      []scapyTLV `json:"tlvs"`
}

type scapyCase struct {
	scapyFields
	Wire string `json:"wire"`
}

// TestScapy compares both base packets, without and with TLVs, with an
// independent implementation: what we write it must read as the same fields
// and write as the same bytes, and what it builds of the fields we must read
// as the same packet.
//
// Where scapy 2.5.0 differs from the RFCs, and what the script does about it:
//   - TLVs are transmitted with all flags clear by default; RFC 8972 4 wants a
//     sender to set U. The cases give the flags.
//   - A TLV's length is not computed from its value. The script gives it.
//   - A PTP timestamp is kept as one 64-bit count of seconds, so that its
//     printed form is wrong; bytes and number are right.
//   - The format of a timestamp follows the Error Estimate that stands behind
//     it in the packet. When reading, that is not there yet, and the first
//     timestamp is always taken as NTP; again the number is right. When
//     building, the estimate has to be set before the timestamp.
//   - A multiplier of zero is accepted (RFC 4656 4.1.2 calls it corrupt).
//   - A packet with TLVs is not read out of its UDP packet: the dissector looks
//     for the UDP header where it is not. The script hands it over.
//   - There is no authenticated mode.
func TestScapy(t *testing.T) {
	scapy.Require(t)
	tlvs := []TLV{
		{Unrecognized, TypeClassOfService, []byte{0xb8, 0, 0, 0}},
		{Unrecognized, TypeDirectMeasurement, []byte{0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
		{Unrecognized, 200, nil},
		{Malformed | Integrity, TypeExtraPadding, bytes.Repeat([]byte{0xa5}, 300)},
	}
	var cases []scapyCase
	var wires [][]byte
	add := func(f scapyFields, base func([]byte), tlvs []TLV) {
		wire := make([]byte, BaseLen)
		for i := range wire {
			wire[i] = 0xff // so that MBZ octets left alone are seen
		}
		base(wire)
		f.TLVs = []scapyTLV{}
		for _, tlv := range tlvs {
			wire = AppendTLV(wire, tlv)
			f.TLVs = append(f.TLVs, scapyTLV{float64(tlv.Flags), float64(tlv.Type), hex.EncodeToString(tlv.Value)})
		}
		cases = append(cases, scapyCase{f, hex.EncodeToString(wire)})
		wires = append(wires, wire)
	}
	for _, p := range reflectorSamples() {
		for _, tlvs := range [][]TLV{nil, tlvs[:1], tlvs} {
			s := SenderPacket{p.Seq, p.Timestamp, p.ErrorEstimate, p.SSID}
			add(scapyFields{
				Kind: "sender", Seq: s.Seq, TS: uint64(s.Timestamp), Err: uint16(s.ErrorEstimate), SSID: s.SSID,
			}, s.Put, tlvs)
			add(scapyFields{
				Kind: "reflector", Seq: p.Seq, TS: uint64(p.Timestamp), Err: uint16(p.ErrorEstimate), SSID: p.SSID,
				Receive: uint64(p.Receive), SenderSeq: p.SenderSeq, SenderTS: uint64(p.SenderTimestamp),
				SenderErr: uint16(p.SenderErrorEstimate), TTL: p.SenderTTL,
			}, p.Put, tlvs)
		}
	}

	in, err := json.Marshal(cases)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), scapy.Python, "testdata/scapy_stamp.py")
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("scapy_stamp.py: %v\n%s", err, &stderr)
	}
	var results []struct {
		Fields  scapyFields
		Rebuilt string
		Built   string
	}
	if err := json.Unmarshal(out, &results); err != nil {
		t.Fatalf("scapy_stamp.py: %v", err)
	}
	if len(results) != len(cases) {
		t.Fatalf("scapy answered %d of %d cases", len(results), len(cases))
	}
	for i, r := range results {
		c := cases[i]
		t.Run(fmt.Sprintf("%s/%d_tlvs/%d", c.Kind, len(c.TLVs), i), func(t *testing.T) {
			if !reflect.DeepEqual(r.Fields, c.scapyFields) {
				t.Errorf("scapy read\n%+v, want\n%+v", r.Fields, c.scapyFields)
			}
			if r.Rebuilt != c.Wire {
				t.Errorf("scapy read and wrote\n%s, want\n%s", r.Rebuilt, c.Wire)
			}
			if r.Built != c.Wire {
				t.Errorf("scapy built\n%s, we\n%s", r.Built, c.Wire)
			}
			built, err := hex.DecodeString(r.Built)
			if err != nil {
				t.Fatal(err)
			}
			got := make([]byte, BaseLen)
			if c.Kind == "sender" {
				var p SenderPacket
				if err := p.Parse(built); err != nil {
					t.Fatal(err)
				}
				p.Put(got)
			} else {
				var p ReflectorPacket
				if err := p.Parse(built); err != nil {
					t.Fatal(err)
				}
				p.Put(got)
			}
			for rest := built[BaseLen:]; len(rest) > 0; {
				var tlv TLV
				if tlv, rest, err = NextTLV(rest); err != nil {
					t.Fatal(err)
				}
				got = AppendTLV(got, tlv)
			}
			if !bytes.Equal(got, wires[i]) {
				t.Errorf("we read scapy's packet as\n%x, want\n%x", got, wires[i])
			}
		})
	}
}
