package report

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"html"
	"html/template"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/graylink/graylink/internal/plainjson"
)

// MaxFile is the number of bytes that a file of a report has at most, unless it is JSON.
const MaxFile = 1_000_000

// Formats of a report.
const (
	HTML     = "html"
	Markdown = "markdown"
	JSON     = "json"
)

// mediaTypes are the types of content of the formats.
var mediaTypes = map[string]string{HTML: "text/html; charset=utf-8", Markdown: "text/markdown; charset=utf-8", JSON: "application/json"}

// MediaType returns the type of content of a format, or "" if there is no such format.
func MediaType(format string) string { return mediaTypes[format] }

// Encode returns the report in a format. style is the style sheet of HTML.
func (r *Report) Encode(format, style string) ([]byte, error) {
	switch format {
	case JSON:
		var b bytes.Buffer
		err := plainjson.NewEncoder(&b).Encode(r)
		return b.Bytes(), err
	case HTML:
		return r.encodeBounded(func(d *Document) ([]byte, error) { return d.html(style) })
	case Markdown:
		return r.encodeBounded(func(d *Document) ([]byte, error) { return d.markdown(), nil })
	}
	return nil, fmt.Errorf("no format %q; expected %s, %s or %s", format, HTML, Markdown, JSON)
}

// encodeBounded shortens texts and the record until the file is no larger than it may be.
func (r *Report) encodeBounded(encode func(*Document) ([]byte, error)) (out []byte, err error) {
	for shrink := 1; shrink <= 1<<8; shrink *= 2 {
		if out, err = encode(r.Document(Options{shrink: shrink})); err != nil || len(out) <= MaxFile {
			return out, err
		}
	}
	return nil, fmt.Errorf("the report has %d bytes, more than %d", len(out), MaxFile)
}

// parseTemplates returns the templates of documents.
var parseTemplates = sync.OnceValue(func() *template.Template {
	t := template.New("document")
	for _, files := range Templates() {
		t = template.Must(t.ParseFS(files, "assets/*.html"))
	}
	return t
})

// html returns the document as one file. It has a script neither of its own nor of others, and loads nothing.
func (d *Document) html(style string) ([]byte, error) {
	style = "\n" + strings.ReplaceAll(style, "</", "") + "\n"
	sum := sha256.Sum256([]byte(style))
	title := html.EscapeString(d.Title)
	var b bytes.Buffer
	fmt.Fprintf(&b, `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'sha256-%s'"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<meta name="color-scheme" content="light dark"/>
<title>%s – Graylink</title>
<style>%s</style>
</head>
<body class="file">
<header><h1>%s</h1></header>
<main class="report">
<p class="state">%s</p>
`, base64.StdEncoding.EncodeToString(sum[:]), title, style, title, html.EscapeString(d.State))
	if err := parseTemplates().ExecuteTemplate(&b, "document", d); err != nil {
		return nil, err
	}
	b.WriteString("</main>\n</body>\n</html>\n")
	return b.Bytes(), nil
}

// markdown returns the document without its pictures.
func (d *Document) markdown() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s\n\n%s\n", escapeMarkdown(d.Title), escapeMarkdown(d.State))
	for _, s := range d.Sections {
		fmt.Fprintf(&b, "\n## %s\n\n", escapeMarkdown(s.Title))
		for i := range s.Blocks {
			s.Blocks[i].markdown(&b)
		}
	}
	return b.Bytes()
}

func (k *Block) markdown(b *bytes.Buffer) {
	if k.Text != "" {
		fmt.Fprintf(b, "%s\n\n", strings.TrimSpace(escapeMarkdown(k.Text)))
	}
	for _, item := range k.Items {
		fmt.Fprintf(b, "- %s\n", escapeMarkdown(item))
	}
	for _, f := range k.Facts {
		fmt.Fprintf(b, "- %s: %s\n", escapeMarkdown(f.Name), escapeMarkdown(f.Value))
	}
	if len(k.Items)+len(k.Facts) > 0 {
		b.WriteString("\n")
	}
	if k.Table != nil {
		k.Table.markdown(b)
	}
}

func (t *Table) markdown(b *bytes.Buffer) {
	for _, name := range t.Columns {
		fmt.Fprintf(b, "| %s ", escapeMarkdown(name))
	}
	fmt.Fprintf(b, "|\n%s|\n", strings.Repeat("| --- ", len(t.Columns)))
	for _, row := range t.Rows {
		for _, c := range row {
			text := escapeMarkdown(c.Text)
			if c.Code && !strings.ContainsAny(c.Text, "|\\") { // which tables give a meaning within code, too
				text = codeSpan(c.Text)
			}
			if c.Query != "" {
				text = strings.TrimSpace(text + " " + c.Query)
			}
			fmt.Fprintf(b, "| %s ", text)
		}
		b.WriteString("|\n")
	}
	b.WriteString("\n")
	if t.LeftOut > 0 {
		fmt.Fprintf(b, "%d more rows are left out.\n\n", t.LeftOut)
	}
}

// printable replaces what is not printable, and what changes the direction of text or is not seen, so that a name reads as it is.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case r == utf8.RuneError || !unicode.IsPrint(r):
			return '\uFFFD'
		}
		return r
	}, s)
}

// escapeMarkdown returns a text that Markdown and the HTML within it show as it is: what may be markup, an entity, a link or a symbol by
// its name is escaped. What follows an @ or a # of a ticket's system is separated from it by a space without a width, so that it is no
// mention.
func escapeMarkdown(s string) string {
	var b strings.Builder
	all := []rune(printable(s))
	for i, r := range all {
		next := ' '
		if i+1 < len(all) {
			next = all[i+1]
		}
		escape := false
		switch r {
		case '@', '#':
			b.WriteString("\\" + string(r) + "\u200b")
			continue
		case '\\', '`', '*', '_', '[', ']', '<', '>', '|', '~', '&', '$':
			escape = true
		case '-', '+', '=':
			escape = i == 0
		case ':':
			escape = next != ' '
		case '.':
			escape = !unicode.IsDigit(next) && (next != ' ' || i > 0 && unicode.IsDigit(all[i-1]))
		}
		if escape {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// codeSpan returns a text as code, in which nothing is markup. Its fence is longer than each row of its backticks.
func codeSpan(s string) string {
	s = printable(s)
	longest, row := 0, 0
	for _, r := range s {
		if row++; r != '`' {
			row = 0
		}
		longest = max(longest, row)
	}
	fence := strings.Repeat("`", longest+1)
	if s == "" || strings.HasPrefix(s, "`") || strings.HasSuffix(s, "`") || strings.Trim(s, " ") == "" {
		s = " " + s + " "
	}
	return fence + s + fence
}
