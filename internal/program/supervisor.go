package program

import (
	"log/slog"

	sd "github.com/coreos/go-systemd/v22/daemon"
)

// supervisor reports the state of the daemon to systemd, where systemd started it with Type=notify (sd_notify(3)).
// Elsewhere nothing is sent.
type supervisor struct {
	log    *slog.Logger
	ready  bool
	silent bool // a report failed, and the log has it
}

// reportHealthy reports that a check found nothing wrong. The first report ends the start; each feeds the watchdog
// (WatchdogSec=), so that a daemon whose checks hang is restarted.
func (s *supervisor) reportHealthy() {
	if s.ready {
		s.send(sd.SdNotifyWatchdog)
		return
	}
	s.ready = true
	s.send(sd.SdNotifyReady)
}

// aroundReload reports the begin and the end of a reload.
func (s *supervisor) aroundReload(reload func()) {
	s.send(sd.SdNotifyReloading + "\n" + sd.SdNotifyMonotonicUsec())
	reload()
	s.send(sd.SdNotifyReady)
}

// reportEnd reports that the daemon stops.
func (s *supervisor) reportEnd() { s.send(sd.SdNotifyStopping) }

func (s *supervisor) send(state string) {
	if _, err := sd.SdNotify(false, state); err != nil && !s.silent {
		s.silent = true
		s.log.Warn("cannot report the state to systemd", "err", err)
	}
}
