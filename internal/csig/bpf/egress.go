package bpf

import (
	"github.com/cilium/ebpf/asm"

	"github.com/graylink/graylink/internal/csig"
)

// portTable is a scale of compact tags as the program reads it. Edges beyond the last one are larger than every value.
type portTable struct {
	Edges, Codes [32]uint64
}

// portConfig is what the program at an egress port knows of the port and of the domain.
type portConfig struct {
	Speed    uint64    // bit/s; 0: unknown
	Interval uint64    // of the rate's windows, nanoseconds
	RateBy   uint64    // the rate in bit/s is the octets of a window times RateBy, by RateOf
	RateOf   uint64    //
	MaxLast  uint64    // octets of a window beyond which the rate is larger than every speed
	Burst    uint64    // nanoseconds that the port's bucket saves up
	Limit    uint64    // nanoseconds that the port's queue holds; 0: without limit
	Overhead uint32    // octets
	Action   uint32    // csig.Action
	Locators [2]uint32 // by format
	NoUpdate [2]uint32 // reserved bits with which a tag is not updated, by format
	Scales   [2]uint32 // a bit for each signal with a scale, by format
	Bases    [csig.Signals]uint64
	Steps    [csig.Signals]uint64
	Tables   [csig.Signals]portTable
}

// Offsets in portConfig.
const (
	configSpeed    = 0
	configInterval = 8
	configRateBy   = 16
	configRateOf   = 24
	configMaxLast  = 32
	configBurst    = 40
	configLimit    = 48
	configOverhead = 56
	configAction   = 60
	configLocators = 64
	configNoUpdate = 72
	configScales   = 80
	configBases    = 88
	configSteps    = 120
	configTables   = 152
	tableShift     = 9   // a table has 512 octets
	tableCodes     = 256 // offset in a table
	configSize     = configTables + csig.Signals<<tableShift
)

// portState is what the program remembers of a port. It changes under the lock.
type portState struct {
	Lock    uint32
	_       uint32
	Start   uint64 // of the current window
	Current uint64 // octets of the current window
	Last    uint64 // octets of the last window that has ended
	Free    uint64 // time at which all that was accepted has been sent
}

// Offsets in portState.
const (
	stateStart   = 8
	stateCurrent = 16
	stateLast    = 24
	stateFree    = 32
	stateSize    = 40
)

// Offsets from the frame pointer of the egress program.
const (
	atNow     = -8
	atOctets  = -16
	atWord    = -24 // as in the packet's mark
	atLM      = -32
	atDelay   = -40
	atQueue   = -48
	atLast    = -56
	atTag     = -72 // octets to write, 10 at most
	atCode    = -80 // S of the tag
	atOutcome = -88
)

// failedTag is the number of the counter, beside those of csig.Outcome, of tags that were lost because the kernel refused
// to take them off or to put them back.
const failedTag = csig.Outcomes

// octetNanos times octets, by a speed in bit/s, is a time in nanoseconds.
const octetNanos = 8_000_000_000

// portMaps are the descriptors of an egress program's maps.
type portMaps struct{ config, state, counts int }

// assembleEgress returns the TCX program at the egress of a switch's port. It counts the packet, and puts its tag back as
// csig.Port does. Both parts may be replaced for tests: what stands before the program, and the clock, whose result is in R0.
func assembleEgress(e csig.EtherTypes, m portMaps, before, clock asm.Instructions) asm.Instructions {
	return join(asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)},
		before,
		readCarriedTag(),
		asm.Instructions{
			asm.LoadMapValue(asm.R7, m.config, 0),
			asm.LoadMapValue(asm.R8, m.state, 0),
			asm.LoadMem(asm.R2, asm.R6, skbLen, asm.Word),
			asm.LoadMem(asm.R3, asm.R7, configOverhead, asm.Word),
			asm.Add.Reg(asm.R2, asm.R3),
			asm.LoadMem(asm.R4, asm.R7, configAction, asm.Word),
			asm.JEq.Imm(asm.R4, int32(csig.StripTags), "measure"),
			asm.Add.Reg(asm.R2, asm.R9),
		},
		labelled("measure", asm.StoreMem(asm.RFP, atOctets, asm.R2, asm.DWord)),
		clock,
		asm.Instructions{asm.StoreMem(asm.RFP, atNow, asm.R0, asm.DWord), asm.Mov.Reg(asm.R1, asm.R8), asm.FnSpinLock.Call()},
		endWindow(), fillBucket(),
		labelled("unlock", asm.Mov.Reg(asm.R1, asm.R8), asm.FnSpinUnlock.Call()),
		asm.Instructions{asm.Mov.Imm(asm.R1, int32(csig.NoTag)), asm.JEq.Imm(asm.R9, 0, "count")},
		readFields(), checkRules(), computeValue(), computeCode(), compareCodes(),
		labelled("unknown", asm.Mov.Imm(asm.R1, int32(csig.UnknownSignal)), asm.Ja.Label("insert")),
		labelled("passed", asm.Mov.Imm(asm.R1, int32(csig.Passed)), asm.Ja.Label("insert")),
		labelled("kept", asm.Mov.Imm(asm.R1, int32(csig.Kept))),
		insertTag(e),
		labelled("stripped", asm.Mov.Imm(asm.R1, int32(csig.Stripped)), asm.Ja.Label("count")),
		labelled("failed", asm.Mov.Imm(asm.R1, failedTag)),
		labelled("count", countOutcome(m.counts)...),
		asm.Instructions{asm.Mov.Imm(asm.R0, tcxNext), asm.Return()})
}

