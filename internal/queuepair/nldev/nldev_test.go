package nldev

import (
	"reflect"
	"testing"

	"github.com/mdlayher/netlink"

	"github.com/graylink/graylink/internal/queuepair"
)

// message returns what a kernel answers about a device with two queue pairs.
func message(t testing.TB) []byte {
	t.Helper()
	e := netlink.NewAttributeEncoder()
	e.Uint32(attrDeviceIndex, 3)
	e.String(attrDeviceName, "rxe0")
	e.Nested(attrPairs, func(list *netlink.AttributeEncoder) error {
		list.Nested(attrPair, func(q *netlink.AttributeEncoder) error {
			q.Uint32(attrPort, 1)
			q.Uint32(attrLocal, 17)
			q.Uint32(attrRemote, 18)
			q.Uint8(attrType, 2)
			q.Uint8(attrState, 3)
			q.Uint32(attrPID, 42)
			return nil
		})
		list.Nested(attrPair, func(q *netlink.AttributeEncoder) error {
			q.Uint32(attrLocal, 1)
			q.Uint8(attrType, 77)
			q.Uint8(attrState, 0)
			q.String(attrModule, "ib_core")
			return nil
		})
		return nil
	})
	b, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestParse(t *testing.T) {
	b := message(t)
	if index, name, err := parseDevice(b); index != 3 || name != "rxe0" || err != nil {
		t.Errorf("device %d, %q, %v", index, name, err)
	}
	got, err := parsePairs(nil, b)
	want := []queuepair.QueuePair{
		{Device: "rxe0", Port: 1, Local: 17, Remote: 18, Type: "rc", State: "rts", PID: 42},
		{Device: "rxe0", Local: 1, Type: "77", State: "reset", Process: "ib_core"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(message(f))
	f.Fuzz(func(t *testing.T, b []byte) {
		qps, err := parsePairs(nil, b)
		if err == nil && len(qps) > queuepair.MaxPairs {
			t.Errorf("%d queue pairs", len(qps))
		}
		_, _, _ = parseDevice(b)
	})
}
