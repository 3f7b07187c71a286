// Package durable replaces files in one step. After a crash of the process or of the machine a file has
// its complete old content or its complete new content.
package durable

import (
	"errors"
	"os"
	"path/filepath"
)

// WriteFile replaces the content of a file. It writes a temporary file with mode 0600 beside it, waits
// until that is on the disk, renames it, and waits until the directory is on the disk. When it fails,
// the old file stays. If only the last step failed, the new file is there, and a crash of the machine
// may restore the old one.
func WriteFile(path string, content []byte) error { return writeFile(path, content, 0o600) }

// WritePublicFile does what WriteFile does, for a file with mode 0644 that other users read.
func WritePublicFile(path string, content []byte) error { return writeFile(path, content, 0o644) }

func writeFile(path string, content []byte, mode os.FileMode) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return err
	}
	return syncDirectory(dir)
}

// syncDirectory waits until the entries of a directory are on the disk.
func syncDirectory(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// AppendFile appends to a file, which it creates with mode 0600 if it is missing, and waits until the content is on the disk.
// When it fails, a part of the content may be at the end of the file.
func AppendFile(path string, content []byte) error {
	_, err := os.Lstat(path)
	created := errors.Is(err, os.ErrNotExist)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil || !created {
		return err
	}
	return syncDirectory(filepath.Dir(path))
}