// readCarriedTag sets R9 to the format of the tag that the packet carries, or to 0, moves the tag to the stack, and clears it.
func readCarriedTag() asm.Instructions {
	return join(asm.Instructions{
		asm.Mov.Imm(asm.R9, 0),
		asm.StoreMem(asm.RFP, atWord, asm.R9, asm.DWord),
		asm.StoreMem(asm.RFP, atLM, asm.R9, asm.DWord),
		asm.StoreMem(asm.RFP, atDelay, asm.R9, asm.DWord),
		asm.StoreMem(asm.RFP, atQueue, asm.R9, asm.DWord),
		asm.LoadMem(asm.R2, asm.R6, skbQueueMapping, asm.Word),
		asm.JEq.Imm(asm.R2, queueMark|int32(csig.Compact), "compact"),
		asm.JEq.Imm(asm.R2, queueMark|int32(csig.Wide), "wide"),
		asm.LoadMem(asm.R2, asm.R6, skbPriority, asm.Word),
		asm.Mov.Reg(asm.R3, asm.R2),
		asm.RSh.Imm(asm.R3, 16),
		asm.JNE.Imm(asm.R3, priorityMark>>16, "plain"),
		asm.Mov.Imm(asm.R3, 0),
		asm.StoreMem(asm.R6, skbPriority, asm.R3, asm.Word),
		asm.JEq.Imm(asm.R2, priorityMark|int32(csig.Compact), "compact"),
		asm.JNE.Imm(asm.R2, priorityMark|int32(csig.Wide), "plain"),
	},
		labelled("wide", asm.Mov.Imm(asm.R9, int32(csig.Wide)), asm.Ja.Label("carried")),
		labelled("compact", asm.Mov.Imm(asm.R9, int32(csig.Compact))),
		labelled("carried",
			asm.LoadMem(asm.R2, asm.R6, skbMark, asm.Word), asm.StoreMem(asm.RFP, atWord, asm.R2, asm.DWord),
			asm.LoadMem(asm.R2, asm.R6, skbTCIndex, asm.Word), asm.StoreMem(asm.RFP, atLM, asm.R2, asm.DWord),
			asm.Mov.Imm(asm.R2, 0),
			asm.StoreMem(asm.R6, skbMark, asm.R2, asm.Word),
			asm.StoreMem(asm.R6, skbTCIndex, asm.R2, asm.Word),
			asm.StoreMem(asm.R6, skbQueueMapping, asm.R2, asm.Word)),
		labelled("plain", asm.Mov.Imm(asm.R2, 0)))
}

// endWindow ends the windows of the rate that are over, as csig.RateWindow.Advance does. R0 is the time after that.
func endWindow() asm.Instructions {
	return join(asm.Instructions{
		asm.LoadMem(asm.R0, asm.RFP, atNow, asm.DWord),
		asm.LoadMem(asm.R1, asm.R8, stateStart, asm.DWord),
		asm.Mov.Reg(asm.R2, asm.R0),
		asm.Sub.Reg(asm.R2, asm.R1),
		asm.LoadMem(asm.R3, asm.R7, configInterval, asm.DWord),
		asm.JSLT.Reg(asm.R2, asm.R3, "window"),
		asm.Div.Reg(asm.R2, asm.R3),
		asm.Mov.Imm(asm.R4, 0),
		asm.JNE.Imm(asm.R2, 1, "ended"),
		asm.LoadMem(asm.R4, asm.R8, stateCurrent, asm.DWord),
	},
		labelled("ended",
			asm.StoreMem(asm.R8, stateLast, asm.R4, asm.DWord),
			asm.Mov.Imm(asm.R4, 0),
			asm.StoreMem(asm.R8, stateCurrent, asm.R4, asm.DWord),
			asm.Mul.Reg(asm.R2, asm.R3),
			asm.Add.Reg(asm.R1, asm.R2),
			asm.StoreMem(asm.R8, stateStart, asm.R1, asm.DWord)),
		labelled("window",
			asm.LoadMem(asm.R1, asm.R8, stateLast, asm.DWord),
			asm.StoreMem(asm.RFP, atLast, asm.R1, asm.DWord)))
}

