package webserver

import (
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/exporter-toolkit/web"
)

// Intervals of the checks of the web configuration after failed handshakes.
const (
	checkEvery   = time.Second // limits the checks, since clients can make any number of handshakes fail
	warningEvery = time.Hour   // interval for the same error
)

// errorLog receives the messages of net/http. Clients cause most of them, so they are logged at the
// debug level. After a failed handshake it checks the web configuration, which is read at every
// handshake. An error in it, or in the files that it names, is logged once.
type errorLog struct {
	log       *slog.Logger
	webConfig string

	mu              sync.Mutex
	checked, warned time.Time
	warning         string
}

// Write implements io.Writer.
func (l *errorLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	l.log.Debug(text)
	if strings.HasPrefix(text, "http: TLS handshake error") { // net/http, server.go
		l.check(time.Now())
	}
	return len(line), nil
}

// check logs an error in the web configuration.
func (l *errorLog) check(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.checked) < checkEvery {
		return
	}
	l.checked = now
	err := web.Validate(l.webConfig)
	if err == nil {
		l.warning = ""
		return
	}
	if err.Error() != l.warning || now.Sub(l.warned) >= warningEvery {
		l.warning, l.warned = err.Error(), now
		l.log.Error("the web listener refuses all connections: --web.config.file cannot be used", "err", err)
	}
}
