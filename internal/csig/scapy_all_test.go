//go:build all

package csig

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/graylink/graylink/test/scapy"
)

// TestScapyReadsEveryTag compares all compact tags and a million wide ones with scapy, which takes minutes.
func TestScapyReadsEveryTag(t *testing.T) {
	scapy.Require(t)
	t.Run("compact", func(t *testing.T) {
		var r scapyRecords
		for w := range 1 << 16 {
			r.addValue(Compact, binary.BigEndian.AppendUint16(nil, uint16(w)))
		}
		r.compare(t)
	})
	t.Run("wide", func(t *testing.T) {
		rng := rand.New(rand.NewPCG(10, 10))
		for range 20 {
			var r scapyRecords
			for range 50_000 {
				var value [8]byte
				binary.BigEndian.PutUint64(value[:], rng.Uint64())
				r.addValue(Wide, value[:6])
			}
			r.compare(t)
		}
	})
}
