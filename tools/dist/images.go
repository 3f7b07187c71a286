package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// plainUser is the user of images that need no capability.
const plainUser = "65532:65532"

// repository begins the names of images in archives. A registry has names of its own.
const repository = "graylink/"

// refName is the annotation by which programs find an image in a layout (OCI image specification, annotations).
const refName = "org.opencontainers.image.ref.name"

// writeImages writes one OCI layout of all images for all architectures, and an archive for docker load for each image
// and architecture. An image has one program, and nothing else.
func (r *release) writeImages(context.Context) error {
	path, err := layout.Write(filepath.Join(r.work, "oci"), empty.Index)
	if err != nil {
		return err
	}
	for _, p := range programs {
		if !p.image {
			continue
		}
		index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
		for _, arch := range r.arches {
			image, err := r.image(p, arch)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", p.name, arch, err)
			}
			index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
			tag, err := name.NewTag(repository + p.name + ":" + r.version)
			if err != nil {
				return err
			}
			if err := tarball.WriteToFile(filepath.Join(r.output, fmt.Sprintf("%s-image-%s-%s.tar", p.name, r.version[1:], arch)), tag, image); err != nil {
				return err
			}
		}
		if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{refName: p.name + ":" + r.version})); err != nil {
			return err
		}
	}
	return r.archiveLayout(string(path))
}

// archiveLayout writes the layout as one archive.
func (r *release) archiveLayout(dir string) error {
	var entries []entry
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		entries = append(entries, entry{name, path, 0o644})
		return err
	})
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(r.output, fmt.Sprintf("graylink-images-%s.oci.tar", r.version[1:])))
	if err != nil {
		return err
	}
	if err := r.writeTar(f, entries); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// image returns the image of a program.
func (r *release) image(p program, arch string) (v1.Image, error) {
	var files bytes.Buffer
	if err := r.writeTar(&files, []entry{{"usr/bin/" + p.name, r.binary(arch, p.name), 0o755}}); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files.Bytes())), nil }, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: r.at}, CreatedBy: "make dist"}}); err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Architecture, config.OS, config.Created, config.Author = arch, "linux", v1.Time{Time: r.at}, r.vendor
	config.Config.Entrypoint = []string{"/usr/bin/" + p.name}
	config.Config.User = plainUser
	if p.root {
		config.Config.User = "0:0"
	}
	config.Config.Labels = map[string]string{"org.opencontainers.image.title": p.name, "org.opencontainers.image.version": r.version[1:],
		"org.opencontainers.image.revision": r.commit, "org.opencontainers.image.vendor": r.vendor, "org.opencontainers.image.licenses": "Apache-2.0",
		"org.opencontainers.image.source": "https://github.com/graylink/graylink"}
	return mutate.ConfigFile(image, config)
}
