package schema

import (
	"fmt"
	"strconv"
	"strings"
)

const referenceHead = `# Configuration files

This page lists every key of the YAML files that users write. It is generated from the [schemas](../../schema/schema.go),
which ` + "`graylink config schema NAME`" + ` prints. With a YAML language server, an editor checks a file while it is written:

` + "```sh" + `
graylink config schema topology > topology.schema.json
sed -i '1i # yaml-language-server: $schema=topology.schema.json' my-fabric.yaml
` + "```" + `

- A text may be any scalar: ` + "`plane: 7` and `plane: \"7\"`" + ` are the same.
- A duration is a number with a unit, or several: ` + "`1.5s`, `100ms`, `1h30m`" + `.
- A key that is not listed is an error. A key without a value, a whole number in quotes or with a fraction, and ` + "`yes`" + `
  for ` + "`true`" + ` are errors for the schema; some of the programs accept them.
- The schema covers each key by itself. The programs also check what depends on other keys and on files;
  ` + "`--check`" + ` and ` + "`graylink topology check`" + ` print it.
`

// writeReference returns the page of all keys.
func writeReference(all []*node) string {
	var b strings.Builder
	b.WriteString(referenceHead)
	for i, n := range all {
		fmt.Fprintf(&b, "\n## Which keys does `%s` have?\nThis is %s.\n", sources[i].name, sources[i].title)
		p := page{&b, n, sources[i].name, map[string]string{}}
		p.writeMapping("", n)
	}
	return b.String()
}

// page writes the tables of one schema.
type page struct {
	*strings.Builder
	root   *node
	name   string
	places map[string]string // path of the first use of a definition, or of a group of keys
}

// pending is a mapping that needs a table of its own.
type pending struct {
	path string
	*node
}

// writeMapping writes the table of a mapping, and then those of the mappings in it. A definition that is used again has no
// second table, nor has a group of keys.
func (p *page) writeMapping(path string, n *node) {
	var later []pending
	if path != "" {
		fmt.Fprintf(p, "\n<a id=\"%s\"></a>\n\n### `%s` of `%s`\n%s\n", p.anchor(path), path, p.name, n.Description)
	}
	if n.Properties == nil {
		fmt.Fprintf(p, "\nA mapping of texts to %s.\n", p.describeType(path+".*", n.Additional.(*node), &later))
	} else {
		p.WriteString("\n| key | type | default | meaning |\n| --- | --- | --- | --- |\n")
	}
	shared := ""
	for _, x := range n.Properties {
		if first, ok := p.places[x.group]; ok && first != path {
			shared = first
			continue
		}
		if x.group != "" {
			p.places[x.group] = path
		}
		fmt.Fprintf(p, "| `%s` | %s | %s | %s |\n", x.name, p.describeType(join(path, x.name), x.node, &later), defaultText(n, &x), cell(x.Description))
	}
	if shared != "" {
		fmt.Fprintf(p, "\nIt also has the keys of an HTTP client: those of [`%s`](#%s) from `basic_auth` to `http_headers`.\n", shared, p.anchor(shared))
	}
	if text := describeConditions(n); text != "" {
		fmt.Fprintf(p, "\n%s\n", text)
	}
	for _, x := range later {
		p.writeMapping(x.path, x.node)
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func (p *page) anchor(path string) string {
	return p.name + "-" + strings.NewReplacer(".", "-", "[]", "", "*", "any").Replace(path)
}

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// describeType returns the type of a value in words. Mappings that need a table are added to the list.
func (p *page) describeType(path string, n *node, later *[]pending) string {
	switch {
	case n.Ref != "":
		name := strings.TrimPrefix(n.Ref, "#/$defs/")
		if _, known := p.places[name]; !known {
			p.places[name] = path
			for _, d := range p.root.Definitions {
				if d.name == name {
					*later = append(*later, pending{path, d.node})
				}
			}
		}
		return fmt.Sprintf("[mapping](#%s)", p.anchor(p.places[name]))
	case n.Items != nil:
		text := "list of " + plural(p.describeType(path+"[]", n.Items, later))
		if n.MinItems > 0 {
			text += fmt.Sprintf(", at least %d", n.MinItems)
		}
		if n.MaxItems > 0 {
			text += fmt.Sprintf(", at most %d", n.MaxItems)
		}
		return text
	case n.Type == "object":
		return "mapping of texts to " + p.describeType(path+".*", n.Additional.(*node), later)
	case n.Enum != nil:
		return "`" + strings.Join(n.Enum, "`, `") + "`"
	}
	return n.word + bounds(n)
}

// plural returns the plural of a type in words.
func plural(word string) string {
	switch {
	case strings.HasPrefix(word, "[mapping]"):
		return strings.Replace(word, "mapping", "mappings", 1)
	case strings.HasSuffix(word, "ss"):
		return word + "es"
	}
	return word + "s"
}

// bounds returns the bounds of a number in words.
func bounds(n *node) string {
	text := func(v *float64) string { return strconv.FormatFloat(*v, 'f', -1, 64) }
	switch {
	case n.ExclusiveMinimum != nil && n.Maximum == nil:
		return " above " + text(n.ExclusiveMinimum)
	case n.ExclusiveMinimum != nil:
		return fmt.Sprintf(" above %s, up to %s", text(n.ExclusiveMinimum), text(n.Maximum))
	case n.Minimum != nil && n.Maximum != nil && *n.Minimum == *n.Maximum:
		return " " + text(n.Minimum)
	case n.Minimum != nil && n.Maximum != nil:
		return fmt.Sprintf(", %s to %s", text(n.Minimum), text(n.Maximum))
	case n.Minimum != nil:
		return ", at least " + text(n.Minimum)
	}
	return ""
}

// defaultText returns the default of a key, or that it is required.
func defaultText(of *node, p *property) string {
	for _, name := range of.Required {
		if name == p.name {
			return "required"
		}
	}
	if p.Default == nil {
		return ""
	}
	text := fmt.Sprintf("%v", p.Default)
	if list, ok := p.Default.([]string); ok {
		text = strings.Join(list, " ")
	}
	return "`" + cell(text) + "`"
}

// describeConditions returns in words what is wanted of several keys together.
func describeConditions(n *node) string {
	keys := func(all []requirement) string {
		var names []string
		for _, r := range all {
			names = append(names, "`"+strings.Join(r.Required, "`, `")+"`")
		}
		return strings.Join(names, ", ")
	}
	switch {
	case n.AnyOf != nil:
		return "At least one of these is required: " + keys(n.AnyOf) + "."
	case n.OneOf != nil:
		return "Exactly one of these is required: " + keys(n.OneOf) + "."
	}
	return ""
}
