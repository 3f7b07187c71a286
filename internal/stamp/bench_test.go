package stamp

import (
	"maps"
	"slices"
	"testing"
)

// operations returns what happens per probe. None of the operations may allocate.
func operations() map[string]func() {
	auth := NewAuthenticator([]byte("key"))
	buf := make([]byte, 256)
	var s SenderPacket
	var r ReflectorPacket
	var an Answers
	var at int64 = 1_789_000_000_123_456_789

	sender, reflector := make([]byte, BaseLen), make([]byte, BaseLen)
	senderVector.Put(sender)
	reflectorVector.Put(reflector)
	authSender := make([]byte, AuthBaseLen)
	senderVector.PutAuth(authSender, auth)
	probe, authProbe := allRequests(BaseLen, nil), allRequests(AuthBaseLen, auth)
	reply, authReply := make([]byte, len(probe)), make([]byte, len(authProbe))
	reflectorVector.Put(reply)
	testValues.Reflect(reply, probe, BaseLen, nil)
	reflectorVector.PutAuth(authReply, auth)
	testValues.Reflect(authReply, authProbe, AuthBaseLen, auth)

	return map[string]func(){
		"PutSender": func() {
			at++
			s = SenderPacket{Seq: uint32(at), Timestamp: TimestampPTP(at), ErrorEstimate: NewErrorEstimate(200, true, true), SSID: 1}
			s.Put(buf)
		},
		"ParseSender":       func() { check(s.Parse(sender)) },
		"PutReflector":      func() { reflectorVector.Put(buf) },
		"ParseReflector":    func() { check(r.Parse(reflector)) },
		"PutSenderAuth":     func() { senderVector.PutAuth(buf, auth) },
		"ParseSenderAuth":   func() { check(s.ParseAuth(authSender, auth)) },
		"AppendTLVs":        func() { _ = AppendFollowUp(AppendDirectMeasurement(AppendClassOfService(buf[:BaseLen], 26), 1)) },
		"AppendHMAC":        func() { _ = AppendHMAC(buf[:BaseLen+8], BaseLen, auth) },
		"Reflect":           func() { testValues.Reflect(buf, probe, BaseLen, nil) },
		"ReflectAuth":       func() { testValues.Reflect(buf, authProbe, AuthBaseLen, auth) },
		"ReflectRefused":    func() { testValues.Reflect(buf, probe, BaseLen, auth) },
		"ParseAnswers":      func() { check(an.Parse(reply, BaseLen, nil)) },
		"ParseAnswersAuth":  func() { check(an.Parse(authReply, AuthBaseLen, auth)) },
		"NTP":               func() { at = TimestampNTP(at).NanosNTP() },
		"PTP":               func() { at = TimestampPTP(at).NanosPTP() },
		"ErrorEstimate":     func() { at += NewErrorEstimate(200, true, true).BoundNS() },
		"ParseShortPacket":  func() { _ = s.Parse(sender[:10]) },
		"ParseForgedPacket": func() { _ = s.ParseAuth(buf[:AuthBaseLen], auth) },
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func TestNothingAllocates(t *testing.T) {
	for name, op := range operations() {
		if n := testing.AllocsPerRun(200, op); n != 0 {
			t.Errorf("%s: %v allocations, want none", name, n)
		}
	}
}

func BenchmarkOperation(b *testing.B) {
	ops := operations()
	for _, name := range slices.Sorted(maps.Keys(ops)) {
		op := ops[name]
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				op()
			}
		})
	}
}
