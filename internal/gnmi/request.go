package gnmi

import (
	"fmt"
	"slices"

	gpb "github.com/openconfig/gnmi/proto/gnmi"
	"github.com/openconfig/gnmic/pkg/api"
	"github.com/openconfig/gnmic/pkg/api/path"
	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/internal/gnmi/preset"
)

// request is a subscription to all paths of one target of the prefix. The sessions of all switches send the same
// messages, which nothing changes.
type request struct {
	target   string
	samples  bool // some paths are sampled
	options  []api.GNMIOption
	messages map[gpb.Encoding]*gpb.SubscribeRequest
}

// buildRequests builds the subscriptions of the preset and of the rules, and the request of a poll.
func (a *Agent) buildRequests(rules []preset.Rule) error {
	containers := a.preset.Subscriptions
	if a.config.Sessions {
		containers = slices.Concat(containers, preset.SessionSubscriptions(a.preset.Name))
	}
	for _, x := range containers {
		p, err := path.ParsePath(x.Path)
		if err != nil {
			return fmt.Errorf("path %q: %w", x.Path, err)
		}
		a.requestPath(x.Target, p, x.OnChange)
	}
	for _, r := range rules {
		if slices.ContainsFunc(containers, func(x preset.Subscription) bool {
			return x.Target == r.Target && len(r.Path) > len(x.Path) && r.Path[:len(x.Path)+1] == x.Path+"/"
		}) {
			continue
		}
		p, err := r.RequestPath()
		if err != nil {
			return fmt.Errorf("path %q: %w", r.Path, err)
		}
		a.requestPath(r.Target, p, r.OnChange)
	}
	var err error
	for _, r := range a.requests {
		r.messages = map[gpb.Encoding]*gpb.SubscribeRequest{}
		for _, e := range a.encodings {
			if r.messages[e], err = api.NewSubscribeRequest(append(r.options, api.Encoding(e.String()))...); err != nil {
				return err
			}
		}
	}
	a.poll, err = api.NewSubscribePollRequest()
	return err
}

// requestPath adds a path to the request of a target of the prefix.
func (a *Agent) requestPath(target string, p *gpb.Path, onChange bool) {
	i := slices.IndexFunc(a.requests, func(r *request) bool { return r.target == target })
	if i < 0 {
		i = len(a.requests)
		a.requests = append(a.requests, &request{target: target, options: []api.GNMIOption{api.Target(target), api.SubscriptionListMode(a.mode.String())}})
	}
	options := []api.GNMIOption{parsedPath(p)}
	switch {
	case a.mode != gpb.SubscriptionList_STREAM:
	case onChange:
		options = append(options, api.SubscriptionModeON_CHANGE())
	default:
		options = append(options, api.SubscriptionModeSAMPLE(), api.SampleInterval(a.config.Interval))
	}
	r := a.requests[i]
	r.options = append(r.options, api.Subscription(options...))
	r.samples = r.samples || !onChange
}

// parsedPath sets the path of a subscription. The library's own option takes text, and its text of a path does not
// escape the brackets in keys.
func parsedPath(p *gpb.Path) api.GNMIOption {
	return func(m proto.Message) error {
		x, ok := m.(*gpb.Subscription)
		if !ok {
			return fmt.Errorf("%w: %T", api.ErrInvalidMsgType, m)
		}
		x.Path = p
		return nil
	}
}
