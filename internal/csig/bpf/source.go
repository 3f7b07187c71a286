package bpf

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf/asm"

	"github.com/graylink/graylink/internal/csig"
)

// sourceMaps are the descriptors of the source's maps.
type sourceMaps struct{ counts, flows, noted int }

// sourceOptions says which packets the source tags, and how.
type sourceOptions struct {
	etherType  uint16
	format     csig.Format
	signals    []csig.Signal
	stampPorts []uint16
	senderAt   int32 // offset of the sender's sequence number in a reply
}

// assembleSource returns the TCX program at the egress of an endpoint: it tags probes with an odd sequence number of the flows
// of a map (rule 6), and replies to requests that came with a tag (rule 7).
func assembleSource(m sourceMaps, o *sourceOptions) asm.Instructions {
	load := loadBy(asm.FnSkbLoadBytes)
	p := join(asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1), asm.LoadMem(asm.R7, asm.R6, skbProtocol, asm.Word)},
		readKey(load),
		asm.Instructions{asm.LoadMapPtr(asm.R1, m.flows)}, stackPointer(asm.R2, atProbe),
		asm.Instructions{asm.FnMapLookupElem.Call(), asm.JEq.Imm(asm.R0, 0, "reply")},
		load.behind()(udpLen, atProbe+keyNumber, 4),
		asm.Instructions{
			asm.LoadMem(asm.R2, asm.RFP, atProbe+keyNumber, asm.Word), asm.HostTo(asm.BE, asm.R2, asm.Word),
			asm.Mov.Reg(asm.R1, asm.R2),
			asm.And.Imm(asm.R1, 1),
			asm.JEq.Imm(asm.R1, 0, "out"),
			asm.Ja.Label("tag"),
		},
		labelled("reply", asm.LoadMem(asm.R2, asm.RFP, atProbe+keyPorts, asm.Half)))
	for _, port := range o.stampPorts {
		p = append(p, asm.JEq.Imm(asm.R2, networkOrder(port), "fromport"))
	}
	p = join(p, asm.Instructions{asm.Ja.Label("out")},
		labelled("fromport", load.behind()(udpLen+o.senderAt, atProbe+keyNumber, 4)...),
		asm.Instructions{asm.LoadMapPtr(asm.R1, m.noted)}, stackPointer(asm.R2, atProbe),
		asm.Instructions{
			asm.FnMapDeleteElem.Call(), // one reply answers a request
			asm.JNE.Imm(asm.R0, 0, "out"),
			asm.LoadMem(asm.R2, asm.RFP, atProbe+keyNumber, asm.Word), asm.HostTo(asm.BE, asm.R2, asm.Word),
		},
		labelled("tag",
			asm.RSh.Imm(asm.R2, 1),
			asm.Mod.Imm(asm.R2, int32(len(o.signals))),
			asm.Mov.Imm(asm.R9, int32(o.format)),
			asm.StoreMem(asm.RFP, atSent+int16(o.format), asm.R7, asm.Half)))
	for i := range o.signals {
		p = append(p, asm.JEq.Imm(asm.R2, int32(i), fmt.Sprintf("signal%d", i)))
	}
	p = append(p, asm.Ja.Label("out"))
	for i, s := range o.signals {
		b := make([]byte, csig.Wide)
		binary.BigEndian.PutUint16(b, o.etherType)
		tag := csig.NewTag(o.format, s)
		tag.PutValue(b[typeLen:])
		p = append(p, labelled(fmt.Sprintf("signal%d", i), storeNumber(atSent, wordOf(b), asm.Word))...)
		if o.format == csig.Wide {
			p = append(p, storeNumber(atSent+4, wordOf(b[4:]), asm.Word))
		}
		p = append(p, asm.Ja.Label("put"))
	}
	return join(p,
		labelled("put", asm.Mov.Imm(asm.R1, 0)),
		putTag(atSent, "failed"),
		asm.Instructions{asm.Mov.Imm(asm.R1, countTagged), asm.Ja.Label("count")},
		labelled("failed", asm.Mov.Imm(asm.R1, countFailed)),
		labelled("count", countOutcome(m.counts)...),
		labelled("out", asm.Mov.Imm(asm.R0, tcxNext), asm.Return()))
}
