package fakesys

import (
	"context"
	"fmt"
	"time"
)

// Player plays a script on a tree.
type Player struct {
	tree   *Tree
	script *Script
	next   int
}

// NewPlayer plays a script from its start.
func NewPlayer(t *Tree, s *Script) *Player { return &Player{tree: t, script: s} }

// NextDue returns when the next step is due, counted from the script's start. It returns false if no step is left.
func (p *Player) NextDue() (time.Duration, bool) {
	if p.next == len(p.script.Steps) {
		return 0, false
	}
	return p.script.Steps[p.next].At, true
}

// RunDue takes all steps that are due when so much time has passed since the start, and returns them.
// A step that fails ends it with a *ScriptError. The next call continues after that step.
func (p *Player) RunDue(elapsed time.Duration) ([]Step, error) {
	p.tree.mu.Lock()
	defer p.tree.mu.Unlock()
	first := p.next
	for p.next < len(p.script.Steps) && p.script.Steps[p.next].At <= elapsed {
		s := p.script.Steps[p.next]
		p.next++
		p.tree.now = s.At
		if err := p.tree.applyOp(s.op); err != nil {
			return p.script.Steps[first : p.next-1], &ScriptError{p.script.File, s.Line, fmt.Errorf("%s: %w", s.Text, err)}
		}
	}
	return p.script.Steps[first:p.next], nil
}

// Play applies the steps when they are due and calls report for each. It returns when the script or ctx ends.
func (p *Player) Play(ctx context.Context, report func(Step)) error {
	start := time.Now()
	for {
		at, ok := p.NextDue()
		if !ok {
			return nil
		}
		timer := time.NewTimer(at - time.Since(start))
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
		done, err := p.RunDue(at)
		for _, s := range done {
			report(s)
		}
		if err != nil {
			return err
		}
	}
}
