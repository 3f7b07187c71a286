package ibagent

import (
	"context"
	"time"
)

// budgetWarningEvery is the shortest time between two warnings about the budget of a switch.
const budgetWarningEvery = time.Hour

// countLoop counts what this process sends. It logs that once, and warns if a switch is sent more than its budget.
func (a *Agent) countLoop(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	var warned time.Time
	for ticks := 1; ; ticks++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := time.Now()
		a.load.Add(a.client, now)
		budget := float64(a.config.SwitchBudget)
		v := a.load.View(now)
		if ticks == 20 {
			a.log.Info("datagrams of this process", "per_second", v.PerSecond, "busiest_switch", v.Switch, "to_it_per_second", v.SwitchPerSecond, "budget", a.config.SwitchBudget)
		}
		if budget > 0 && ticks%10 == 0 && v.SwitchPerSecond > budget && now.Sub(warned) > budgetWarningEvery {
			warned = now
			a.log.Warn("a switch is sent more datagrams than its budget: a longer interval or fewer metrics are expected", "switch", v.Switch, "per_second", v.SwitchPerSecond,
				"budget", a.config.SwitchBudget, "interval", a.config.Interval)
		}
	}
}
