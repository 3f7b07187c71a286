package main

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/agentapi/client"
	"github.com/graylink/graylink/internal/nodeagent"
)

// enrollFlags say how this node gets its certificate from the coordinator.
type enrollFlags struct {
	wanted          bool
	directory       string
	joinTokenFile   string
	kubernetesToken string
}

func (f *enrollFlags) add(app *kingpin.Application) {
	app.Flag("enroll", "Get this node's certificate from the coordinator, by a token, and renew it. --coordinator.cert and --coordinator.key are not given then. --coordinator.ca is needed unless a join token confirms the coordinator.").BoolVar(&f.wanted)
	app.Flag("enroll.directory", "Directory of the certificate and its key (node.pem) and of the coordinator's authorities (ca.crt).").Default("/var/lib/graylink/node/pki").StringVar(&f.directory)
	app.Flag("enroll.join-token-file", "File of a join token, or - for standard input. It is read when there is no certificate that is good for now, and is of no use afterwards.").StringVar(&f.joinTokenFile)
	app.Flag("enroll.kubernetes-token-file", "File of a token of the pod's service account, with the coordinator's audience. It needs --node.name, which is the name of the Node.").StringVar(&f.kubernetesToken)
}

// validate returns an error if flags exclude each other, or are missing beside others.
func (f *enrollFlags) validate(o *nodeagent.FleetOptions) error {
	switch {
	case len(o.Coordinator.Addresses) == 0:
		return errors.New("--enroll needs --coordinator.address")
	case o.Coordinator.Files.Cert != "" || o.Coordinator.Files.Key != "":
		return errors.New("--enroll keeps the certificate and the key itself: --coordinator.cert and --coordinator.key cannot be given")
	case f.joinTokenFile != "" && f.kubernetesToken != "":
		return errors.New("--enroll.join-token-file and --enroll.kubernetes-token-file exclude each other")
	case f.kubernetesToken != "" && (o.Node == "" || o.Coordinator.Files.CA == ""):
		return errors.New("--enroll.kubernetes-token-file needs --node.name and --coordinator.ca")
	}
	return nil
}

// enrollment returns what keeps the certificate, or nil if that is not wanted.
func (f *enrollFlags) enrollment(o *nodeagent.FleetOptions, log *slog.Logger) *client.Enrollment {
	if !f.wanted {
		return nil
	}
	e := &client.Enrollment{Addresses: o.Coordinator.Addresses, ServerName: o.Coordinator.ServerName, Directory: f.directory, CA: o.Coordinator.Files.CA,
		Node: o.Node, KubernetesTokenFile: f.kubernetesToken, Log: log}
	switch f.joinTokenFile {
	case "":
	case "-":
		e.JoinToken = sync.OnceValues(func() (string, error) { return readToken(os.Stdin) })
	default:
		e.JoinToken = f.readJoinToken
	}
	return e
}

// maxTokenFile bounds what is read of a join token, in octets.
const maxTokenFile = 4 << 10

// readJoinToken returns the text of the join token's file.
func (f *enrollFlags) readJoinToken() (string, error) {
	file, err := os.Open(f.joinTokenFile)
	if err != nil {
		return "", err
	}
	defer file.Close()
	return readToken(file)
}

func readToken(in io.Reader) (string, error) {
	b, err := io.ReadAll(io.LimitReader(in, maxTokenFile))
	return string(b), err
}
