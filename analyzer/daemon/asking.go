package daemon

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/graylink/graylink/analyzer/questions"
	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/agentapi/client"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/pki"
)

// coordinatorAsker asks a coordinator over gRPC. It implements questions.Asker.
type coordinatorAsker struct{ client *client.Asker }

// NewAsker returns what asks the coordinator of a configuration. It fails if the certificate files cannot be used.
func (a *AgentPort) NewAsker(log *slog.Logger) (questions.Asker, error) {
	keeper, err := a.openCertificates(log)
	if err != nil {
		return nil, err
	}
	c, err := client.NewAsker(a.addresses(), a.ServerName, keeper)
	if err != nil {
		return nil, err
	}
	return coordinatorAsker{c}, nil
}

// openCertificates opens the certificates that a coordinator is shown.
func (a *AgentPort) openCertificates(log *slog.Logger) (*pki.Keeper, error) {
	return pki.Open(a.files(), func(err error) { log.Error("cannot reload the certificates", "err", err) })
}

// Ask implements questions.Asker.
func (a coordinatorAsker) Ask(ctx context.Context, q questions.Question) (questions.Answer, error) {
	m := &agentapi.Question{Incident: q.Incident}
	for _, w := range q.Wanted {
		m.Wanted = append(m.Wanted, &agentapi.WantedFlows{Src: w.Src, Dst: w.Dst, Class: uint32(q.Class), Flows: uint32(w.Flows)})
	}
	for _, h := range q.Hops {
		m.Hops = append(m.Hops, &agentapi.HopProbe{Flow: h.Flow.String(), Hop: uint32(h.Hop)})
	}
	got, err := a.client.Ask(ctx, m)
	if err != nil {
		return questions.Answer{}, err
	}
	out := questions.Answer{Refused: got.GetRefused()}
	for _, text := range got.GetFlows() {
		f, err := fabric.ParseFlow(text)
		if err != nil {
			return out, fmt.Errorf("answer of the coordinator: %w", err)
		}
		out.Flows = append(out.Flows, f)
	}
	for _, h := range got.GetHops() {
		f, err := fabric.ParseFlow(h.GetFlow())
		if err != nil {
			return out, fmt.Errorf("answer of the coordinator: %w", err)
		}
		out.Hops = append(out.Hops, questions.HopID{Flow: f, Hop: int(h.GetHop())})
	}
	return out, nil
}
