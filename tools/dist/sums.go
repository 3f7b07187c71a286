package main

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// readKey reads the key that signs: PEM, PKCS #8, ECDSA.
func readKey(file string) (*ecdsa.PrivateKey, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, fmt.Errorf("%s: want a PEM block PRIVATE KEY (PKCS #8)", file)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	own, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s: a key of type %T, want ECDSA", file, key)
	}
	return own, nil
}

// writeSums writes SHA256SUMS over all files of the release, and SHA256SUMS.sig if there is a key. The signature is that
// of cosign sign-blob and of openssl dgst -sha256 -sign, in base64.
func (r *release) writeSums() error {
	files, err := os.ReadDir(r.output)
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, f := range files {
		sum, err := hashFile(filepath.Join(r.output, f.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sum, f.Name())
	}
	if err := os.WriteFile(filepath.Join(r.output, "SHA256SUMS"), []byte(sums.String()), 0o644); err != nil {
		return err
	}
	if r.key == nil {
		fmt.Println("SHA256SUMS is not signed, because there is no -key")
		return nil
	}
	hash := sha256.Sum256([]byte(sums.String()))
	signature, err := ecdsa.SignASN1(rand.Reader, r.key, hash[:])
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.output, "SHA256SUMS.sig"), []byte(base64.StdEncoding.EncodeToString(signature)+"\n"), 0o644)
}

func hashFile(name string) (sum []byte, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return h.Sum(nil), err
}
