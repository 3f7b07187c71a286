package nicethtool

import (
	"errors"
	"syscall"

	"github.com/graylink/graylink/internal/nicethtool/module"
)

// maxEEPROM limits the memory that a module can be believed to have, in octets.
const maxEEPROM = 4096

// isSFP reports whether a module's identifier (SFF-8024 table 4-1) is that of a module with one lane, whose second half
// is the upper memory of A0h and whose diagnostics are at A2h. Those of others are pages of A0h.
func isSFP(identifier byte) bool {
	return identifier == 0x02 || identifier == 0x03 || identifier == 0x0b // soldered, SFP, DWDM-SFP
}

// readImage reads a module in the older way: the driver lays its pages end to end.
func readImage(k Kernel, name string) (module.Image, error) {
	b, err := k.ModuleEEPROM(name)
	if err != nil {
		return nil, err
	}
	if len(b) < 2*module.Half || len(b) > maxEEPROM {
		return nil, malformedError("a module of %d to %d octets is expected, not of %d", 2*module.Half, maxEEPROM, len(b))
	}
	img := module.Image{}
	for i := range len(b) / module.Half {
		at := module.Block{Address: module.A0}
		switch {
		case i == 0:
		case i == 1 || !isSFP(b[0]):
			at.Upper, at.Page = true, uint8(i-1) // lower memory, then pages 00h to 03h
		case i == 2:
			at.Address = module.A2
		default:
			continue // A2h's upper half is the user's
		}
		img[at] = b[i*module.Half:][:module.Half]
	}
	return img, nil
}

// readBlock reads a block of a module, and all there is where only the older way is open.
func readBlock(k Kernel, name string, b module.Block) (img module.Image, all bool, err error) {
	data, err := readEEPROM(k, name, b, b.Offset(), module.Half)
	if errors.Is(err, syscall.EOPNOTSUPP) && b == module.Lower {
		img, err = readImage(k, name)
		return img, true, err
	}
	if err != nil {
		return nil, false, err
	}
	return module.Image{b: data}, false, nil
}
