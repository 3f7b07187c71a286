// Package ethtooltest provides a kernel for tests of code that reads interfaces through ethtool. It answers with
// bytes that the test gives.
package ethtooltest

import (
	"encoding/binary"
	"fmt"
	"sync"
	"syscall"

	"github.com/mdlayher/netlink"
	"github.com/safchain/ethtool"

	"github.com/graylink/graylink/internal/nicethtool/module"
)

// Interface holds the answers of one interface.
type Interface struct {
	Driver, Bus string
	// Names and Values of statistics; no Names: EOPNOTSUPP.
	Names  []string
	Values []uint64
	// Replies by netlink command; none: EOPNOTSUPP.
	Replies map[uint8][][]byte
	// Errors by netlink command, and by ioctl command plus 256.
	Errors map[int]error
	// Module is read block by block, or by ioctl only. Nil means EOPNOTSUPP.
	Module module.Image
	// Ioctl is the module's memory as the driver lays it end to end.
	Ioctl []byte
	// Hang is called before an answer, by command as in Errors.
	Hang map[int]func()
}

// Kernel answers for its interfaces. Interfaces that it has not are ENODEV.
type Kernel struct {
	mu         sync.Mutex
	interfaces map[string]*Interface
	requests   []string
}

// SetInterface replaces an interface. A nil interface removes it.
func (k *Kernel) SetInterface(name string, f *Interface) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.interfaces == nil {
		k.interfaces = map[string]*Interface{}
	}
	if k.interfaces[name] = f; f == nil {
		delete(k.interfaces, name)
	}
}

// DrainRequests returns the requests since the last call: "eth0 netlink 29", "eth0 ioctl 29", "eth0 page 11h offset
// 128 length 128".
func (k *Kernel) DrainRequests() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := k.requests
	k.requests = nil
	return out
}

func (k *Kernel) findInterface(name string, command int, what string) (*Interface, error) {
	k.mu.Lock()
	f := k.interfaces[name]
	k.requests = append(k.requests, name+" "+what)
	k.mu.Unlock()
	if f == nil {
		return nil, syscall.ENODEV
	}
	if h := f.Hang[command]; h != nil {
		h()
	}
	return f, f.Errors[command]
}

// Command of the netlink request for a module's memory, which Module answers.
const eepromCommand = 31

// SendRequest implements nicethtool.Kernel.
func (k *Kernel) SendRequest(command uint8, attributes []byte) ([][]byte, error) {
	ad, err := netlink.NewAttributeDecoder(attributes)
	if err != nil {
		return nil, err
	}
	var name string
	var block module.Block
	var offset, length int
	for ad.Next() {
		switch ad.Type() {
		case 1:
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				for ad.Next() {
					if ad.Type() == 2 {
						name = ad.String()
					}
				}
				return nil
			})
		case 2:
			offset = int(ad.Uint32())
		case 3:
			length = int(ad.Uint32())
		case 4:
			block.Page = ad.Uint8()
		case 5:
			block.Bank = ad.Uint8()
		case 6:
			block.Address = ad.Uint8()
		}
	}
	if err := ad.Err(); err != nil {
		return nil, err
	}
	if command != eepromCommand {
		f, err := k.findInterface(name, int(command), fmt.Sprintf("netlink %d", command))
		if err != nil {
			return nil, err
		}
		if r, ok := f.Replies[command]; ok {
			return r, nil
		}
		return nil, syscall.EOPNOTSUPP
	}
	block.Upper = offset >= module.Half
	f, err := k.findInterface(name, eepromCommand, fmt.Sprintf("%s offset %d length %d", block, offset, length))
	if err != nil {
		return nil, err
	}
	if f.Module == nil {
		return nil, syscall.EOPNOTSUPP
	}
	// What the kernel refuses (eeprom_parse_request).
	if length == 0 || length > module.Half || !block.Upper && block.Page != 0 || offset%module.Half+length > module.Half {
		return nil, syscall.EINVAL
	}
	x, ok := f.Module[block]
	if !ok {
		return nil, syscall.EIO
	}
	return [][]byte{EncodeAttributes(func(e *netlink.AttributeEncoder) {
		e.Bytes(7, x[offset%module.Half:][:length])
	})}, nil
}

// DriverInfo implements nicethtool.Kernel.
func (k *Kernel) DriverInfo(name string) (ethtool.DrvInfo, error) {
	f, err := k.findIoctl(name, ethtool.ETHTOOL_GDRVINFO)
	if err != nil {
		return ethtool.DrvInfo{}, err
	}
	if f.Names == nil {
		return ethtool.DrvInfo{}, syscall.EOPNOTSUPP
	}
	return ethtool.DrvInfo{Driver: f.Driver, BusInfo: f.Bus, NStats: uint32(len(f.Names))}, nil
}

// ModuleEEPROM implements nicethtool.Kernel.
func (k *Kernel) ModuleEEPROM(name string) ([]byte, error) {
	f, err := k.findIoctl(name, ethtool.ETHTOOL_GMODULEEEPROM)
	if err != nil {
		return nil, err
	}
	if f.Ioctl == nil {
		return nil, syscall.EOPNOTSUPP
	}
	return f.Ioctl, nil
}

func (k *Kernel) findIoctl(name string, command int) (*Interface, error) {
	return k.findInterface(name, command+256, fmt.Sprintf("ioctl %d", command))
}

// Ioctl implements nicethtool.Kernel.
func (k *Kernel) Ioctl(name string, data []byte) error {
	command := binary.NativeEndian.Uint32(data)
	f, err := k.findIoctl(name, int(command))
	if err != nil {
		return err
	}
	put := binary.NativeEndian.PutUint32
	switch {
	case command == ethtool.ETHTOOL_GSTRINGS && f.Names != nil:
		put(data[8:], uint32(len(f.Names)))
		for i, n := range f.Names {
			copy(data[12+32*i:12+32*i+32], n)
		}
	case command == ethtool.ETHTOOL_GSTATS && f.Names != nil:
		put(data[4:], uint32(len(f.Values)))
		for i, v := range f.Values {
			binary.NativeEndian.PutUint64(data[8+8*i:], v)
		}
	default:
		return syscall.EOPNOTSUPP
	}
	return nil
}

// EncodeAttributes encodes the attributes of a reply. It panics where they do not fit.
func EncodeAttributes(add func(*netlink.AttributeEncoder)) []byte {
	e := netlink.NewAttributeEncoder()
	add(e)
	b, err := e.Encode()
	if err != nil {
		panic(err)
	}
	return b
}
