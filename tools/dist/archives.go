package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// compress returns the text in the format of gzip, without the time and the name of a file.
func (r *release) compress(text []byte) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(text); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// entry is a file of an archive.
type entry struct {
	name, source string
	mode         int64
}

// writeTar writes an archive whose entries belong to root and have the time of the release.
func (r *release) writeTar(w io.Writer, entries []entry) error {
	t := tar.NewWriter(w)
	for _, e := range entries {
		if err := r.addFile(t, e); err != nil {
			return err
		}
	}
	return t.Close()
}

func (r *release) addFile(t *tar.Writer, e entry) error {
	f, err := os.Open(e.source)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := t.WriteHeader(&tar.Header{Name: e.name, Mode: e.mode, Size: info.Size(), ModTime: r.at, Typeflag: tar.TypeReg, Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err = io.Copy(t, f)
	return err
}

// writeArchives writes one archive of all programs for each architecture.
func (r *release) writeArchives(context.Context) error {
	for _, arch := range r.arches {
		top := fmt.Sprintf("graylink-%s-linux-%s", r.version[1:], arch)
		entries := []entry{{top + "/LICENSE", "LICENSE", 0o644}, {top + "/README.md", "README.md", 0o644}, {top + "/CHANGELOG.md", "CHANGELOG.md", 0o644},
			{top + "/COPYRIGHT", "deploy/packages/copyright", 0o644}}
		for _, p := range programs {
			entries = append(entries, entry{top + "/bin/" + p.name, r.binary(arch, p.name), 0o755})
			if p.manual {
				entries = append(entries, entry{top + "/man/" + p.name + ".1.gz", filepath.Join(r.work, "man", p.name+".1.gz"), 0o644})
			}
		}
		for _, dir := range []string{"deploy/systemd", "deploy/prometheus", "deploy/alertmanager", "deploy/analyzer", "deploy/otelcol", "rules", "dashboards/json"} {
			// WalkDir goes through the files in the order of their names.
			err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.Type().IsRegular() && filepath.Ext(path) != ".go" && !strings.HasSuffix(path, "_test.yaml") {
					entries = append(entries, entry{top + "/" + path, path, 0o644})
				}
				return err
			})
			if err != nil {
				return err
			}
		}
		if err := r.writeCompressed(filepath.Join(r.output, top+".tar.gz"), entries); err != nil {
			return err
		}
	}
	return nil
}

func (r *release) writeCompressed(file string, entries []entry) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z, err := gzip.NewWriterLevel(f, gzip.DefaultCompression)
	if err != nil {
		return err
	}
	if err := r.writeTar(z, entries); err != nil {
		return err
	}
	return z.Close()
}
