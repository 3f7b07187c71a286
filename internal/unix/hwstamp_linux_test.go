package unix

import (
	"errors"
	"os"
	"testing"
)

// The loopback interface stamps nothing in hardware, and its errors allow the caller to distinguish the reasons.
func TestLoopbackHasNoHardwareStamps(t *testing.T) {
	var d StampDevice
	c, err := d.Capabilities("lo")
	if err != nil {
		t.Fatal(err)
	}
	if c.TxHardware || c.PHC >= 0 || c.RxFilters&^(1<<StampNone) != 0 {
		t.Errorf("lo: %+v, want no hardware stamps and no clock", c)
	}
	if _, err := d.SetFilter("lo", StampAll); !errors.Is(err, EOPNOTSUPP) && !errors.Is(err, EPERM) {
		t.Errorf("set: %v, want EOPNOTSUPP or EPERM", err)
	}
	if _, _, err := d.CurrentFilter("lo"); !errors.Is(err, EOPNOTSUPP) {
		t.Errorf("get: %v, want EOPNOTSUPP", err)
	}
	if _, err := d.Capabilities("graylink-none"); !errors.Is(err, ENODEV) {
		t.Errorf("unknown interface: %v, want ENODEV", err)
	}
	if _, err := d.OpenPHC(1 << 20); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("unknown clock: %v, want that it does not exist", err)
	}
}
