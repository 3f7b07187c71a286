package main

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/CycloneDX/cyclonedx-go"
)

// writeBills writes the bill of materials of each binary: the modules that the linker recorded in it.
func (r *release) writeBills(context.Context) error {
	for _, arch := range r.arches {
		for _, p := range programs {
			info, err := buildinfo.ReadFile(r.binary(arch, p.name))
			if err != nil {
				return err
			}
			file := filepath.Join(r.output, fmt.Sprintf("%s-%s-linux-%s.cdx.json", p.name, r.version[1:], arch))
			if err := r.writeBill(file, p.name, info); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *release) writeBill(file, program string, info *buildinfo.BuildInfo) (err error) {
	bom := cyclonedx.NewBOM()
	bom.SerialNumber = "" // a random one would differ from build to build
	bom.Metadata = &cyclonedx.Metadata{Timestamp: r.at.Format("2006-01-02T15:04:05Z07:00"), Component: &cyclonedx.Component{
		BOMRef: program, Type: cyclonedx.ComponentTypeApplication, Name: program, Version: r.version[1:], PackageURL: "pkg:golang/" + info.Main.Path + "@" + r.version}}
	components := []cyclonedx.Component{{BOMRef: "std", Type: cyclonedx.ComponentTypeLibrary, Name: "std", Version: info.GoVersion, PackageURL: "pkg:golang/std@" + info.GoVersion}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		url := "pkg:golang/" + m.Path + "@" + m.Version
		components = append(components, cyclonedx.Component{BOMRef: url, Type: cyclonedx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: url})
	}
	bom.Components = &components
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return cyclonedx.NewBOMEncoder(f, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
}
