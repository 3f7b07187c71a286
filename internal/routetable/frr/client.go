package frr

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"strings"
	"time"
)

// maxAnswer bounds an answer of a daemon in bytes. BGP describes a path with 600 bytes.
const maxAnswer = 64 << 20

// client asks daemons as vtysh does, by the sockets that they have for it. A process of vtysh would cost a hundred times as
// much as its question.
//
// A command ends with an octet that is 0, and an answer with three of them and the command's result, which is 0 if it
// succeeded (FRR 8.4.4, vtysh/vtysh.c: vtysh_client_run, and lib/vty.c: vtysh_read).
type client struct {
	dir     string
	timeout time.Duration
}

// errAbsent means that there is no socket of the daemon, so it does not run.
var errAbsent = errors.New("the daemon does not run")

// query asks a daemon for the output of commands, and returns that of the last one. Its error is errAbsent if the daemon
// has no socket.
func (c *client) query(ctx context.Context, daemon string, commands ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(c.dir, daemon+".vty"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w: %w", daemon, errAbsent, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", daemon, err)
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return nil, fmt.Errorf("%s: %w", daemon, err)
		}
	}
	var out []byte
	for _, command := range commands {
		if _, err := conn.Write(append([]byte(command), 0)); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", daemon, command, err)
		}
		if out, err = readAnswer(conn); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", daemon, command, err)
		}
	}
	return out, nil
}

// readAnswer reads one answer.
func readAnswer(conn net.Conn) ([]byte, error) {
	var out bytes.Buffer
	buf := make([]byte, 64<<10)
	for {
		n, err := conn.Read(buf)
		out.Write(buf[:n])
		b := out.Bytes()
		if end := len(b) - 4; end >= 0 && bytes.Equal(b[end:end+3], []byte{0, 0, 0}) {
			if b[end+3] != 0 {
				return nil, fmt.Errorf("result %d: %.200s", b[end+3], strings.TrimSpace(string(b[:end])))
			}
			return b[:end], nil
		}
		if err != nil {
			return nil, err
		}
		if len(b) > maxAnswer {
			return nil, fmt.Errorf("an answer of more than %d bytes", maxAnswer)
		}
	}
}
