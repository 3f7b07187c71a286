package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/pki"
)

func addCert(app *kingpin.Application, commands map[string]command) {
	cert := app.Command("cert", "Make certificates for a lab or a first try. Production has an infrastructure of its own: this one keeps its authority's key in a file, and revokes nothing.")
	dir := cert.Flag("dir", "Directory of the files.").Default(".").String()
	ca := cert.Command("ca", "Make an authority: ca.crt and ca.key. Existing files are left alone.")
	name := ca.Flag("name", "Its name.").Default("graylink lab").String()
	caDays := ca.Flag("days", "Days it is good for.").Default("365").Int()
	commands[ca.FullCommand()] = func(context.Context) error {
		p, err := pki.NewAuthority(*name, daysToDuration(*caDays), time.Now())
		if err != nil {
			return err
		}
		return writePair(*dir, "ca", p, false)
	}
	issue := cert.Command("issue", "Make certificates, of use as client and as server, signed by ca.key: NAME.crt and NAME.key.")
	names := issue.Arg("name", "Node, or host name of the coordinator, that the certificate is for.").Required().Strings()
	also := issue.Flag("also", "Further host name or address that it is good for; with a single NAME only. May be given several times.").Strings()
	issueDays := issue.Flag("days", "Days it is good for.").Default("30").Int()
	replace := issue.Flag("replace", "Replace existing files; daemons that use them take the new ones at once.").Bool()
	commands[issue.FullCommand()] = func(context.Context) error {
		if len(*also) > 0 && len(*names) > 1 {
			return errors.New("--also goes with a single NAME")
		}
		authority := pki.Pair{}
		var err error
		if authority.Cert, err = os.ReadFile(filepath.Join(*dir, "ca.crt")); err != nil {
			return fmt.Errorf("the authority, made by graylink cert ca: %w", err)
		}
		if authority.Key, err = os.ReadFile(filepath.Join(*dir, "ca.key")); err != nil {
			return fmt.Errorf("the authority, made by graylink cert ca: %w", err)
		}
		for _, n := range *names {
			if err := fabric.CheckName(n); err != nil {
				return err
			}
			if n == "ca" {
				return errors.New(`"ca" is the authority's own`)
			}
			p, err := pki.Issue(authority, append([]string{n}, *also...), daysToDuration(*issueDays), time.Now())
			if err != nil {
				return err
			}
			if err := writePair(*dir, n, p, *replace); err != nil {
				return err
			}
		}
		return nil
	}
}

func daysToDuration(n int) time.Duration { return time.Duration(n) * 24 * time.Hour }

// writePair writes NAME.crt and NAME.key.
func writePair(dir, name string, p pki.Pair, replace bool) error {
	for _, f := range []struct {
		ext  string
		data []byte
		mode os.FileMode
	}{{".key", p.Key, 0o600}, {".crt", p.Cert, 0o644}} {
		path := filepath.Join(dir, name+f.ext)
		target := path
		if replace {
			target += ".new"
			if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		file, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.mode)
		if err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		_, err = file.Write(f.data)
		if err := errors.Join(err, file.Close()); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		if replace {
			if err := os.Rename(target, path); err != nil {
				return err
			}
		}
		fmt.Println(path)
	}
	return nil
}
