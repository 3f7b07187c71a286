package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
)

// Check runs the checks of --check, and those of the web listener. It writes every error on a line of its own, or that
// there is none. It returns the exit code: 0 if nothing is wrong, and else 1. Nothing is started or changed.
func (p *Program) Check(ctx context.Context, w io.Writer, checks ...func() error) (code int) {
	all := append([]func() error{p.Web.Validate}, checks...)
	for _, address := range *p.Web.Toolkit.WebListenAddresses {
		all = append(all, func() error { return CheckListener(ctx, "--web.listen-address", address) })
	}
	for _, check := range all {
		for _, err := range eachError(check()) {
			code = 1
			fmt.Fprintf(w, "%s: %v\n", p.App.Name, err)
		}
	}
	if code == 0 {
		fmt.Fprintf(w, "%s: nothing wrong was found\n", p.App.Name)
	}
	return code
}

// eachError returns the errors that were joined to one.
func eachError(err error) []error {
	if err == nil {
		return nil
	}
	if joined, is := err.(interface{ Unwrap() []error }); is { //nolint:errorlint // only the outermost
		var out []error
		for _, e := range joined.Unwrap() {
			out = append(out, eachError(e)...)
		}
		return out
	}
	return []error{err}
}

// CheckListener returns an error if the program could not listen at an address that a flag names: host:port, or
// unix:PATH, which is not checked. An address that is in use is no error, since the program itself may be running.
func CheckListener(ctx context.Context, flag, address string) error {
	if strings.HasPrefix(address, "unix:") {
		return nil
	}
	var c net.ListenConfig
	l, err := c.Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w", flag, err)
	}
	return l.Close()
}
