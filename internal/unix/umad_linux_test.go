package unix

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"unsafe"
)

// The sizes are part of the requests' numbers. Other files do not support the requests.
func TestUmadRequests(t *testing.T) {
	if n := unsafe.Sizeof(umadAgent{}); n != umadRegister2>>16&0x3fff {
		t.Errorf("struct ib_user_mad_reg_req2 has %d octets, want %d", n, umadRegister2>>16&0x3fff)
	}
	for name, offset := range map[string]uintptr{
		"methods": unsafe.Offsetof(umadAgent{}.methods) - 16, "oui": unsafe.Offsetof(umadAgent{}.oui) - 32, "rmpp": unsafe.Offsetof(umadAgent{}.rmpp) - 36,
	} {
		if offset != 0 {
			t.Errorf("%s is %d octets off its place", name, int(offset))
		}
	}
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for name, err := range map[string]error{
		"enable": EnableUmadPKeys(f.Fd()),
	} {
		if !errors.Is(err, syscall.ENOTTY) {
			t.Errorf("%s on /dev/null: %v, want %v", name, err, syscall.ENOTTY)
		}
	}
	if _, err := RegisterUmadAgent(f.Fd(), 1, 4, 1); !errors.Is(err, syscall.ENOTTY) {
		t.Errorf("register on /dev/null: %v, want %v", err, syscall.ENOTTY)
	}
}
