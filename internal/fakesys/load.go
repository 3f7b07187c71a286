package fakesys

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// LoadNode reads a node from a YAML file.
func LoadNode(file string) (Node, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return Node{}, err
	}
	return ParseNode(file, text)
}

// ParseNode does the same as LoadNode for the text of a file. It returns a *FieldError if a field is wrong.
func ParseNode(file string, text []byte) (Node, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return Node{}, fmt.Errorf("%s: %s", file, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(doc.Content) == 0 {
		return Node{}, fmt.Errorf("%s: a node with devices is expected, the file is empty", file)
	}
	top := doc.Content[0]
	var n Node
	err := checkType(top, reflect.TypeFor[Node](), "")
	if err == nil {
		if err := top.Decode(&n); err != nil {
			return Node{}, fmt.Errorf("%s: %s", file, strings.TrimPrefix(err.Error(), "yaml: "))
		}
		err = n.Validate()
	}
	var fe *FieldError
	if errors.As(err, &fe) {
		fe.File = file
		if fe.Line == 0 {
			fe.Line = lineOf(top, fe.Field)
		}
	}
	if err != nil {
		return Node{}, err
	}
	return n, nil
}

// WriteYAML writes the node as LoadNode reads it.
func (n *Node) WriteYAML(w io.Writer) error {
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(n); err != nil {
		return err
	}
	return enc.Close()
}

// Summary returns the numbers of the node's devices and interfaces as text.
func (n *Node) Summary() string {
	rdma, nets := 0, 1 // lo
	for _, d := range n.Devices {
		nets += len(d.Net)
		if d.RDMA != nil {
			rdma++
		}
	}
	return fmt.Sprintf("RDMA devices: %d, interfaces: %d", rdma, nets)
}

// checkType checks a YAML value against a type: yaml.v3 itself names Go types in its errors, and
// forgets which field it was.
func checkType(n *yaml.Node, t reflect.Type, at string) error {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Tag == "!!null" {
		return nil
	}
	bad := func(want string) error {
		field := at
		if field == "" {
			field = "the file"
		}
		return &FieldError{Line: n.Line, Field: field, Want: fmt.Sprintf("%s: %s is expected", describeValue(n), want)}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return checkType(n, t.Elem(), at)
	case reflect.Struct:
		if n.Kind != yaml.MappingNode {
			return bad("a mapping of " + strings.Join(fieldNames(t), ", "))
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			if key.Tag == "!!merge" {
				continue
			}
			sub, ok := fieldOf(t, key.Value)
			if !ok {
				return &FieldError{Line: key.Line, Field: fieldPath(at, key.Value), Want: "no such field; there are " + strings.Join(fieldNames(t), ", ")}
			}
			if err := checkType(n.Content[i+1], sub, fieldPath(at, key.Value)); err != nil {
				return err
			}
		}
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			return bad("a list")
		}
		for i, c := range n.Content {
			if err := checkType(c, t.Elem(), fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
	case reflect.Map:
		if n.Kind != yaml.MappingNode {
			return bad("a mapping of names to numbers")
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if err := checkType(n.Content[i+1], t.Elem(), fieldPath(at, n.Content[i].Value)); err != nil {
				return err
			}
		}
	default:
		want := map[reflect.Kind]string{reflect.String: "a text", reflect.Bool: "true or false"}[t.Kind()]
		if want == "" {
			want = "a whole number"
		}
		if n.Kind != yaml.ScalarNode {
			if t.Kind() == reflect.String {
				want += `, in quotes where it holds ": ",`
			}
			return bad(want)
		}
		if t.Kind() == reflect.String {
			return nil
		}
		v := reflect.New(t)
		if err := n.Decode(v.Interface()); err != nil {
			if t.Kind() == reflect.Uint64 || t.Kind() == reflect.Uint16 {
				want = "a whole number from 0 to " + strconv.FormatUint(1<<t.Bits()-1, 10)
			}
			return bad(want)
		}
	}
	return nil
}

func fieldPath(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}

func describeValue(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	return strconv.Quote(n.Value)
}

func fieldNames(t reflect.Type) []string {
	var out []string
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		out = append(out, name)
	}
	return out
}

func fieldOf(t reflect.Type, name string) (reflect.Type, bool) {
	for i, n := range fieldNames(t) {
		if n == name {
			return t.Field(i).Type, true
		}
	}
	return nil, false
}

var fieldPart = regexp.MustCompile(`[^.\[\]]+|\[[0-9]+\]`)

// lineOf returns the line of a field, or of the nearest field around it that is in the file.
func lineOf(n *yaml.Node, field string) int {
	line := n.Line
	for _, part := range fieldPart.FindAllString(field, -1) {
		for n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		next := (*yaml.Node)(nil)
		if i, err := strconv.Atoi(strings.Trim(part, "[]")); err == nil && n.Kind == yaml.SequenceNode {
			if i < len(n.Content) {
				next = n.Content[i]
			}
		} else if n.Kind == yaml.MappingNode {
			for i := 0; i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == part {
					next = n.Content[i+1]
				}
			}
		}
		if next == nil {
			return line
		}
		n, line = next, next.Line
	}
	return line
}
