package probe

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/fabric"
)

// fields parses a mapping, with one function per known key.
type fields map[string]func(*yaml.Node) error

func badField(n *yaml.Node, field, format string, args ...any) error {
	return fmt.Errorf("line %d: field %q: %s", n.Line, field, fmt.Sprintf(format, args...))
}

func (fs fields) readMapping(n *yaml.Node, at string) error {
	if n.Kind != yaml.MappingNode {
		return badField(n, at, "want a mapping")
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		name := joinField(at, key.Value)
		read := fs[key.Value]
		switch {
		case read == nil:
			known := make([]string, 0, len(fs))
			for k := range fs {
				known = append(known, k)
			}
			slices.Sort(known)
			return badField(key, name, "unknown; want one of %s", strings.Join(known, ", "))
		case seen[key.Value]:
			return badField(key, name, "given twice")
		}
		seen[key.Value] = true
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		if err := read(value); err != nil {
			return err
		}
	}
	return nil
}

func joinField(at, key string) string {
	if at == "" {
		return key
	}
	return at + "." + key
}

func scalarField[T any](field, want string, dst *T) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" || n.Decode(dst) != nil {
			return badField(n, field, "%q, want %s", n.Value, want)
		}
		return nil
	}
}

func stringField(field string, dst *string) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
			return badField(n, field, "%q, want a string", n.Value)
		}
		*dst = n.Value
		return nil
	}
}

func integerField[T int | uint8 | uint16](field string, lo, hi int, dst *T) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		var v int
		if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || n.Decode(&v) != nil || v < lo || v > hi {
			return badField(n, field, "%q, want a whole number from %d to %d", n.Value, lo, hi)
		}
		*dst = T(v)
		return nil
	}
}

func durationField(field string, lo, hi time.Duration, dst *time.Duration) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		v, err := time.ParseDuration(n.Value)
		if n.Kind != yaml.ScalarNode || err != nil || v < lo || v > hi {
			return badField(n, field, "%q, want a duration from %v to %v, such as 10ms", n.Value, lo, hi)
		}
		*dst = v
		return nil
	}
}

func nicField(field string, dst *string) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		node, device, ok := fabric.SplitNIC(n.Value)
		if n.Kind != yaml.ScalarNode || !ok || fabric.CheckName(node) != nil || fabric.CheckDevice(device) != nil {
			return badField(n, field, "%q, want a NIC as node/device", n.Value)
		}
		*dst = n.Value
		return nil
	}
}

func addressField(field string, dst *netip.Addr) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		a, err := netip.ParseAddr(n.Value)
		if n.Kind != yaml.ScalarNode || err != nil || CheckAddress(a) != nil {
			return badField(n, field, "%q, want an IPv4 or IPv6 unicast address", n.Value)
		}
		*dst = a
		return nil
	}
}

func listField(field string, each func(*yaml.Node, string) error) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		if n.Kind != yaml.SequenceNode {
			return badField(n, field, "want a list")
		}
		for i, item := range n.Content {
			if item.Kind == yaml.AliasNode {
				item = item.Alias
			}
			if err := each(item, fmt.Sprintf("%s[%d]", field, i)); err != nil {
				return err
			}
		}
		return nil
	}
}

// numberField returns a parser for a whole number, in decimal or in hexadecimal after 0x.
func numberField(field string, lo, hi uint32, dst *uint32) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		v, err := strconv.ParseUint(n.Value, 0, 32)
		if n.Kind != yaml.ScalarNode || err != nil || uint32(v) < lo || uint32(v) > hi {
			return badField(n, field, "%q, want a whole number from %d to %#x", n.Value, lo, hi)
		}
		*dst = uint32(v)
		return nil
	}
}

func gidField(field string, dst *netip.Addr) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		a, err := netip.ParseAddr(n.Value)
		if n.Kind != yaml.ScalarNode || err != nil || a.IsUnspecified() || a.IsMulticast() || a.Zone() != "" {
			return badField(n, field, "%q, want a GID: an IPv6 address, or an IPv4 one as ::ffff:192.0.2.1", n.Value)
		}
		*dst = a
		return nil
	}
}

func timestampsField(field string, dst *string) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		switch n.Value {
		case "auto":
			*dst = TimestampsAuto
		case TimestampsKernel:
			*dst = TimestampsKernel
		default:
			return badField(n, field, "%q, want auto or kernel", n.Value)
		}
		return nil
	}
}
