package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the format
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers the format
)

// writePackages writes the packages of deploy/packages.
func (r *release) writePackages(context.Context) error {
	configs, err := filepath.Glob("deploy/packages/*.yaml")
	if err != nil {
		return err
	}
	if len(configs) == 0 {
		return fmt.Errorf("deploy/packages has no configuration")
	}
	for _, config := range configs {
		for i, arch := range r.arches {
			for _, format := range []string{"deb", "rpm"} {
				if err := r.writePackage(config, arch, format, i == 0); err != nil {
					return fmt.Errorf("%s, %s, %s: %w", config, arch, format, err)
				}
			}
		}
	}
	return nil
}

// writePackage writes one package. One that is the same for all architectures is written for the first one only.
func (r *release) writePackage(config, arch, format string, first bool) error {
	name := strings.TrimSuffix(filepath.Base(config), ".yaml")
	scripts, err := r.renderScripts(name)
	if err != nil {
		return err
	}
	values := map[string]string{"DIST_BIN": filepath.Join(r.work, "bin", arch), "DIST_MAN": filepath.Join(r.work, "man"), "DIST_SCRIPTS": scripts}
	value := func(key string) string { return values[key] }
	c, err := nfpm.ParseFileWithEnvMapping(config, value)
	if err != nil {
		return err
	}
	info, err := c.Get(format)
	if err != nil {
		return err
	}
	if info.Arch == "all" && !first {
		return nil
	}
	if info.Arch == "" || info.Arch == "amd64" && arch != "amd64" {
		info.Arch = arch
	}
	for _, script := range []*string{&info.Scripts.PreInstall, &info.Scripts.PostInstall, &info.Scripts.PreRemove, &info.Scripts.PostRemove} {
		*script = os.Expand(*script, value)
	}
	info.Platform, info.Version, info.Prerelease, info.Release, info.MTime = "linux", r.version, "", "1", r.at
	info.Maintainer, info.Vendor, info.License, info.Section, info.Priority = r.maintainer, r.vendor, "Apache-2.0", "net", "optional"
	info.Homepage = "https://github.com/graylink/graylink"
	info.RPM.BuildHost = "localhost"
	info.Contents = append(info.Contents, &files.Content{Source: "deploy/packages/copyright", Destination: "/usr/share/doc/" + info.Name + "/copyright", FileInfo: &files.ContentFileInfo{Mode: 0o644}})
	info = nfpm.WithDefaults(info)
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return err
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(r.output, packager.ConventionalFileName(info)))
	if err != nil {
		return err
	}
	if err := packager.Package(info, f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// renderScripts writes the scripts of a package, in which PACKAGE is the name of its service and STATE the service's
// directory of state, and returns their directory. The package node-rdma has the service of the package node.
func (r *release) renderScripts(name string) (string, error) {
	dir := filepath.Join(r.work, "scripts", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	files, err := filepath.Glob("deploy/packages/scripts/*")
	if err != nil {
		return "", err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		service, _, _ := strings.Cut(name, "-")
		rendered := strings.NewReplacer("${PACKAGE}", "graylink-"+service, "${STATE}", service).Replace(string(text))
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), []byte(rendered), 0o755); err != nil {
			return "", err
		}
	}
	return dir, nil
}
