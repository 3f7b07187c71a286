package ibsubnet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/graylink/graylink/internal/ibfabric"
)

// Adaptive adds to the readings of a source where switches choose between ports, from the file ibdiagnet2.far of ibdiagnet.
// It is read again when it was written anew. Without a file that can be read there is no reading: the tables alone would give
// one path where packets take several.
type Adaptive struct {
	Source
	// File is the output file.
	File string

	read  time.Time // when the file was written that was read last
	from  *ibfabric.Fabric
	with  *ibfabric.Fabric
	found []string
}

// Read implements Source.
func (a *Adaptive) Read(ctx context.Context) (ibfabric.Reading, error) {
	r, err := a.Source.Read(ctx)
	if err != nil {
		return r, err
	}
	info, err := os.Stat(a.File)
	if err != nil {
		return ibfabric.Reading{}, err
	}
	if r.Fabric != a.from || !info.ModTime().Equal(a.read) {
		if err := a.readFile(r.Fabric); err != nil {
			return ibfabric.Reading{}, err
		}
		// The groups may be those of before or after a change of the tables.
		r.Broken = r.Broken || !info.ModTime().Equal(a.read)
		a.from, a.read = r.Fabric, info.ModTime()
	}
	r.Fabric, r.Found = a.with, append(r.Found[:len(r.Found):len(r.Found)], a.found...)
	return r, nil
}

// readFile reads the groups of a fabric's switches.
func (a *Adaptive) readFile(f *ibfabric.Fabric) (err error) {
	file, err := os.Open(a.File)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	with, found, err := f.ReadAdaptive(a.File, file)
	if err != nil {
		return err
	}
	if a.with == nil || !with.Equal(a.with) {
		a.with = with
	}
	a.found = found
	return nil
}

// Origin implements Source.
func (a *Adaptive) Origin() string {
	return fmt.Sprintf("%s, with the groups of adaptive routing of %s", a.Source.Origin(), a.File)
}