// fillBucket computes how long the packet waits (rule 5), and counts its octets. A packet that comes when all that was
// accepted before is sent at a time Free leaves at that time plus its own, less what the bucket has saved up. Packets that the
// queue has no room for change nothing. The bucket is that of bucket in the tests.
func fillBucket() asm.Instructions {
	return join(asm.Instructions{
		asm.LoadMem(asm.R5, asm.RFP, atOctets, asm.DWord),
		asm.LoadMem(asm.R4, asm.R7, configSpeed, asm.DWord),
		asm.JEq.Imm(asm.R4, 0, "add"),
		asm.Mov.Reg(asm.R3, asm.R5),
		asm.LoadImm(asm.R1, octetNanos, asm.DWord),
		asm.Mul.Reg(asm.R3, asm.R1),
		asm.Div.Reg(asm.R3, asm.R4), // the time that the packet takes
		asm.LoadMem(asm.R2, asm.R7, configBurst, asm.DWord),
		asm.Mov.Reg(asm.R1, asm.R0),
		asm.Sub.Reg(asm.R1, asm.R2),
		asm.LoadMem(asm.R2, asm.R8, stateFree, asm.DWord),
		asm.JSGE.Reg(asm.R2, asm.R1, "busy"),
		asm.Mov.Reg(asm.R2, asm.R1),
	},
		labelled("busy",
			asm.Mov.Reg(asm.R1, asm.R2),
			asm.Sub.Reg(asm.R1, asm.R0),
			asm.JSGE.Imm(asm.R1, 0, "queued"),
			asm.Mov.Imm(asm.R1, 0)),
		labelled("queued",
			asm.StoreMem(asm.RFP, atQueue, asm.R1, asm.DWord),
			asm.Add.Reg(asm.R1, asm.R3),
			asm.StoreMem(asm.RFP, atDelay, asm.R1, asm.DWord),
			asm.LoadMem(asm.R4, asm.R7, configLimit, asm.DWord),
			asm.JEq.Imm(asm.R4, 0, "accept"),
			asm.JGT.Reg(asm.R1, asm.R4, "unlock")),
		labelled("accept",
			asm.Add.Reg(asm.R2, asm.R3),
			asm.StoreMem(asm.R8, stateFree, asm.R2, asm.DWord),
			asm.Sub.Reg(asm.R2, asm.R0),
			asm.JSGE.Imm(asm.R2, 0, "waits"),
			asm.Mov.Imm(asm.R2, 0)),
		labelled("waits", asm.StoreMem(asm.RFP, atDelay, asm.R2, asm.DWord)),
		labelled("add",
			asm.LoadMem(asm.R1, asm.R8, stateCurrent, asm.DWord),
			asm.Add.Reg(asm.R1, asm.R5),
			asm.StoreMem(asm.R8, stateCurrent, asm.R1, asm.DWord)))
}

// readFields reads the fields of the tag: the signal to R8, the code to the stack, the reserved bits to R5, and, of the
// format, the port's locator to R4, the bits against updates to R3, and the signals that have a scale to R1.
func readFields() asm.Instructions {
	field := func(to asm.Register, shift, mask int32) asm.Instructions {
		return asm.Instructions{asm.Mov.Reg(to, asm.R2), asm.RSh.Imm(to, shift), asm.And.Imm(to, mask)}
	}
	ofFormat := func(i int16) asm.Instructions {
		return asm.Instructions{
			asm.StoreMem(asm.RFP, atCode, asm.R4, asm.DWord),
			asm.LoadMem(asm.R4, asm.R7, configLocators+4*i, asm.Word),
			asm.LoadMem(asm.R3, asm.R7, configNoUpdate+4*i, asm.Word),
			asm.LoadMem(asm.R1, asm.R7, configScales+4*i, asm.Word),
		}
	}
	return join(asm.Instructions{
		asm.LoadMem(asm.R4, asm.R7, configAction, asm.Word),
		asm.JEq.Imm(asm.R4, int32(csig.StripTags), "stripped"),
		asm.LoadMem(asm.R2, asm.RFP, atWord, asm.DWord),
		asm.JEq.Imm(asm.R9, int32(csig.Wide), "widefields"),
	}, field(asm.R8, 13, 7), field(asm.R4, 7, 31), field(asm.R5, 12, 1), ofFormat(0), asm.Instructions{asm.Ja.Label("rules")},
		labelled("widefields", field(asm.R8, 28, 15)...), field(asm.R4, 8, 1<<20-1), field(asm.R5, 0, 255), ofFormat(1))
}

