package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/jointoken"
	"github.com/graylink/graylink/internal/pki"
)

func addJoinToken(app *kingpin.Application, commands map[string]command) {
	c := app.Command("join-token", "Make join tokens and print them, one a line. With its token, graylink-node --enroll gets the certificate of one node, once. The coordinator reads their hashes from --file, its --enroll.join-token-file. The tokens themselves are secrets, and are kept nowhere.")
	nodes := c.Arg("node", "Name of a node in the topology.").Required().Strings()
	file := c.Flag("file", "File to which the hashes of the tokens are added. It is created when it is missing.").Required().String()
	ca := c.Flag("ca", "PEM file of the authority that the coordinator's certificate comes from, which is the first one of the coordinator's --enroll.ca-cert. The tokens have its fingerprint, by which nodes recognize the coordinator.").Required().String()
	life := c.Flag("for", "How long the tokens are good for.").Default("24h").Duration()
	commands[c.FullCommand()] = func(context.Context) error {
		if *life <= 0 {
			return fmt.Errorf("--for %v: want a positive duration", *life)
		}
		tokens, entries, err := newJoinTokens(*nodes, *ca, time.Now().Add(*life))
		if err != nil {
			return err
		}
		// The tokens are of no use before the coordinator can read their hashes.
		if err := appendFile(*file, entries); err != nil {
			return err
		}
		_, err = os.Stdout.WriteString(tokens)
		return err
	}
}

// newJoinTokens returns the texts of tokens for nodes, and the lines of their entries.
func newJoinTokens(nodes []string, ca string, expires time.Time) (tokens, entries string, err error) {
	text, err := os.ReadFile(ca)
	if err != nil {
		return "", "", err
	}
	authorities := pki.ParseCertificates(text)
	if len(authorities) == 0 {
		return "", "", fmt.Errorf("%s: holds no PEM certificate", ca)
	}
	for _, n := range nodes {
		t, err := jointoken.New(n, authorities[0])
		if err != nil {
			return "", "", err
		}
		tokens += t.String() + "\n"
		entries += jointoken.Entry{Node: n, Expires: expires, Hash: t.Hash()}.String()
	}
	return tokens, entries, nil
}

// appendFile adds text to a file in one write. Everybody may read the file: hashes give no token away.
func appendFile(name, text string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Sync(), f.Close())
}
