package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/unix"
)

// Format of the extension structure of ICMP errors: RFC 4884 section 7.
const (
	extVersion = 2
	extHeader  = 4 // octets: version and reserved bits, checksum
	extObject  = 4 // octets of an object's header: length, class, type
)

// Classes and types of objects.
const (
	classMPLS      = 1 // RFC 4950 section 3
	typeLabelStack = 1
	classInterface = 2 // RFC 5837 section 4
)

// Bits of the type of an Interface Information Object: RFC 5837 section 4.1.
const (
	infoRole    = 0xc0 // 0: the interface by which the packet arrived
	infoIndex   = 0x08
	infoAddress = 0x04
	infoName    = 0x02
	infoMTU     = 0x01
)

// maxInterfaceName is the longest Interface Name Sub-Object, including its length octet: RFC 5837 section 4.3.
const maxInterfaceName = 64

// maxLabels limits the label stack that is kept from one answer.
const maxLabels = 16

// extension holds what a switch reported in addition to "time exceeded".
type extension struct {
	incoming *fabric.Interface
	labels   []fabric.Label
}

// parseExtension parses an extension structure. It skips objects of other classes, types and roles.
func parseExtension(b []byte) (x extension, err error) {
	if len(b) < extHeader {
		return x, fmt.Errorf("extension: %d octets, want a header of %d", len(b), extHeader)
	}
	if v := b[0] >> 4; v != extVersion {
		return x, fmt.Errorf("extension version: %d, want %d", v, extVersion)
	}
	// Zero means that no checksum was transmitted: RFC 4884 section 7.
	if binary.BigEndian.Uint16(b[2:]) != 0 && onesSum(b) != 0xffff {
		return x, errors.New("extension checksum: wrong")
	}
	for rest := b[extHeader:]; len(rest) > 0; {
		if len(rest) < extObject {
			return extension{}, fmt.Errorf("extension object: %d octets left, want a header of %d", len(rest), extObject)
		}
		n := int(binary.BigEndian.Uint16(rest))
		if n < extObject || n > len(rest) {
			return extension{}, fmt.Errorf("extension object length: %d, want %d to the %d that are left", n, extObject, len(rest))
		}
		class, typ, body := rest[2], rest[3], rest[extObject:n]
		rest = rest[n:]
		switch {
		case class == classMPLS && typ == typeLabelStack:
			if x.labels, err = parseLabels(body); err != nil {
				return extension{}, err
			}
		case class == classInterface && typ&infoRole == 0:
			if x.incoming, err = parseInterface(typ, body); err != nil {
				return extension{}, err
			}
		}
	}
	return x, nil
}

// onesSum returns the one's complement sum of RFC 1071, which is 0xffff over data with the correct checksum.
func onesSum(b []byte) uint16 {
	var sum uint32
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// parseLabels parses label stack entries: 20 bits of label, 3 of traffic class, the bottom-of-stack bit, and 8 of TTL (RFC
// 3032 section 2.1).
func parseLabels(b []byte) ([]fabric.Label, error) {
	if len(b)%4 != 0 || len(b) > 4*maxLabels {
		return nil, fmt.Errorf("MPLS label stack: %d octets, want entries of 4, at most %d", len(b), maxLabels)
	}
	labels := make([]fabric.Label, 0, len(b)/4)
	for ; len(b) > 0; b = b[4:] {
		v := binary.BigEndian.Uint32(b)
		labels = append(labels, fabric.Label{Label: v >> 12, TC: uint8(v >> 9 & 7), Bottom: v>>8&1 == 1, TTL: uint8(v)})
	}
	return labels, nil
}

// parseInterface parses the sub-objects that typ announces, in the order of RFC 5837 section 4.1.
func parseInterface(typ uint8, b []byte) (*fabric.Interface, error) {
	var v fabric.Interface
	cut := func(what string, n int) ([]byte, error) {
		if len(b) < n {
			return nil, fmt.Errorf("interface %s: %d octets left, want %d", what, len(b), n)
		}
		out := b[:n]
		b = b[n:]
		return out, nil
	}
	if typ&infoIndex != 0 {
		f, err := cut("index", 4)
		if err != nil {
			return nil, err
		}
		v.Index = binary.BigEndian.Uint32(f)
	}
	if typ&infoAddress != 0 {
		f, err := cut("address", 4)
		if err != nil {
			return nil, err
		}
		// The keys are IANA's address family numbers: 1 is IPv4, 2 is IPv6.
		length := map[uint16]int{1: 4, 2: 16}[binary.BigEndian.Uint16(f)]
		if length == 0 {
			return nil, fmt.Errorf("interface address family: %d, want 1 or 2", binary.BigEndian.Uint16(f))
		}
		if f, err = cut("address", length); err != nil {
			return nil, err
		}
		v.Address, _ = netip.AddrFromSlice(f)
	}
	if typ&infoName != 0 {
		if len(b) == 0 {
			return nil, errors.New("interface name: no length octet")
		}
		n := int(b[0])
		if n == 0 || n%4 != 0 || n > maxInterfaceName {
			return nil, fmt.Errorf("interface name length: %d, want a multiple of 4 up to %d", n, maxInterfaceName)
		}
		f, err := cut("name", n)
		if err != nil {
			return nil, err
		}
		v.Name, _, _ = strings.Cut(string(f[1:]), "\x00")
		if !utf8.ValidString(v.Name) || strings.ContainsFunc(v.Name, func(r rune) bool { return !unicode.IsGraphic(r) }) {
			return nil, fmt.Errorf("interface name: %q, want printable UTF-8", v.Name)
		}
	}
	if typ&infoMTU != 0 {
		f, err := cut("MTU", 4)
		if err != nil {
			return nil, err
		}
		v.MTU = binary.BigEndian.Uint32(f)
	}
	return &v, nil
}

// quoteUnmarked is the offset of an extension after the UDP header if the message has no length attribute. The extension is
// then 128 octets after the start of the IPv4 header (RFC 4884 section 5.5).
const quoteUnmarked = 128 - 20 - 8

// extensionOf parses the extension of an ICMP error, if it has one. Without a length attribute the extension is accepted
// only if its checksum is correct, because it may be a part of the quoted packet.
func extensionOf(r *unix.Report) (extension, error) {
	if len(r.Extension) > 0 {
		return parseExtension(r.Extension)
	}
	if r.Kind == unix.ReportICMP && len(r.Data) >= quoteUnmarked+extHeader {
		if old := r.Data[quoteUnmarked:]; binary.BigEndian.Uint16(old[2:]) != 0 {
			if x, err := parseExtension(old); err == nil {
				return x, nil
			}
		}
	}
	return extension{}, nil
}