// checkRules goes on at "unknown" or "passed" if the tag is not compared, in the order of csig.Port.
func checkRules() asm.Instructions {
	return join(
		labelled("rules", asm.JGE.Imm(asm.R8, csig.Signals, "unknown")),
		asm.Instructions{
			asm.RSh.Reg(asm.R1, asm.R8),
			asm.And.Imm(asm.R1, 1),
			asm.JEq.Imm(asm.R1, 0, "unknown"),
			asm.LoadMem(asm.R1, asm.R7, configAction, asm.Word),
			asm.JNE.Imm(asm.R1, int32(csig.UpdateTags), "passed"),
			asm.JEq.Imm(asm.R4, 0, "passed"),
			asm.And.Reg(asm.R3, asm.R5),
			asm.JNE.Imm(asm.R3, 0, "passed"),
			asm.LoadMem(asm.R3, asm.R7, configSpeed, asm.DWord),
			asm.JEq.Imm(asm.R3, 0, "passed"),
		})
}

// computeValue sets R2 to the port's own value of the signal in R8. R3 is the speed, and R4 the locator, which stays.
func computeValue() asm.Instructions {
	return join(asm.Instructions{
		asm.LoadMem(asm.R2, asm.RFP, atDelay, asm.DWord),
		asm.JEq.Imm(asm.R8, int32(csig.Delay), "value"),
		asm.LoadMem(asm.R2, asm.RFP, atQueue, asm.DWord),
		asm.JEq.Imm(asm.R8, int32(csig.Queue), "value"),
		asm.Mov.Imm(asm.R2, 0),
		asm.LoadMem(asm.R1, asm.RFP, atLast, asm.DWord),
		asm.LoadMem(asm.R5, asm.R7, configMaxLast, asm.DWord),
		asm.JGT.Reg(asm.R1, asm.R5, "value"),
		asm.LoadMem(asm.R5, asm.R7, configRateBy, asm.DWord),
		asm.Mul.Reg(asm.R1, asm.R5),
		asm.LoadMem(asm.R5, asm.R7, configRateOf, asm.DWord),
		asm.Div.Reg(asm.R1, asm.R5),
		asm.JGE.Reg(asm.R1, asm.R3, "value"),
		asm.Mov.Reg(asm.R2, asm.R3),
		asm.Sub.Reg(asm.R2, asm.R1),
		asm.JEq.Imm(asm.R8, int32(csig.Bandwidth), "value"),
		asm.Mul.Imm(asm.R2, csig.Million),
		asm.Div.Reg(asm.R2, asm.R3),
	}, labelled("value", asm.StoreMem(asm.RFP, atOutcome, asm.R4, asm.DWord))) // the locator, until there is an outcome
}

// computeCode sets R2 to the code of the value in R2: for compact tags that of the last edge that is not above it, and for
// wide tags the number of steps above the base.
func computeCode() asm.Instructions {
	p := asm.Instructions{asm.JEq.Imm(asm.R9, int32(csig.Wide), "steps"),
		asm.Mov.Reg(asm.R3, asm.R8),
		asm.LSh.Imm(asm.R3, tableShift),
		asm.Add.Reg(asm.R3, asm.R7),
		asm.Mov.Imm(asm.R4, 0),
	}
	names := map[int16]string{16: "half16", 8: "half8", 4: "half4", 2: "half2", 1: "half1"}
	for _, half := range []int16{16, 8, 4, 2, 1} {
		p = append(p,
			asm.Mov.Reg(asm.R5, asm.R3),
			asm.Add.Reg(asm.R5, asm.R4),
			asm.LoadMem(asm.R1, asm.R5, configTables+8*half, asm.DWord),
			asm.JGT.Reg(asm.R1, asm.R2, names[half]),
			asm.Add.Imm(asm.R4, int32(8*half)))
		p = append(p, labelled(names[half], asm.And.Imm(asm.R4, 8*31))...)
	}
	return join(p, asm.Instructions{
		asm.Add.Reg(asm.R3, asm.R4),
		asm.LoadMem(asm.R2, asm.R3, configTables+tableCodes, asm.DWord),
		asm.Ja.Label("compare"),
	},
		labelled("steps",
			asm.Mov.Reg(asm.R3, asm.R8),
			asm.LSh.Imm(asm.R3, 3),
			asm.Add.Reg(asm.R3, asm.R7),
			asm.LoadMem(asm.R1, asm.R3, configBases, asm.DWord),
			asm.JGE.Reg(asm.R2, asm.R1, "above"),
			asm.Mov.Imm(asm.R2, 0),
			asm.Ja.Label("compare")),
		labelled("above",
			asm.Sub.Reg(asm.R2, asm.R1),
			asm.LoadMem(asm.R1, asm.R3, configSteps, asm.DWord),
			asm.Div.Reg(asm.R2, asm.R1),
			asm.JLE.Imm(asm.R2, 1<<20-1, "compare"),
			asm.Mov.Imm(asm.R2, 1<<20-1)))
}

// compareCodes writes the port's code in R2 and its locator to the tag on the stack if the code is worse, and goes on at
// "kept" otherwise (rule 4 of csig). It sets R1 to the outcome.
func compareCodes() asm.Instructions {
	return join(
		labelled("compare",
			asm.LoadMem(asm.R3, asm.RFP, atCode, asm.DWord),
			asm.JGE.Imm(asm.R8, int32(csig.Delay), "largest"),
			asm.JGE.Reg(asm.R2, asm.R3, "kept"),
			asm.Ja.Label("replace")),
		labelled("largest", asm.JLE.Reg(asm.R2, asm.R3, "kept")),
		labelled("replace",
			asm.LoadMem(asm.R4, asm.RFP, atOutcome, asm.DWord), // the locator
			asm.LoadMem(asm.R1, asm.RFP, atWord, asm.DWord),
			asm.JEq.Imm(asm.R9, int32(csig.Wide), "replacewide"),
			asm.And.Imm(asm.R1, 0xf000),
			asm.LSh.Imm(asm.R2, 7),
			asm.Or.Reg(asm.R1, asm.R2),
			asm.Or.Reg(asm.R1, asm.R4),
			asm.StoreMem(asm.RFP, atWord, asm.R1, asm.DWord),
			asm.Ja.Label("updated")),
		labelled("replacewide",
			asm.LoadImm(asm.R3, 0xf00000ff, asm.DWord),
			asm.And.Reg(asm.R1, asm.R3),
			asm.LSh.Imm(asm.R2, 8),
			asm.Or.Reg(asm.R1, asm.R2),
			asm.StoreMem(asm.RFP, atWord, asm.R1, asm.DWord),
			asm.StoreMem(asm.RFP, atLM, asm.R4, asm.DWord)),
		labelled("updated", asm.Mov.Imm(asm.R1, int32(csig.Updated)), asm.Ja.Label("insert")))
}

// insertTag puts the tag on the stack into the packet. R1 is the outcome before and after.
func insertTag(e csig.EtherTypes) asm.Instructions {
	return join(
		labelled("insert",
			asm.StoreMem(asm.RFP, atOutcome, asm.R1, asm.DWord),
			asm.LoadMem(asm.R3, asm.R6, skbProtocol, asm.Word),
			asm.LoadMem(asm.R2, asm.RFP, atWord, asm.DWord),
			asm.JEq.Imm(asm.R9, int32(csig.Wide), "putwide"),
			storeNumber(atTag, int64(networkOrder(e.Compact)), asm.Half),
			asm.HostTo(asm.BE, asm.R2, asm.Half),
			asm.StoreMem(asm.RFP, atTag+2, asm.R2, asm.Half),
			asm.StoreMem(asm.RFP, atTag+4, asm.R3, asm.Half),
			asm.Ja.Label("put")),
		labelled("putwide",
			storeNumber(atTag, int64(networkOrder(e.Wide)), asm.Half),
			asm.LoadMem(asm.R1, asm.RFP, atLM, asm.DWord),
			asm.HostTo(asm.BE, asm.R1, asm.Half),
			asm.StoreMem(asm.RFP, atTag+2, asm.R1, asm.Half),
			asm.HostTo(asm.BE, asm.R2, asm.Word),
			asm.StoreMem(asm.RFP, atTag+4, asm.R2, asm.Word),
			asm.StoreMem(asm.RFP, atTag+8, asm.R3, asm.Half)),
		labelled("put", asm.Mov.Imm(asm.R1, 0)),
		putTag(atTag, "failed"),
		asm.Instructions{asm.LoadMem(asm.R1, asm.RFP, atOutcome, asm.DWord), asm.Ja.Label("count")})
}
